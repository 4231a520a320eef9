r"""Subjects as content: a topic filter beside a content filter becomes a part of the content filter.

``ward/+/pulse`` with ``pulse > 110`` is indexed as one filter over the levels of the subject and the attributes. So the
more selective of both, subject or content, finds the subscription. A topic filter without a wildcard compares the whole
subject: one comparison instead of one per level.
Rule: the subject and its levels become attributes whose names begin with U+0000; a notification's own names cannot.
"""

from __future__ import annotations

from functools import lru_cache

from whimbrel.language.ast import (
    And,
    Compare,
    CompareOp,
    Literal,
    Name,
    Not,
    Pattern,
    PatternFunction,
    Predicate,
)
from whimbrel.language.printer import print_operand, print_string
from whimbrel.model.attributes import Attributes, FrozenAttributes, Scalar

__all__ = ["is_exact", "subject_attributes", "subject_filter", "subject_text", "with_subject"]

_WILDCARDS = ("+", "#")
_MAX_LEVELS = 8
"""Levels that are indexed; a longer topic filter with wildcards is checked again by ``topics.matches``."""

_WHOLE = Name("\0subject")
_COUNT = Name("\0levels")


def _level(number: int) -> Name:
    return Name(f"\0level.{number}")


def with_subject(topic_filter: str, content: Predicate) -> Predicate:
    """Return the filter that is true where *content* is true and *topic_filter* admits the subject.

    Trees are combined, never texts: a text could close a parenthesis that it did not open.
    """
    return And((*subject_filter(topic_filter), content))


@lru_cache(maxsize=4_096)
def subject_filter(topic_filter: str) -> tuple[Predicate, ...]:
    """Return conditions on ``subject_attributes`` that are all true of each subject that *topic_filter* admits.

    They may be true of other subjects, too, unless ``is_exact`` returns True.
    """
    levels = topic_filter.split("/")
    if not _has_wildcard(levels):
        return (Compare(CompareOp.EQ, _WHOLE, Literal(topic_filter)),)
    is_open = levels[-1] == "#"
    named = levels[:-1] if is_open else levels
    parts: list[Predicate] = [
        Compare(CompareOp.EQ, _level(number), Literal(level))
        for number, level in enumerate(named[:_MAX_LEVELS])
        if level != "+"
    ]
    # ``a/#`` admits the subject ``a`` as well as everything below it
    count = CompareOp.GE if is_open else CompareOp.EQ
    parts.append(Compare(count, _COUNT, Literal(max(1, len(named)))))
    if levels[0] in {"+", "#"}:
        parts.append(Not(Pattern(PatternFunction.BEGINS_WITH, _level(0), ("$",))))
    return tuple(parts)


def subject_text(topic_filter: str) -> str:
    """Return the conditions of ``subject_filter`` as text, joined by ``&&``.

    Topic filters with wildcards at the same levels differ only in strings, so their text is printed once.
    """
    levels = topic_filter.split("/")
    if not _has_wildcard(levels):
        form, places = _text_form(("",))
        return form % print_string(topic_filter)
    form, places = _text_form(tuple([level if level in _WILDCARDS else "" for level in levels]))
    return form % tuple([print_string(levels[place]) for place in places])


@lru_cache(maxsize=4_096)
def _text_form(levels: tuple[str, ...]) -> tuple[str, tuple[int, ...]]:
    """Return a format for the text of topic filters with wildcards at *levels*, and the levels that it needs."""
    marks = [level or f"mark{place}" for place, level in enumerate(levels)]
    text = " && ".join(map(print_operand, subject_filter("/".join(marks))))
    places = tuple(place for place, mark in enumerate(marks) if f"'{mark}'" in text and mark not in _WILDCARDS)
    for place in places:
        text = text.replace(f"'{marks[place]}'", "%s")
    return text, places


def is_exact(topic_filter: str) -> bool:
    """Return True only if the conditions from ``subject_filter`` are true of no subject that the filter does not admit.

    If False, a subject of which they are true must also be checked with ``topics.matches``.
    """
    levels = topic_filter.split("/")
    return len(levels) <= _MAX_LEVELS or not _has_wildcard(levels)


def _has_wildcard(levels: list[str]) -> bool:
    return "+" in levels or levels[-1] == "#"


@lru_cache(maxsize=4_096)
def subject_attributes(subject: str) -> Attributes:
    """Return *subject* as attributes for filters: the whole, the first levels, and the number of all levels."""
    levels = subject.split("/")
    found: dict[str, Scalar] = {_level(number).name: level for number, level in enumerate(levels[:_MAX_LEVELS])}
    found[_WHOLE.name], found[_COUNT.name] = subject, len(levels)
    return FrozenAttributes(found)
