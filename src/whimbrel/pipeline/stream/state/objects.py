"""State objects: immutable files with the state of a node, or of the windows, in a folder that all workers see.

A worker that changes a state writes one new object, with the changes and the names of the older objects that it
continues. So one name stands for a whole state, and the record of a batch (``batch_record``) needs no more than that.
Rule: an object has a random name, is fsynced before its name is known to anybody, and is never changed.
Rule: objects of about the same size are joined, so a state has few of them, and a row is copied a few times only.
Rule: an object that no record names is rubbish, and may be removed at any time (``sweep``).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4
from zlib import crc32

import cbor2

from whimbrel.hold.store.interface import CorruptStoreError
from whimbrel.log.files import make_folder, put
from whimbrel.pipeline.stream.state.batch_record import LostStateError
from whimbrel.pipeline.stream.state.blob_store import Head

__all__ = ["ObjectBlobs", "live_objects", "sweep"]

_MAGIC = b"WHS1"
_SIZES = struct.Struct(">4sII")
"""Magic, size of the head in bytes, and checksum of that size, head and body."""
_BLOB = struct.Struct(">I")
_JOINED = 8
"""Number of objects of about the same size that are joined to one, and ratio of two such sizes."""
_LEAST_BYTES = 1 << 10
"""Objects up to this size count as equally large."""


@dataclass(frozen=True, slots=True)
class _Part:
    """An object that is a part of a state, and the size of its body in bytes."""

    name: str
    size: int

    @property
    def tier(self) -> int:
        return _tier(self.size)


class ObjectBlobs:
    """Blobs in objects below *folder*; *name* is the newest object of the state, or None if there is none yet."""

    def __init__(self, folder: Path, name: str | None) -> None:
        self._folder = folder
        self._head, self._parts = Head(), list[_Part]()
        self.dropped: list[str] = []
        """Names of objects that the new state does not need any more."""
        if name is not None:
            fields, parts, size = _read_head(folder, name)
            applied, base_bytes, changed_bytes = fields
            self._head = Head(applied, base_bytes, changed_bytes, name)
            self._parts = [*parts, _Part(name, size)]

    @property
    def names(self) -> list[str]:
        """Names of the objects that have the state."""
        return [part.name for part in self._parts]

    def head(self) -> Head:
        """Return the stored summary; its ``version`` is the name of the newest object."""
        return self._head

    def read(self) -> Iterator[bytes]:
        """Yield the blobs in order."""
        for part in self._parts:
            body = _read_body(self._folder, part.name)
            at = 0
            while at < len(body):
                (size,) = _BLOB.unpack_from(body, at)
                at += _BLOB.size
                yield body[at : at + size]
                at += size

    def append(self, blobs: list[bytes], head: Head) -> None:
        """Write an object that continues the state with *blobs*; join it with older ones of its size."""
        body = _body(blobs)
        kept, size, joined = list(self._parts), len(body), list[_Part]()
        while True:
            tail = len(kept)
            while tail and kept[tail - 1].tier <= _tier(size):
                tail -= 1
            if len(kept) - tail < _JOINED - 1:
                break
            joined = kept[tail:] + joined
            del kept[tail:]
            size = len(body) + sum(part.size for part in joined)
        older = b"".join(_read_body(self._folder, part.name) for part in joined)
        self._write(kept, older + body, head)
        self.dropped += [part.name for part in joined]

    def put(self, blobs: list[bytes], head: Head) -> None:
        """Write an object that has the whole state: *blobs*."""
        gone = [part.name for part in self._parts]
        self._write([], _body(blobs), head)
        self.dropped += gone

    def _write(self, parts: list[_Part], body: bytes, head: Head) -> None:
        name = uuid4().hex
        own = cbor2.dumps([list(head[:3]), [[part.name, part.size] for part in parts]])
        place = _path(self._folder, name)
        make_folder(place.parent)
        put(place, _SIZES.pack(_MAGIC, len(own), crc32(body, crc32(own, len(own)))) + own + body)
        self._head = head._replace(version=name)
        self._parts = [*parts, _Part(name, len(body))]


def _tier(size: int) -> int:
    tier = 0
    while size > _LEAST_BYTES:
        size //= _JOINED
        tier += 1
    return tier


def _body(blobs: Iterable[bytes]) -> bytes:
    return b"".join(part for blob in blobs for part in (_BLOB.pack(len(blob)), blob))


def _path(folder: Path, name: str) -> Path:
    return folder / name


def _read_head(folder: Path, name: str) -> tuple[list[int], list[_Part], int]:
    """Return the summary in an object, the older objects that it names, and the size of its body."""
    try:
        with _path(folder, name).open("rb") as file:
            magic, size, _ = _SIZES.unpack(file.read(_SIZES.size))
            fields, parts = cbor2.loads(file.read(size))
            body = os.fstat(file.fileno()).st_size - _SIZES.size - size
    except FileNotFoundError:
        raise _lost_error(folder, name) from None
    except (struct.error, cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise CorruptStoreError(f"state object {name}", f"{error}") from error
    if magic != _MAGIC:
        raise CorruptStoreError(f"state object {name}", f"it begins with {magic!r}")
    return fields, [_Part(*part) for part in parts], body


def _read_body(folder: Path, name: str) -> bytes:
    try:
        data = _path(folder, name).read_bytes()
    except FileNotFoundError:
        raise _lost_error(folder, name) from None
    _, size, checksum = _SIZES.unpack_from(data)
    if crc32(memoryview(data)[_SIZES.size :], size) != checksum:
        raise CorruptStoreError(f"state object {name}", "its checksum differs")
    return data[_SIZES.size + size :]


def _lost_error(folder: Path, name: str) -> LostStateError:
    return LostStateError("the checkpoint", f"no object {name} in {folder}", "the objects that the record names")


def live_objects(folder: Path, names: Iterable[str]) -> set[str]:
    """Return *names* and the names of all objects that these continue; raise ``LostStateError`` if one is missing."""
    found = set[str]()
    for name in names:
        _, parts, _ = _read_head(folder, name)
        found |= {name, *(part.name for part in parts)}
    for name in found:
        if not _path(folder, name).exists():
            raise _lost_error(folder, name)
    return found


def sweep(folder: Path, live: Iterable[str]) -> int:
    """Remove all objects in *folder* that are not *live*; return their number."""
    kept, count = set(live), 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name not in kept and entry.is_file():
                Path(entry.path).unlink(missing_ok=True)
                count += 1
    return count
