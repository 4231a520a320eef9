"""``latency``: per subject and window of publication, how long notifications took to arrive, from ``deliveries`` alone.

Rule: however the rows are cut, the result is the same: times are counted in fixed buckets (a *tally*), and tallies add
up. Bucket 0 is no time at all, and less, as clocks may have it. Each other bucket reaches 2 % further than the one
before it, and a percentile is told as the longest time of the bucket it falls into: never too short, and at most 2 %
too long.
Rule: percentiles are of the nearest rank: the least time within which at least so many of a hundred arrived. They are
of those with a receipt: what is its own receipt (quality 0) was delivered at a time that no record has.
Rule: a retained copy tells how old the notification was when a device subscribed, not how long it took: left out.
Rule: a deadline is kept by what was decided before it (alive iff ``now < deadline_at``). What expired unseen, at its
deadline or later, missed it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows
from pyspark.sql.pandas.types import from_arrow_schema

from whimbrel.hold.sessions import RETAINED
from whimbrel.model.bounds import INT64_MAX, whole
from whimbrel.model.facts import Outcome
from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.pipeline.files.schemas import SCHEMAS

__all__ = ["EXPIRED", "MISSED", "TALLY", "UNTIMED", "latency", "measured", "tallied"]

EXPIRED, MISSED, UNTIMED = -1, -2, -3
"""What is counted beside buckets: expired unseen, deadlines missed, delivered without a receipt."""

TALLY = pa.schema(
    [
        pa.field("window_start", TIME_TYPE, nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("what", pa.int32(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
    ]
)
"""How often each bucket, or ``EXPIRED``, ``MISSED`` or ``UNTIMED``, was seen of a window and subject."""

_DELIVERY = ("subject", "published_at", "deadline_at", "outcome", "decided_at", "via")
_KEY = ["window_start", "subject", "what"]
_PERCENTS = {"p50_us": 50, "p90_us": 90, "p99_us": 99}


def _longest_times() -> NDArray[np.int64]:
    """Return the longest whole microseconds of each bucket: 1.02 to the power of its number, in exact arithmetic."""
    longest = [0]
    over, under = 51, 50
    while longest[-1] < INT64_MAX:
        longest.append(min(over // under, INT64_MAX))
        over, under = over * 51, under * 50
    return np.array(longest, np.int64)


_LONGEST = _longest_times()


def latency(deliveries: DataFrame, *, window_us: int) -> DataFrame:
    """Measure how long notifications took, by subject and windows of *window_us* of their publication.

    in:  the table ``deliveries``
    out: the table ``latency``
    """
    whole("window_us", window_us, 1, INT64_MAX)
    told = deliveries.select(*_DELIVERY).where(F.col("subject").isNotNull())
    tally = told.mapInArrow(partial(_tallied, window_us=window_us), from_arrow_schema(TALLY))
    summed = tally.groupBy(*_KEY).agg(F.sum("count").alias("count"))
    # One row has all of a subject and window, so that no batch of rows cuts it in two.
    together = summed.groupBy("window_start", "subject").agg(F.collect_list(F.struct("what", "count")).alias("tally"))
    return together.mapInArrow(partial(_measured, window_us=window_us), SCHEMAS["latency"])


def _tallied(batches: Iterable[Any], *, window_us: int) -> Iterator[Any]:
    for batch in batches:
        yield from tallied(batch, window_us=window_us).to_batches()


def _measured(batches: Iterable[Any], *, window_us: int) -> Iterator[Any]:
    for batch in batches:
        lists = batch.column("tally")
        owners, entries = pc.list_parent_indices(lists), pc.list_flatten(lists)
        columns = [batch.column("window_start").take(owners), batch.column("subject").take(owners)]
        columns += [entries.field("what"), entries.field("count")]
        tally = pa.table([column.cast(f.type) for column, f in zip(columns, TALLY, strict=True)], schema=TALLY)
        yield from measured(tally, window_us=window_us).to_batches()


def tallied(deliveries: Any, *, window_us: int) -> Any:
    """Return the tally of *deliveries*, an Arrow table or batch, without retained copies and what has no subject."""
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


def measured(tally: Any, *, window_us: int) -> Any:
    """Return the table ``latency`` of a tally, ordered by window and subject; what is there twice adds up."""
    schema = TABLES["latency"].schema
    if not tally.num_rows:
        return schema.empty_table()
    summed = _tally(tally.group_by(_KEY, use_threads=False).aggregate([("count", "sum")]))
    rows = summed.sort_by([(name, "ascending") for name in _KEY])
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
        place = np.searchsorted(running, before + rank)  # the first row with as many up to it
        columns[name] = pa.array(_LONGEST[what[place].clip(0)], mask=timed == 0)
    return pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)


def _starts(rows: Any) -> NDArray[np.int64]:
    """Return where sorted rows begin a window or subject."""
    subjects = rows.column("subject").combine_chunks().dictionary_encode().indices.to_numpy()
    is_new = np.diff(_micros(rows.column("window_start")), prepend=0) != 0
    is_new |= np.diff(subjects, prepend=-1) != 0
    is_new[0] = True
    return np.flatnonzero(is_new)


def _tally(grouped: Any) -> Any:
    """Return what was grouped by key as a tally."""
    columns = zip((grouped.column(name) for name in (*_KEY, grouped.column_names[-1])), TALLY, strict=True)
    return pa.table([column.cast(field.type) for column, field in columns], schema=TALLY)


def _micros(column: Any) -> NDArray[np.int64]:
    """Return times in microseconds; what is null is never."""
    found: NDArray[np.int64] = column.cast(TIME_TYPE).cast(pa.int64()).fill_null(INT64_MAX).to_numpy()
    return found
