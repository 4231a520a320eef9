"""The commits of a batch, in the driver: add the workers' output to the tables, one commit per table.

Rule: the driver does not read the data files of workers; it only commits their names. Only rows of time windows (of
``popularity``, for example), which replace older rows, are read and merged into the table.
Rule: a table that has the batch already is not changed.
Rule: rows of time windows may wait for their commit up to ``slow_s`` (``waiting_windows``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import cbor2
from deltalake.transaction import AddAction

from whimbrel.errors import InvalidValueError
from whimbrel.log.files import put
from whimbrel.log.reader import LogPlace
from whimbrel.pipeline.files.delta import LARGEST_BYTES, ConcurrentChangeError, DeltaOutput
from whimbrel.pipeline.files.waiting_windows import WaitingWindows, merge_changes, read_changes
from whimbrel.pipeline.plans import StreamPlan
from whimbrel.pipeline.stream.job import NodeReport, scratch_of
from whimbrel.pipeline.stream.state.batch_record import (
    BatchRecord,
    GroupRecord,
    LostStateError,
    NodeRecord,
    check_same_log,
    check_tables,
)
from whimbrel.pipeline.stream.window_fold import WindowsReport
from whimbrel.pipeline.subscriptions.matcher_files import Uses
from whimbrel.pipeline.unit.made import WorkerOutput

__all__ = ["BatchCommits", "BatchSummary", "TableCommits"]

_COMPACT_EVERY = 8
_SMALLEST_BYTES = 1 << 20
_PARTS_KEPT = 8
"""Old rows are removed in steps of this fraction (an eighth) of the time for which rows are kept."""


class TableCommits:
    """The output tables of a stream, in the folder *out*."""

    def __init__(self, out: Path, plan: StreamPlan) -> None:
        self._out, self._plan = out, plan
        self._outputs = {table: DeltaOutput(out, table) for table in plan.tables}
        self._waiting = WaitingWindows(scratch_of(out))
        self._committed_s: dict[str, float] = {}
        """Monotonic time of the last commit of rows of windows, per table."""
        self.slow_s = 0.0
        """Time between two commits of rows of windows, in seconds."""

    def check_begun(self, *, is_new: bool) -> None:
        """Raise ``InvalidValueError`` if a new stream finds tables with rows that no stream wrote."""
        for table, output in self._outputs.items():
            if is_new and output.last_batch() < 0 and not output.is_of_a_stream():
                allowed = "a folder without tables of a batch run, or one that a stream made"
                raise InvalidValueError("directory for the tables", str(self._out / table), allowed)

    def create(self) -> None:
        """Create the missing tables, empty."""
        for output in self._outputs.values():
            output.create()

    def last_batches(self) -> dict[str, int]:
        """Return the last batch that changed each table; -1 if none did."""
        return {table: output.last_batch() for table, output in self._outputs.items()}

    def commit(self, batch: int, made: Iterable[WorkerOutput]) -> dict[str, int]:
        """Commit a batch to each table; return the number of new rows per table."""
        files: dict[str, list[AddAction]] = {}
        windows: dict[str, list[Path]] = {}
        rows = dict.fromkeys(self._outputs, 0)
        for each in made:
            if each.table is None:
                continue
            rows[each.table] += each.rows
            if each.kind == "file":
                files.setdefault(each.table, []).append(AddAction(**json.loads(each.told)))
            else:
                windows.setdefault(each.table, []).append(Path(each.told.decode()))
        for table, output in self._outputs.items():
            if table not in windows:
                output.add_files(batch, files.get(table, []))
            elif not output.has(batch):
                self._waiting.keep(table, batch, windows[table])
        self.commit_waiting()
        return rows

    def commit_waiting(self, *, all_of_them: bool = False) -> None:
        """Commit the waiting rows of windows of those tables whose last commit is *slow_s* ago, or of all tables."""
        now_s = time.monotonic()
        for table, output in self._outputs.items():
            is_due = all_of_them or now_s - self._committed_s.get(table, -self.slow_s) >= self.slow_s
            if is_due and (waiting := self._waiting.of(table, after=output.last_batch())):
                changes = (read_changes(table, [each.path]) for each in waiting)
                output.replace(waiting[-1].batch, merge_changes(output, changes))
                self._committed_s[table] = now_s
            if is_due:
                self._waiting.drop(table)

    def tidy(self, batch: int, windows: WindowsReport, *, now: int) -> None:
        """Compact small files, and remove rows that are too old and files that no reader needs any more.

        Small files are compacted after every eighth batch, files up to eight times as large after every 64th, and so
        on. So each row is rewritten only a few times. *now* is in microseconds.
        """
        number = batch + 1
        if number % _COMPACT_EVERY:
            return
        target = _SMALLEST_BYTES
        while number % (_COMPACT_EVERY * _COMPACT_EVERY) == 0 and target < LARGEST_BYTES:
            number, target = number // _COMPACT_EVERY, target * 8
        for table, output in self._outputs.items():
            before = windows.first_open if table in {"popularity", "latency"} else None
            keep_us = self._plan.keep_us
            with suppress(
                ConcurrentChangeError
            ):  # a user's program changed the table meanwhile: wait for the next turn
                if keep_us is not None:
                    # A node whose clock is ahead must not make other nodes' rows old. The horizon advances in steps,
                    # because removing rows means rewriting the other rows of their files.
                    step, horizon = max(1, keep_us // _PARTS_KEPT), min(windows.watermark, now) - keep_us
                    output.expire(horizon - horizon % step, before=before)
                output.compact(target_bytes=min(target, LARGEST_BYTES), before=before)
            if target >= LARGEST_BYTES or batch < _COMPACT_EVERY:
                output.sweep()

    def clear(self, *, is_new: bool = False) -> None:
        """Remove files with rows of time windows, and with counts for them, that no batch needs; all if *is_new*."""
        if is_new:
            self._waiting.drop_all()
        self._waiting.clear_others()


# -- a batch ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSummary:
    """Summary of one committed batch."""

    batch: int
    facts: int
    rows: dict[str, int]
    """Number of rows that were written, per table."""
    applied: dict[str, int]
    """Last seq in the tables, per node."""
    done_with: dict[str, int]
    """Last seq that is never read again, per node. It excludes this batch, which a crash of the driver may repeat."""
    newest_at: int
    """The time of the newest fact in the tables, in microseconds; not later than the driver's time."""
    state: int
    """Number of items in the state of all nodes and windows."""
    state_bytes: int
    """Size of the state of all nodes and windows, in bytes."""
    took_s: float
    notes: tuple[str, ...] = ()
    """Sentences about gaps, late rows and the like, for an observer."""
    late: Mapping[str, int] = field(default_factory=dict)
    """Number of facts that came after their window was final, and are not counted, per table."""
    matchers: Uses = Uses()  # noqa: RUF009  # immutable
    """Number of matchers that workers found on their disks, and that they packed."""


class BatchCommits:
    """Commits the batches of a stream to the tables in *out*, in order, and keeps the record of the last batch."""

    def __init__(self, out: Path, plan: StreamPlan) -> None:
        self._folder = out / "_stream"
        self.record = BatchRecord.read(self._path)
        self.tables = TableCommits(out, plan)
        self.away: dict[str, dict[str, dict[str, int]]] = {}
        """Notifications held for each absent device, per node and group; empty unless the job asks for it."""
        self.dropped: list[str] = []
        """Names of objects that the last batch made useless."""
        self.tables.check_begun(is_new=self.record is None)
        check_tables(self.record, self.tables.last_batches())

    @property
    def _path(self) -> Path:
        return self._folder / "batch.json"

    def begin(self) -> None:
        """Create missing tables, and remove what interrupted batches left; the state must have been found before."""
        if self.record is None or self.record.is_done:
            self.tables.clear(is_new=self.record is None)
        self.tables.create()

    def check_log(self, log: Path) -> None:
        """Raise ``OtherLogError`` if *log* is not the log from which the tables were made."""
        check_same_log(log, {} if self.record is None else self.record.nodes)

    @property
    def applied(self) -> dict[str, int]:
        """Last seq in the tables, per node."""
        return {} if self.record is None else {node: each.applied for node, each in self.record.nodes.items()}

    def adopt(self, record: BatchRecord) -> None:
        """Replace the record by *record*, which says the same of the tables, and names the objects with the state."""
        record.put(self._path)
        self.record = record

    def finish(self) -> None:
        """Commit the batch of the record to the tables that lack it, if it was made and then interrupted."""
        record = self.record
        if record is None or record.is_done or record.output is None:
            return
        check_tables(record, self.tables.last_batches())
        self._end(record, _read_output(self._folder / record.output))

    def commit(self, batch: int, made: Sequence[WorkerOutput], *, began_s: float) -> BatchSummary:
        """Commit the output of a batch; *began_s* is the monotonic time when the batch began."""
        reports = {each.node: NodeReport(*cbor2.loads(each.told)) for each in made if each.kind == "node"}
        windows = next(WindowsReport(*cbor2.loads(each.told)) for each in made if each.kind == "windows")
        spans = {node: (each.first, each.last) for node, each in sorted(reports.items())}
        check_tables(self.record, self.tables.last_batches())
        before = self.record or BatchRecord(batch=batch, spans=spans)
        nodes = {
            node: NodeRecord(
                applied=each.last,
                last_at=each.last_at,
                size=each.size,
                size_bytes=each.size_bytes,
                incarnation=each.incarnation,
                digest=each.digest,
                state=each.state,
                groups=tuple(GroupRecord(*group) for group in each.groups),
                reports=each.reports,
                place=None if each.place is None else LogPlace(*each.place),
            )
            for node, each in reports.items()
        }
        record = replace(
            before,
            batch=batch,
            spans=spans,
            is_done=False,
            nodes={**before.nodes, **nodes},
            windows=(windows.size, windows.size_bytes),
            windows_state=windows.state,
            output=f"output-{batch}",
        )
        assert record.output is not None
        put(self._folder / record.output, cbor2.dumps([each for each in made if each.table is not None]))
        record.put(self._path)
        self.record = record
        rows = self._end(record, made)
        self.dropped = [*windows.dropped, *(name for each in reports.values() for name in each.dropped)]
        for node, each in reports.items():
            if each.away is not None:
                is_whole = "" in each.away or "" in self.away.get(node, {})
                self.away[node] = each.away if is_whole else {**self.away.get(node, {}), **each.away}
        self.tables.tidy(batch, windows, now=self.record.at)
        notes = [note for _, each in sorted(reports.items()) for note in each.notes]
        return BatchSummary(
            batch=batch,
            facts=sum(last - max(first, 1) + 1 for first, last in spans.values()),  # seqs begin with 1
            rows=rows,
            applied=self.applied,
            done_with=self.applied | {node: first - 1 for node, (first, _) in spans.items()},
            newest_at=max((each.last_at for each in record.nodes.values() if each.last_at is not None), default=0),
            state=windows.size + sum(each.size for each in record.nodes.values()),
            state_bytes=windows.size_bytes + sum(each.size_bytes for each in record.nodes.values()),
            took_s=time.monotonic() - began_s,
            notes=(*notes, *windows.notes),
            late=windows.late,
            matchers=Uses.sum(each.matchers for each in reports.values()),
        )

    def _end(self, record: BatchRecord, made: Sequence[WorkerOutput]) -> dict[str, int]:
        """Commit *made* to the tables that lack it, and record that all have it; return the rows of each table."""
        rows = self.tables.commit(record.batch, made)
        now = time.time_ns() // 1_000
        self.record = replace(record, is_done=True, at=now, written=self.tables.last_batches(), output=None)
        self.record.put(self._path)
        self.tables.clear()
        for path in self._folder.glob("output-*"):
            path.unlink(missing_ok=True)
        return rows


def _read_output(path: Path) -> list[WorkerOutput]:
    try:
        return [WorkerOutput(*each) for each in cbor2.loads(path.read_bytes())]
    except FileNotFoundError:
        raise LostStateError("the stream's record", f"no file {path.name}", "the output of its last batch") from None
