"""Segments: append-only files of records, and how a reader finds the whole records in them.

A segment begins with a header: magic, format, node, the seq of its first record, the time of the record before that,
the salt of its checksums, and a CRC-32 of all this. Records and marks follow (``records``).

How a torn tail (a torn write) differs from damage: a node writes a group of records, fsyncs it, and only then
acknowledges the group and writes the next. Each group begins with a mark of the last durable seq, and a closed log ends
with a mark. So a mark proves that all records before it were durable. A group that was written without an fsync
(``writer``) has no mark after it until a later group is fsynced; then the group after that begins with a mark.
A bad frame is one of two cases:

- A later segment exists, or a later mark says that the frame's seq was durable. Then an acknowledged record is damaged:
  this is an error, and the frame is never cut.
- No segment or mark proves the frame. Then it belongs to a torn tail: the group that was being written, or groups that
  were written without an fsync. Whole frames may follow the bad one, because a disk writes pages in any order. None of
  them was acknowledged as durable.

Limit: damage after the last mark of a log that crashed looks like a torn tail. It is cut, and the cut is reported.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

from whimbrel.errors import InvalidValueError
from whimbrel.log.errors import CorruptLogError, NewerLogError
from whimbrel.log.records import BODY, HEAD, MARK, MARK_BYTES, MAX_BODY_BYTES
from whimbrel.model.bounds import INT64_MIN
from whimbrel.model.notification import NotificationId

__all__ = ["HEADER_BYTES", "NEVER", "Header", "Record", "Scan", "is_proven_later", "is_torn_creation", "read_header"]

NEVER = INT64_MIN
"""Time in place of that of a record before, for the first record of a log."""

_MAGIC = b"whimseg\n"
_VERSION = 1
_HEADER = struct.Struct(">8sH64sqqI")
_CRC = struct.Struct(">I")
HEADER_BYTES = _HEADER.size + _CRC.size
_CHUNK_BYTES = 1 << 20
_MARK_LENGTH = BODY.size.to_bytes(4, "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Header of a segment file: node, first seq, time of the record before, and salt of the checksums."""

    node: str
    first: int
    last_at: int
    """The time of the record before *first*: it keeps times from running backwards and dates a whole segment."""
    salt: int

    def pack(self) -> bytes:
        """Return the header's bytes."""
        data = _HEADER.pack(_MAGIC, _VERSION, self.node.encode(), self.first, self.last_at, self.salt)
        return data + _CRC.pack(crc32(data))

    @classmethod
    def unpacked(cls, data: bytes, path: Path) -> Header:
        """Return the header that *data* begins with, or raise ``CorruptLogError``."""
        if len(data) < HEADER_BYTES:
            raise CorruptLogError(path, 0, f"found {len(data)} bytes, a segment's header has {HEADER_BYTES}")
        magic, version, node, first, last_at, salt = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise CorruptLogError(path, 0, "this is not a segment of a log")
        if _CRC.unpack_from(data, _HEADER.size)[0] != crc32(data[: _HEADER.size]):
            raise CorruptLogError(path, 0, "the header's checksum does not match")
        if version > _VERSION:
            raise NewerLogError(path, version, _VERSION)
        try:
            name = node.rstrip(b"\0").decode()
            NotificationId(name, first)
        except (InvalidValueError, UnicodeDecodeError) as error:
            raise CorruptLogError(path, 0, f"the header names no node and seq: {error}") from None
        return cls(node=name, first=first, last_at=last_at, salt=salt)


class Record(NamedTuple):
    """One record of a segment: its byte offset, seq, table number and payload."""

    offset: int
    seq: int
    table: int
    payload: bytes


def read_header(stream: BinaryIO, path: Path) -> Header:
    """Return the segment header at the start of *stream*, or raise ``CorruptLogError``."""
    stream.seek(0)
    return Header.unpacked(stream.read(HEADER_BYTES), path)


def is_torn_creation(path: Path) -> bool:
    """Return whether *path* lacks a whole header: our segments are created whole, but a copy may be cut short."""
    with path.open("rb") as stream:
        data = stream.read(HEADER_BYTES + 1)
    if len(data) > HEADER_BYTES:
        return False
    try:
        Header.unpacked(data, path)
    except CorruptLogError:
        return True
    return False


class Scan:
    """Iterator over the whole records of a segment; ``end`` is the offset where it stopped, ``trouble`` the reason."""

    def __init__(self, stream: BinaryIO, header: Header, *, offset: int = HEADER_BYTES, seq: int | None = None) -> None:
        self._stream, self._salt = stream, header.salt
        self.end = offset
        self.next_seq = header.first if seq is None else seq
        self.proven = self.next_seq - 1 if offset == HEADER_BYTES else header.first - 1
        """The last seq that is proven durable: by a mark, or because an earlier segment holds it."""
        self.is_marked = offset == HEADER_BYTES
        """Whether no record follows the last proven one."""
        self.trouble: str | None = None
        """Reason why the frame at ``end`` is not whole; None if the file ends there."""

    def __iter__(self) -> Iterator[Record]:
        stream, salt, unpack_head, unpack_body = self._stream, self._salt, HEAD.unpack_from, BODY.unpack_from
        stream.seek(self.end)
        self.trouble, buffer, at = None, b"", 0
        while True:
            if len(buffer) - at < MARK_BYTES:
                buffer, at = buffer[at:] + stream.read(_CHUNK_BYTES), 0
                if len(buffer) < MARK_BYTES:
                    self.trouble = f"{len(buffer)} bytes are no frame" if buffer else None
                    return
            length, checksum = unpack_head(buffer, at)
            if not BODY.size <= length <= MAX_BODY_BYTES:
                self.trouble = f"found the length {length}, allowed is {BODY.size} to {MAX_BODY_BYTES}"
                return
            stop = at + HEAD.size + length
            if stop > len(buffer):
                if self.end + stop - at > os.fstat(stream.fileno()).st_size:  # checked before memory is allocated
                    self.trouble = f"a frame of {length} bytes has no end"
                    return
                buffer = buffer[at:] + stream.read(max(stop - len(buffer), _CHUNK_BYTES))
                at, stop = 0, stop - at
            body = buffer[at + HEAD.size : stop]
            if crc32(body, salt) != checksum:
                self.trouble = "the checksum does not match"
                return
            seq, table = unpack_body(body)
            if seq != (self.next_seq if table != MARK else self.next_seq - 1):
                self.trouble = f"found seq {seq} where {self.next_seq} comes next"
                return
            offset, self.end, at = self.end, self.end + stop - at, stop
            if table == MARK:
                self.proven, self.is_marked = seq, True
            else:
                self.next_seq, self.is_marked = seq + 1, False
                yield Record(offset, seq, table, body[BODY.size :])


def is_proven_later(stream: BinaryIO, header: Header, offset: int, seq: int) -> bool:
    """Return whether a mark anywhere after *offset* proves that *seq* was durable."""
    stream.seek(offset)
    data = b""
    while chunk := stream.read(_CHUNK_BYTES):
        data = data[-(MARK_BYTES - 1) :] + chunk
        at = data.find(_MARK_LENGTH)
        while 0 <= at <= len(data) - MARK_BYTES:
            _, checksum = HEAD.unpack_from(data, at)
            body = data[at + HEAD.size : at + MARK_BYTES]
            proven, table = BODY.unpack(body)
            if table == MARK and proven >= seq and crc32(body, header.salt) == checksum:
                return True
            at = data.find(_MARK_LENGTH, at + 1)
    return False
