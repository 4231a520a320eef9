"""The feed of a table, for Spark's format ``whimbrel``: its rows as they are or, as a stream, each new row once.

Spark without Delta's jar reads our tables so. A stream's offset is the version of the table: what a commit added is
new, unless it only copied rows (compaction, the removal of old ones). It begins with the table as it is.

Rule: each row once, also over a compaction and a restart: an offset that was written down is read again as it was, as
long as the table keeps its commits (a week) and its files (a day after they were replaced).
Rule: a commit that replaces rows, as a batch run's does, ends the stream with an error: which of its rows are new is
not known, and rows that a reader already has would come again. So does a commit of an operation that is not ours.
Rule: an offset names its table. One that was made anew in the same folder has other commits under the same versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
from deltalake import DeltaTable
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from whimbrel.errors import InvalidInputError, InvalidValueError
from whimbrel.pipeline.files.delta import TIME_COLUMNS, data_files, delta_schema, files_of

__all__ = ["LostCommitError", "ReplacedRowsError", "TableReader", "TableStreamReader"]

_BATCH_ROWS = 20_000
_NOTHING = -1
_ADDS = "WRITE"
_COPIES = frozenset({"DELETE", "OPTIMIZE"})
"""Operations after which a table has no row that it did not have before: removal of old rows, and compaction."""


class LostCommitError(InvalidInputError):
    """A commit that was not read yet is gone, or is of a table that is gone. Reaction: begin the stream anew."""

    def __init__(self, folder: str, version: int) -> None:
        super().__init__(folder, version)
        self.folder, self.version = folder, version

    def __str__(self) -> str:
        return f"{self.folder}: version {self.version} is not there any more; begin anew, with another checkpoint"


class ReplacedRowsError(InvalidInputError):
    """A commit replaced rows of a table that is followed. Reaction: begin the stream anew; read the table whole."""

    def __init__(self, folder: str, version: int) -> None:
        super().__init__(folder, version)
        self.folder, self.version = folder, version

    def __str__(self) -> str:
        return (
            f"{self.folder}: version {self.version} replaced rows, as `whimbrel pipeline run` does without "
            "--continuous; which of them are new is not known: begin anew, with another checkpoint"
        )


@dataclass(frozen=True)
class _TableFile(InputPartition):
    path: str


def _batches(path: str, table: str, schema: StructType) -> Iterator[Any]:
    if not path:
        return
    target = to_arrow_schema(schema, timezone="UTC")
    source = pads.dataset(path, schema=delta_schema(table), format="parquet", partitioning=None)
    for batch in source.to_batches(columns=target.names, batch_size=_BATCH_ROWS, use_threads=False):
        if batch.num_rows:
            yield batch.cast(target)


class TableReader(DataSourceReader):
    """A table as it is now."""

    def __init__(self, out: Path, table: str, schema: StructType) -> None:
        self._out, self._table, self._schema = out, table, schema

    def partitions(self) -> list[InputPartition]:
        """Return the files; Spark makes of no partition one whose value is None, of an empty one an empty read."""
        return [_TableFile(str(path)) for path in data_files(self._out, self._table)] or [_TableFile("")]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a file."""
        assert isinstance(partition, _TableFile)
        return _batches(partition.path, self._table, self._schema)


class TableStreamReader(DataSourceStreamReader):
    """Each row of a table that only grows, once."""

    def __init__(self, out: Path, table: str, schema: StructType) -> None:
        if TIME_COLUMNS.get(table, "window_start") == "window_start":
            growing = ", ".join(name for name, column in TIME_COLUMNS.items() if column != "window_start")
            raise InvalidValueError("table to follow", table, f"{growing}; rows of the others change: read them whole")
        self._folder, self._table, self._schema = str(out / table), table, schema

    def initialOffset(self) -> dict[str, int | str]:  # noqa: N802 # Spark's name
        """Return where nothing was read yet."""
        return {"version": _NOTHING}

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, int | str]:  # noqa: ARG002, N802 # Spark's
        """Return the version of now, and which table it is of; Spark before 4.2 passes nothing."""
        found = DeltaTable(self._folder)
        return {"version": found.version(), "table": str(found.metadata().id)}

    def partitions(self, start: Mapping[str, int | str], end: Mapping[str, int | str]) -> list[InputPartition]:
        """Return the files that are new after a version, up to another."""
        first, last = int(start["version"]), int(end["version"])
        if first == _NOTHING:
            if DeltaTable(self._folder).version() < last:
                raise LostCommitError(self._folder, last)
            found = list(map(str, files_of(DeltaTable(self._folder, version=last))))
        else:
            found = [path for version in range(first + 1, last + 1) for path in self._added(version)]
        tables = {each["table"] for each in (start, end) if "table" in each}  # an older Whimbrel did not name it
        if last < first or tables - {str(DeltaTable(self._folder).metadata().id)}:
            raise LostCommitError(self._folder, last if first == _NOTHING else first)
        return [_TableFile(path) for path in found]

    def _added(self, version: int) -> Iterator[str]:
        path = Path(self._folder, "_delta_log", f"{version:020}.json")
        try:
            actions = [json.loads(line) for line in path.read_text().splitlines()]
        except FileNotFoundError:
            raise LostCommitError(self._folder, version) from None
        operation = next((each["commitInfo"].get("operation") for each in actions if "commitInfo" in each), None)
        if operation in _COPIES:
            return
        new = [each["add"] for each in actions if "add" in each and each["add"]["dataChange"]]
        is_replacing = any(each["remove"]["dataChange"] for each in actions if "remove" in each)
        if is_replacing or (new and operation != _ADDS):
            raise ReplacedRowsError(self._folder, version)
        yield from (str(Path(self._folder, each["path"])) for each in new)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a file."""
        assert isinstance(partition, _TableFile)
        return _batches(partition.path, self._table, self._schema)
