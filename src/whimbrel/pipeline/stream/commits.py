"""The commits of a batch, in the driver: add the workers' output to the tables, one commit per table.

Rule: the driver does not read the data files of workers; it only commits their names. Only rows of time windows (of
``popularity``, for example), which replace older rows, are read and merged into the table.
Rule: a table that has the batch already is not changed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cbor2
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from whimbrel.errors import InvalidValueError
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files.delta import LARGEST_BYTES, WHOLE, DeltaOutput, by_window
from whimbrel.pipeline.plans import StreamPlan
from whimbrel.pipeline.stream.batch_record import BatchRecord, NodeRecord, check_same_log, checked_record
from whimbrel.pipeline.stream.node_fold import NodeReport
from whimbrel.pipeline.stream.window_fold import WindowsReport, scratch_of
from whimbrel.pipeline.stream.windows import merge_window
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
            if table in windows:
                output.replace(batch, self._merge_windows(output, batch, _read(table, windows[table])))
            else:
                output.add_files(batch, files.get(table, []))
        for path in (path for paths in windows.values() for path in paths):
            path.unlink(missing_ok=True)
        return rows

    def _merge_windows(self, output: DeltaOutput, batch: int, rows: Any) -> Mapping[int, Any]:
        if output.has(batch):
            return {}
        if output.table in {"replicas", "meetings"}:
            return {WHOLE: rows}
        return {window: merge_window(output.window(window), new) for window, new in by_window(rows).items()}

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
            if keep_us is not None:
                # A node whose clock is ahead must not make other nodes' rows old. The horizon advances in steps,
                # because removing rows means rewriting the other rows of their files.
                step, horizon = max(1, keep_us // _PARTS_KEPT), min(windows.watermark, now) - keep_us
                output.expire(horizon - horizon % step, before=before)
            output.compact(target_bytes=min(target, LARGEST_BYTES), before=before)
            if target >= LARGEST_BYTES or batch < _COMPACT_EVERY:
                output.sweep()

    def clear(self) -> None:
        """Remove the files with rows of time windows that failed attempts at a batch have left."""
        with suppress(FileNotFoundError):
            for path in scratch_of(self._out).iterdir():
                path.unlink(missing_ok=True)


def _read(table: str, paths: Iterable[Path]) -> Any:  # a pyarrow.Table
    return pa.concat_tables([pq.read_table(path, schema=TABLES[table].schema, partitioning=None) for path in paths])


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
        self._path = out / "_stream" / "batch.json"
        self._record = BatchRecord.read(self._path)
        self.tables = TableCommits(out, plan)
        self.away: dict[str, dict[str, int]] = {}
        """Number of notifications held for each absent device, per node; empty unless the job asks for it."""
        self.tables.check_begun(is_new=self._record is None)
        if self._record is None:
            checked_record(None, query="", batch=0, spans={}, tables=self.tables.last_batches())
        else:
            self._check(self._record)
        self.tables.clear()
        self.tables.create()

    def _check(self, record: BatchRecord) -> None:
        """Raise ``LostStateError``, before any batch, if the tables do not match the record."""
        checked_record(
            record, query=record.query, batch=record.batch, spans=record.spans, tables=self.tables.last_batches()
        )

    def check_log(self, log: Path) -> None:
        """Raise ``OtherLogError`` if *log* is not the log from which the tables were made."""
        check_same_log(log, {} if self._record is None else self._record.nodes)

    @property
    def applied(self) -> dict[str, int]:
        """Last seq in the tables, per node."""
        return {} if self._record is None else {node: each.applied for node, each in self._record.nodes.items()}

    def commit(self, query: str, batch: int, made: Sequence[WorkerOutput], *, began_s: float) -> BatchSummary:
        """Commit the output of a batch; *began_s* is the monotonic time when the batch began."""
        reports = {each.node: NodeReport(*cbor2.loads(each.told)) for each in made if each.kind == "node"}
        windows = next(WindowsReport(*cbor2.loads(each.told)) for each in made if each.kind == "windows")
        spans = {node: (each.first, each.last) for node, each in sorted(reports.items())}
        record = checked_record(self._record, query=query, batch=batch, spans=spans, tables=self.tables.last_batches())
        record.put(self._path)
        rows = self.tables.commit(batch, made)
        nodes = {
            node: NodeRecord(
                applied=each.last,
                last_at=each.last_at,
                size=each.size,
                size_bytes=each.size_bytes,
                incarnation=each.incarnation,
                digest=each.digest,
            )
            for node, each in reports.items()
        }
        now = time.time_ns() // 1_000
        self._record = replace(
            record,
            is_done=True,
            at=now,
            written=self.tables.last_batches(),
            nodes={**record.nodes, **nodes},
            windows=(windows.size, windows.size_bytes),
        )
        self._record.put(self._path)
        self.away |= {node: each.away for node, each in reports.items() if each.away is not None}
        self.tables.tidy(batch, windows, now=now)
        notes = [note for _, each in sorted(reports.items()) for note in each.notes]
        return BatchSummary(
            batch=batch,
            facts=sum(last - max(first, 1) + 1 for first, last in spans.values()),  # seqs begin with 1
            rows=rows,
            applied=self.applied,
            done_with=self.applied | {node: first - 1 for node, (first, _) in spans.items()},
            newest_at=max(
                (each.last_at for each in self._record.nodes.values() if each.last_at is not None), default=0
            ),
            state=windows.size + sum(each.size for each in self._record.nodes.values()),
            state_bytes=windows.size_bytes + sum(each.size_bytes for each in self._record.nodes.values()),
            took_s=time.monotonic() - began_s,
            notes=(*notes, *windows.notes),
            late=windows.late,
            matchers=Uses.sum(each.matchers for each in reports.values()),
        )
