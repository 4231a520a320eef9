"""Niceness: work that may wait gives way to a broker on the same cores.

Niceness alone does not do that on Linux. With autogroups, which most distributions enable, the processor is shared
first between sessions (``setsid``), and by niceness only inside each session. So a process that leads a session of its
own, as a service does, would not give way at all. Also, a process that wakes up may have to wait until the running
process has used up its time slice; only a process with a shorter slice runs at once.
Rule: correctness never depends on this module, so calls that a system lacks or forbids are skipped.
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
"""Number of the system call, for which the C library has a name only since 2024."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""Size, policy, flags, niceness, priority, and three times in nanoseconds; the first time is the slice."""
_SLICE_NS = 100_000_000
"""The longest time slice, in nanoseconds; the kernel's own choice is about three milliseconds."""


def give_way(by: int, *, autogroup: Path = _AUTOGROUP) -> None:
    """Raise the niceness of this process, and of children it starts later, *by* a number.

    If the process leads an operating-system session (``setsid``), the niceness of the session is raised too. A session
    that another process leads, such as a shell, is left alone.
    """
    if not by:
        return
    level = os.nice(by)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # no autogroups, or /proc is read-only
            autogroup.write_text(f"{level}\n")
    _take_long_slices(level)


def _take_long_slices(level: int) -> bool:
    """Ask for long time slices, so that waking processes run first; return whether the kernel accepted it."""
    number = _SCHED_SETATTR.get(platform.machine()) if sys.platform == "linux" else None
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:  # its scheduling class was lowered already
        return False
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, level, 0, _SLICE_NS, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)  # Linux before 6.12 ignores the slice
