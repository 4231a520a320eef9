"""The description of a stream and of a node's share of a batch, sent to workers, and a node's report to the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from whimbrel.hold.store.interface import RowStore
from whimbrel.log.errors import ReplacedSegmentError
from whimbrel.log.incarnation import incarnation
from whimbrel.log.reader import LogPlace
from whimbrel.model.bounds import INT64_MAX
from whimbrel.pipeline.files.part_rows import PIECE_BYTES, PIECE_FACTS
from whimbrel.pipeline.files.schemas import TIMES
from whimbrel.pipeline.files.snapshots import Missing, missing_numbers
from whimbrel.pipeline.files.spans import SpanReader
from whimbrel.pipeline.files.visibility import PATIENT, Patience, UnseenNumbersError
from whimbrel.pipeline.fold.contact_fold import ContactPlan
from whimbrel.pipeline.fold.garbage import paused_collection
from whimbrel.pipeline.plans import StreamPlan
from whimbrel.pipeline.stream.state.batch_record import LostLogError, OtherLogError
from whimbrel.pipeline.unit.made import FILE_BYTES, TableFiles
from whimbrel.pipeline.unit.node_share import LogMark, NodeShare

__all__ = ["Job", "NodeReport", "Span", "check_log", "named_trouble", "scratch_of"]


def scratch_of(out: Path) -> Path:
    """Return the folder of the files that are needed during a batch only, for tables below *out*."""
    return out / "_stream" / "windows"


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
    group_facts: int = 20_000
    """Facts of a node in a batch from which on several tasks may fold it, in groups of its sessions."""

    def key(self, node: str, part: str = "") -> tuple[str, ...]:
        """Return the key of the state of a node, or of a *part* of it, in a worker's cache."""
        return (self.stream, self.log, self.out, node, part)

    @property
    def contact(self) -> ContactPlan | None:
        """The options of contacts; None if no table needs them."""
        return self.plan.contact if {"contacts", "meetings"} & {*self.plan.tables} else None

    def share(self, node: str, store: RowStore, *, contact: ContactPlan | None = None) -> NodeShare:
        """Return the state of a node, or of some of its sessions, that is stored in *store*."""
        assumed = bool(self.plan.assume_receipts)
        with paused_collection():  # a state has millions of values, and the collector would visit all of them again
            return NodeShare(node, store, retention=self.plan.retention, assume_receipts=assumed, contact=contact)

    @property
    def scratch(self) -> Path:
        """Folder of the files that a batch needs, and nothing after it."""
        return scratch_of(Path(self.out))

    def reader(self, node: str, tables: Iterable[str] = TIMES, *, places: Iterable[LogPlace] = ()) -> SpanReader:
        """Return a reader of *tables* of a node's log; *places* are known places of records."""
        return SpanReader(
            Path(self.log),
            node,
            most_facts=self.piece_facts,
            most_bytes=self.piece_bytes,
            tables=tables,
            patience=self.patience,
            places=places,
        )

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
    away: dict[str, dict[str, int]] | None
    """Number of notifications held for each absent device, per group of the node; the whole node is the group ""."""
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
    groups: tuple[tuple[Any, ...], ...] = ()
    """The groups of the node's sessions, as ``GroupRecord``; empty if it was folded as a whole."""
    reports: str | None = None
    """Name of the object with the state of the reports, if the node is in groups."""
    place: tuple[int, int, int] | None = None
    """Place of the last fact in the node's segments, as ``LogPlace``."""


# -- reading a span ----------------------------------------------------------------------------------------------------


def check_log(job: Job, reader: SpanReader, mark: LogMark, applied: int) -> None:
    """Raise ``OtherLogError`` if the log that *reader* reads is not the one whose facts up to *applied* were folded."""
    log, node = Path(job.log), reader.node
    found = incarnation(log, node)
    if mark.incarnation not in {None, found}:
        raise OtherLogError(log, node, f"incarnation {found or 'none'}", f"incarnation {mark.incarnation}")
    if mark.digest is None or reader.is_where_it_was:
        return
    if any(each.first <= applied <= each.last for each in missing_numbers(log, node)):
        return  # the fact that was read last may have been cut
    if reader.digest_at(applied) != mark.digest:
        raise OtherLogError(log, node, f"another fact with the number {applied}", "the one that was read")


@contextmanager
def named_trouble(log: Path, node: str, span: Span) -> Iterator[None]:
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
