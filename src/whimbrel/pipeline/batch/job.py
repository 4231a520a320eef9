"""The description of a batch run, sent to all its tasks: what to make of which log, and which work that needs.

Rule: publications are matched only for tables that need their matches, and folded only for tables that need the fold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from whimbrel.errors import WhimbrelError
from whimbrel.log.reader import LogPlace
from whimbrel.pipeline.batch.intervals import Interval, has_intervals
from whimbrel.pipeline.files.part_rows import PIECE_BYTES, PIECE_FACTS
from whimbrel.pipeline.files.schemas import TIMES
from whimbrel.pipeline.files.snapshots import Missing
from whimbrel.pipeline.files.spans import SpanReader
from whimbrel.pipeline.files.visibility import PATIENT, Patience
from whimbrel.pipeline.fold.start_state import StartState, seen_start_state, state_at
from whimbrel.pipeline.plans import Plan
from whimbrel.pipeline.unit.made import FILE_BYTES, TableFiles

__all__ = ["BatchJob", "CutLogError", "NodeSpan"]


class CutLogError(WhimbrelError):
    """A node's log was cut while a run read it. Reaction: run it again."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node

    def __str__(self) -> str:
        return f"the log of {self.node!r} was cut while it was read; run it again"


class NodeSpan(NamedTuple):
    """The seqs of a node that a run reads."""

    node: str
    first: int
    last: int
    missing: tuple[Missing, ...] = ()
    """Ranges of seqs that the node's log lacked when the driver looked."""
    is_resumed: bool = False
    """Whether the state before the first seq is that of a checkpoint in a log that has all facts (``resuming``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """Description of a run, sent to all its tasks."""

    log: str
    out: str
    folder: str
    """Folder within each table's folder that gets the files."""
    scratch: str
    """Folder of the files that tasks leave for the tasks of the next stage."""
    tables: tuple[str, ...]
    plan: Plan
    """Options of the tables; ``assume_receipts`` is set."""
    now: int
    """Time that dead letters get, in microseconds."""
    interval: Interval | None = None
    """Interval of the rows to write, for tables whose rows have times; None: all rows."""
    is_columnar: bool = True
    """Whether the columnar hold computes the deliveries of plain sessions; the rows are the same without it."""
    keeps_state: bool = False
    """Whether the state at the end is kept for a later run, so that every fact counts, whatever the tables."""
    piece_facts: int = PIECE_FACTS
    piece_bytes: int = PIECE_BYTES
    file_bytes: int = FILE_BYTES
    patience: Patience = PATIENT

    # -- the work that the tables need ---------------------------------------------------------------------------------

    def _makes(self, *tables: str) -> bool:
        return not {*tables}.isdisjoint(self.tables)

    @property
    def folds(self) -> bool:
        """Whether sessions are folded, for which all publications must be matched."""
        return self.keeps_state or self._makes("deliveries", "latency")

    @property
    def counts(self) -> bool:
        """Whether publications are counted."""
        return self._makes("popularity", "replicas")

    @property
    def finds_contacts(self) -> bool:
        """Whether contacts are searched."""
        return self._makes("contacts", "meetings")

    @property
    def folds_reports(self) -> bool:
        """Whether reports are folded, apart from the sessions."""
        return self.keeps_state or self.finds_contacts or "link_quality" in self.tables

    @property
    def has_windows(self) -> bool:
        """Whether a table is made from sums at the end of the run."""
        return self._makes("latency", "popularity", "replicas", "meetings")

    @property
    def read_tables(self) -> tuple[str, ...]:
        """Tables of the log whose rows the tables need."""
        if self.folds or "dead_letters" in self.tables:
            return tuple(TIMES)
        wanted = ("publications",) if self.counts or "matches" in self.tables else ()
        return (*wanted, "reports") if self.folds_reports else wanted

    # -- in a task -----------------------------------------------------------------------------------------------------

    def reader(self, node: str, tables: Iterable[str] = TIMES, *, places: Iterable[LogPlace] = ()) -> SpanReader:
        """Return a reader of *tables* of a node's log; *places* are known places of records."""
        bounds: dict[str, Any] = {"most_facts": self.piece_facts, "most_bytes": self.piece_bytes}
        return SpanReader(Path(self.log), node, **bounds, tables=tables, patience=self.patience, places=places)

    def files(self, node: str) -> TableFiles:
        """Return a new writer of data files."""
        return TableFiles(Path(self.out), node, self.tables, self.file_bytes, self.folder)

    def start_state(self, span: NodeSpan) -> StartState | None:
        """Return the state at which a cut log starts, else None; raise ``CutLogError`` if it starts elsewhere now."""
        if span.is_resumed:
            log, wanted = Path(self.log), span.first - 1
            return self.patience.wait_for(lambda: state_at(log, span.node, wanted))
        begun = seen_start_state(Path(self.log), span.node, span.missing, last=span.last, patience=self.patience)
        if span.first != (0 if begun is None else begun.seq + 1):
            raise CutLogError(span.node)
        return begun

    def rows_within(self, table: str, batches: Iterable[Any]) -> Iterable[Any]:
        """Return the rows of a table's Arrow batches that are within the interval."""
        if self.interval is None or not has_intervals(table):
            return batches
        return (self.interval.within(batch, table) for batch in batches)
