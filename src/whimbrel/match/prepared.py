"""Prepared interests: the content filter of a subscription, joined with its topic filter, ready for the index.

Rule: the filter is parsed where it enters (``language.filters.Filter``); subject and content are joined as trees.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from whimbrel.errors import FilterError
from whimbrel.language.ast import Predicate
from whimbrel.language.codes import ErrorCode
from whimbrel.language.filters import Filter, can_be_read
from whimbrel.language.needs import names
from whimbrel.language.printer import print_filter
from whimbrel.match.index.delta import ReadFilter, anchors_of, reading, shared_anchor
from whimbrel.match.interest import Interest
from whimbrel.match.subjects import subject_filter, with_subject
from whimbrel.match.topics import check_topic_filter

__all__ = [
    "NEVER",
    "Indexed",
    "PreparedFilter",
    "ReadInterest",
    "check_names",
    "check_stored",
    "checked_content",
    "join",
    "prepare",
]


class ReadInterest(NamedTuple):
    """An interest with a content filter, read and ready to be added."""

    interest: Interest
    indexed: Indexed
    read: ReadFilter


class PreparedFilter(Filter):
    """A filter with what an index worked out of it for one subscription, before the subscription is added."""

    __slots__ = ("prepared",)

    def __init__(self, content: Filter, prepared: ReadInterest | None) -> None:
        """Copy *content*, which is not parsed again."""
        self.text, self.tree, self._verdict, self.prepared = content.text, content.tree, None, prepared


class Indexed(NamedTuple):
    """The filter that stands in the content index for a topic filter and a content filter."""

    text: str
    tree: Predicate
    has_subject: bool


NEVER = "never == 1 && never == 2"
"""A filter that matches nothing: what stands for one that was accepted once and cannot be read any more."""


def checked_content(interest: Interest) -> Filter | None:
    """Return the content filter of *interest*, or raise what ``Matcher.add`` raises."""
    content = interest.content()
    check_names(content)
    if interest.subject_filter is not None:
        check_topic_filter(interest.subject_filter)
    return content


def join(subject: str | None, content: Filter) -> Indexed:
    """Return subject and content as one filter, or the content alone where the two are too much for one."""
    if subject is not None:
        tree = with_subject(check_topic_filter(subject), content.tree)
        text = print_filter(tree)
        if can_be_read(tree, text):
            return Indexed(text, tree, has_subject=True)
    return Indexed(content.text, content.tree, has_subject=False)


def prepare(interest: Interest, content: Filter) -> Generator[None, None, ReadInterest]:
    """Prepare what the index keeps of an interest with a content filter, yielding after each step.

    A publication must show the subject, whatever the content says: where the topic filter names a level, or how many
    there are, the filter hangs on that. Otherwise it hangs where the content alone would.
    """
    subject = interest.subject_filter
    indexed = join(subject, content)
    yield
    anchor = shared_anchor(subject_filter(subject)) if subject is not None and indexed.has_subject else None
    anchors = anchors_of(content.text, content.tree) if anchor is None else [anchor]
    yield
    return ReadInterest(interest, indexed, (yield from reading(indexed.text, indexed.tree, anchors)))


def check_stored(text: str | None) -> None:
    """Raise ``FilterError`` for what is no filter in any version, or speaks of the names that only the matcher uses.

    A log may have one: an older version accepted it. Readers of a log check this first.
    """
    if text is not None:
        check_names(Filter(text, is_stored=True))


def check_names(content: Filter | None) -> None:
    """Raise ``FilterError`` for a filter over the names that only the matcher uses: they begin with U+0000."""
    if content is None:
        return
    text, tree = content.text, content.tree
    if "\0" in text and any(name.startswith("\0") for name in names(tree)):
        at = text.find("\\\0")
        reason = "a name that begins with U+0000, as no attribute's does"
        raise FilterError(ErrorCode.TOKEN, reason, text, at, at + 2)
