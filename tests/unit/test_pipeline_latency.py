"""Latency from deliveries: histograms that add up, against sorted lists that cannot be wrong."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.pipeline.tables.latency import EXPIRED, MISSED, TALLY, measure, tally_deliveries

WINDOW_US = 1_000


class Row(NamedTuple):
    """What latency reads of a row of ``deliveries``."""

    subject: str | None
    published_at: int
    deadline_at: int | None
    outcome: str
    decided_at: int
    via: str | None = "live"


def deliveries(rows: list[Row]) -> Any:
    """Return *rows* as an Arrow table."""
    kinds = [pa.string(), TIME_TYPE, TIME_TYPE, pa.string(), TIME_TYPE, pa.string()]
    columns = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(kinds)]
    return pa.table(columns, names=list(Row._fields))


def figures(table: Any) -> list[tuple[Any, ...]]:
    """Return the rows of ``latency``, times in microseconds."""
    times = [table.column(name).cast(pa.int64()) for name in ("window_start", "window_end")]
    return list(zip(*(each.to_pylist() for each in [*times, *table.columns[2:]]), strict=True))


def exact(times: list[int], percent: int) -> int | None:
    """Return the least time within which *percent* of a hundred arrived, by looking at all of them."""
    for time in sorted(times):
        if sum(each <= time for each in times) * 100 >= percent * len(times):
            return time
    return None


def naive(rows: list[Row]) -> dict[tuple[int, str], tuple[list[int], int, int, int]]:
    """Return for each window and subject how long what was delivered took, what expired, missed, and is untimed."""
    found: dict[tuple[int, str], tuple[list[int], int, int, int]] = {}
    for row in rows:
        if row.subject is None or row.outcome not in {"delivered", "expired"} or row.via == "retained":
            continue
        window = row.published_at - row.published_at % WINDOW_US
        times, expired, missed, untimed = found.get((window, row.subject), ([], 0, 0, 0))
        if row.outcome == "delivered" and row.via is None:
            untimed += 1
        elif row.outcome == "delivered":
            times = [*times, max(0, row.decided_at - row.published_at)]
        else:
            expired += 1
        is_timed = row.outcome != "delivered" or row.via is not None
        if is_timed and row.deadline_at is not None and not row.decided_at < row.deadline_at:
            missed += 1
        found[window, row.subject] = (times, expired, missed, untimed)
    return found


@st.composite
def row(draw: st.DrawFn) -> Row:
    """Return a row; clocks may run backwards, and some take days."""
    published = draw(st.integers(-3_000, 3_000))
    took = draw(st.one_of(st.integers(-5, 120), st.integers(0, 10**12)))
    deadline = draw(st.none() | st.sampled_from([0, 1, took, took + 1]).map(published.__add__))
    outcome = draw(st.sampled_from(["delivered", "delivered", "expired", "displaced", "dropped"]))
    via = draw(st.sampled_from(["live", "held", "retained", None])) if outcome == "delivered" else None
    return Row(draw(st.sampled_from(["a", "b", None])), published, deadline, outcome, published + took, via)


rows_of_any_kind = st.lists(row(), max_size=60)


@given(rows=rows_of_any_kind)
def test_latency_is_what_sorting_all_times_tells(rows: list[Row]) -> None:
    """Counts are exact; a percentile is never too short, and at most 2 % too long."""
    found = figures(measure(tally_deliveries(deliveries(rows), window_us=WINDOW_US), window_us=WINDOW_US))
    wanted = naive(rows)
    assert [(start, subject) for start, _, subject, *_ in found] == sorted(wanted)
    for start, end, subject, delivered, *percentiles, expired, missed in found:
        times, *counts, untimed = wanted[start, subject]
        assert end == start + WINDOW_US
        assert (delivered, [expired, missed]) == (len(times) + untimed, counts)
        for percent, about in zip((50, 90, 99), percentiles, strict=True):
            right = exact(times, percent)
            assert (about is None) is (right is None)
            assert right is None or 100 * right <= 100 * about <= 102 * right


@given(rows=rows_of_any_kind, cuts=st.lists(st.integers(0, 60), max_size=4))
def test_tallies_of_parts_add_up(rows: list[Row], cuts: list[int]) -> None:
    """However a stream was cut into batches, the percentiles are the same."""
    places = [0, *sorted(cuts), len(rows)]
    parts = [deliveries(rows[i:j]) for i, j in pairwise(places)]
    tallies = pa.concat_tables([tally_deliveries(part, window_us=WINDOW_US) for part in parts])
    together = tally_deliveries(deliveries(rows), window_us=WINDOW_US)
    keys = ["window_start", "subject", "what"]
    summed = tallies.group_by(keys).aggregate([("count", "sum")]).rename_columns(TALLY.names)
    assert sorted(map(str, summed.to_pylist())) == sorted(map(str, together.to_pylist()))
    assert measure(tallies, window_us=WINDOW_US).equals(measure(together, window_us=WINDOW_US))


@pytest.mark.parametrize("took", [0, 1, 2, 50, 51, 52, 999_999, 10**15, INT64_MAX])
def test_every_time_has_a_bucket(took: int) -> None:
    """From none at all to the end of time; below 50 µs every microsecond has its own."""
    table = measure(tally_deliveries(deliveries([Row("a", 0, None, "delivered", took)]), window_us=10), window_us=10)
    found = table.column("p50_us").to_pylist()[0]
    assert took <= found <= took + took // 50


def test_a_deadline_is_missed_at_its_instant() -> None:
    """Alive iff now < deadline: the same rule as everywhere."""
    rows = [Row("a", 0, 5, outcome, at) for at in (4, 5) for outcome in ("delivered", "expired", "displaced")]
    counts = {row["what"]: row["count"] for row in tally_deliveries(deliveries(rows), window_us=10).to_pylist()}
    assert counts[MISSED] == 2
    assert counts[EXPIRED] == 2


def test_nothing_makes_nothing() -> None:
    """An empty table in, an empty table of the right schema out."""
    tally = tally_deliveries(deliveries([Row(None, 0, 0, "delivered", 0)]), window_us=1)
    assert tally.equals(TALLY.empty_table())
    assert measure(tally, window_us=1).equals(TABLES["latency"].schema.empty_table())


def test_a_batch_will_do() -> None:
    """Spark gives batches, a stream has tables."""
    table = deliveries([Row("a", 0, None, "delivered", 3), Row("b", 0, None, "expired", 4)])
    assert tally_deliveries(table.to_batches()[0], window_us=10).equals(tally_deliveries(table, window_us=10))
