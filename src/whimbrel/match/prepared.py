"""Prepared filters: the content filter of a subscription, joined with its topic filter, ready for the content index.

Rule: a filter is parsed once, where it enters the system (``language.filters.Filter``). The topic filter becomes a
syntax tree too, and the two trees are joined, not the texts.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from whimbrel.errors import FilterError
from whimbrel.language.ast import Predicate
from whimbrel.language.codes import ErrorCode
from whimbrel.language.filters import Filter, can_be_read, is_surely_readable, recognise
from whimbrel.language.needs import names
from whimbrel.language.printer import print_filter
from whimbrel.match.index.delta import ReadFilter, anchors_of, reading, shared_anchor
from whimbrel.match.interest import Interest
from whimbrel.match.subjects import subject_filter, subject_text, with_subject
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
    "join_text",
    "prepare",
]


class ReadInterest(NamedTuple):
    """A subscription (*interest*) with its content filter prepared, so that the content index can add it quickly."""

    interest: Interest
    indexed: Indexed
    read: ReadFilter


class PreparedFilter(Filter):
    """A parsed content filter, together with its subscription prepared for the index (``ReadInterest``)."""

    __slots__ = ("prepared",)

    def __init__(self, content: Filter, prepared: ReadInterest | None) -> None:
        """Copy the parsed filter *content* without parsing it again; *prepared* is its form for the content index."""
        self.text, self.tree, self._verdict, self.prepared = content.text, content.tree, None, prepared


class Indexed(NamedTuple):
    """A filter as the content index stores it: joined with the topic filter (*has_subject*), or without it."""

    text: str
    tree: Predicate
    has_subject: bool


NEVER = "never == 1 && never == 2"
"""A filter that matches nothing: it replaces a stored filter that can no longer be read."""


def checked_content(interest: Interest) -> Filter | None:
    """Check both filters of *interest*, with the errors of ``Matcher.add``; return the content filter, or None."""
    content = interest.content()
    check_names(content)
    if interest.subject_filter is not None:
        check_topic_filter(interest.subject_filter)
    return content


def join(subject: str | None, content: Filter) -> Indexed:
    """Return topic filter and content filter joined, or the content filter alone if the result is too large."""
    if subject is not None:
        tree = with_subject(check_topic_filter(subject), content.tree)
        text = print_filter(tree)
        if can_be_read(tree, text):
            return Indexed(text, tree, has_subject=True)
    return Indexed(content.text, content.tree, has_subject=False)


def join_text(subject: str | None, text: str) -> tuple[str, bool]:
    """Return the text of ``join`` for a stored content filter, and whether it has the topic filter.

    Raise ``FilterError`` if *text* is not valid as a stored filter. A text of a known shape is not parsed: a filter in
    parentheses is an operand, and the index checks its constants.
    """
    if subject is not None and "\0" not in text and recognise(text) is not None:
        joined = f"{subject_text(check_topic_filter(subject))} && ({text})"
        if is_surely_readable(joined):
            return joined, True
    content = Filter(text, is_stored=True)
    check_names(content)
    indexed = join(subject, content)
    return indexed.text, indexed.has_subject


def prepare(interest: Interest, content: Filter) -> Generator[None, None, ReadInterest]:
    """Prepare a subscription with a content filter for the index, yielding after each step that takes long.

    The index looks filters up by *anchors*: equalities that an event must fulfil. If the topic filter fixes a level or
    the number of levels, that equality is the only anchor. Otherwise the anchors are those of the content filter.
    """
    subject = interest.subject_filter
    indexed = join(subject, content)
    yield
    anchor = shared_anchor(subject_filter(subject)) if subject is not None and indexed.has_subject else None
    anchors = anchors_of(content.text, content.tree) if anchor is None else [anchor]
    yield
    return ReadInterest(interest, indexed, (yield from reading(indexed.text, indexed.tree, anchors)))


def check_stored(text: str | None) -> None:
    """Raise ``FilterError`` if *text* is not valid as a stored filter, or uses names reserved for the matcher.

    A log may have such a filter, which an older version accepted. Readers of a log call this first.
    """
    if text is not None:
        check_names(Filter(text, is_stored=True))


def check_names(content: Filter | None) -> None:
    """Raise ``FilterError`` for a filter that uses names reserved for the matcher: they begin with U+0000."""
    if content is None:
        return
    text, tree = content.text, content.tree
    if "\0" in text and any(name.startswith("\0") for name in names(tree)):
        at = text.find("\\\0")
        reason = "a name that begins with U+0000, as no attribute's does"
        raise FilterError(ErrorCode.TOKEN, reason, text, at, at + 2)
