"""Tallies: counts for the time windows, which the tasks of a batch make and its last task adds up.

They are numbers of publications, latencies, subscriptions' times in force, and sums over contacts that ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import cbor2
import pyarrow as pa

from whimbrel.pipeline.fold.contact_fold import Meeting
from whimbrel.pipeline.tables.latency import TALLY
from whimbrel.pipeline.tables.popularity import COUNT, INTERVAL
from whimbrel.pipeline.unit.made import WorkerOutput

__all__ = ["Tallies", "unpacked_tallies"]

Arrow = Any
"""A ``pyarrow`` table; pyarrow ships no types."""

_TALLIES_BYTES = 8 << 20
_INTERVAL = pa.schema([("node", pa.string()), ("interest_seq", pa.int64()), *INTERVAL])


class Tallies:
    """Buffer of counts for the time windows, from several pieces (chunks) of the log.

    It has numbers of publications, latencies, subscriptions' times in force, and meetings.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._parts: list[list[Arrow]] = []
        self._met: dict[tuple[str, str], Meeting] = {}
        self._size = 0

    def add(
        self,
        *,
        counts: Arrow | None = None,
        tally: Arrow | None = None,
        intervals: Arrow | None = None,
        meetings: Mapping[tuple[str, str], Meeting] | None = None,
    ) -> Iterator[WorkerOutput]:
        """Add *counts* of publications, a *tally* of latencies, *intervals* in force and sums over contacts.

        Once the buffer is large, yield its content.
        """
        given = (counts, tally, None if intervals is None else intervals.select(_INTERVAL.names))
        if any(part is not None and part.num_rows for part in given):
            parts = [
                schema.empty_table() if part is None else part.cast(schema)
                for part, schema in zip(given, (COUNT, TALLY, _INTERVAL), strict=True)
            ]
            self._parts.append(parts)
            self._size += sum(part.nbytes for part in parts)
        for pair, each in (meetings or {}).items():
            self._met[pair] = self._met.get(pair, Meeting()).plus(each)
        if self._size >= _TALLIES_BYTES:
            yield from self.end()

    def end(self) -> Iterator[WorkerOutput]:
        """Yield the buffered content, and clear the buffer."""
        if self._parts:
            tables = [pa.concat_tables(column) for column in zip(*self._parts, strict=True)]
            self._parts, self._size = [], 0
            yield WorkerOutput("tallies", self._node, None, 0, cbor2.dumps([_as_bytes(table) for table in tables]))
        if self._met:
            met = [[*pair, *each] for pair, each in self._met.items()]
            self._met = {}
            yield WorkerOutput("meetings", self._node, None, 0, cbor2.dumps(met))


def unpacked_tallies(told: bytes) -> tuple[Any, Any, Any]:
    """Decode an output of the kind ``tallies``: three Arrow tables (publications, latencies, times in force)."""
    counts, tally, intervals = (pa.ipc.open_stream(part).read_all() for part in cbor2.loads(told))
    return counts, tally, intervals


def _as_bytes(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
