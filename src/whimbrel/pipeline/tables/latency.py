"""``latency``: delivery times of notifications per subject and window of publication, from ``deliveries`` alone.

Rule: the result does not depend on how the rows are divided. Times are counted in a histogram with fixed buckets (a
*tally*), and tallies add up. Bucket 0 is a time of 0 or, because clocks differ, less. Each other bucket ends 2 % above
the one before. A percentile is the longest time of its bucket: never too short, and at most 2 % too long.
Rule: percentiles are of the nearest rank: p90 is the least time within which at least 90 of 100 arrived. They include
only deliveries with a receipt. A delivery without one (QoS 0) happened at a time that no record has.
Rule: a retained message is left out: its time tells how old it was when a device subscribed, not how long it took.
Rule: a deadline is met by a decision before it (alive iff ``now < deadline_at``). A notification that expired unseen at
its deadline or later missed it, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from whimbrel.hold.sessions import RETAINED
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import Outcome
from whimbrel.model.tables import TABLES, TIME_TYPE

__all__ = ["EXPIRED", "MISSED", "TALLY", "UNTIMED", "measure", "sum_tallies", "tally_deliveries"]

EXPIRED, MISSED, UNTIMED = -1, -2, -3
"""Values of ``what`` that are not buckets: expired unseen, deadline missed, delivered without a receipt."""

TALLY = pa.schema(
    [
        pa.field("window_start", TIME_TYPE, nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("what", pa.int32(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
    ]
)
"""Histogram of latencies: count per window, subject and ``what`` (a bucket, ``EXPIRED``, ``MISSED`` or ``UNTIMED``)."""

_KEY = ["window_start", "subject", "what"]
_PERCENTS = {"p50_us": 50, "p90_us": 90, "p99_us": 99}


def _longest_times() -> NDArray[np.int64]:
    """Return the longest time of each bucket in microseconds: 1.02 ** number, rounded down from the exact value."""
    longest = [0]
    over, under = 51, 50
    while longest[-1] < INT64_MAX:
        longest.append(min(over // under, INT64_MAX))
        over, under = over * 51, under * 50
    return np.array(longest, np.int64)


_LONGEST = _longest_times()


def tally_deliveries(deliveries: Any, *, window_us: int) -> Any:
    """Return the tally (histograms) of *deliveries*, an Arrow table or batch.

    Retained messages, and rows without a subject, are left out.
    """
    via = deliveries.column("via")
    is_retained = pc.fill_null(pc.equal(via, RETAINED), False)
    rows = deliveries.filter(pc.and_(pc.is_valid(deliveries.column("subject")), pc.invert(is_retained)))
    published, decided, deadline = (
        _micros(rows.column(name)) for name in ("published_at", "decided_at", "deadline_at")
    )
    outcomes = rows.column("outcome")
    is_delivered, is_expired = (
        pc.equal(outcomes, outcome.value).to_numpy(zero_copy_only=False)
        for outcome in (Outcome.DELIVERED, Outcome.EXPIRED)
    )
    has_receipt = pc.is_valid(rows.column("via")).to_numpy(zero_copy_only=False)
    bucket = np.where(has_receipt, np.searchsorted(_LONGEST, np.maximum(decided - published, 0)), UNTIMED)
    is_missed = ((is_delivered & has_receipt) | is_expired) & (decided >= deadline)
    counted = [
        (np.flatnonzero(is_delivered), bucket[is_delivered]),
        (np.flatnonzero(is_expired), np.full(np.count_nonzero(is_expired), EXPIRED)),
        (np.flatnonzero(is_missed), np.full(np.count_nonzero(is_missed), MISSED)),
    ]
    place = np.concatenate([rows for rows, _ in counted])
    seen = {
        "window_start": pa.array((published // window_us * window_us)[place]).cast(TIME_TYPE),
        "subject": rows.column("subject").take(pa.array(place)),
        "what": pa.array(np.concatenate([what for _, what in counted]).astype(np.int32)),
    }
    return _tally(pa.table(seen).group_by(_KEY, use_threads=False).aggregate([([], "count_all")]))


def sum_tallies(tallies: Iterable[Any]) -> Any:  # pyarrow.Tables
    """Return the sums of *tallies* (histograms) per window, subject and bucket."""
    return _tally(pa.concat_tables(tallies).group_by(_KEY, use_threads=False).aggregate([("count", "sum")]))


def measure(tally: Any, *, window_us: int) -> Any:
    """Compute the table ``latency`` from a tally (histograms), ordered by window and subject; repeated keys add up."""
    schema = TABLES["latency"].schema
    if not tally.num_rows:
        return schema.empty_table()
    rows = sum_tallies([tally]).sort_by([(name, "ascending") for name in _KEY])
    what, count = rows.column("what").to_numpy(), rows.column("count").to_numpy()
    starts = _starts(rows)
    seen = np.where(what >= 0, count, 0)
    timed, running = np.add.reduceat(seen, starts), np.cumsum(seen)
    before = running[starts] - seen[starts]
    subjects = rows.select(["window_start", "subject"]).take(pa.array(starts))
    begun = _micros(subjects.column("window_start"))
    columns = {
        "window_start": pa.array(begun),
        "window_end": pa.array(begun + window_us),
        "subject": subjects.column("subject"),
        "delivered": pa.array(timed + np.add.reduceat(np.where(what == UNTIMED, count, 0), starts)),
        "expired_unseen": pa.array(np.add.reduceat(np.where(what == EXPIRED, count, 0), starts)),
        "deadlines_missed": pa.array(np.add.reduceat(np.where(what == MISSED, count, 0), starts)),
    }
    for name, percent in _PERCENTS.items():
        rank = -(-timed * percent // 100)
        place = np.searchsorted(running, before + rank)  # the first row whose running count reaches the rank
        columns[name] = pa.array(_LONGEST[what[place].clip(0)], mask=timed == 0)
    return pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)


def _starts(rows: Any) -> NDArray[np.int64]:
    """Return the indices at which sorted rows begin a new window or subject."""
    subjects = rows.column("subject").combine_chunks().dictionary_encode().indices.to_numpy()
    is_new = np.diff(_micros(rows.column("window_start")), prepend=0) != 0
    is_new |= np.diff(subjects, prepend=-1) != 0
    is_new[0] = True
    return np.flatnonzero(is_new)


def _tally(grouped: Any) -> Any:
    """Return an aggregated table as a tally (with the schema ``TALLY``); its last column is the count."""
    columns = zip((grouped.column(name) for name in (*_KEY, grouped.column_names[-1])), TALLY, strict=True)
    return pa.table([column.cast(field.type) for column, field in columns], schema=TALLY)


def _micros(column: Any) -> NDArray[np.int64]:
    """Return times in microseconds, with ``INT64_MAX`` for null."""
    found: NDArray[np.int64] = column.cast(TIME_TYPE).cast(pa.int64()).fill_null(INT64_MAX).to_numpy()
    return found
