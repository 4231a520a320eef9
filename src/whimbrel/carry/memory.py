"""The memory of a node on disk: its address, its samples, subscriptions and clock, and its control data.

Rule: a restarted node has the address, copies and removable marks of before; a mark that waited for a proof is undone.
Rule: the file is replaced as a whole and fsynced; after a crash it has either its old or its new content.
Rule: any bytes are a memory or raise ``DamagedMemoryError``; a node never starts with a part of its memory.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from whimbrel.carry.hello import Sample, SampleId
from whimbrel.carry.node import Carrier, StoredCopy
from whimbrel.carry.wire import MAX_RECORD_BYTES, MalformedMessageError, read_record, record_of
from whimbrel.errors import InvalidInputError
from whimbrel.log.files import put

__all__ = ["DamagedMemoryError", "Memory", "memory_of", "read_memory", "write_memory"]

_MAGIC = b"whimbrel campus memory 1\n"
_HEAD = struct.Struct(">QIIII")
_ROW = struct.Struct(">BHHqQH")
_IS_REMOVABLE, _IS_RETRIEVED = 1, 2
_CHECK = struct.Struct(">I")


class DamagedMemoryError(InvalidInputError):
    """A file is not the memory of a node. Reaction: move it away; the node then starts empty, with a new address."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} is not the memory of a node: {self.reason}; without the file the node starts empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """State of a node that survives a restart."""

    address: int
    stored: tuple[StoredCopy, ...] = ()
    retrieved: tuple[Sample, ...] = ()
    control: tuple[Sample, ...] = ()
    """Samples of the built-in topic: key statements before the segments that those keys signed."""
    subscriptions: tuple[str, ...] = ()
    offset_us: int = 0
    clock_set_at: int | None = None


def memory_of(carrier: Carrier) -> Memory:
    """Return the samples of *carrier* and its address as a ``Memory``."""
    stored = [StoredCopy(each.sample, each.copies, each.is_replaceable) for each in carrier.stored]
    return Memory(address=carrier.address, stored=tuple(stored), retrieved=tuple(carrier.all_retrieved))


def write_memory(path: Path, memory: Memory) -> None:
    """Write *memory* to the file at *path*, replacing it atomically and durably."""
    rows = [_row(each.sample, each.copies, _IS_REMOVABLE * each.is_removable) for each in memory.stored]
    rows += [_row(sample, 0, _IS_RETRIEVED) for sample in (*memory.retrieved, *memory.control)]
    known = {
        "subscriptions": memory.subscriptions, "offset_us": memory.offset_us, "clock_set_at": memory.clock_set_at
    }  # fmt: skip
    text = json.dumps(known, ensure_ascii=False).encode()
    counts = len(memory.stored), len(memory.retrieved), len(memory.control), len(text)
    data = _MAGIC + _HEAD.pack(memory.address, *counts) + text + b"".join(rows)
    put(path, data + _CHECK.pack(zlib.crc32(data)))


def _row(sample: Sample, copies: int, flags: int) -> bytes:
    record = record_of(sample)
    return _ROW.pack(flags, copies, sample.topic, *sample.id, len(record)) + record


def read_memory(path: Path) -> Memory | None:
    """Return the memory in the file at *path*, or None if there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    begin = len(_MAGIC) + _HEAD.size
    if not data.startswith(_MAGIC) or len(data) < begin + _CHECK.size:
        raise DamagedMemoryError(path, "it does not begin like one")
    body, check = data[: -_CHECK.size], data[-_CHECK.size :]
    if _CHECK.pack(zlib.crc32(body)) != check:
        raise DamagedMemoryError(path, "its checksum is wrong")
    address, stored, retrieved, control, size = _HEAD.unpack_from(body, len(_MAGIC))
    try:
        known = json.loads(body[begin : begin + size])
        rows = _rows(body[begin + size :])
        found = len(rows)
        if found != stored + retrieved + control:
            raise MalformedMessageError(f"found {found} samples, it counts {stored + retrieved + control}", begin)
        samples = tuple(sample for _, _, sample in rows[stored:])
        return Memory(
            address=address,
            stored=tuple(
                StoredCopy(sample, count, bool(flags & _IS_REMOVABLE)) for flags, count, sample in rows[:stored]
            ),
            retrieved=samples[:retrieved],
            control=samples[retrieved:],
            subscriptions=tuple(map(str, known["subscriptions"])),
            offset_us=int(known["offset_us"]),
            clock_set_at=None if known["clock_set_at"] is None else int(known["clock_set_at"]),
        )
    except (struct.error, MalformedMessageError, ValueError, LookupError, TypeError) as error:
        raise DamagedMemoryError(path, str(error)) from None


def _rows(data: bytes) -> list[tuple[int, int, Sample]]:
    found: list[tuple[int, int, Sample]] = []
    at = 0
    while at < len(data):
        flags, copies, topic, published_at, publisher, size = _ROW.unpack_from(data, at)
        at += _ROW.size
        if size > MAX_RECORD_BYTES or at + size > len(data):
            raise MalformedMessageError(f"a sample of {size} bytes", at)
        sample = read_record(data[at : at + size], topic=topic, sample_id=SampleId(published_at, publisher))
        found.append((flags, copies, sample))
        at += size
    return found
