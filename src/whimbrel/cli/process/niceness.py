"""Niceness: work that may wait gives way to a broker on the same cores.

Niceness alone does not do that on Linux. With autogroups, which most distributions have on, the processor is shared
first between sessions (``setsid``), and only inside each by niceness: a process that leads a session of its own, as a
service does, would not give way at all. And a process that wakes up may have to wait until the one that runs has used
up its slice; only one with a shorter slice goes first at once.
Rule: nothing here is needed for anything to be right, so what a system does not know or allow is left out.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["give_way"]

_AUTOGROUP = Path("/proc/self/autogroup")
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""The number of the system call, which the C library of before 2024 has no name for."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""Size, policy, flags, niceness, priority, and three times in nanoseconds, the first of which is the slice."""
_SLICE_NS = 100_000_000
"""The longest there is. The kernel's own choice is about three milliseconds."""


def give_way(by: int, *, autogroup: Path = _AUTOGROUP) -> None:
    """Make this process nicer *by* so much, and what it starts from now on; its session too, if it leads one.

    A session that another process leads, such as a shell, is not ours to change.
    """
    if not by:
        return
    level = os.nice(by)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # no autogroups, or /proc is read only
            autogroup.write_text(f"{level}\n")
    _take_long_slices(level)


def _take_long_slices(level: int) -> bool:
    """Let a process that wakes up go first, at the price of fewer and longer turns; return if the kernel took it."""
    number = _SCHED_SETATTR.get(platform.machine()) if sys.platform == "linux" else None
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:  # its scheduling class was lowered already
        return False
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, level, 0, _SLICE_NS, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)  # Linux before 6.12 ignores the slice
