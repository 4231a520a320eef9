"""Select: one filter over what is stored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.language.filters import Filter, parse
from whimbrel.match.select import select
from whimbrel.model.notification import Notification


def _stored() -> list[Notification]:
    rows: list[tuple[str | None, dict[str, object]]] = [
        ("ward/3/pulse", {"pulse": 120}),
        ("ward/4/pulse", {"pulse": 60}),
        ("ward/3/door", {"open": 1}),
        (None, {"pulse": 130}),
        ("$whimbrel/report", {"pulse": 140}),
    ]
    return [
        Notification(node="n1", seq=seq, published_at=0, subject=subject, attributes=attributes)  # type: ignore[arg-type]  # checked when built
        for seq, (subject, attributes) in enumerate(rows)
    ]


def _seqs(found: Iterator[Notification]) -> list[int]:
    return [notification.seq for notification in found]


def test_without_filters_everything_is_selected_in_order() -> None:
    """``None`` says nothing, so it excludes nothing."""
    assert _seqs(select(None, _stored())) == [0, 1, 2, 3, 4]


def test_only_a_true_verdict_selects() -> None:
    """Where the attribute is missing the verdict is undefined, whichever way it is asked."""
    assert _seqs(select(Filter("pulse > 100"), _stored())) == [0, 3, 4]
    assert _seqs(select(Filter("!(pulse > 100)"), _stored())) == [1]


def test_a_tree_selects_what_its_filter_selects() -> None:
    """Rewritten trees have no text."""
    assert _seqs(select(parse("pulse > 100"), _stored())) == [0, 3, 4]


def test_a_subject_filter_needs_a_subject() -> None:
    """Not even ``#`` admits what has no subject, nor what begins with ``$``."""
    assert _seqs(select(None, _stored(), subject_filter="#")) == [0, 1, 2]
    assert _seqs(select(None, _stored(), subject_filter="$whimbrel/#")) == [4]


def test_both_filters_must_admit() -> None:
    """A subscription is a subject filter and a filter."""
    assert _seqs(select(Filter("pulse > 100"), _stored(), subject_filter="ward/+/pulse")) == [0]


def test_a_bad_subject_filter_is_refused_at_once() -> None:
    """Not when the first notification is asked for, which may be never."""
    with pytest.raises(InvalidValueError, match="whole levels"):
        select(None, [], subject_filter="ward/3+")


def test_notifications_are_read_as_they_are_asked_for() -> None:
    """A log is longer than memory."""
    stored = iter(_stored())
    assert next(select(Filter("pulse > 100"), stored)).seq == 0
    assert next(stored).seq == 1
