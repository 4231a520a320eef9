"""What workers make of spans: files of the tables, which count once the driver commits them, and what they report.

Rule: rows go to a file as soon as they are many, so memory is bounded, however much a span becomes.
Rule: a file of an attempt that failed is in no commit, and is swept away with others.
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

__all__ = ["FILE_BYTES", "MADE", "Made", "TableFiles"]

MADE = "kind string, node string, table string, rows long, told binary"
"""The columns of ``Made``."""
FILE_BYTES = 64 << 20


class Made(NamedTuple):
    """Something that was made: a row that workers send on."""

    kind: str
    """``file`` of a table, ``tallies`` and ``meetings`` for the windows, ``node``: the report of one; ``window`` and
    ``windows``."""
    node: str
    table: str | None
    rows: int
    told: bytes
    """What the kind says: JSON of a file's commit, Arrow of tallies, CBOR of a report."""


@dataclass(slots=True)
class TableFiles:
    """Rows of *tables* of a node on their way to files below *out*."""

    out: Path
    node: str
    tables: Collection[str]
    file_bytes: int = FILE_BYTES
    """Rows of a table that have so many bytes in memory go to a file."""
    folder: str = ""
    """In which folder of each table its files are."""

    _batches: dict[str, list[Any]] = field(default_factory=dict, init=False)
    _bytes: dict[str, int] = field(default_factory=dict, init=False)

    def add(self, table: str, batches: Iterable[Any]) -> Iterator[Made]:  # of pyarrow.RecordBatches
        """Take rows in; yield the file that they fill."""
        if table not in self.tables:
            return
        for batch in batches:
            if batch.num_rows:
                self._batches.setdefault(table, []).append(batch)
                self._bytes[table] = self._bytes.get(table, 0) + batch.nbytes
        if self._bytes.get(table, 0) >= self.file_bytes:
            yield self._written(table)

    def end(self) -> Iterator[Made]:
        """Yield files of what is left."""
        for table in list(self._batches):
            yield self._written(table)

    def _written(self, table: str) -> Made:
        self._bytes.pop(table)
        schema = TABLES[table].schema
        rows = pa.Table.from_batches([batch.cast(schema) for batch in self._batches.pop(table)], schema)
        return self.write(table, rows)

    def write(self, table: str, rows: Any) -> Made:  # a pyarrow.Table
        """Write rows as a file of a table."""
        file = written_file(self.out, table, rows, folder=self.folder)
        return Made("file", self.node, table, rows.num_rows, json.dumps(asdict(file)).encode())
