"""Parts: Parquet files that are written under a temporary name, and renamed once they are whole.

Rule: until ``publish`` a part's name begins with ``_``, so no reader sees it. The next writer of the folder removes
temporary files that a crash left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from whimbrel.log.columns import complete_columns, rows_from_arrow, to_arrow
from whimbrel.log.errors import CorruptLogError, LogWriteError
from whimbrel.log.files import PRIVATE_FILE, make_folder, rename
from whimbrel.log.layout import Part
from whimbrel.model.tables import TABLES

__all__ = ["PartWriter", "batches", "part_rows", "publish", "remove_leftovers", "statistics"]

_BATCH_ROWS = 16_384
_BATCH_BYTES = 32 << 20


class PartWriter:
    """Writer of the rows of one part; *path* is the part's final name."""

    def __init__(self, path: Path, table: str) -> None:
        self.path, self.table, self.rows = path, table, 0
        self._batch: list[Mapping[str, object]] = []
        self._bytes = 0
        make_folder(path.parent)
        self.beside = path.with_name(f"_{path.name}.new")
        self._stream = os.fdopen(os.open(self.beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE), "wb")
        self._parquet = pq.ParquetWriter(self._stream, TABLES[table].schema, compression="zstd")

    def add(self, row: Mapping[str, object]) -> None:
        """Add *row*; rows must be added in the order in which the file shall have them."""
        self._batch.append(row)
        body = row.get("body") or row.get("content")
        self._bytes += len(body) if isinstance(body, bytes) else 0
        if len(self._batch) >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            self._flush()

    def add_arrow(self, data: Any) -> None:  # noqa: ANN401 # pyarrow ships no types
        """Add the rows of *data*, an Arrow table or batch."""
        self._parquet.write_table(complete_columns(self.table, data).cast(TABLES[self.table].schema))
        self.rows += data.num_rows

    def _flush(self) -> None:
        if self._batch:
            self.add_arrow(to_arrow(self.table, self._batch))
            self._batch.clear()
            self._bytes = 0

    def finish(self) -> None:
        """Write the buffered rows, close the file and fsync it."""
        self._flush()
        self._parquet.close()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()

    def abandon(self) -> None:
        """Close and remove the temporary file; a part that was published stays."""
        self._let_go()
        with suppress(OSError):
            self.beside.unlink(missing_ok=True)

    def _let_go(self) -> None:
        with suppress(Exception):  # the first error is being raised already
            self._parquet.close()
        with suppress(OSError):
            self._stream.close()


def publish(writers: list[PartWriter]) -> None:
    """Rename finished parts to their final names; a part that exists already has the same rows, and is replaced."""
    for writer in writers:
        try:
            rename(writer.beside, writer.path)
        except OSError as error:
            raise LogWriteError(writer.path, error.strerror or str(error)) from error


def remove_leftovers(directory: Path, node: str) -> None:
    """Remove the temporary files that crashes left among the Parquet files (parts) of *node*."""
    for path in directory.glob(f"*/date=*/node={node}/_part-*.parquet.new"):
        path.unlink(missing_ok=True)


def batches(part: Part) -> Iterator[Any]:
    """Yield the rows of a Parquet file as Arrow batches; raise ``CorruptLogError`` if the file is not valid."""
    try:
        with pq.ParquetFile(part.path) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS)
    except (pa.ArrowException, ValueError) as error:
        raise CorruptLogError(part.path, 0, f"no readable Parquet: {error}") from None


def part_rows(part: Part, table: str) -> Iterator[dict[str, object]]:
    """Yield the rows of a Parquet file, in the form of ``model.rows``."""
    for batch in batches(part):
        yield from rows_from_arrow(table, batch)


def statistics(path: Path, columns: tuple[str, ...]) -> tuple[int, dict[str, tuple[Any, Any]]]:
    """Return a Parquet file's number of rows, and the minimum and maximum of each of *columns*, from its footer alone.

    A column without statistics in the footer is left out.
    """
    try:
        with pq.ParquetFile(path) as file:
            foot = file.metadata
            found: dict[str, tuple[Any, Any]] = {}
            names = [foot.schema.column(index).path for index in range(foot.num_columns)]
            for name in columns:
                each = [
                    foot.row_group(group).column(names.index(name)).statistics for group in range(foot.num_row_groups)
                ]
                if each and all(one is not None and one.has_min_max for one in each):
                    found[name] = (min(one.min_raw for one in each), max(one.max_raw for one in each))
            return foot.num_rows, found
    except (pa.ArrowException, ValueError) as error:
        raise CorruptLogError(path, 0, f"no readable Parquet: {error}") from None
