"""The store of a stream's state: an append-only list of blobs of changed rows, compacted from time to time.

A commit appends one blob, or a few of bounded size. Once the changes have more bytes than the rows, everything is
compacted into new blobs. So the cost of a commit depends on what changed; compaction adds a constant factor.

Rule: blobs are stored in immutable objects (``objects``): a commit makes a new state beside the one before.
Rule: rows are not kept in memory, unless single rows are read (``get``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import cbor2

from whimbrel.hold.rows import Key
from whimbrel.hold.store.interface import NOTHING_APPLIED, CorruptStoreError, decode_key, encode_key
from whimbrel.model.bounds import INT64_MAX, whole

__all__ = ["BlobStore", "Blobs", "Head", "MemoryBlobs"]

_BLOB_BYTES = 1 << 20
_LEAST_BYTES = 1 << 18
"""Least size of changes that is compacted, in bytes."""

_Encoded = tuple[str, bytes]
_Rows = dict[_Encoded, bytes]


class Head(NamedTuple):
    """Summary (head) of the blobs, stored beside them."""

    applied: int = NOTHING_APPLIED
    """Seq of the last fact, or number of the last batch, in the blobs."""
    base_bytes: int = 0
    """Size of the rows at the last compaction, in bytes."""
    changed_bytes: int = 0
    """Size of the changes since the last compaction, in bytes."""
    version: str = ""
    """Name that no other state has; empty for blobs in memory."""


class Blobs(Protocol):
    """Storage of blobs, and of their summary (``Head``)."""

    dropped: list[str]
    """Names of objects that are not needed any more since a change."""

    def head(self) -> Head:
        """Return the stored summary of the blobs (``Head``); the default ``Head()`` if nothing is stored."""

    def read(self) -> Iterable[bytes]:
        """Yield the blobs in order."""

    def append(self, blobs: list[bytes], head: Head) -> None:
        """Append blobs, and store *head* as the new summary of all blobs."""

    def put(self, blobs: list[bytes], head: Head) -> None:
        """Replace all blobs by *blobs*, and their summary by *head*."""


class BlobStore:
    """A ``RowStore`` that keeps its rows in *blobs*."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._head = blobs.head()
        self._rows: _Rows | None = None

    @property
    def head(self) -> Head:
        """The summary of the stored blobs."""
        return self._head

    @property
    def applied(self) -> int:
        """Seq of the last fact (or number of the last batch) in the store; ``NOTHING_APPLIED`` if there is none."""
        return self._head.applied

    @property
    def size_bytes(self) -> int:
        """Size of the blobs, in bytes."""
        return self._head.base_bytes + self._head.changed_bytes

    def rows(self) -> Iterator[tuple[Key, bytes]]:
        """Yield all rows in order of their keys."""
        for encoded, value in sorted(self._merge().items()):
            yield decode_key(*encoded), value

    def get(self, key: Key) -> bytes | None:
        """Return the row under *key*, or None; from then on the rows are kept in memory."""
        if self._rows is None:
            self._rows = self._merge()
        return self._rows.get(encode_key(key))

    def commit(self, applied: int, put: Mapping[Key, bytes], drop: Collection[Key]) -> None:
        """Remove the rows *drop*, then store the rows *put*, as the state up to *applied*."""
        whole("applied", applied, self._head.applied, INT64_MAX)
        added = {encode_key(key): bytes(value) for key, value in put.items()}
        dropped = [encode_key(key) for key in drop]
        blobs = list(_pack(added, dropped))
        size = sum(map(len, blobs))
        if self._rows is not None:
            _change(self._rows, added, dropped)
        changed_bytes = self._head.changed_bytes + size
        if changed_bytes > max(self._head.base_bytes, _LEAST_BYTES):
            rows = self._rows
            if rows is None:
                rows = self._merge()
                _change(rows, added, dropped)
            self._replace(applied, rows)
            return
        self._blobs.append(blobs, Head(applied, self._head.base_bytes, changed_bytes))
        self._head = self._blobs.head()

    def replace(self, applied: int, rows: Mapping[Key, bytes]) -> None:
        """Replace all rows by *rows*, as the state up to *applied*."""
        whole("applied", applied, self._head.applied, INT64_MAX)
        encoded = {encode_key(key): bytes(value) for key, value in rows.items()}
        if self._rows is not None:
            self._rows = dict(encoded)
        self._replace(applied, encoded)

    def close(self) -> None:
        """Release the rows in memory."""
        self._rows = None

    def follow(self, blobs: Blobs) -> None:
        """Continue with *blobs*, a new handle to the same stored blobs."""
        self._blobs, self._head = blobs, blobs.head()

    def _replace(self, applied: int, rows: _Rows) -> None:
        blobs = list(_pack(rows, []))
        self._blobs.put(blobs, Head(applied, sum(map(len, blobs)), 0))
        self._head = self._blobs.head()

    def _merge(self) -> _Rows:
        if self._rows is not None:
            return self._rows
        rows: _Rows = {}
        for blob in self._blobs.read():
            added, dropped = _unpack(blob)
            _change(rows, added, dropped)
        return rows


def _change(rows: _Rows, added: _Rows, dropped: Iterable[_Encoded]) -> None:
    for encoded in dropped:
        rows.pop(encoded, None)
    rows.update(added)


def _pack(added: _Rows, dropped: list[_Encoded]) -> Iterator[bytes]:
    """Yield changes as blobs of about a megabyte; removed rows are in the first blob."""
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


def _unpack(blob: bytes) -> tuple[_Rows, list[_Encoded]]:
    try:
        added, dropped = cbor2.loads(blob)
        return {(kind, key): value for kind, key, value in added}, [(kind, key) for kind, key in dropped]
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise CorruptStoreError("state of a stream", f"{error}") from error


class MemoryBlobs:
    """Blobs in the memory of this process."""

    def __init__(self, blobs: Iterable[bytes] = (), head: Head | None = None) -> None:
        self._blobs, self._head = list(blobs), head or Head()
        self.dropped: list[str] = []

    def head(self) -> Head:
        """Return the summary that was stored with the blobs: the last fact or batch in them, and their sizes."""
        return self._head

    def read(self) -> Iterable[bytes]:
        """Return the blobs in order."""
        return list(self._blobs)

    def append(self, blobs: list[bytes], head: Head) -> None:
        """Append blobs, and store *head* as the new summary of all blobs."""
        self._blobs += blobs
        self._head = head

    def put(self, blobs: list[bytes], head: Head) -> None:
        """Replace all blobs by *blobs*, and their summary by *head*."""
        self._blobs, self._head = list(blobs), head
