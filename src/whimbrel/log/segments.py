"""Segments: files of records that grow at their end only, and how to find what is whole in them.

A segment begins with a header: magic, format, node, the seq of its first record, the time of the record before that,
the salt of its checksums, and a CRC-32 of all this. Records and marks follow (``records``).

What is torn and what is damaged. A node writes a group of records, waits until the disk has it, and only then
acknowledges it and writes the next group. Each group begins with a mark of what was durable before it, and a closed
log ends with one. So a mark proves all records before it. Groups that no append waited for (``writer``) have no mark
before the next, until one is waited for: then all before it is durable, and the group after it begins with a mark.
Where a frame is bad, then:

- a later segment exists, or a later mark says that the bad frame's seq was durable: that was acknowledged and is
  damaged, which is an error and never cut;
- nothing proves it: that is the group which was being written, or those that no append waited for, a torn tail. Whole
  frames may stand in it after the bad one, for a disk writes pages in any order; none of them was acknowledged.

What this cannot tell: damage after the last mark of a log that crashed looks like a torn tail. It is cut, and said.
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
"""The time of the record before the first one."""

_MAGIC = b"whimseg\n"
_VERSION = 1
_HEADER = struct.Struct(">8sH64sqqI")
_CRC = struct.Struct(">I")
HEADER_BYTES = _HEADER.size + _CRC.size
_CHUNK_BYTES = 1 << 20
_MARK_LENGTH = BODY.size.to_bytes(4, "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a segment says of itself."""

    node: str
    first: int
    last_at: int
    """The time of the record before *first*, so that times never run backwards and whole segments have an age."""
    salt: int

    def packed(self) -> bytes:
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
            raise CorruptLogError(path, 0, "this is no segment of a log")
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
    """One record as it stands in a segment."""

    offset: int
    seq: int
    table: int
    payload: bytes


def read_header(stream: BinaryIO, path: Path) -> Header:
    """Return the header at the start of *stream*."""
    stream.seek(0)
    return Header.unpacked(stream.read(HEADER_BYTES), path)


def is_torn_creation(path: Path) -> bool:
    """Tell whether *path* was never more than the beginning of a segment; ours appear whole, a copy may not."""
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
    """The whole records of a segment from *offset* on; once it ends, ``end`` is where and ``trouble`` says why."""

    def __init__(self, stream: BinaryIO, header: Header, *, offset: int = HEADER_BYTES, seq: int | None = None) -> None:
        self._stream, self._salt = stream, header.salt
        self.end = offset
        self.next_seq = header.first if seq is None else seq
        self.proven = self.next_seq - 1 if offset == HEADER_BYTES else header.first - 1
        """The last seq that is known to have been durable: a mark said so, or an earlier segment holds it."""
        self.is_marked = offset == HEADER_BYTES
        """Whether nothing stands after what is proven."""
        self.trouble: str | None = None
        """Why the frame at ``end`` is not whole; None if the file ends there."""

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
                if self.end + stop - at > os.fstat(stream.fileno()).st_size:  # before any memory is taken for it
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
    """Tell whether a mark somewhere after *offset* says that *seq* was durable."""
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
