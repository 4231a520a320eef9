"""The heartbeat: a small file that says until when a broker lived, also one that had nothing to write down.

A client that only pings leaves no record. When a broker was killed, its clients were disconnected at a moment that
is not recorded; dated by the last record, a session could be over before its client was gone.
Rule: it costs no log. The file is written in place every few seconds, and synced.
Rule: when in doubt, a session lives: a broker that was last seen alive may have lived until its next beat was due.
Rule: time that passes while the broker is down counts. How much it was is told by the monotonic clock, if the machine
was not started again since, and else by the difference of the machine's clock; never by the log's time, which may be
ahead of it (``log_clock``).
"""

from __future__ import annotations

import os
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import UUID
from zlib import crc32

from whimbrel.broker.shell.log_clock import wall_clock
from whimbrel.model.bounds import FIRST_TIME, LAST_TIME

__all__ = ["BEAT_US", "Beat", "Heartbeat", "Resumption", "beat_of", "resumption"]

BEAT_US = 2_000_000
_LATE_US = 5_000_000
"""How long after its last sign of life a broker may still have lived: a beat, and a slow disk."""
_BEAT = struct.Struct(">8sqqq16s")
_CRC = struct.Struct(">I")
_MAGIC = b"whimbeat"
_PRIVATE_FILE = 0o600
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NO_BOOT = bytes(16)


class Beat(NamedTuple):
    """A sign of life."""

    at: int
    """The log's time."""
    wall: int
    """What the machine's clock said then."""
    monotonic: int = 0
    """What the monotonic clock said,"""
    boot: bytes = _NO_BOOT
    """which counts from here; zero if unknown."""

    def elapsed(self, now: Beat) -> int:
        """Return how much time has passed until *now*; 0 if unknown."""
        if self.boot == now.boot != _NO_BOOT:
            return max(now.monotonic - self.monotonic, 0)
        return max(now.wall - self.wall, 0)


def beat_of(at: int) -> Beat:
    """Return the beat of this moment, which is *at* in the log's time."""
    return Beat(at, wall_clock(), time.monotonic_ns() // 1_000, _boot())


@cache
def _boot() -> bytes:
    try:
        return UUID(_BOOT_ID.read_text(encoding="ascii").strip()).bytes
    except (OSError, ValueError):
        return _NO_BOOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What a broker that starts knows of the time."""

    now: int
    died_at: int
    """The latest moment at which the broker before it may have died."""


def resumption(beat: Beat | None, last_at: int, this: Beat) -> Resumption:
    """Return what time it is at *this* moment, after the last record and beat that there are; neither goes back."""
    if beat is None:  # how long it lived is unknown
        now = max(last_at, this.wall)
        return Resumption(now=now, died_at=now)
    alive_at = max(last_at, beat.at)
    now = max(alive_at, beat.at + beat.elapsed(this))
    return Resumption(now=now, died_at=min(alive_at + _LATE_US, now))


class Heartbeat:
    """The file at *path*."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    def read(self) -> Beat | None:
        """Return the last beat; None if there is none that can be read."""
        try:
            with self._path.open("rb") as stream:
                data = stream.read(_BEAT.size + _CRC.size + 1)
        except OSError:
            return None
        if len(data) != _BEAT.size + _CRC.size or _CRC.unpack_from(data, _BEAT.size)[0] != crc32(data[: _BEAT.size]):
            return None
        magic, *beat = _BEAT.unpack_from(data)
        found = Beat(*beat)
        is_sound = magic == _MAGIC and all(FIRST_TIME <= each <= LAST_TIME for each in (found.at, found.wall))
        return found if is_sound else None

    def write(self, beat: Beat) -> None:
        """Let the file say *beat*, and wait for the disk; ``OSError`` if it does not take it."""
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
        data = _BEAT.pack(_MAGIC, *beat)
        os.pwrite(self._file, data + _CRC.pack(crc32(data)), 0)  # less than a sector: a crash leaves old or new
        os.fdatasync(self._file)

    def close(self) -> None:
        """Let go of the file; closing twice does no harm."""
        if self._file >= 0:
            with suppress(OSError):
                os.close(self._file)
            self._file = -1
