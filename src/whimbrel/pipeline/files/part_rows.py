"""Parts: read the Parquet files of a node's log, each row group once, in the order of their seqs.

Rule: each read has a bounded number of rows and of bytes, by the sizes in the file's footer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from whimbrel.log.columns import complete_columns
from whimbrel.log.errors import CorruptLogError
from whimbrel.log.layout import Part
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files.visibility import UnseenNumbersError, first_unseen

__all__ = [
    "PIECE_BYTES",
    "PIECE_FACTS",
    "PartCursor",
    "PartNumbers",
    "check_parts_whole",
    "found_schema",
    "has_value",
]

Arrow = Any
"""A ``pyarrow`` batch, table or schema; pyarrow ships no types."""

PIECE_FACTS, PIECE_BYTES = 20_000, 32 << 20
"""Most facts, and about most bytes, of a piece: the chunk of a log that is processed at once."""


def found_schema(table: str) -> Arrow:
    """Return the schema for reading a table of the log: all nullable, as other writers may have left nulls anywhere."""
    return pa.schema([each.with_nullable(True) for each in TABLES[table].schema])


class PartNumbers:
    """Seqs of the rows of a part, which is one Parquet file of the log."""

    def __init__(self, part: Part) -> None:
        self.last = part.last
        self._file = _open_part(part.path)
        self.seqs, self.unnumbered = _numbers(self._file, part)
        """The seq of each row, and the number of rows without a seq."""


class PartCursor(PartNumbers):
    """Reader of a part (a Parquet file of the log), row group by row group, in the order of its seqs."""

    def __init__(self, table: str, part: Part, first: int, most_rows: int, most_bytes: int) -> None:
        super().__init__(part)
        self._table, self._most_rows, self._most_bytes = table, most_rows, most_bytes
        self.reads_from = first
        """Least seq whose rows were not taken yet."""
        self.row_bytes = _row_bytes(self._file, part.path)
        self._row = int(np.searchsorted(self.seqs, first))
        self._whole = None if _is_sorted(self.seqs) else self._sorted_rows(first)
        self._batches: Iterator[Arrow] | None = None
        self._left: Arrow | None = None
        """Rows that were read and not taken yet."""

    @property
    def next_seq(self) -> int:
        """The seq of the next row; ``INT64_MAX`` if no row is left."""
        return int(self.seqs[self._row]) if self._row < self.seqs.size else INT64_MAX

    def take(self, last: int) -> list[Arrow]:
        """Return the next rows, up to the seq *last*."""
        end = int(np.searchsorted(self.seqs, last, side="right"))
        found, count = [], end - self._row
        while count > 0:
            batch = self._next() if self._left is None else self._left
            self._left = batch.slice(count) if batch.num_rows > count else None
            found.append(batch.slice(0, count))
            count -= found[-1].num_rows
        self._row, self.reads_from = max(end, self._row), last + 1
        return found

    def _next(self) -> Arrow:
        if self._batches is None:
            self._batches = self._read() if self._whole is None else iter(self._whole)
        return next(self._batches)

    def _read(self) -> Iterator[Arrow]:
        """Yield batches that begin with the next row; earlier row groups are not read."""
        foot, skipped, group = self._file.metadata, self._row, 0
        while group < foot.num_row_groups and skipped >= foot.row_group(group).num_rows:
            skipped -= foot.row_group(group).num_rows
            group += 1
        groups = list(range(group, foot.num_row_groups))
        rows = max(1, min(self._most_rows, self._most_bytes // self.row_bytes))
        for batch in self._file.iter_batches(batch_size=rows, row_groups=groups, use_threads=False):
            if skipped >= batch.num_rows:
                skipped -= batch.num_rows
                continue
            yield _fit_schema(self._table, batch.slice(skipped))
            skipped = 0

    def _sorted_rows(self, first: int) -> list[Arrow]:
        """Read a whole part whose rows another writer did not sort by seq; return its batches, sorted."""
        order = np.argsort(self.seqs, kind="stable")
        self.seqs = self.seqs[order]
        self._row = int(np.searchsorted(self.seqs, first))
        rows = self._file.read(use_threads=False).take(pa.array(order[self._row :])).combine_chunks()
        return [_fit_schema(self._table, batch) for batch in rows.to_batches(max_chunksize=self._most_rows)]


def check_parts_whole(log: Path, node: str, parts: Iterable[Part], first: int, last: int) -> None:
    """Raise ``UnseenNumbersError`` if a seq from *first* to *last* is in none of *parts*, the parts of all tables."""
    found = [PartNumbers(part) for part in parts if part.first <= last and part.last >= first]
    spare = sum(numbers.unnumbered for numbers in found)
    unseen = first_unseen(first, last, [numbers.seqs for numbers in found], spare=spare)
    if unseen is not None:
        raise UnseenNumbersError(log, node, unseen, last)


def _open_part(path: Path) -> Arrow:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, ValueError) as error:
        raise CorruptLogError(path, 0, f"no readable Parquet: {error}") from None


def _numbers(file: Arrow, part: Part) -> tuple[Any, int]:  # a numpy array
    """Return the seq of each row, and the number of rows without a seq.

    A row without a seq gets the seq of the row before it, so that it is read once, and reported once.
    """
    column = file.read(["seq"], use_threads=False).column("seq").combine_chunks()
    unnumbered = column.null_count
    if unnumbered:
        column = pc.fill_null(pc.fill_null_forward(column), part.first)
    return column.cast(pa.int64()).to_numpy(), unnumbered


def _is_sorted(seqs: Any) -> bool:
    return bool((seqs[1:] >= seqs[:-1]).all())


def _fit_schema(table: str, batch: Arrow) -> Arrow:
    """Return a batch of a part with the current columns and types; columns that an older Whimbrel lacks are null."""
    schema = found_schema(table)
    if batch.schema.equals(schema):
        return batch
    rows = complete_columns(table, batch).select(schema.names).cast(schema).combine_chunks()
    return rows.to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], schema=schema)


def _row_bytes(file: Arrow, path: Path, groups: range | None = None) -> int:
    """Return the size of a row in memory, in bytes: the average of the row group with the largest rows."""
    foot = file.metadata
    largest = 1
    for number in range(foot.num_row_groups) if groups is None else groups:
        group = foot.row_group(number)
        size = group.total_byte_size + _repeated_bytes(group, number, path)
        largest = max(largest, size // max(1, group.num_rows))
    return largest


_DICTIONARY = frozenset({"RLE_DICTIONARY", "PLAIN_DICTIONARY"})


def _repeated_bytes(group: Arrow, number: int, path: Path) -> int:
    """Return the size in memory of a row group's bodies if they are dictionary-encoded, else 0.

    In a dictionary, Parquet stores a repeated value once: a megabyte of file can be gigabytes of bodies. Without a
    dictionary, the footer states the size.
    """
    columns = (group.column(place) for place in range(group.num_columns))
    if not any(each.path_in_schema == "body" and _DICTIONARY & set(each.encodings) for each in columns):
        return 0
    rows = pq.ParquetFile(path, read_dictionary=["body"]).read_row_group(number, columns=["body"], use_threads=False)
    lengths = ((pc.binary_length(chunk.dictionary), chunk.indices) for chunk in rows.column("body").chunks)
    return sum(pc.sum(each.cast(pa.int64()).take(indices)).as_py() or 0 for each, indices in lengths)


def has_value(path: Path, column: str) -> bool:
    """Return whether a Parquet file may have a value in *column*, by its statistics; True if the file vanished."""
    try:
        with pq.ParquetFile(path) as file:
            metadata = file.metadata
    except FileNotFoundError:
        return True
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for told in map(group.column, range(group.num_columns)):  # a struct has a column for each of its fields
            if told.path_in_schema.split(".")[0] == column:
                counted = told.statistics
                if counted is None or not counted.has_null_count or counted.null_count < group.num_rows:
                    return True
    return False
