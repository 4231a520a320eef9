"""The second stage of a batch run: read, validate and match each slice of a node's log once, in any task.

A slice is a range of seqs. Its task writes the rows of ``matches`` and ``dead_letters``, and an event file
(``event_files``) with all that the fold needs of the slice, divided by shard of sessions, and with counts for windows.
Rule: a slice needs no other slice: the matcher has all subscriptions that overlap the run, and the places of devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import cbor2
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from whimbrel.log.layout import Part, segments
from whimbrel.log.reader import LogPlace
from whimbrel.model.bounds import FIRST_TIME, INT64_MAX, LAST_TIME
from whimbrel.model.tables import TIME_TYPE
from whimbrel.pipeline.batch.event_files import NODE, SUMS, EventWriter
from whimbrel.pipeline.batch.job import BatchJob, NodeSpan
from whimbrel.pipeline.batch.node_subscriptions import NodeSubscriptions, read_moves, read_shards
from whimbrel.pipeline.batch.progress import Progress
from whimbrel.pipeline.files.dead_letters import missing_letters
from whimbrel.pipeline.files.schemas import TIMES
from whimbrel.pipeline.files.snapshots import parts_up_to, read_undisturbed, settled_seq
from whimbrel.pipeline.fold.events import EVENT_TABLES, Seen
from whimbrel.pipeline.fold.garbage import pause_collection
from whimbrel.pipeline.fold.shards import Shards
from whimbrel.pipeline.subscriptions.moves import Moves
from whimbrel.pipeline.subscriptions.versions import PackedVersions
from whimbrel.pipeline.tables.censuses import census_rows
from whimbrel.pipeline.tables.popularity import sum_counts
from whimbrel.pipeline.unit.made import WorkerOutput
from whimbrel.pipeline.unit.matching import MatchedPiece, match_piece

__all__ = ["MatchedSlice", "Ready", "Slice", "cut", "match_slice"]

_FACTS_A_SLICE = 50_000
_SLICES_A_CORE = 4
_REPORT = ("seq", "reported_at", "device", "place", "received", "sent")


class Slice(NamedTuple):
    """A range of seqs of a node, the work of one task."""

    span: NodeSpan
    first: int
    last: int
    matches: bool
    """Whether the publications are matched."""
    counts: bool
    """Whether the publications are counted for windows."""
    known: NodeSubscriptions | None = None
    places: tuple[LogPlace, ...] = ()
    """Known places of records in the node's segments."""

    @property
    def is_first(self) -> bool:
        """Whether this is the node's first slice."""
        return self.first == self.span.first


class MatchedSlice(NamedTuple):
    """Report on a slice that was matched."""

    first: int
    """First seq of the slice."""
    events: str
    """Path of the event file."""
    ends_at: int | None
    """The time of the last fact, in microseconds."""
    digest: str | None
    """Digest of the last fact, if all tables were read."""
    place: tuple[int, int, int] | None
    """Place of the last fact in the segments, as ``LogPlace``; None if the fact was read from elsewhere."""
    rows: dict[int, int]
    """Number of rows in the event file per shard; a shard without any row is left out."""

    def output(self, node: str) -> WorkerOutput:
        """Return this as a row for the driver."""
        return WorkerOutput("events", node, None, 0, cbor2.dumps(self))

    @classmethod
    def of(cls, made: WorkerOutput) -> MatchedSlice:
        """Decode an ``output``."""
        return cls(*cbor2.loads(made.told))


# -- in the driver -----------------------------------------------------------------------------------------------------


def cut(job: BatchJob, spans: Sequence[NodeSpan], cores: int) -> list[Slice]:
    """Cut the log into slices, several per core; leave out those of which nothing is read."""
    facts = sum(span.last - span.first + 1 for span in spans)
    size = max(_FACTS_A_SLICE, -(-facts // (_SLICES_A_CORE * cores)))
    return [each for span in spans for each in _slices(job, span, size)]


def _slices(job: BatchJob, span: NodeSpan, size: int) -> Iterator[Slice]:
    days = _Days(job, span)
    begins = sorted({span.first, *_begins(Path(job.log), span, size)})
    for first, after in zip(begins, [*begins[1:], span.last + 1], strict=True):
        last = after - 1
        matches = job.folds or ("matches" in job.tables and days.have(first, last))
        counts = job.counts and ("replicas" in job.tables or days.have(first, last, later_us=job.plan.window_us))
        if matches or counts or "dead_letters" in job.tables or job.folds_reports:
            yield Slice(span, first, last, matches, counts)


def _begins(log: Path, span: NodeSpan, size: int) -> Iterator[int]:
    """Yield the first seq of each slice but the first: the begin of a segment, if one is near, saves a read of it."""
    known = np.array([first for first, _ in segments(log, span.node)] or [-1])
    for wanted in range(span.first + size, span.last + 1 - size // 2, size):
        near = int(known[np.abs(known - wanted).argmin()])
        yield near if span.first < near <= span.last and abs(near - wanted) <= size // 4 else wanted


class _Days:
    """The days of a node's publications, to leave out slices of which an interval has none."""

    def __init__(self, job: BatchJob, span: NodeSpan) -> None:
        self._interval = job.interval
        if self._interval is not None:
            log = Path(job.log)
            self._settled = settled_seq(log, span.node)
            self._parts = parts_up_to(log, "publications", span.node, self._settled)

    def have(self, first: int, last: int, *, later_us: int = 0) -> bool:
        """Return whether the seqs may have a publication within the interval, whose end is moved *later_us* later."""
        if self._interval is None or last > self._settled:
            return True
        since, until = self._interval.days(later_us=later_us)
        days: Iterator[date] = (each.date for each in self._parts if each.first <= last and each.last >= first)
        return any(since <= day <= until for day in days)


# -- in a worker -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """A node's matcher, shards and tracks, in memory."""

    found: PackedVersions
    shards: Shards
    moves: Moves | None = None
    """Tracks of devices, unless the matcher has them."""

    @classmethod
    def read(cls, known: NodeSubscriptions, node: str) -> Ready | None:
        """Read the files of the first stage; return None if nothing is matched."""
        if known.matcher is None:
            return None
        return cls(PackedVersions.map(known.matcher, node), read_shards(known), read_moves(known))

    def shard_of(self) -> tuple[Any, Any]:
        """Return the seqs of all subscriptions, sorted, and the shard of each."""
        order = np.argsort(self.found.begun)
        return self.found.begun[order], self.shards.of_sessions(self.found.table.column("session"))[order]


def match_slice(job: BatchJob, task: Slice, ready: Ready | None = None) -> Iterator[WorkerOutput]:
    """Match a slice; yield the data files that were written, and the event file for the next stage.

    *ready* has the subscriptions, if the process has them in memory.
    """
    span, known = task.span, task.known
    node = span.node
    tables = _read_tables(job, task)
    reader, files = job.reader(node, tables, places=task.places), job.files(node)
    progress = Progress(job, f"{node}-{task.first}")
    if ready is None and known is not None and task.matches:
        ready = Ready.read(known, node)
    found, moves = (None, None) if ready is None else (ready.found, ready.moves)
    shard_of = ready.shard_of() if job.folds and ready is not None else None
    seen = Seen.NOTHING if known is None else known.seen
    if task.is_first:
        yield from files.add("dead_letters", missing_letters(span.missing, job.now).to_batches())
    window_us = job.plan.window_us if task.counts else None
    has_reports = job.keeps_state or seen is not Seen.NOTHING  # a policy that comes later may read them
    counts: list[Any] = []
    censuses: list[Any] = []
    times: list[int] = []

    def pieces() -> Iterator[MatchedPiece]:
        for piece in reader.pieces(task.first, task.last, now=job.now, missing=span.missing):
            if "replicas" in job.tables:
                censuses.append(census_rows(piece.table("publications")))
            yield match_piece(piece, found, moves, seen=seen, window_us=window_us)

    with EventWriter(Path(job.scratch)) as events:
        for piece in pause_collection(pieces()):
            yield from files.add("matches", job.rows_within("matches", piece.matches))
            yield from files.add("dead_letters", piece.dead)
            if shard_of is not None and ready is not None:
                _leave_events(events, piece, ready.shards, shard_of, has_reports=has_reports)
            if job.folds_reports:
                reports = {"reports": piece.table("reports", _REPORT)}
                events.add(NODE, reports, first=piece.first, last=piece.last, ends_at=piece.ends_at)
            times += [] if piece.ends_at is None else [piece.ends_at]
            counts.append(piece.counts)
            if len(counts) > 1 and counts[-1].num_rows > counts[0].num_rows:
                counts[:] = [sum_counts(counts)]
            progress.note(piece.last - task.first + 1)
        if job.finds_contacts and len(tables) < len(TIMES):
            ends_at = _last_time(job, task, TIMES.keys() - {*tables})
            events.add(NODE, {}, first=task.last, last=task.last, ends_at=ends_at)
        sums = {"counts": sum_counts(counts)} if counts else {}
        events.add(SUMS, sums | ({"censuses": pa.concat_tables(censuses)} if censuses else {}))
    yield from files.end()
    progress.note(task.last - task.first + 1)
    yield MatchedSlice(
        task.first, str(events.path), max(times, default=None), reader.digest, reader.last_place, events.rows
    ).output(node)


def _read_tables(job: BatchJob, task: Slice) -> tuple[str, ...]:
    """Return the tables of the log to read; segments have all tables together."""
    if job.finds_contacts and task.last > settled_seq(Path(job.log), task.span.node):
        return tuple(TIMES)  # contacts need the time of the last fact, of any table
    wants_publications = task.counts or task.matches or "dead_letters" in job.tables
    return tuple(table for table in job.read_tables if table != "publications" or wants_publications)


def _leave_events(
    events: EventWriter, piece: MatchedPiece, shards: Shards, shard_of: tuple[Any, Any], *, has_reports: bool
) -> None:
    """Leave the events of a piece for the fold tasks, one entry per shard; it has the time, even without an event."""
    own: list[dict[str, Any]] = [{} for _ in range(shards.of)]

    def add(name: str, divided: Sequence[Any]) -> None:
        for tables, rows in zip(own, divided, strict=True):
            tables[name] = rows

    if piece.published:
        published = pa.Table.from_batches(piece.published)
        some = [name for name in published.column_names if published.column(name).null_count < published.num_rows]
        add("published", shards.divide_published(published.select(some).combine_chunks(), shard_of))
    for name in EVENT_TABLES:
        if name in piece.tables and (has_reports or name != "reports"):
            add(name, shards.divide(name, piece.table(name)))
    for shard, tables in enumerate(own):
        events.add(shard, tables, first=piece.first, last=piece.last, ends_at=piece.ends_at)


def _last_time(job: BatchJob, task: Slice, unread: Collection[str]) -> int | None:
    """Return the time of the last fact of a slice in the tables *unread*, which are in Parquet and not validated."""

    def find() -> int | None:
        return max(filter(None, map(last, parts_of())), default=None)

    def parts_of() -> Iterator[tuple[str, Part]]:
        for table in unread:
            for part in parts_up_to(Path(job.log), table, task.span.node, INT64_MAX):
                if part.first <= task.last and part.last >= task.first:
                    yield table, part

    def last(found: tuple[str, Part]) -> int | None:
        table, part = found
        rows = pq.read_table(part.path, columns=["seq", TIMES[table]], use_threads=False, partitioning=None)
        seqs, times = rows.column("seq"), rows.column(TIMES[table]).cast(TIME_TYPE).cast(pa.int64())
        is_own = pc.and_(pc.greater_equal(seqs, task.first), pc.less_equal(seqs, task.last))
        is_valid = pc.and_(pc.greater_equal(times, FIRST_TIME), pc.less_equal(times, LAST_TIME))
        latest: int | None = pc.max(times.filter(pc.and_(is_own, is_valid))).as_py()
        return latest

    return read_undisturbed(find)
