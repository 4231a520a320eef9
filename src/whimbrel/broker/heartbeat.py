"""The heartbeat: a small file that says until when a broker lived, also one that had nothing to write down.

A client that only pings leaves no record. When a broker was killed, its clients were disconnected at a moment that
nobody wrote down; dated by the last record, a session could be over before its client was gone.
Rule: it costs no log. The file is written in place every few seconds, and synced.
Rule: when in doubt, a session lives: a broker that was last seen alive may have lived until its next beat was due.
Rule: it holds the log's time and the machine's, so that time which passes while the broker is down counts even where
the log is ahead of the machine's clock (``log_clock``).
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from whimbrel.model.bounds import FIRST_TIME, LAST_TIME

__all__ = ["BEAT_S", "Beat", "Heartbeat", "Resumption", "resumption"]

BEAT_S = 2.0
_LATE_US = 5_000_000
"""How long after its last sign of life a broker may still have lived: a beat, and a slow disk."""
_BEAT = struct.Struct(">8sqq")
_CRC = struct.Struct(">I")
_MAGIC = b"whimbeat"
_PRIVATE_FILE = 0o600


class Beat(NamedTuple):
    """A sign of life."""

    at: int
    """The log's time."""
    wall: int
    """What the machine's clock said then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What a broker that starts knows of the time."""

    now: int
    died_at: int
    """The latest moment at which the broker before it may have died."""


def resumption(beat: Beat | None, last_at: int, wall: int) -> Resumption:
    """Return what time it is at *wall*, after the last record and beat that there are; neither time goes back."""
    if beat is None:  # nobody knows how long it lived
        now = max(last_at, wall)
        return Resumption(now=now, died_at=now)
    alive_at = max(last_at, beat.at)
    now = max(alive_at, wall, beat.at + max(wall - beat.wall, 0))
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
        magic, at, wall = _BEAT.unpack_from(data)
        is_sound = magic == _MAGIC and FIRST_TIME <= at <= LAST_TIME and FIRST_TIME <= wall <= LAST_TIME
        return Beat(at, wall) if is_sound else None

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
