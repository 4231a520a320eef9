"""One node's share of a batch, in a worker: turn a range of its seqs into data files, and into counts for time windows.

The node's state is stored in objects (``state.objects``). A worker's memory is only a cache of states: it is used for
the state that has the same name, and is bounded.

Rule: a span (this range of seqs) is processed in pieces (chunks), so memory is bounded even if the span is large.
Rule: after a failure nothing stays in the cache.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import cbor2
import pyarrow as pa

from whimbrel.hold.store.interface import NOTHING_APPLIED
from whimbrel.log.errors import ReplacedSegmentError
from whimbrel.log.incarnation import incarnation
from whimbrel.model.bounds import INT64_MAX
from whimbrel.pipeline.files.dead_letters import missing_letters
from whimbrel.pipeline.files.part_rows import PIECE_BYTES, PIECE_FACTS
from whimbrel.pipeline.files.snapshots import Missing, missing_numbers
from whimbrel.pipeline.files.spans import SpanReader
from whimbrel.pipeline.files.visibility import PATIENT, Patience, UnseenNumbersError
from whimbrel.pipeline.fold.contact_fold import Meeting
from whimbrel.pipeline.fold.garbage import pause_collection
from whimbrel.pipeline.fold.start_state import seen_start_state
from whimbrel.pipeline.plans import StreamPlan
from whimbrel.pipeline.stream.state.batch_record import LostLogError, LostStateError, OtherLogError
from whimbrel.pipeline.stream.state.blob_store import Blobs, BlobStore
from whimbrel.pipeline.unit.folding import TakenPiece, begun_piece
from whimbrel.pipeline.unit.made import FILE_BYTES, TableFiles, WorkerOutput
from whimbrel.pipeline.unit.matchers import Matchers
from whimbrel.pipeline.unit.node_share import LogMark, NodeShare
from whimbrel.pipeline.unit.take import take

__all__ = ["Job", "NodeReport", "Span", "fold_node", "unpacked_tallies"]

_TALLIES_BYTES = 8 << 20
_CACHE_BYTES = 64 << 20
"""Size on disk of all states that a process caches; in memory they take several times as much."""
_INTERVAL = ("node", "interest_seq", "session", "subject_filter", "began_at", "ended_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Description of a stream, sent to the workers."""

    stream: str
    """The stream's unique name."""
    log: str
    out: str
    plan: StreamPlan
    piece_facts: int = PIECE_FACTS
    piece_bytes: int = PIECE_BYTES
    file_bytes: int = FILE_BYTES
    """Size in memory from which on the rows of a table are written to a file, in bytes."""
    patience: Patience = PATIENT
    state: str = ""
    """Folder of the state objects, which all workers see."""
    tells_away: bool = False
    """Whether reports have the number of notifications held for each absent device; for small fleets only."""

    def files(self, node: str) -> TableFiles:
        """Return a new writer of data files for the rows of *node*."""
        return TableFiles(Path(self.out), node, self.plan.tables, self.file_bytes)


class Span(NamedTuple):
    """The seqs of one node in a batch."""

    first: int
    last: int
    nodes: int
    """Number of nodes that the log has."""
    now: int = INT64_MAX
    """The driver's time when the batch began, in microseconds: an upper bound of every node's time."""
    missing: tuple[Missing, ...] = ()
    """For a node that is new to the stream: the ranges of seqs that its log lacked when the driver looked."""


class NodeReport(NamedTuple):
    """Report of a node to the driver after a batch."""

    first: int
    last: int
    nodes: int
    last_at: int | None
    """The time of the node's last fact, or the driver's time if that is earlier, in microseconds."""
    oldest_at: int
    """Publication time of the oldest notification that is still held."""
    size: int
    size_bytes: int
    """Size of the node's state, in bytes; ``size`` is its number of items."""
    is_cached: bool
    """Whether the state was in the worker's memory."""
    notes: tuple[str, ...]
    away: dict[str, int] | None
    now: int
    """The driver's time, in microseconds."""
    incarnation: str | None
    digest: str | None
    """Incarnation and digest of the ``LogMark`` after the last fact."""
    matchers: tuple[int, int]
    """Number of matchers that were mapped from the worker's disk, and that were packed."""
    state: str
    """Name of the object with the state after the batch."""
    dropped: tuple[str, ...]
    """Names of objects that this state does not need, and the one before it did."""


@dataclass(slots=True)
class _Kept:
    store: BlobStore
    state: NodeShare
    matchers: Matchers
    reader: SpanReader


_Key: TypeAlias = tuple[str, str, str, str]
_kept: dict[_Key, _Kept] = {}
"""States of nodes that this process caches, the oldest first; keys: stream, paths of the log and the tables, node."""


def fold_node(job: Job, node: str, span: Span, blobs: Blobs) -> Iterator[WorkerOutput]:
    """Apply a span (range of seqs) to the state of a node, which is stored in *blobs*; yield the output.

    Once all output was yielded, *blobs* have the state at the end of the span.
    """
    key = (job.stream, job.log, job.out, node)
    kept, is_cached = _kept.pop(key, None), True
    if kept is not None and kept.store.head == blobs.head():
        kept.store.follow(blobs)
    else:
        if kept is not None:
            kept.matchers.forget()
        kept, is_cached = _restore(job, node, blobs), False
    log, applied = Path(job.log), kept.store.applied
    if applied != span.first - 1:
        raise LostStateError(f"node {node}", f"number {applied}", f"number {span.first - 1}")
    begun = None
    if applied != NOTHING_APPLIED:
        _check_same_log(kept, log, node)
    else:
        with _named_trouble(log, node, span):
            begun = seen_start_state(log, node, span.missing, last=span.last, patience=job.patience)
    if begun is not None:
        if begun.seq > span.last:  # the log was cut after the batch began
            raise LostLogError(node, span.last)
        span = span._replace(first=begun.seq + 1)
        kept.store.replace(begun.seq, dict(begun.rows))
        kept = _restore(job, node, blobs)
    files, tallies = job.files(node), _Tallies(node)
    uses = kept.matchers.files.uses
    now = time.time_ns() // 1_000
    yield from files.add("dead_letters", missing_letters(span.missing, now).to_batches())
    if begun is not None:
        yield from tallies.add(begun_piece(kept.state, begun.seq))
    options: dict[str, Any] = {"window_us": job.plan.window_us, "now": now, "missing": span.missing}
    taken = take(kept.reader, span.first, span.last, kept.state, kept.matchers, **options)
    with _named_trouble(log, node, span):
        for piece in pause_collection(taken):
            for table, batches in piece.rows.items():
                yield from files.add(table, batches)
            yield from tallies.add(piece)
    yield from files.end()
    yield from tallies.end()
    kept.state.mark = LogMark(incarnation(log, node), kept.reader.digest)
    kept.state.commit(span.last)
    report = NodeReport(
        first=span.first,
        last=span.last,
        nodes=span.nodes,
        last_at=None if kept.state.last_at is None else min(kept.state.last_at, span.now),
        oldest_at=kept.state.oldest_at,
        size=kept.state.size,
        size_bytes=kept.store.size_bytes,
        is_cached=is_cached,
        notes=tuple(map(str, span.missing)),
        away=kept.state.away() if job.tells_away else None,
        now=span.now,
        incarnation=kept.state.mark.incarnation,
        digest=kept.state.mark.digest,
        matchers=kept.matchers.files.uses.since(uses),
        state=kept.store.head.version,
        dropped=tuple(blobs.dropped),
    )
    _keep(key, kept)
    yield WorkerOutput("node", node, None, 0, cbor2.dumps(report))


def _keep(key: _Key, kept: _Kept) -> None:
    """Add a state to the cache as its newest; remove the oldest states if the cache is too large."""
    _kept[key] = kept
    size = sum(each.store.size_bytes for each in _kept.values())
    while size > _CACHE_BYTES and len(_kept) > 1:
        oldest = next(iter(_kept))
        gone = _kept.pop(oldest)
        size -= gone.store.size_bytes
        gone.matchers.forget()


def _restore(job: Job, node: str, blobs: Blobs) -> _Kept:
    store = BlobStore(blobs)
    plan = job.plan
    contact = plan.contact if {"contacts", "meetings"} & {*plan.tables} else None
    state = NodeShare(
        node, store, retention=plan.retention, assume_receipts=bool(plan.assume_receipts), contact=contact
    )
    bounds: dict[str, Any] = {"most_facts": job.piece_facts, "most_bytes": job.piece_bytes}
    reader = SpanReader(Path(job.log), node, **bounds, patience=job.patience)
    return _Kept(store, state, Matchers(), reader)


def _check_same_log(kept: _Kept, log: Path, node: str) -> None:
    """Raise ``OtherLogError`` if the log is not the one from which the node's state was folded."""
    mark, found, applied = kept.state.mark, incarnation(log, node), kept.store.applied
    if mark.incarnation not in {None, found}:
        raise OtherLogError(log, node, f"incarnation {found or 'none'}", f"incarnation {mark.incarnation}")
    if mark.digest is None or kept.reader.is_where_it_was:
        return
    if any(each.first <= applied <= each.last for each in missing_numbers(log, node)):
        return  # the fact that was read last may have been cut
    if kept.reader.digest_at(applied) != mark.digest:
        raise OtherLogError(log, node, f"another fact with the number {applied}", "the one that was read")


@contextmanager
def _named_trouble(log: Path, node: str, span: Span) -> Iterator[None]:
    """Replace an error of a read by its cause: another log replaced this one, or seqs were cut before being read."""
    try:
        yield
    except ReplacedSegmentError:
        raise OtherLogError(log, node, "another segment in the place of one", "the one that was read") from None
    except UnseenNumbersError:
        for each in missing_numbers(log, node):
            if each not in span.missing and each.first <= span.last and each.last >= span.first:
                raise LostLogError(node, max(each.first, span.first)) from None
        raise


# -- tallies ---------------------------------------------------------------------------------------------------------


class _Tallies:
    """Buffer of counts for the time windows, from several pieces (chunks) of the log.

    It has numbers of publications, latencies, subscriptions' times in force, and meetings.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._parts: list[tuple[Any, Any, Any]] = []
        self._met: dict[tuple[str, str], Meeting] = {}
        self._size = 0

    def add(self, piece: TakenPiece) -> Iterator[WorkerOutput]:
        """Add the counts of a piece (a chunk of the log); once the buffer is large, yield its content."""
        parts = (piece.counts, piece.tally, piece.intervals.select(list(_INTERVAL)))
        if any(part.num_rows for part in parts):
            self._parts.append(parts)
            self._size += sum(part.nbytes for part in parts)
        for pair, each in piece.meetings.items():
            self._met[pair] = self._met.get(pair, Meeting()).plus(each)
        if self._size >= _TALLIES_BYTES:
            yield from self.end()

    def end(self) -> Iterator[WorkerOutput]:
        """Yield the buffered content, and clear the buffer."""
        if self._parts:
            tables = [pa.concat_tables(column) for column in zip(*self._parts, strict=True)]
            self._parts, self._size = [], 0
            yield WorkerOutput("tallies", self._node, None, 0, cbor2.dumps([_as_bytes(table) for table in tables]))
        if self._met:
            met = [[*pair, *each] for pair, each in self._met.items()]
            self._met = {}
            yield WorkerOutput("meetings", self._node, None, 0, cbor2.dumps(met))


def unpacked_tallies(told: bytes) -> tuple[Any, Any, Any]:
    """Decode an output of the kind ``tallies``: three Arrow tables (publications, latencies, times in force)."""
    counts, tally, intervals = (pa.ipc.open_stream(part).read_all() for part in cbor2.loads(told))
    return counts, tally, intervals


def _as_bytes(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
