"""Popularity without Spark: counts meet intervals as they would one by one."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.match.topics import matches
from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.pipeline.tables.popularity import Wishes

WINDOW_US = 2_000_000
SUBJECTS = ("a", "a/b", "a/c", "$sys/x", "b/b", "!b")
FILTERS = (None, "#", "+", "a/#", "a/+", "+/b", "a/b", "$sys/#", "$share/g/a/b", "$share/g/#", "$share/", "a+", "")


class Interval(NamedTuple):
    """When a session had a filter, in windows."""

    session: str
    subject_filter: str | None
    began_at: float
    ended_at: float | None


def table(intervals: list[Interval]) -> Any:
    """Return *intervals* as Arrow."""
    ended = [None if interval.ended_at is None else int(interval.ended_at * WINDOW_US) for interval in intervals]
    return pa.table(
        {
            "session": pa.array([interval.session for interval in intervals], pa.string()),
            "subject_filter": pa.array([interval.subject_filter for interval in intervals], pa.string()),
            "began_at": pa.array([int(interval.began_at * WINDOW_US) for interval in intervals], TIME_TYPE),
            "ended_at": pa.array(ended, TIME_TYPE),
        }
    )


def counted(counts: dict[tuple[int, str], int]) -> Any:
    """Return counts by window and subject as Arrow."""
    return pa.table(
        {
            "subject": pa.array([subject for _, subject in counts], pa.string()),
            "window_start": pa.array([window * WINDOW_US for window, _ in counts], TIME_TYPE),
            "window_end": pa.array([(window + 1) * WINDOW_US for window, _ in counts], TIME_TYPE),
            "publications": pa.array(counts.values(), pa.int64()),
        }
    )


def wants(subject_filter: str | None, subject: str) -> bool:
    """Tell whether a filter admits a subject, case by case."""
    if subject_filter in {"$share/", "a+", ""}:
        return False  # no topic filters, or none that a subject fits
    if subject_filter is None:
        return True
    return matches(subject_filter.removeprefix("$share/g/"), subject)


def naive(subject: str, end: int, intervals: list[Interval]) -> int:
    """Count the sessions that want *subject* at the end of a window, which is no part of it."""
    in_force = [each for each in intervals if each.began_at < end and (each.ended_at is None or each.ended_at >= end)]
    return len({each.session for each in in_force if wants(each.subject_filter, subject)})


moments = st.sampled_from([0, 0.5, 1, 1.5, 2, 2.5])
some_intervals = st.lists(
    st.builds(Interval, st.sampled_from("stuvw"), st.sampled_from(FILTERS), moments, st.none() | moments), max_size=25
)
some_counts = st.dictionaries(st.tuples(st.integers(0, 2), st.sampled_from(SUBJECTS)), st.integers(1, 9))


@given(counts=some_counts, intervals=some_intervals)
def test_subscribers_are_those_in_force_at_the_end(
    counts: dict[tuple[int, str], int], intervals: list[Interval]
) -> None:
    """Wildcards, shares, what is no filter, and one session with several, counted once."""
    found = Wishes(table(intervals)).popularity_rows(counted(counts), WINDOW_US)
    assert found.schema.equals(TABLES["popularity"].schema)
    times = [found.column(name).cast(pa.int64()) for name in ("window_start", "window_end")]
    rows = list(zip(*(column.to_pylist() for column in [*times, *found.columns[2:]]), strict=True))
    assert rows == [
        (
            window * WINDOW_US,
            (window + 1) * WINDOW_US,
            subject,
            naive(subject, window + 1, intervals),
            counts[window, subject],
            counts[window, subject] / 2,
        )
        for window, subject in sorted(counts)
    ]


def test_a_share_counts_for_the_subjects_behind_it() -> None:
    """Of the sessions of a share any may be given what is published, so each wants it."""
    intervals = [
        Interval("s", "$share/g/a/+", 0, None),
        Interval("t", "$share/g/a/+", 0, None),
        Interval("u", "$share", 0, None),
    ]
    found = Wishes(table(intervals)).popularity_rows(counted({(0, "a/b"): 1, (0, "$share/g/a/b"): 1}), WINDOW_US)
    assert dict(zip(found.column("subject").to_pylist(), found.column("subscribers").to_pylist(), strict=True)) == {
        "a/b": 2,
        "$share/g/a/b": 0,
    }
