"""Windows: what is final, what is late, what is remembered, and for how long."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from whimbrel.hold.store.memory import MemoryStore
from whimbrel.model.bounds import INT64_MAX, INT64_MIN
from whimbrel.model.tables import TIME_TYPE
from whimbrel.pipeline.files.waiting_windows import merge_window
from whimbrel.pipeline.stream.windows import Windows, watermark
from whimbrel.pipeline.tables.latency import TALLY

W = 10
HOUR_US = 3_600_000_000


def windows(store: MemoryStore | None = None, *, horizon_us: int = 1_000) -> Windows:
    """Return windows of ten microseconds."""
    return Windows(store or MemoryStore(), window_us=W, horizon_us=horizon_us)


def intervals(*rows: tuple[int, str, str | None, int, int | None]) -> Any:
    """Return intervals: number, session, subject filter, from and until when."""
    times = {"began_at": TIME_TYPE, "ended_at": TIME_TYPE}
    kinds = {"node": pa.string(), "interest_seq": pa.int64(), "session": pa.string(), "subject_filter": pa.string()}
    names = (*kinds, *times)
    full = [dict(zip(names, ("n", *row), strict=True)) for row in rows]
    return pa.Table.from_pylist(full, schema=pa.schema(list((kinds | times).items())))


def tallies(*rows: tuple[int, str, int, int]) -> Any:
    """Return a tally: window, subject, bucket, how many."""
    return pa.Table.from_pylist([dict(zip(TALLY.names, row, strict=True)) for row in rows], schema=TALLY)


def figures(found: dict[int, Any], *columns: str) -> dict[int, list[tuple[Any, ...]]]:
    """Return, by window, the subject and some columns of its rows."""
    return {
        begin: sorted(zip(*(rows.column(name).to_pylist() for name in ("subject", *columns)), strict=True))
        for begin, rows in found.items()
    }


# -- the watermark ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "lateness_us", "mark"),
    [
        ({}, 5, INT64_MIN),
        ({"a": None}, 5, INT64_MIN),
        ({"a": 100}, 5, 100),
        ({"a": 100, "b": 98}, 5, 98),
        ({"a": 100, "b": 20}, 5, 95),
        ({"a": 100, "b": 20}, 1_000, 20),
        ({"a": 100, "b": 95}, 5, 95),
        ({"a": 100, "b": None}, 5, 95),
        ({"a": 100, "b": None, "c": 90}, 5, 95),
        ({"a": 100, "b": None}, INT64_MAX, 100 - INT64_MAX),
        ({"a": -100, "b": None}, INT64_MAX, INT64_MIN),
        ({"a": 100, "b": 100}, 0, 100),
        ({"a": 100, "b": 20}, 0, 100),
    ],
)
def test_the_watermark_is_what_all_have_passed(times: dict[str, int | None], lateness_us: int, mark: int) -> None:
    """The slowest decides, but nobody waits for a silent node longer than was said."""
    assert watermark(times, lateness_us=lateness_us) == mark


# -- counts ----------------------------------------------------------------------------------------------------------


def test_counts_of_batches_add_up() -> None:
    """However the log was cut; only what was counted now is told."""
    state = windows()
    assert state.count([(0, "a", 2), (0, "b", 1), (10, "a", 1)]) == []
    first = state.popularity()
    assert figures(first, "publications") == {0: [("a", 2), ("b", 1)], 10: [("a", 1)]}
    state.commit(0)
    state.count([(0, "a", 3), (0, "a", 1)])
    assert figures(state.popularity(), "publications") == {0: [("a", 6)]}
    state.commit(1)
    assert state.popularity() == {}


def test_every_open_window_is_told_when_subscriptions_change() -> None:
    """A window asks who subscribed at its end, which may be long after what was counted."""
    state = windows()
    state.count([(0, "a", 1), (10, "a", 1), (20, "b", 1)])
    state.commit(0)
    state.change(intervals((1, "s1", "a", 0, 10), (2, "s2", "a", 0, 9)))
    state.change(intervals((3, "s3", None, 15, None)))
    found = figures(state.popularity(), "subscribers")
    assert found == {0: [("a", 1)], 10: [("a", 1)], 20: [("b", 1)]}


def test_what_comes_for_a_final_window_is_told_and_changes_nothing() -> None:
    """Its rows are written and forgotten: to count from nothing again would write a wrong number."""
    state = windows()
    state.count([(0, "a", 5), (10, "a", 1)])
    state.advance(19)
    (late,) = state.count([(0, "a", 2), (10, "a", 1)])
    assert late == ("popularity", 0, "a", 2)
    assert str(late).startswith("popularity: found 2 of a for the window from 1970-01-01T00:00:00")
    state.change(intervals((1, "s", "other", 0, None)))
    assert figures(state.popularity(), "publications") == {10: [("a", 2)]}
    state.advance(20)
    assert [each.window for each in state.count([(10, "a", 1), (20, "a", 1)])] == [10]


def test_time_does_not_go_back() -> None:
    """A node that appears late makes nothing open again."""
    state = windows()
    state.advance(50)
    state.advance(INT64_MIN)
    assert len(state.count([(40, "a", 1)])) == len(state.tally(tallies((40, "a", 3, 1)))) == 1


@pytest.mark.parametrize("order", [1, -1])
def test_what_has_ended_does_not_go_on_again(order: int) -> None:
    """Pieces of a node may be told of in any order; the later one says that it has ended."""
    state = windows()
    state.count([(0, "a", 1), (10, "a", 1)])
    for told in (intervals((1, "s", "a", 0, None)), intervals((1, "s", "a", 0, 15)))[::order]:
        state.change(told)
    assert figures(state.popularity(), "subscribers") == {0: [("a", 1)], 10: [("a", 0)]}


@pytest.mark.parametrize(("nodes", "mark"), [(2, 20), (3, 95)])
def test_a_node_that_has_said_nothing_counts(nodes: int, mark: int) -> None:
    """Its first facts may be old; nobody waits for it longer than was said."""
    state = windows()
    state.hear("a", 100, INT64_MAX)
    state.hear("b", 20, INT64_MAX)
    assert state.watermark(nodes, lateness_us=1_000 if nodes == 2 else 5) == mark


# -- tallies ---------------------------------------------------------------------------------------------------------


def test_tallies_of_batches_add_up_from_the_store() -> None:
    """Histograms are not kept in memory: what was touched before comes back when it is touched again."""
    store = MemoryStore()
    state = windows(store)
    assert state.tally(tallies((0, "a", 5, 1), (0, "b", 5, 1), (10, "a", 5, 1))) == []
    assert set(state.latency()) == {0, 10}
    state.commit(0)
    assert state.latency() == {}
    state.tally(tallies((0, "a", 5, 2), (0, "a", 7, 1), (0, "a", -1, 4)))
    assert figures(state.latency(), "delivered", "expired_unseen") == {0: [("a", 4, 4)]}
    state.commit(1)
    again = windows(store)
    again.tally(tallies((0, "a", 7, 1)))
    assert figures(again.latency(), "delivered", "expired_unseen") == {0: [("a", 5, 4)]}


def test_latency_waits_for_what_is_held_and_popularity_does_not() -> None:
    """What is held since Monday may be delivered on Friday, and counts for Monday."""
    state = windows()
    state.count([(0, "a", 1), (10, "a", 1)])
    state.tally(tallies((0, "a", 5, 1), (10, "a", 5, 1)))
    state.hear("n", 100, 10)
    state.advance(100)
    assert [each.window for each in state.count([(0, "a", 1), (10, "a", 1), (90, "a", 1), (100, "a", 1)])] == [
        0,
        10,
        90,
    ]
    assert [each.window for each in state.tally(tallies((0, "a", 5, 1), (10, "a", 5, 1)))] == [0]
    assert state.first_open == 10
    state.hear("n", 100, INT64_MAX)
    state.advance(100)
    assert [each.table for each in state.tally(tallies((10, "a", 5, 1)))] == ["latency"]
    assert state.first_open == 100


def test_nothing_open_is_nothing_that_changes() -> None:
    """So that all files may be put together."""
    state = windows()
    assert state.first_open == INT64_MAX
    state.tally(tallies((-20, "a", 5, 1)))
    assert state.first_open == -20


# -- what is remembered ----------------------------------------------------------------------------------------------


def _told(state: Windows, window: int) -> int:
    """Return how many subscribe to *a* at the end of a window."""
    state.count([(window, "a", 1)])
    found: list[int] = state.popularity()[window].column("subscribers").to_pylist()
    return found[0]


@pytest.mark.parametrize(("ended", "is_kept"), [(29, False), (30, True), (31, True), (40, True)])
@pytest.mark.parametrize("mark", [20, 25, 29])
def test_an_interval_is_kept_while_a_window_may_ask_for_it(ended: int, mark: int, *, is_kept: bool) -> None:
    """The next end of a window after the mark is the first that asks, and no longer."""
    state = windows()
    state.change(intervals((1, "s", "a", 0, ended), (2, "t", "a", 0, None)))
    state.advance(mark)
    state.commit(1)
    assert state.size == 1 + int(is_kept)
    assert _told(state, 20) == 1 + int(is_kept)


def test_nothing_is_forgotten_before_there_is_a_time() -> None:
    """A node that has said nothing yet may say what is old."""
    state = windows()
    state.change(intervals((1, "s", "a", -50, -40)))
    state.advance(INT64_MIN)
    assert state.size == 1
    assert _told(state, -50) == 1


def test_a_subject_that_was_silent_for_long_is_forgotten() -> None:
    """A plan needs a place for every subject, so it must not have every subject there ever was."""
    store = MemoryStore()
    state = windows(store, horizon_us=20)
    state.count([(0, "a", 1), (10, "b", 1)])
    state.popularity()
    state.forget()
    assert state.subscribers == {"a": 0, "b": 0}
    state.advance(20)
    state.commit(0)
    assert windows(store, horizon_us=20).subscribers is None
    state.count([(20, "b", 1)])
    state.change(intervals((1, "s", "b", 5, None)))
    state.popularity()
    state.forget()
    assert state.subscribers == {"b": 1}
    state.commit(1)
    assert windows(store, horizon_us=20).latest == {"b": (30, 1)}


@pytest.mark.parametrize(("now", "known"), [(25, {"a", "b", "ahead"}), (35, {"b", "ahead"}), (INT64_MAX, {"ahead"})])
def test_a_clock_that_is_ahead_makes_no_subject_old(now: int, known: set[str]) -> None:
    """One device with a wrong date would empty the plan for everybody else; the driver's time bounds its windows."""
    state = windows(horizon_us=20)
    state.count([(10, "a", 1), (20, "b", 1), (500, "ahead", 1)])
    state.popularity()
    state.forget(now=now)
    assert set(state.latest) == known


def test_an_older_window_does_not_change_the_plan() -> None:
    """Nodes are not equally fast: the last window of a subject is the one that ends last."""
    state = windows()
    state.change(intervals((1, "s", "a", 15, None)))
    state.count([(10, "a", 1)])
    state.popularity()
    state.commit(0)
    state.count([(0, "a", 1)])
    state.popularity()
    assert state.subscribers is None
    assert state.latest == {"a": (20, 1)}


def test_whoever_comes_before_the_last_window_ends_changes_the_plan() -> None:
    """The subject need not be published again."""
    state = windows()
    state.count([(10, "a", 1)])
    state.popularity()
    state.commit(0)
    state.change(intervals((1, "s", "a", 15, None)))
    state.popularity()
    assert state.subscribers == {"a": 1}


def test_rows_of_a_window_are_replaced_by_subject() -> None:
    """A batch tells only what it counted."""
    state = windows()
    state.count([(0, "a", 1), (0, "b", 1)])
    before = state.popularity()[0]
    state.commit(0)
    state.count([(0, "b", 1), (0, "c", 1)])
    rows = state.popularity()[0]
    assert merge_window(None, rows) is rows
    found = {0: merge_window(before, rows)}
    assert figures(found, "publications") == {0: [("a", 1), ("b", 2), ("c", 1)]}


def test_a_month_is_remembered_as_a_day() -> None:
    """State is bounded by what may still change: subjects come and go, subscriptions too, some things are held long."""
    store = MemoryStore()
    state = Windows(store, window_us=HOUR_US, horizon_us=24 * HOUR_US)
    sizes: list[int] = []
    kept: list[int] = []
    for hour in range(30 * 24):
        window = hour * HOUR_US
        now = window + HOUR_US // 2
        subjects = ("always", f"of {hour // 24}", f"of {hour // 24} at {hour % 5}")
        assert state.count([(window, subject, 1) for subject in subjects]) == []
        held_since = now - now % (6 * HOUR_US)  # every six hours somebody comes and takes what was held
        assert state.tally(tallies(*((held_since, subject, 500, 1) for subject in subjects))) == []
        state.change(intervals((hour, "s", "always", now - HOUR_US, now)))
        state.popularity()
        state.latency()
        state.forget()
        state.hear("n", now, held_since)
        state.advance(now)
        state.commit(hour)
        sizes.append(state.size)
        kept.append(len(list(store.rows())))
    assert max(sizes) <= max(sizes[: 3 * 24])
    assert max(kept) <= max(kept[: 3 * 24])
    assert max(kept) < 100
    again = Windows(store, window_us=HOUR_US, horizon_us=24 * HOUR_US)
    assert (again.size, again.latest, again.first_open) == (state.size, state.latest, state.first_open)
