"""The commits of a batch, in the driver: what workers have made becomes part of the tables, each in one commit.

Rule: the driver reads no row that a worker wrote to a file; it names the file. Rows of windows, which replace others,
it merges into what the table has.
Rule: a table that has the batch is left alone.
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
from whimbrel.pipeline.stream.windows import merged
from whimbrel.pipeline.unit.made import Made

__all__ = ["BatchCommits", "TableCommits", "Taken"]

_COMPACT_EVERY = 8
_SMALLEST_BYTES = 1 << 20
_PARTS_KEPT = 8
"""Rows that are removed by their age go with those of an eighth of the time that they were kept."""


class TableCommits:
    """The tables of a stream below *out*."""

    def __init__(self, out: Path, plan: StreamPlan) -> None:
        self._out, self._plan = out, plan
        self._outputs = {table: DeltaOutput(out, table) for table in plan.tables}

    def check_begun(self, *, is_new: bool) -> None:
        """Raise if a new stream finds tables of another one."""
        for table, output in self._outputs.items():
            if is_new and output.last_batch() < 0 and not output.is_of_a_stream():
                allowed = "a folder without tables of a batch run, or one that a stream made"
                raise InvalidValueError("directory for the tables", str(self._out / table), allowed)

    def create(self) -> None:
        """Make tables that are not there, empty."""
        for output in self._outputs.values():
            output.create()

    def last_batches(self) -> dict[str, int]:
        """Return, by table, the last batch that changed it; -1 if none did."""
        return {table: output.last_batch() for table, output in self._outputs.items()}

    def commit(self, batch: int, made: Iterable[Made]) -> dict[str, int]:
        """Commit a batch to each table; return how many rows each has got."""
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
                output.replace(batch, self._merged(output, batch, _read(table, windows[table])))
            else:
                output.add_files(batch, files.get(table, []))
        for path in (path for paths in windows.values() for path in paths):
            path.unlink(missing_ok=True)
        return rows

    def _merged(self, output: DeltaOutput, batch: int, rows: Any) -> Mapping[int, Any]:
        if output.has(batch):
            return {}
        if output.table in {"replicas", "meetings"}:
            return {WHOLE: rows}
        return {window: merged(output.window(window), new) for window, new in by_window(rows).items()}

    def tidy(self, batch: int, windows: WindowsReport, *, now: int) -> None:
        """Put small files together, and remove files that no reader needs any more and rows that are too old.

        Small ones often and large ones rarely, each eight times the size in an eighth of the turns, so that a row is
        written anew a few times and not with every turn. *now* is in microseconds.
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
                # A node whose clock is ahead must not make other nodes' rows old. What has gone by a little is left for
                # the next time: to remove rows is to write the others of their file anew.
                step, horizon = max(1, keep_us // _PARTS_KEPT), min(windows.watermark, now) - keep_us
                output.expire(horizon - horizon % step, before=before)
            output.compact(target_bytes=min(target, LARGEST_BYTES), before=before)
            if target >= LARGEST_BYTES or batch < _COMPACT_EVERY:
                output.sweep()

    def clear(self) -> None:
        """Remove what attempts that failed have left for the driver."""
        with suppress(FileNotFoundError):
            for path in scratch_of(self._out).iterdir():
                path.unlink(missing_ok=True)


def _read(table: str, paths: Iterable[Path]) -> Any:  # a pyarrow.Table
    return pa.concat_tables([pq.read_table(path, schema=TABLES[table].schema, partitioning=None) for path in paths])


# -- a batch ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a batch was."""

    batch: int
    facts: int
    rows: dict[str, int]
    """By table, how many rows were written."""
    applied: dict[str, int]
    """By node, the last number that is in the tables."""
    done_with: dict[str, int]
    """By node, the last number that is never read again: this batch is, if the driver dies before Spark knows of it."""
    newest_at: int
    """The time of the newest fact in them, in microseconds, as far as it is not in the future."""
    state: int
    """How many things are remembered."""
    state_bytes: int
    """What these take in Spark's state."""
    took_s: float
    notes: tuple[str, ...] = ()
    """What an observer should know."""
    late: Mapping[str, int] = field(default_factory=dict)
    """By table, how much came for windows that are final, and is not counted."""


class BatchCommits:
    """Commits batches to the tables below *out*, one after the other, and keeps the record of the last."""

    def __init__(self, out: Path, plan: StreamPlan) -> None:
        self._path = out / "_stream" / "batch.json"
        self._record = BatchRecord.read(self._path)
        self.tables = TableCommits(out, plan)
        self.away: dict[str, dict[str, int]] = {}
        """By node, how much waits for each device that is away, if nodes tell."""
        self.tables.check_begun(is_new=self._record is None)
        if self._record is None:
            checked_record(None, query="", batch=0, spans={}, tables=self.tables.last_batches())
        else:
            self._check(self._record)
        self.tables.clear()
        self.tables.create()

    def _check(self, record: BatchRecord) -> None:
        """Raise, before any work, if tables do not fit the record."""
        checked_record(
            record, query=record.query, batch=record.batch, spans=record.spans, tables=self.tables.last_batches()
        )

    def check_log(self, log: Path) -> None:
        """Raise if *log* is not the one that the tables are made of."""
        check_same_log(log, {} if self._record is None else self._record.nodes)

    @property
    def applied(self) -> dict[str, int]:
        """By node, the last number that is in the tables."""
        return {} if self._record is None else {node: each.applied for node, each in self._record.nodes.items()}

    def commit(self, query: str, batch: int, made: Sequence[Made], *, began_s: float) -> Taken:
        """Commit what was made of a batch; *began_s* is when it began, of the monotonic clock."""
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
        return Taken(
            batch=batch,
            facts=sum(last - max(first, 1) + 1 for first, last in spans.values()),  # numbers begin with 1
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
        )
