"""The windows' part of a batch, in a worker: turn the nodes' counts (*tallies*) into ``popularity`` and ``latency``.

One task of a batch does it, after all nodes. It passes the other output of the nodes on to the driver.
Rule: the content of a time window is a sum of tallies, so it does not matter which worker made them.
Rule: changed rows go to a separate file, which the driver merges into the current table.
Rule: if the tallies show a census of a campus (message of its administrative server) in a range of seqs, the
publications in that range are read again for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import cbor2
import pyarrow as pa
import pyarrow.parquet as pq

from whimbrel.log.files import sync_file
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.census import CENSUS_SUBJECT
from whimbrel.model.replicas import find_unserved, unserved_note
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files.delta import WHOLE
from whimbrel.pipeline.files.snapshots import missing_numbers
from whimbrel.pipeline.files.spans import SpanReader
from whimbrel.pipeline.fold.contact_fold import Meeting, meetings_table
from whimbrel.pipeline.stream.job import Job, NodeReport
from whimbrel.pipeline.stream.state.blob_store import Blobs, BlobStore
from whimbrel.pipeline.stream.windows import Late, Windows
from whimbrel.pipeline.tables.censuses import census_of_span
from whimbrel.pipeline.tables.replicas import chosen, plan_replicas
from whimbrel.pipeline.unit.made import WorkerOutput
from whimbrel.pipeline.unit.tallies import unpacked_tallies

__all__ = ["WINDOWS", "WindowsReport", "fold_windows"]

WINDOWS = "$windows"
"""Stands for the windows where a node may stand; it is not a valid name of a node."""
_LATE = {
    "latency": "{:,} outcomes came too late and are not counted in latency",
    "popularity": "{:,} publications came too late and are not counted in popularity",
}


class WindowsReport(NamedTuple):
    """Report about the time windows to the driver after a batch."""

    watermark: int
    """The time that all nodes have passed, in microseconds."""
    first_open: int
    """Begin of the first window that may still change, in microseconds."""
    size: int
    size_bytes: int
    notes: tuple[str, ...]
    late: dict[str, int]
    """Number of facts that came after their window was final, per table."""
    state: str
    """Name of the object with the state after the batch."""
    dropped: tuple[str, ...]
    """Names of objects that this state does not need, and the one before it did."""


@dataclass(slots=True)
class _Kept:
    store: BlobStore
    windows: Windows


_kept: dict[tuple[str, str], _Kept] = {}
"""States of windows that this process caches; keys: stream, path of the tables."""


def fold_windows(job: Job, rows: Iterable[WorkerOutput], blobs: Blobs) -> Iterator[WorkerOutput]:
    """Add the counts of all nodes in a batch to the windows; yield changed rows of windows, and all other output."""
    key = (job.stream, job.out)
    kept = _kept.pop(key, None)
    if kept is not None and kept.store.head == blobs.head():
        kept.store.follow(blobs)
    else:
        store = BlobStore(blobs)
        kept = _Kept(store, Windows(store, window_us=job.plan.window_us, horizon_us=job.plan.horizon_us))
    windows = kept.windows
    late: list[Late] = []
    # Sorted by node, because the order of tasks varies.
    tallies: list[tuple[str, int, bytes]] = []
    nodes, now = 0, INT64_MAX
    reports: dict[str, NodeReport] = {}
    for place, made in enumerate(rows):
        if made.kind == "tallies":
            tallies.append((made.node, place, made.told))
            continue
        if made.kind == "meetings":
            windows.meet(((low, high), Meeting(*sums)) for low, high, *sums in cbor2.loads(made.told))
            continue
        if made.kind == "node":
            report = NodeReport(*cbor2.loads(made.told))
            windows.hear(made.node, report.last_at, report.oldest_at)
            nodes, now = report.nodes, report.now
            reports[made.node] = report
        yield made
    for node, _, told in sorted(tallies):
        counts, tally, intervals = unpacked_tallies(told)
        if "replicas" in job.plan.tables and CENSUS_SUBJECT in counts.column("subject").to_pylist():
            _take_census(job, windows, node, reports.pop(node, None))
        late += windows.count(zip(*(column.to_pylist() for column in counts.columns), strict=True))
        late += windows.tally(tally)
        windows.change(intervals)
    too_late = _by_table(late)
    notes = [_LATE[table].format(count) for table, count in too_late.items()]
    if late and "dead_letters" in job.plan.tables:
        yield job.files(WINDOWS).write("dead_letters", _late_letters(late))
    yield from _write_changed(job, "popularity", windows.popularity())
    yield from _write_changed(job, "latency", windows.latency())
    if windows.has_met:
        found = meetings_table(windows.meetings, TABLES["meetings"].schema)
        yield from _write_changed(job, "meetings", {WHOLE: found})
    windows.forget(now=now)
    yield from _plan_replicas(job, windows, notes)
    mark = windows.watermark(nodes, lateness_us=job.plan.lateness_us)
    windows.advance(mark)
    windows.commit(windows.applied + 1)
    _kept[key] = kept
    report_of = WindowsReport(
        watermark=mark,
        first_open=windows.first_open,
        size=windows.size,
        size_bytes=kept.store.size_bytes,
        notes=tuple(notes),
        late=too_late,
        state=kept.store.head.version,
        dropped=tuple(blobs.dropped),
    )
    yield WorkerOutput("windows", WINDOWS, None, 0, cbor2.dumps(report_of))


def _take_census(job: Job, windows: Windows, node: str, report: NodeReport | None) -> None:
    """Give *windows* the last census in the node's seqs of this batch; without a *report*, *windows* has it already."""
    if report is None:
        return
    log = Path(job.log)
    reader = SpanReader(log, node, most_facts=job.piece_facts, most_bytes=job.piece_bytes, patience=job.patience)
    found = census_of_span(reader, report.first, report.last, missing=tuple(missing_numbers(log, node)))
    if found is not None:
        windows.take_census(found)


def _plan_replicas(job: Job, windows: Windows, notes: list[str]) -> Iterator[WorkerOutput]:
    subscribers = windows.subscribers
    if subscribers is None or "replicas" not in job.plan.tables:
        return
    plan = job.plan.for_census(windows.census)
    subscribers = chosen(subscribers, subject_filter=plan.replicas_for, census=windows.census)
    memory = {"nodes": plan.nodes, "slots_per_node": plan.slots_per_node}
    if beyond := find_unserved(subscribers, **memory):
        notes.append(f"replicas: {unserved_note(beyond, subjects=len(subscribers))}")
    rows = plan_replicas(subscribers, **memory, sample_bytes=plan.sample_bytes)
    yield from _write_changed(job, "replicas", {WHOLE: pa.Table.from_batches([rows])})


def _write_changed(job: Job, table: str, windows: dict[int, Any]) -> Iterator[WorkerOutput]:  # of pyarrow.Tables
    """Write changed rows of *table* to a file, which the driver merges."""
    if not windows or table not in job.plan.tables:
        return
    rows = pa.concat_tables(windows.values())
    folder = job.scratch
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{table}-{uuid4().hex}.parquet"
    pq.write_table(rows, path, compression="zstd")
    sync_file(path)
    sync_file(folder)
    yield WorkerOutput("window", WINDOWS, table, rows.num_rows, str(path).encode())


def _by_table(late: Iterable[Late]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in late:
        found[each.table] += each.number
    return dict(sorted(found.items()))


def _late_letters(late: Iterable[Late]) -> Any:  # a pyarrow.Table
    now = time.time_ns() // 1_000
    rows = [
        {"found_at": now, "source": "stream", "position": None, "reason": str(each), "content": each.subject.encode()}
        for each in late
    ]
    return pa.Table.from_pylist(rows, schema=TABLES["dead_letters"].schema)
