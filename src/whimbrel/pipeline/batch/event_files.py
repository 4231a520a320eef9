"""Event files: Arrow tables that a task of a batch run leaves for tasks of the next stage, in the scratch folder.

A task that matches a slice of a node's log leaves its pieces here, divided by shard of sessions, so that each fold task
reads only its own rows. Sums for windows are left the same way.
Rule: a file is written once, by one attempt of a task, under a name of its own; the driver passes the name on.
Rule: an entry is read on its own, so memory is bounded by the largest entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

import pyarrow as pa

__all__ = ["NODE", "SUMS", "Entry", "EventFile", "EventWriter"]

NODE, SUMS = -1, -2
"""Shard numbers of entries for all shards: the reports of a whole node, and sums for windows."""
_LENGTH = 8
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class Entry(NamedTuple):
    """An entry of an event file: some Arrow tables about the seqs *first* to *last*."""

    shard: int
    first: int
    last: int
    ends_at: int | None
    """The time of the last fact, of all shards, in microseconds."""
    tables: dict[str, int]
    """Offset in the file of each table, by name."""


class EventWriter:
    """Writer of a new event file in *folder*; used as a context, it is complete at the end."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{uuid4().hex}.events"
        self._entries: list[Entry] = []
        self.rows: dict[int, int] = {}
        """Number of rows per shard; a shard without any row is left out."""

    def __enter__(self) -> Self:
        self._sink = pa.OSFile(str(self.path), "wb")
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            index = json.dumps(self._entries).encode()
            self._sink.write(index + len(index).to_bytes(_LENGTH, "big"))
        self._sink.close()
        if error is not None:
            with suppress(OSError):
                self.path.unlink()

    def add(
        self, shard: int, tables: Mapping[str, Any], *, first: int = 0, last: int = 0, ends_at: int | None = None
    ) -> None:
        """Write an entry; of *tables*, Arrow tables by name, those without rows are left out."""
        offsets = {}
        for name, rows in tables.items():
            if rows.num_rows:
                offsets[name] = self._sink.tell()
                self.rows[shard] = self.rows.get(shard, 0) + rows.num_rows
                with pa.ipc.new_stream(self._sink, rows.schema, options=_OPTIONS) as writer:
                    writer.write_table(rows)
        self._entries.append(Entry(shard, first, last, ends_at, offsets))


class EventFile:
    """Reader of the event file at *path*."""

    def __init__(self, path: Path) -> None:
        self._source = pa.memory_map(str(path))
        end = self._source.size() - _LENGTH
        self._source.seek(end)
        length = int.from_bytes(self._source.read(_LENGTH), "big")
        self._source.seek(end - length)
        self._entries = [Entry(*entry) for entry in json.loads(self._source.read(length))]

    def entries(self, shard: int) -> Iterator[Entry]:
        """Yield the entries of a shard in the order in which they were written."""
        return (entry for entry in self._entries if entry.shard == shard)

    def table(self, entry: Entry, name: str) -> Any:  # a pyarrow.Table
        """Return a table of an entry."""
        self._source.seek(entry.tables[name])
        return pa.ipc.open_stream(self._source).read_all()

    def tables(self, shard: int, name: str) -> Iterator[Any]:  # of pyarrow.Tables
        """Yield the table *name* of each entry of a shard that has it."""
        for entry in self.entries(shard):
            if name in entry.tables:
                yield self.table(entry, name)
