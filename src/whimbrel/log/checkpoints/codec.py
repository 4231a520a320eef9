"""The file format of checkpoints: the rows of a node's state after one seq, with checksums against every change.

::

    header   magic, format, node, seq, the state's time, time of writing, salt; CRC-32 of all this
    frame    length, CRC-32 (from the salt), then: frame index, 1, and rows: kind, key and value with their lengths
    …
    end      length, CRC-32, then: frame index, 2, number of rows, SHA-256 of all bytes before this frame

Rule: bytes that are not a valid checkpoint raise ``CorruptLogError`` (``NewerLogError`` for a later format). Every
flipped, missing or additional byte is detected, at the latest at the end frame. So rows are valid only once the reader
has read the end frame.
Rule: writing and reading need the memory of one frame. A length that exceeds the file is refused before memory is
allocated.
Rule: numbers are big-endian, as in segments.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from whimbrel.errors import InvalidValueError
from whimbrel.hold.rows import Key
from whimbrel.hold.store.interface import decode_key, encode_key
from whimbrel.log.errors import CorruptLogError, NewerLogError
from whimbrel.log.records import MAX_BODY_BYTES
from whimbrel.model.bounds import INT64_MAX, whole
from whimbrel.model.notification import NotificationId

__all__ = ["FORMAT", "CheckpointHeader", "CheckpointReader", "encode_checkpoint"]

FORMAT = 3
"""Version of the format: 2 added the seq of each subscription and the links of devices, 3 the subscription's time."""

_MAGIC = b"whimckp\n"
_HEADER = struct.Struct(">8sH64sqqqI")
_CRC = struct.Struct(">I")
HEADER_BYTES = _HEADER.size + _CRC.size
_HEAD = struct.Struct(">II")
_FRAME = struct.Struct(">IB")
_ROW = struct.Struct(">HII")
_END = struct.Struct(">Q32s")
_ROWS_FRAME, _END_FRAME = 1, 2
_PIECE_BYTES = 256 << 10
"""Size from which on a frame of rows is complete, in bytes."""
_MAX_FRAME_BYTES = MAX_BODY_BYTES + (1 << 20)
"""Largest frame, in bytes: room for one row, which is at most a record and its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeader:
    """Header of a checkpoint: it holds the state of *node* after the fact *seq*, and before the next fact."""

    node: str
    seq: int
    state_at: int
    """The largest time in the state: of a fact, or of a tick (an advance of time without a fact)."""
    made_at: int
    salt: int

    def pack(self) -> bytes:
        """Return the header's bytes."""
        NotificationId(self.node, whole("seq", self.seq, 1, INT64_MAX))
        head = _HEADER.pack(_MAGIC, FORMAT, self.node.encode(), self.seq, self.state_at, self.made_at, self.salt)
        return head + _CRC.pack(crc32(head))

    @classmethod
    def unpacked(cls, data: bytes, path: Path) -> CheckpointHeader:
        """Decode the header in *data*, or raise ``CorruptLogError``."""
        if len(data) < HEADER_BYTES:
            raise CorruptLogError(path, 0, f"found {len(data)} bytes, a checkpoint's header has {HEADER_BYTES}")
        magic, version, node, seq, state_at, made_at, salt = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise CorruptLogError(path, 0, "this is not a checkpoint of a log")
        if _CRC.unpack_from(data, _HEADER.size)[0] != crc32(data[: _HEADER.size]):
            raise CorruptLogError(path, 0, "the header's checksum does not match")
        if version > FORMAT:
            raise NewerLogError(path, version, FORMAT)
        try:
            name = node.rstrip(b"\0").decode()
            NotificationId(name, whole("seq", seq, 1, INT64_MAX))
        except (InvalidValueError, UnicodeDecodeError) as error:
            raise CorruptLogError(path, 0, f"the header names no node and seq: {error}") from None
        return cls(node=name, seq=seq, state_at=state_at, made_at=made_at, salt=salt)


def encode_checkpoint(header: CheckpointHeader, rows: Iterable[tuple[Key, bytes]]) -> Iterator[bytes]:
    """Yield the bytes of a checkpoint in chunks of about 256 KiB, so that the writer may pause between them."""
    head = header.pack()
    digest = hashlib.sha256(head)
    yield head
    count = index = 0
    piece = bytearray()
    for key, value in rows:
        kind, name = encode_key(key)
        text = kind.encode()
        piece += _ROW.pack(len(text), len(name), len(value))
        piece += text
        piece += name
        piece += value
        count += 1
        if len(piece) >= _PIECE_BYTES:
            frame = _as_frame(index, _ROWS_FRAME, piece, header.salt)
            digest.update(frame)
            yield frame
            piece, index = bytearray(), index + 1
    if piece:
        frame = _as_frame(index, _ROWS_FRAME, piece, header.salt)
        digest.update(frame)
        yield frame
        index += 1
    yield _as_frame(index, _END_FRAME, _END.pack(count, digest.digest()), header.salt)


def _as_frame(index: int, kind: int, payload: bytes | bytearray, salt: int) -> bytes:
    body = _FRAME.pack(index, kind) + payload
    return _HEAD.pack(len(body), crc32(body, salt)) + body


class CheckpointReader:
    """Reader of one checkpoint, frame by frame; the whole file is verified only once ``rows`` has ended."""

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream, self._path = stream, path
        stream.seek(0)
        head = stream.read(HEADER_BYTES)
        self.header = CheckpointHeader.unpacked(head, path)
        self._digest = hashlib.sha256(head)
        self._offset = HEADER_BYTES
        self.row_count = 0
        """Number of rows that were read so far."""

    def rows(self) -> Iterator[tuple[Key, bytes]]:
        """Yield the rows; if no error is raised up to the end, all rows are as written and none is missing."""
        index = 0
        while True:
            frame = self._frame()
            found, kind = _FRAME.unpack_from(frame, _HEAD.size)
            if found != index:
                raise self._corrupt(f"found frame {found} where {index} comes next")
            payload = memoryview(frame)[_HEAD.size + _FRAME.size :]
            if kind == _END_FRAME:
                self._end(payload)
                return
            if kind != _ROWS_FRAME:
                raise self._corrupt(f"found a frame of kind {kind}, allowed are {_ROWS_FRAME} and {_END_FRAME}")
            yield from self._rows_of(payload)
            self._digest.update(frame)
            self._offset += len(frame)
            index += 1

    def _frame(self) -> bytes:
        head = self._stream.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise self._corrupt("it has no end")
        length, checksum = _HEAD.unpack(head)
        if not _FRAME.size < length <= _MAX_FRAME_BYTES:
            raise self._corrupt(f"found the length {length}, allowed is {_FRAME.size + 1} to {_MAX_FRAME_BYTES}")
        if self._offset + _HEAD.size + length > os.fstat(self._stream.fileno()).st_size:  # before memory is allocated
            raise self._corrupt(f"a frame of {length} bytes has no end")
        body = self._stream.read(length)
        if len(body) < length or crc32(body, self.header.salt) != checksum:
            raise self._corrupt("the checksum does not match")
        return head + body

    def _rows_of(self, payload: memoryview) -> Iterator[tuple[Key, bytes]]:
        at, size = 0, len(payload)
        while at < size:
            if at + _ROW.size > size:
                raise self._corrupt("a row has no end")
            kind_bytes, key_bytes, value_bytes = _ROW.unpack_from(payload, at)
            key_at = at + _ROW.size + kind_bytes
            value_at = key_at + key_bytes
            end = value_at + value_bytes
            if end > size:
                raise self._corrupt("a row has no end")
            try:
                key = decode_key(bytes(payload[at + _ROW.size : key_at]).decode(), bytes(payload[key_at:value_at]))
            except (InvalidValueError, UnicodeDecodeError) as error:
                raise self._corrupt(f"a row has no key: {error}") from None
            self.row_count += 1
            yield key, bytes(payload[value_at:end])
            at = end

    def _end(self, payload: memoryview) -> None:
        if len(payload) != _END.size:
            raise self._corrupt(f"its end has {len(payload)} bytes, not {_END.size}")
        count, digest = _END.unpack(payload)
        if count != self.row_count or digest != self._digest.digest():
            raise self._corrupt(f"it has {self.row_count} rows, and its end says otherwise of them")
        if self._stream.read(1):
            raise self._corrupt("something follows its end")

    def _corrupt(self, reason: str) -> CorruptLogError:
        return CorruptLogError(self._path, self._offset, reason)
