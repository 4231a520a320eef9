"""The store of a stateful operator: rows as blobs of changes, appended batch by batch and compacted now and then.

Spark keeps what a stateful operator remembers, and a round trip to it costs more than a row does. So a commit is one
blob (or a few of bounded size) behind the others; once there are more bytes of changes than of rows, all are put
together again. What a commit costs follows what changed; compaction adds a constant factor to it.

Rule: the operator's own versions make a commit whole: a batch that is made again finds the blobs of the batch before.
Rule: nothing is kept in memory but for who asks for single rows (``get``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import cbor2

from whimbrel.hold.rows import Key
from whimbrel.hold.store.interface import NOTHING_APPLIED, CorruptStoreError, decode_key, encode_key
from whimbrel.model.bounds import INT64_MAX, whole

__all__ = ["BlobStore", "Blobs", "Head", "MemoryBlobs", "SparkBlobs"]

_BLOB_BYTES = 1 << 20
_LEAST_BYTES = 1 << 18
"""Fewer bytes of changes than these are not worth a compaction."""

_Encoded = tuple[str, bytes]
_Rows = dict[_Encoded, bytes]


class Head(NamedTuple):
    """What is known of the blobs without reading them."""

    applied: int = NOTHING_APPLIED
    """The number of the last fact, or batch, that is in them."""
    base_bytes: int = 0
    """The bytes of the rows when they were put together the last time,"""
    changed_bytes: int = 0
    """and of the changes since."""


class Blobs(Protocol):
    """Where blobs are kept, with their head."""

    def head(self) -> Head:
        """Return the head; that of nothing, if there is none."""

    def read(self) -> Iterable[bytes]:
        """Yield the blobs in order."""

    def append(self, blobs: list[bytes], head: Head) -> None:
        """Add blobs behind the others."""

    def put(self, blobs: list[bytes], head: Head) -> None:
        """Have these blobs and no others."""


class BlobStore:
    """A ``Store`` in *blobs*."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._head = blobs.head()
        self._rows: _Rows | None = None

    @property
    def applied(self) -> int:
        """The number of the last fact in the view; ``NOTHING_APPLIED`` if there is none."""
        return self._head.applied

    @property
    def size_bytes(self) -> int:
        """How many bytes the blobs have."""
        return self._head.base_bytes + self._head.changed_bytes

    def rows(self) -> Iterator[tuple[Key, bytes]]:
        """Yield all rows in order of their keys."""
        for encoded, value in sorted(self._merged().items()):
            yield decode_key(*encoded), value

    def get(self, key: Key) -> bytes | None:
        """Return the row under *key*, or None; from then on the rows are kept in memory."""
        if self._rows is None:
            self._rows = self._merged()
        return self._rows.get(encode_key(key))

    def commit(self, applied: int, put: Mapping[Key, bytes], drop: Collection[Key]) -> None:
        """Drop, then put, and be the view up to *applied*."""
        whole("applied", applied, self._head.applied, INT64_MAX)
        added = {encode_key(key): bytes(value) for key, value in put.items()}
        dropped = [encode_key(key) for key in drop]
        blobs = list(_packed(added, dropped))
        size = sum(map(len, blobs))
        if self._rows is not None:
            _change(self._rows, added, dropped)
        changed_bytes = self._head.changed_bytes + size
        if changed_bytes > max(self._head.base_bytes, _LEAST_BYTES):
            rows = self._rows
            if rows is None:
                rows = self._merged()
                _change(rows, added, dropped)
            self._replace(applied, rows)
            return
        self._head = Head(applied, self._head.base_bytes, changed_bytes)
        self._blobs.append(blobs, self._head)

    def replace(self, applied: int, rows: Mapping[Key, bytes]) -> None:
        """Have *rows* and no others, and be the view up to *applied*."""
        whole("applied", applied, self._head.applied, INT64_MAX)
        encoded = {encode_key(key): bytes(value) for key, value in rows.items()}
        if self._rows is not None:
            self._rows = dict(encoded)
        self._replace(applied, encoded)

    def close(self) -> None:
        """Let go of the store."""
        self._rows = None

    def follow(self, blobs: Blobs) -> None:
        """Go on with *blobs*, which are the same ones, reached another way."""
        self._blobs, self._head = blobs, blobs.head()

    def _replace(self, applied: int, rows: _Rows) -> None:
        blobs = list(_packed(rows, []))
        self._head = Head(applied, sum(map(len, blobs)), 0)
        self._blobs.put(blobs, self._head)

    def _merged(self) -> _Rows:
        if self._rows is not None:
            return self._rows
        rows: _Rows = {}
        for blob in self._blobs.read():
            added, dropped = _unpacked(blob)
            _change(rows, added, dropped)
        return rows


def _change(rows: _Rows, added: _Rows, dropped: Iterable[_Encoded]) -> None:
    for encoded in dropped:
        rows.pop(encoded, None)
    rows.update(added)


def _packed(added: _Rows, dropped: list[_Encoded]) -> Iterator[bytes]:
    """Yield changes as blobs of about a megabyte; what is dropped comes first."""
    some: list[list[Any]] = []
    gone: list[list[Any]] = [list(encoded) for encoded in dropped]
    size = 0
    for (kind, key), value in added.items():
        some.append([kind, key, value])
        size += len(key) + len(value)
        if size >= _BLOB_BYTES:
            yield cbor2.dumps([some, gone])
            some, gone, size = [], [], 0
    if some or gone:
        yield cbor2.dumps([some, gone])


def _unpacked(blob: bytes) -> tuple[_Rows, list[_Encoded]]:
    try:
        added, dropped = cbor2.loads(blob)
        return {(kind, key): value for kind, key, value in added}, [(kind, key) for kind, key in dropped]
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise CorruptStoreError("state of an operator", f"{error}") from error


class MemoryBlobs:
    """Blobs in this process."""

    def __init__(self, blobs: Iterable[bytes] = (), head: Head | None = None) -> None:
        self._blobs, self._head = list(blobs), head or Head()

    def head(self) -> Head:
        """Return the head."""
        return self._head

    def read(self) -> Iterable[bytes]:
        """Return the blobs in order."""
        return list(self._blobs)

    def append(self, blobs: list[bytes], head: Head) -> None:
        """Add blobs behind the others."""
        self._blobs += blobs
        self._head = head

    def put(self, blobs: list[bytes], head: Head) -> None:
        """Have these blobs and no others."""
        self._blobs, self._head = list(blobs), head


class SparkBlobs:
    """Blobs in the state of a stateful operator, of the key that it works on."""

    LIST, HEAD = "blobs", "head"
    LIST_SCHEMA, HEAD_SCHEMA = "blob binary", "applied long, base_bytes long, changed_bytes long"

    def __init__(self, handle: Any) -> None:  # a pyspark StatefulProcessorHandle
        self._list = handle.getListState(self.LIST, self.LIST_SCHEMA)
        self._value = handle.getValueState(self.HEAD, self.HEAD_SCHEMA)

    def head(self) -> Head:
        """Return the head."""
        found = self._value.get()
        return Head() if found is None else Head(*found)

    def read(self) -> Iterable[bytes]:
        """Yield the blobs in order."""
        for (blob,) in self._list.get():
            yield bytes(blob)

    def append(self, blobs: list[bytes], head: Head) -> None:
        """Add blobs behind the others."""
        if blobs:
            self._list.appendList([(blob,) for blob in blobs])
        self._value.update(tuple(head))

    def put(self, blobs: list[bytes], head: Head) -> None:
        """Have these blobs and no others."""
        self._list.put([(blob,) for blob in blobs])
        self._value.update(tuple(head))
