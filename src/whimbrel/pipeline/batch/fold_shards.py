"""The third stage of a batch run: fold the matched events of a node, one task per shard of its sessions.

A task reads the event files of all slices of the node in the order of the log, and only the entries of its shard. The
reports of a node are folded by a task of their own, beside those of the sessions: quality of links, and contacts.
Rule: no task reads the log; the node's state has everything that events need from earlier facts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cbor2
import pyarrow as pa

from whimbrel.hold.store.memory import MemoryStore
from whimbrel.pipeline.batch.event_files import NODE, SUMS, Entry, EventFile, EventWriter
from whimbrel.pipeline.batch.job import BatchJob, NodeSpan
from whimbrel.pipeline.batch.node_subscriptions import NodeSubscriptions, read_plain_sessions, read_shards
from whimbrel.pipeline.batch.progress import Progress
from whimbrel.pipeline.columnar.columnar_hold import ColumnarHold
from whimbrel.pipeline.fold.contact_fold import Meeting
from whimbrel.pipeline.fold.folds import EVENT
from whimbrel.pipeline.fold.garbage import pause_collection
from whimbrel.pipeline.tables.latency import TALLY, sum_tallies
from whimbrel.pipeline.tables.popularity import COUNT
from whimbrel.pipeline.unit.folding import fold_reports, fold_sessions, tally_of
from whimbrel.pipeline.unit.made import WorkerOutput
from whimbrel.pipeline.unit.matching import MatchedPiece
from whimbrel.pipeline.unit.node_share import NodeShare

__all__ = ["MEETING", "ShardTask", "fold_shard", "read_pieces"]

MEETING = pa.schema([("told", pa.binary())])
"""Schema of the sums of meetings in an event file: CBOR, whose numbers have no bound."""
_OF_REPORTS = frozenset({"link", "place", "time", "log mark"})
"""Kinds of rows of a start state that the fold of reports needs."""
_TALLIES_AT_ONCE = 64


class ShardTask(NamedTuple):
    """Work of one task: fold one shard of a node's sessions, or its reports (``NODE``)."""

    span: NodeSpan
    shard: int
    events: tuple[str, ...]
    """Event files of the node's slices, in the order of the log."""
    known: NodeSubscriptions | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the shard has plain sessions only."""
        return self.known is not None and self.shard >= self.known.of - self.known.plain


def fold_shard(job: BatchJob, task: ShardTask) -> Iterator[WorkerOutput]:
    """Fold a shard; yield the data files that were written, and the event file with sums for windows."""
    sums: dict[str, Any] = {}
    if task.shard == NODE:
        folded = _fold_reports(task, _state(job, task), sums)
    else:
        folded = _add_tallies(job, _fold_plain(job, task) if task.is_plain else _fold_sessions(job, task), sums)
    files, progress = job.files(task.span.node), Progress(job, f"{task.span.node}-{task.shard}")
    begun_s = time.monotonic()
    for last, rows in pause_collection(folded):
        for table, batches in rows.items():
            yield from files.add(table, job.rows_within(table, batches))
        progress.note(last - task.span.first + 1)
    yield from files.end()
    if sums:
        with EventWriter(Path(job.scratch)) as events:
            events.add(SUMS, sums)
        yield WorkerOutput("sums", task.span.node, None, 0, str(events.path).encode())
    made = ("contacts", "meetings", "link_quality") if task.shard == NODE else ("deliveries", "latency")
    table = next(name for name in made if name in job.tables)
    yield WorkerOutput.of_time(task.span.node, table, time.monotonic() - begun_s)


_Rows = Iterator[tuple[int, dict[str, Any]]]
"""Last seq, and batches per table, of each piece."""


def _add_tallies(job: BatchJob, folded: _Rows, sums: dict[str, Any]) -> _Rows:
    """Pass on the output of a fold, and set the sums of its latencies at the end."""
    window_us = job.plan.window_us if "latency" in job.tables else None
    tallies = [TALLY.empty_table()]
    for last, rows in folded:
        tallies.append(tally_of(rows["deliveries"], window_us=window_us))
        if len(tallies) >= _TALLIES_AT_ONCE:
            tallies = [sum_tallies(tallies)]
        yield last, rows
    sums["tallies"] = sum_tallies(tallies)


def _fold_sessions(job: BatchJob, task: ShardTask) -> _Rows:
    """Fold the sessions of a shard by the rules of the hold."""
    state, has_policies = _state(job, task), task.known is not None and task.known.has_policies
    for matched, _ in read_pieces(task.span.node, task.shard, task.events):
        deliveries, _ = fold_sessions(matched, state, has_policies=has_policies)
        state.discard_changes()
        yield matched.last, {"deliveries": deliveries}


def _fold_plain(job: BatchJob, task: ShardTask) -> _Rows:
    """Fold the plain sessions of a shard in columns."""
    assert task.known is not None
    hold = ColumnarHold(task.span.node, read_plain_sessions(task.known, task.shard), retention=job.plan.retention)
    for matched, _ in read_pieces(task.span.node, task.shard, task.events):
        published = pa.Table.from_batches(matched.published, EVENT)
        for batch in hold.take(matched.tables, published, matched.ends_at, matched.last):
            yield matched.last, {"deliveries": [batch]}


def _fold_reports(task: ShardTask, state: NodeShare, sums: dict[str, Any]) -> _Rows:
    """Fold the reports of a node; set the sums of meetings at the end."""
    met: dict[tuple[str, str], Meeting] = {}
    for matched, is_last in read_pieces(task.span.node, task.shard, task.events):
        reported = fold_reports(matched, state, is_last=is_last)
        for pair, each in reported.meetings.items():
            met[pair] = met.get(pair, Meeting()).plus(each)
        state.discard_changes()
        yield matched.last, {"link_quality": reported.link_quality, "contacts": reported.contacts}
    if state.contacts is not None:
        yield task.span.last, {"contacts": state.contacts.under_way().to_batches()}
    told = cbor2.dumps([[*pair, *each] for pair, each in met.items()])
    sums["meetings"] = pa.table([pa.array([told], pa.binary())], schema=MEETING)


def _state(job: BatchJob, task: ShardTask) -> NodeShare:
    """Return the state of a shard before the first slice: empty, or that at which a cut log starts."""
    begun, store = job.start_state(task.span), MemoryStore()
    is_of_reports = task.shard == NODE
    if begun is not None:
        if is_of_reports:
            store.replace(begun.seq, {key: row for key, row in begun.rows if key[0] in _OF_REPORTS})
        elif task.known is not None:
            store.replace(begun.seq, read_shards(task.known).own_rows(begun, task.shard))
    return NodeShare(
        task.span.node,
        store,
        retention=job.plan.retention,
        assume_receipts=bool(job.plan.assume_receipts),
        contact=job.plan.contact if is_of_reports and job.finds_contacts else None,
    )


def read_pieces(node: str, shard: int, paths: Sequence[str]) -> Iterator[tuple[MatchedPiece, bool]]:
    """Yield the pieces of a shard in the event files *paths*, and whether each is the last."""
    for path in paths:
        file = EventFile(Path(path))
        entries = list(file.entries(shard))
        for entry in entries:
            yield _piece(node, file, entry), path == paths[-1] and entry is entries[-1]


def _piece(node: str, file: EventFile, entry: Entry) -> MatchedPiece:
    tables = {name: file.table(entry, name) for name in entry.tables}
    published = tables.pop("published", None)
    return MatchedPiece(
        node=node,
        first=entry.first,
        last=entry.last,
        ends_at=entry.ends_at,
        tables=tables,
        published=[] if published is None else [_whole(batch) for batch in published.to_batches()],
        matches=[],
        dead=[],
        counts=COUNT.empty_table(),
    )


def _whole(events: Any) -> Any:  # pyarrow.RecordBatches
    """Return *events* with all columns of ``EVENT``; those without any value are not in the file."""
    there = set(events.schema.names)
    columns = [events.column(f.name) if f.name in there else pa.nulls(events.num_rows, f.type) for f in EVENT]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT)
