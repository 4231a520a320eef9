"""Feedback reader: reads the tables that the pipeline made from this node's log, in a thread, since files are slow.

A table is a folder below that of the pipeline: a Delta table, whose commits name the valid files, or Parquet files.
Rule: each read sees one version of a Delta table: files that no commit names, or that one removed, are ignored.
Rule: a file never changes. Of the table of link qualities, which grows, only new files are read; but if none of the
files read before is left, it is another table and is read from the start. The small replica plan is read as a whole
when its files have changed.
Rule: a read never raises, whatever the files contain: each table that could not be read is a sentence in ``troubles``.
Rule: a table that never existed is not an error: the pipeline may start later, or make other tables.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from whimbrel.broker.state.feedback import PipelineResults
from whimbrel.errors import InvalidValueError, MissingDependencyError, Phrase

__all__ = ["MAX_FILES", "MAX_FILE_BYTES", "FeedbackReader", "Links", "Plan"]

MAX_FILES = 10_000
MAX_FILE_BYTES = 256 << 20
_BATCH_ROWS = 65_536
_SLICE_ROWS = 1_000

Rows: TypeAlias = Any
"""A ``pyarrow.Table``; pyarrow ships no types."""
Column: TypeAlias = Any
"""A ``pyarrow.ChunkedArray``."""
Schema: TypeAlias = Any
"""A ``pyarrow.Schema``."""


class _Made(Protocol):
    """Interface of the results computed from one table: they start empty and are updated with the rows read."""

    name: str
    schema: Schema

    def anew(self) -> None:
        """Drop all rows, to read the table from the start."""

    def take(self, rows: Rows) -> None:
        """Update the results with *rows* of the table."""


class Links:
    """Newest link quality of each device of *node*; at most *most* devices, those that reported last."""

    name = "link_quality"
    schema = pa.schema(
        [("node", pa.string()), ("seq", pa.int64()), ("device", pa.string()), ("network_connection", pa.float64())]
    )

    def __init__(self, node: str, *, most: int) -> None:
        self._node, self._most = node, most
        self.anew()

    def anew(self) -> None:
        """Drop all rows, to read the table from the start."""
        self._newest = self.schema.empty_table()
        self._applied = -1

    def take(self, rows: Rows) -> None:
        """Update the link qualities with *rows*, of any nodes and in any order; skip seqs up to ``mark_applied``."""
        is_ours = pc.and_(pc.equal(rows["node"], self._node), pc.greater(rows["seq"], self._applied))
        rows = rows.filter(pc.and_(is_ours, pc.is_valid(rows["device"])))
        found = rows["network_connection"]
        is_allowed = pc.and_(pc.greater_equal(found, 0), pc.less_equal(found, 1))  # null if it is not known
        wrong = found.filter(pc.invert(is_allowed))
        if len(wrong):
            raise InvalidValueError("network_connection", wrong[0].as_py(), "a number from 0 to 1")
        self._newest = _first_of_each("device", pa.concat_tables([self._newest, rows]), [("seq", "descending")])
        self._newest = self._newest.slice(0, self._most)

    def mark_applied(self) -> None:
        """Mark all rows read so far as complete: from now on only rows with a higher seq are used."""
        if self._newest.num_rows:
            self._applied = self._newest["seq"][0].as_py()

    def qualities(self) -> Mapping[str, float]:
        """Return the link quality (NetworkConnection) of each device for which it is known."""
        rows = self._newest.filter(pc.is_valid(self._newest["network_connection"]))
        return _mapping(rows["device"], rows["network_connection"])


class Plan:
    """Replica plan: the number of copies of each subject; at most *most* subjects, those with the most copies."""

    name = "replicas"
    schema = pa.schema([("subject", pa.string()), ("replicas", pa.int64())])

    def __init__(self, *, most: int) -> None:
        self._most = most
        self.anew()

    def anew(self) -> None:
        """Drop all rows, to read the table from the start."""
        self._largest = self.schema.empty_table()

    def take(self, rows: Rows) -> None:
        """Update the number of copies per subject with *rows* of the table ``replicas``; raise if one is below 1."""
        rows = rows.filter(pc.and_(pc.is_valid(rows["subject"]), pc.is_valid(rows["replicas"])))
        least = pc.min(rows["replicas"]).as_py()
        if least is not None and least < 1:
            raise InvalidValueError("replicas", least, "at least 1")
        order = [("replicas", "descending"), ("subject", "ascending")]
        self._largest = _first_of_each("subject", pa.concat_tables([self._largest, rows]), order).slice(0, self._most)

    def copies(self) -> Mapping[str, int]:
        """Return the number of copies by subject, the largest first."""
        return _mapping(self._largest["subject"], self._largest["replicas"])


class _File(NamedTuple):
    """A file of a table; a file of the same name, size and time is the same file, in any version of the table."""

    name: str
    size: int
    written_ns: int


class _Table:
    """The files of one table of the pipeline, and which of them were read."""

    def __init__(self, folder: Path, rows: _Made, *, is_growing: bool) -> None:
        self.name = rows.name
        self._path, self._rows, self._is_growing = folder / rows.name, rows, is_growing
        self._read: frozenset[_File] = frozenset()
        self._was_there = False

    def look(self) -> int | None:
        """Read new files; return the time in µs when the newest file was written, or None if nothing has changed."""
        version = Path(os.path.realpath(self._path))  # a symbolic link is followed once per read
        files = frozenset(_files(version))
        if not files:
            if self._was_there:
                raise InvalidValueError(str(self._path), Phrase("no files"), "the table that was there")
            return None
        self._was_there = True
        if files == self._read:
            return None
        is_same_table = self._is_growing and not files.isdisjoint(self._read)
        new = files - self._read if is_same_table else files
        if not is_same_table:
            self._rows.anew()
            self._read = frozenset()  # if this fails, none of the files counts as read
        for file in sorted(new):
            for rows in _read(version / file.name, file.size, self._rows.schema):
                self._rows.take(rows)
        self._read = files
        return max(file.written_ns for file in files) // 1_000


class FeedbackReader:
    """Reader of the pipeline's tables below *folder*: link qualities of the devices of *node*, and the replica plan."""

    def __init__(self, folder: Path, node: str, *, most: int) -> None:
        self._links, self._plan = Links(node, most=most), Plan(most=most)
        self._link_table = _Table(folder, self._links, is_growing=True)
        self._plan_table = _Table(folder, self._plan, is_growing=False)

    def look(self) -> PipelineResults:
        """Read the tables if they have changed, and return the new results."""
        troubles: list[str] = []
        linked_at, planned_at = _look(self._link_table, troubles), _look(self._plan_table, troubles)
        if linked_at is not None:
            self._links.mark_applied()
        return PipelineResults(
            connections=None if linked_at is None else self._links.qualities(),
            replicas=None if planned_at is None else self._plan.copies(),
            written_at=max((at for at in (linked_at, planned_at) if at is not None), default=None),
            troubles=tuple(troubles),
        )


def _look(table: _Table, troubles: list[str]) -> int | None:
    try:
        return table.look()
    except Exception as error:  # noqa: BLE001 # the errors that readers raise for broken files are not documented
        troubles.append(f"{table.name}: {' '.join(str(error).split())}"[:500])
        return None


def _files(version: Path) -> Iterator[_File]:
    """Yield the Parquet files of a version; names that begin with ``_`` or ``.`` are work in progress."""
    if not version.is_dir():
        return
    if (version / "_delta_log").is_dir():
        yield from _delta_files(version)
        return
    count = 0
    for folder, below, names in os.walk(version, onerror=_raise):
        below[:] = [each for each in below if each[0] not in "_."]
        for name in names:
            if name[0] in "_." or not name.endswith(".parquet"):
                continue
            path = Path(folder, name)
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                continue
            count += 1
            if count > MAX_FILES:
                raise InvalidValueError(str(version), Phrase(f"more than {MAX_FILES} files"), f"at most {MAX_FILES}")
            yield _File(str(path.relative_to(version)), found.st_size, found.st_mtime_ns)


def _delta_files(table: Path) -> Iterator[_File]:
    """Yield the files of the present version of a Delta table."""
    try:
        from deltalake import DeltaTable  # a broker that reads no tables does not need it
    except ImportError:
        raise MissingDependencyError("learning", "deltalake", "run: pip install 'whimbrel[spark]'") from None
    uris = DeltaTable(str(table)).file_uris()
    if len(uris) > MAX_FILES:
        raise InvalidValueError(str(table), Phrase(f"{len(uris)} files"), f"at most {MAX_FILES}")
    for uri in uris:
        path = Path(unquote(uri.removeprefix("file://")))
        found = path.stat()
        yield _File(str(path.relative_to(table)), found.st_size, found.st_mtime_ns)


def _raise(error: OSError) -> None:
    raise error


def _read(path: Path, size: int, schema: Schema) -> Iterator[Rows]:
    """Yield the rows of a file in batches, with the columns of *schema*."""
    if size > MAX_FILE_BYTES:
        raise InvalidValueError(str(path), Phrase(f"{size} bytes"), f"at most {MAX_FILE_BYTES}")
    with pq.ParquetFile(path) as file:
        missing = [each for each in schema.names if each not in file.schema_arrow.names]
        if missing:
            raise InvalidValueError(
                str(path), Phrase(f"no column {missing[0]}"), f"a table with {', '.join(schema.names)}"
            )
        for batch in file.iter_batches(_BATCH_ROWS, columns=schema.names, use_threads=False):
            yield pa.Table.from_batches([batch]).select(schema.names).cast(schema)


def _mapping(keys: Column, values: Column) -> dict[str, Any]:
    """Return two columns as a dict; convert them in slices, since that holds the GIL and blocks all other threads."""
    found: dict[str, Any] = {}
    for start in range(0, len(keys), _SLICE_ROWS):
        some = (column.slice(start, _SLICE_ROWS).to_pylist() for column in (keys, values))
        found.update(zip(*some, strict=True))
    return found


def _first_of_each(column: str, rows: Rows, order: list[tuple[str, str]]) -> Rows:
    """Sort *rows* by *order*, and return only the first row for each value of *column*."""
    rows = rows.sort_by(order)
    rows = rows.append_column("place", pa.array(np.arange(rows.num_rows)))
    places = rows.group_by(column, use_threads=False).aggregate([("place", "min")])["place_min"].sort()
    return rows.take(places).drop_columns(["place"]).combine_chunks()
