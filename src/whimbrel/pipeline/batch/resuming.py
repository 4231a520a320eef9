"""Resuming: a run for an interval reads only the part of a node's log that rows of the interval depend on.

It begins at the newest checkpoint before the interval, as the run of a cut log does (``fold.start_state``), and ends
with the first fact after it. An export has a checkpoint for each day; without one, the run begins with the first seq.
Rule: this is done only if all wanted tables then have the rows of a run over the whole log. So a run that makes
``contacts``, ``meetings``, ``replicas`` or ``dead_letters``, which are about a whole log, reads all of it.
Rule: ``latency`` counts hand-overs in the window of their publication, however late. With it, a run reads to the end.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from whimbrel.log.layout import date_of
from whimbrel.model.bounds import INT64_MAX, LAST_TIME
from whimbrel.pipeline.batch.intervals import Interval
from whimbrel.pipeline.batch.job import NodeSpan
from whimbrel.pipeline.files.schemas import TIMES
from whimbrel.pipeline.files.snapshots import parts_up_to, settled_seq
from whimbrel.pipeline.fold.start_state import checkpoint_before

__all__ = ["RESUMABLE", "narrow_span"]

RESUMABLE = ("matches", "deliveries", "latency", "popularity", "link_quality")
"""Tables whose rows of an interval a run can make from a checkpoint on."""


def narrow_span(
    log: Path, span: NodeSpan, interval: Interval | None, *, tables: Collection[str], window_us: int
) -> NodeSpan:
    """Return the part of *span* that the rows of *tables* within *interval* depend on."""
    if interval is None or not {*tables} <= {*RESUMABLE}:
        return span
    if interval.until is not None and "latency" not in tables:
        until = interval.until + (window_us if "popularity" in tables else 0)
        span = span._replace(last=min(span.last, _last_before(log, span.node, min(until, LAST_TIME)) + 1))
    begun = None if interval.since is None else checkpoint_before(log, span.node, interval.since)
    if begun is None or not span.first <= begun < span.last:
        return span
    missing = tuple(each for each in span.missing if each.last > begun)
    return span._replace(first=begun + 1, missing=missing, is_resumed=True)


def _last_before(log: Path, node: str, until: int) -> int:
    """Return a seq after which no fact is of a day before *until*: that of the last such day in the Parquet files.

    The dates of facts in segments are not known without reading them, so these all count.
    """
    settled, last_day = settled_seq(log, node), date_of(until - 1)
    of_node = [part for table in TIMES for part in parts_up_to(log, table, node, settled)]
    if not any(part.date > last_day for part in of_node):
        return INT64_MAX - 1
    return min(max((part.last for part in of_node if part.date <= last_day), default=0), settled)
