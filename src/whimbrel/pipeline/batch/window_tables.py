"""The last stage of a batch run: make the tables of windows, and ``meetings``, from the sums of all earlier tasks.

The sums are those of a stream: publications per window and subject, histograms of latencies, sums over contacts. They
add up, so it does not matter which task made them.
Rule: windows are made range by range, so that memory is bounded, however many windows a log has.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pyarrow as pa

from whimbrel.model.census import CensusTotals
from whimbrel.model.replicas import find_unserved, unserved_note
from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.pipeline.batch.event_files import NODE, SUMS, EventFile
from whimbrel.pipeline.batch.job import BatchJob
from whimbrel.pipeline.fold.contact_fold import Meeting, meetings_table
from whimbrel.pipeline.tables.censuses import last_census
from whimbrel.pipeline.tables.latency import measure
from whimbrel.pipeline.tables.popularity import INTERVAL, Wishes, as_windows, sum_counts
from whimbrel.pipeline.tables.replicas import plan_replicas, subscribers_of, window_end
from whimbrel.pipeline.unit.made import WorkerOutput

__all__ = ["make_windows", "plan_copies"]

_ROWS_AT_ONCE = 1 << 20


def make_windows(
    job: BatchJob, subscriptions: Sequence[str], matched: Sequence[str], folded: Sequence[str]
) -> Iterator[WorkerOutput]:
    """Make the tables of windows; yield their files and, for ``replicas``, a report on the plan.

    The arguments are the event files of the earlier stages.
    """
    files, window_us, watch = job.files(""), job.plan.window_us, _Stopwatch()
    latest: dict[str, tuple[int, int]] = {}
    if job.counts:
        intervals = chain.from_iterable(_each(path, NODE, "intervals") for path in subscriptions)
        wishes = Wishes(pa.concat_tables([INTERVAL.empty_table(), *intervals]))
        for counts in _by_range(matched, "counts"):
            rows = wishes.popularity_rows(as_windows(sum_counts([counts]), window_us), window_us)
            yield from files.add("popularity", job.rows_within("popularity", rows.combine_chunks().to_batches()))
            if "replicas" in job.tables:
                latest.update(_latest(rows))
        yield watch.lap("popularity" if "popularity" in job.tables else "replicas")
    if "latency" in job.tables:
        for tally in _by_range(folded, "tallies"):
            rows = measure(tally, window_us=window_us)
            yield from files.add("latency", job.rows_within("latency", rows.combine_chunks().to_batches()))
        yield watch.lap("latency")
    if "meetings" in job.tables:
        met: dict[tuple[str, str], Meeting] = {}
        for told in chain.from_iterable(_each(path, SUMS, "meetings") for path in folded):
            for low, high, *sums in cbor2.loads(told.column("told")[0].as_py()):
                met[low, high] = met.get((low, high), Meeting()).plus(Meeting(*sums))
        yield from files.add("meetings", meetings_table(met, TABLES["meetings"].schema).to_batches())
        yield watch.lap("meetings")
    if "replicas" in job.tables:
        census = last_census(rows for path in matched for rows in _each(path, SUMS, "censuses"))
        rows, report = plan_copies(job, latest, census)
        yield from files.add("replicas", [rows])
        yield report
        yield watch.lap("replicas")
    yield from files.end()


class _Stopwatch:
    """Measures how long each table took."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()

    def lap(self, table: str) -> WorkerOutput:
        """Return the report that *table* took the time since the last call."""
        begun_s, self._begun_s = self._begun_s, time.monotonic()
        return WorkerOutput.of_time("", table, self._begun_s - begun_s)


# -- sums --------------------------------------------------------------------------------------------------------------


def _each(path: str, shard: int, name: str) -> Iterator[Any]:  # of pyarrow.Tables
    return EventFile(Path(path)).tables(shard, name)


def _by_range(paths: Sequence[str], name: str) -> Iterator[Any]:  # of pyarrow.Tables
    """Yield the sums *name* of all files, in ranges of windows with a bounded number of rows, in ascending order."""

    def tables() -> Iterator[Any]:
        return chain.from_iterable(_each(path, SUMS, name) for path in paths)

    sizes: dict[int, int] = {}
    for table in tables():
        windows, counts = np.unique(_windows(table), return_counts=True)
        for window, count in zip(windows.tolist(), counts.tolist(), strict=True):
            sizes[window] = sizes.get(window, 0) + count
    for first, last in _ranges(sizes):
        parts = []
        for table in tables():
            windows = _windows(table)
            is_own = (windows >= first) & (windows <= last)
            parts.append(table if is_own.all() else table.filter(pa.array(is_own)))
        yield pa.concat_tables(parts)


def _windows(table: Any) -> Any:  # a numpy array
    column = table.column("window_start")
    return (column if pa.types.is_integer(column.type) else column.cast(TIME_TYPE).cast(pa.int64())).to_numpy()


def _ranges(sizes: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Yield first and last window of each range with at most about ``_ROWS_AT_ONCE`` rows."""
    begin, rows = None, 0
    ordered = sorted(sizes)
    for number, window in enumerate(ordered):
        begin, rows = window if begin is None else begin, rows + sizes[window]
        following = sizes[ordered[number + 1]] if number + 1 < len(ordered) else _ROWS_AT_ONCE
        if rows + following > _ROWS_AT_ONCE:
            yield begin, window
            begin, rows = None, 0


# -- replicas ----------------------------------------------------------------------------------------------------------


def _latest(rows: Any) -> dict[str, tuple[int, int]]:  # a pyarrow.Table of ``popularity``, ordered by window
    """Return the end of each subject's last window, and its number of subscribers."""
    last = rows.group_by("subject", use_threads=False).aggregate([("window_end", "last"), ("subscribers", "last")])
    ends = last.column("window_end_last").cast(pa.int64()).to_pylist()
    pairs = zip(ends, last.column("subscribers_last").to_pylist(), strict=True)
    return dict(zip(last.column("subject").to_pylist(), pairs, strict=True))


def plan_copies(
    job: BatchJob, latest: dict[str, tuple[int, int]], census: CensusTotals | None
) -> tuple[Any, WorkerOutput]:
    """Return the replica plan as a batch of ``replicas``, and a report for the driver."""
    plan = job.plan.for_census(census)
    newest_at = window_end(job.now, plan.window_us)
    subscribers = subscribers_of(
        latest, horizon_us=plan.horizon_us, newest_at=newest_at, subject_filter=plan.replicas_for, census=census
    )
    memory = {"nodes": plan.nodes, "slots_per_node": plan.slots_per_node}
    report: dict[str, object] = {**memory}
    if beyond := find_unserved(subscribers, **memory):
        report["note"] = unserved_note(beyond, subjects=len(subscribers))
    told = WorkerOutput("replicas", "", None, 0, json.dumps(report).encode())
    return plan_replicas(subscribers, **memory, sample_bytes=plan.sample_bytes), told
