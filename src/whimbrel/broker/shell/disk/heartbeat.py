"""Heartbeat file: records every few seconds that the broker is alive, so that a restart knows when it died.

The log alone does not show this: a client that only pings leaves no record. If the broker is killed, its clients are
disconnected at a moment that no record states. If the time of the last record were used, the expiry of a session could
be counted from a time before its client was disconnected.
Rule: a heartbeat writes nothing to the log. The file is overwritten in place and fsynced.
Rule: in doubt, a session lives longer: the broker is assumed to have lived until its next heartbeat was due.
Rule: the downtime counts towards expiry. It is measured with the monotonic clock if the machine was not rebooted, else
as the difference of two readings of the machine's clock; never with the log's time, which may be ahead of the machine's
clock (``log_clock``).
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
"""A killed broker is assumed to have died at most this long after its last heartbeat or record.

It is one heartbeat period (2 s), and 3 s for a slow disk.
"""
_BEAT = struct.Struct(">8sqqq16s")
_CRC = struct.Struct(">I")
_MAGIC = b"whimbeat"
_PRIVATE_FILE = 0o600
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NO_BOOT = bytes(16)


class Beat(NamedTuple):
    """One heartbeat: the readings of three clocks at one moment, in µs, and the id of the machine's boot."""

    at: int
    """The log's time."""
    wall: int
    """The machine's clock (UTC)."""
    monotonic: int = 0
    """The monotonic clock, which counts from the machine's boot."""
    boot: bytes = _NO_BOOT
    """Id of the machine's boot, which identifies the start of the monotonic clock; zero if unknown."""

    def us_until(self, now: Beat) -> int:
        """Return the time from this heartbeat to *now*, in µs; 0 if the clock was set back."""
        if self.boot == now.boot != _NO_BOOT:
            return max(now.monotonic - self.monotonic, 0)
        return max(now.wall - self.wall, 0)


def beat_of(at: int) -> Beat:
    """Return a heartbeat with the present readings of the clocks; *at* is the present time of the log."""
    return Beat(at, wall_clock(), time.monotonic_ns() // 1_000, _boot())


@cache
def _boot() -> bytes:
    try:
        return UUID(_BOOT_ID.read_text(encoding="ascii").strip()).bytes
    except (OSError, ValueError):
        return _NO_BOOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """The two times that a broker needs to continue after a restart, by the clock of the log."""

    now: int
    died_at: int
    """The latest moment at which the previous broker process may have died."""


def resumption(beat: Beat | None, last_at: int, this: Beat) -> Resumption:
    """Return the log's time at this start, and the latest time at which the previous broker can have died.

    *this* is a heartbeat of this start, *beat* the last one of the previous broker or None. *last_at* is the time of
    the last record; no result is earlier than that or than *beat*.
    """
    if beat is None:  # it is unknown how long the previous process lived
        now = max(last_at, this.wall)
        return Resumption(now=now, died_at=now)
    alive_at = max(last_at, beat.at)
    now = max(alive_at, beat.at + beat.us_until(this))
    return Resumption(now=now, died_at=min(alive_at + _LATE_US, now))


class Heartbeat:
    """Heartbeat file at *path*; it holds the last heartbeat and a checksum."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    def read(self) -> Beat | None:
        """Return the last heartbeat; None if the file is missing, damaged or unreadable."""
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
        """Write *beat* to the file and fsync it; raise ``OSError`` if the disk fails."""
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_FILE)
        data = _BEAT.pack(_MAGIC, *beat)
        os.pwrite(self._file, data + _CRC.pack(crc32(data)), 0)  # less than a sector: a crash leaves old or new data
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file; closing it twice does no harm."""
        if self._file >= 0:
            with suppress(OSError):
                os.close(self._file)
            self._file = -1
