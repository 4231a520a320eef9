"""Output of workers: data files of the tables, which the driver commits, and reports to the driver.

Rule: rows are written to a file as soon as they reach a size, so memory is bounded even for a large span.
Rule: a file of a failed attempt is in no commit; ``files.delta`` removes such files later.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files.delta import written_file

__all__ = ["FILE_BYTES", "MADE", "TableFiles", "WorkerOutput"]

MADE = "kind string, node string, table string, rows long, told binary"
"""Spark schema of ``WorkerOutput``."""
FILE_BYTES = 64 << 20


class WorkerOutput(NamedTuple):
    """One output of a worker, as a row for the next operator or the driver."""

    kind: str
    """``file``: a data file of a table; ``tallies``, ``meetings``: input of the windows; ``node``: report of a node;
    ``window``: a file with changed rows of windows; ``windows``: report of the windows; ``time``: seconds that a task
    took for a table."""
    node: str
    table: str | None
    rows: int
    told: bytes
    """Content, by kind: JSON of a file's commit action, Arrow of tallies, CBOR of a report, path of a window's file."""

    @classmethod
    def of_time(cls, node: str, table: str, seconds: float) -> WorkerOutput:
        """Return the report that a task took *seconds* for *table*."""
        return cls("time", node, table, 0, str(seconds).encode())


@dataclass(slots=True)
class TableFiles:
    """Buffer of a node's rows of *tables*, written to files below *out*."""

    out: Path
    node: str
    tables: Collection[str]
    file_bytes: int = FILE_BYTES
    """Size in memory from which on the rows of a table are written to a file, in bytes."""
    folder: str = ""
    """Folder within each table's folder that gets the files."""

    _batches: dict[str, list[Any]] = field(default_factory=dict, init=False)
    _bytes: dict[str, int] = field(default_factory=dict, init=False)

    def add(self, table: str, batches: Iterable[Any]) -> Iterator[WorkerOutput]:  # of pyarrow.RecordBatches
        """Buffer rows of *table*; if they fill a file, write and yield it."""
        if table not in self.tables:
            return
        for batch in batches:
            if batch.num_rows:
                self._batches.setdefault(table, []).append(batch)
                self._bytes[table] = self._bytes.get(table, 0) + batch.nbytes
        if self._bytes.get(table, 0) >= self.file_bytes:
            yield self._write_table(table)

    def end(self) -> Iterator[WorkerOutput]:
        """Write the buffered rows; yield one file per table."""
        for table in list(self._batches):
            yield self._write_table(table)

    def _write_table(self, table: str) -> WorkerOutput:
        self._bytes.pop(table)
        schema = TABLES[table].schema
        rows = pa.Table.from_batches([batch.cast(schema) for batch in self._batches.pop(table)], schema)
        return self.write(table, rows)

    def write(self, table: str, rows: Any) -> WorkerOutput:  # a pyarrow.Table
        """Write *rows* as a data file of *table*, and return the file."""
        file = written_file(self.out, table, rows, folder=self.folder)
        return WorkerOutput("file", self.node, table, rows.num_rows, json.dumps(asdict(file)).encode())
