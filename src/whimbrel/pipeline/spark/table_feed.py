"""Table feed: read an output table with Spark's format ``whimbrel``, whole or as a stream of new rows.

So Spark can read our tables without Delta's jar. A stream's offset is the version of the Delta table. The first batch
is the whole table. Each later batch has the rows that commits added, except commits that only copied rows (compaction,
removal of old rows).

Rule: each row is read once, also across a compaction and a restart. An offset in Spark's checkpoint gives the same rows
again, as long as the table keeps its commits, and the files that they replaced (six hours).
Rule: a commit that replaces rows, as a batch run does, ends the stream with an error. It is unknown which of its rows
are new, and the stream would repeat rows. A commit of any operation that is not ours ends it, too.
Rule: an offset has the id of its table. A table that was recreated in the same folder has other commits under the same
versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from whimbrel.errors import InvalidInputError, InvalidValueError
from whimbrel.pipeline.files.delta import TIME_COLUMNS, delta_schema, files_of
from whimbrel.pipeline.files.delta_files.file_statistics import files_with
from whimbrel.pipeline.spark.pushed_filters import Condition, FilterReceiver, as_expression, may_match

__all__ = ["LostCommitError", "ReplacedRowsError", "TableReader", "TableStreamReader"]

_BATCH_ROWS = 20_000
_NOTHING = -1
_ADDS = "WRITE"
_COPIES = frozenset({"DELETE", "OPTIMIZE"})
"""Delta operations that add no new rows: removal of old rows, and compaction."""


class LostCommitError(InvalidInputError):
    """A commit that was not read yet, or its table, no longer exists. Reaction: restart with a new checkpoint."""

    def __init__(self, folder: str, version: int) -> None:
        super().__init__(folder, version)
        self.folder, self.version = folder, version

    def __str__(self) -> str:
        return f"{self.folder}: version {self.version} is not there any more; begin anew, with another checkpoint"


class ReplacedRowsError(InvalidInputError):
    """A commit replaced rows of a table that a stream reads. Reaction: restart with a new checkpoint."""

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


def _batches(path: str, table: str, schema: StructType, conditions: Iterable[Condition] = ()) -> Iterator[Any]:
    if not path:
        return
    target = to_arrow_schema(schema, timezone="UTC")
    source = pads.dataset(path, schema=delta_schema(table), format="parquet", partitioning=None)
    wanted = as_expression(conditions, target)
    for batch in source.to_batches(columns=target.names, filter=wanted, batch_size=_BATCH_ROWS, use_threads=False):
        if batch.num_rows:
            yield batch.cast(target)


class TableReader(DataSourceReader):
    """Batch reader of an output table, as of now."""

    def __init__(self, out: Path, table: str, schema: StructType) -> None:
        self._out, self._table, self._schema = out, table, schema
        self._pushed = FilterReceiver(to_arrow_schema(schema, timezone="UTC"))
        self.pushFilters = self._pushed  # type: ignore[method-assign]  # see FilterReceiver

    def partitions(self) -> list[InputPartition]:
        """Return one partition per file, at least one: without partitions Spark would call ``read`` with None."""
        paths = files_with(DeltaTable(str(self._out / self._table)), self._may_match)
        return [_TableFile(str(path)) for path in paths] or [_TableFile("")]

    def _may_match(self, least: Mapping[str, Any], most: Mapping[str, Any]) -> bool:
        return may_match(self._pushed.conditions, least, most)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of one file."""
        assert isinstance(partition, _TableFile)
        return _batches(partition.path, self._table, self._schema, self._pushed.conditions)


class TableStreamReader(DataSourceStreamReader):
    """Stream reader of a table to which rows are only added: yields each row once."""

    def __init__(self, out: Path, table: str, schema: StructType) -> None:
        if TIME_COLUMNS.get(table, "window_start") == "window_start":
            growing = ", ".join(name for name, column in TIME_COLUMNS.items() if column != "window_start")
            raise InvalidValueError("table to follow", table, f"{growing}; rows of the others change: read them whole")
        self._folder, self._table, self._schema = str(out / table), table, schema

    def initialOffset(self) -> dict[str, int | str]:  # noqa: N802 # Spark's name
        """Return the offset before the first read."""
        return {"version": _NOTHING}

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, int | str]:  # noqa: ARG002, N802 # Spark's
        """Return the table's current version, and its id; Spark before 4.2 passes no arguments."""
        found = DeltaTable(self._folder)
        return {"version": found.version(), "table": str(found.metadata().id)}

    def partitions(self, start: Mapping[str, int | str], end: Mapping[str, int | str]) -> list[InputPartition]:
        """Return the files with the rows that were added after the version *start*, up to the version *end*."""
        first, last = int(start["version"]), int(end["version"])
        if first == _NOTHING:
            found = self._files_at(last)
        else:
            found = [path for version in range(first + 1, last + 1) for path in self._added_files(version)]
        tables = {each["table"] for each in (start, end) if "table" in each}  # an older Whimbrel did not name it
        if last < first or tables - {str(DeltaTable(self._folder).metadata().id)}:
            raise LostCommitError(self._folder, last if first == _NOTHING else first)
        return [_TableFile(path) for path in found]

    def _files_at(self, version: int) -> list[str]:
        """Return the files with all rows of a version."""
        if DeltaTable(self._folder).version() < version:
            raise LostCommitError(self._folder, version)
        try:
            return list(map(str, files_of(DeltaTable(self._folder, version=version))))
        except DeltaError:  # its commits were removed, and no checkpoint is that old
            raise LostCommitError(self._folder, version) from None

    def _added_files(self, version: int) -> Iterator[str]:
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
        """Yield the rows of one file."""
        assert isinstance(partition, _TableFile)
        return _batches(partition.path, self._table, self._schema)
