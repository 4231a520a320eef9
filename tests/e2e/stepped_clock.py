"""The clocks of a broker in another process, moved by hand: what NTP, a suspended machine or an operator does to them.

Rule: the broker is not told. ``time_ns``, ``time`` and ``monotonic_ns`` of its process add what stands in a file that
both processes map, so a step takes effect at once. They are replaced before any module of ours is loaded, which may
keep them; where the file is, is told later (``Clocked``).
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

__all__ = ["Clocked", "SteppedClock"]

_STEPS = struct.Struct("qq")


class Clocked:
    """The clocks and the disk of this process, replaced as it begins."""

    def __init__(self) -> None:
        self._steps: bytes | mmap.mmap = bytes(_STEPS.size)
        self._fsync_s = 0.0
        time_ns, monotonic_ns, fsync = time.time_ns, time.monotonic_ns, os.fsync

        def slow_fsync(file: int) -> None:
            if self._fsync_s:
                time.sleep(self._fsync_s)
            fsync(file)

        time.time_ns = lambda: time_ns() + _STEPS.unpack_from(self._steps)[0]
        time.time = lambda: time.time_ns() / 1e9
        time.monotonic_ns = lambda: monotonic_ns() + _STEPS.unpack_from(self._steps)[1]
        os.fsync = slow_fsync  # type: ignore[assignment] # we give it numbers

    def follow(self, steps: Path, fsync_s: float) -> None:
        """Add what stands in *steps* from now on, and let every fsync take so much longer."""
        with steps.open("r+b") as stream:
            self._steps = mmap.mmap(stream.fileno(), _STEPS.size)
        self._fsync_s = fsync_s


class SteppedClock:
    """The clocks of the brokers that are started with it, whose disk takes *fsync_s* longer for every fsync."""

    def __init__(self, folder: Path, *, fsync_s: float = 0.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.fsync_s = folder / "steps", fsync_s
        self.path.write_bytes(_STEPS.pack(0, 0))
        with self.path.open("r+b") as stream:
            self._steps = mmap.mmap(stream.fileno(), _STEPS.size)

    @property
    def wall_s(self) -> float:
        """By how much the time of day is wrong."""
        return float(_STEPS.unpack_from(self._steps)[0]) / 1e9

    def step(self, *, wall_s: float = 0.0, monotonic_s: float = 0.0) -> None:
        """Move the time of day, the monotonic clock, or both: then time has passed."""
        wall, monotonic = _STEPS.unpack_from(self._steps)
        _STEPS.pack_into(self._steps, 0, wall + int(wall_s * 1e9), monotonic + int(monotonic_s * 1e9))

    def close(self) -> None:
        """Let go of the file."""
        self._steps.close()
