"""Run a broker in its own process, and read a process's CPU time and memory from the system."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from whimbrel.sim.load.load import LoadError

__all__ = ["Served", "cpu_s", "raise_file_limit", "resident_bytes", "serve"]

_START_S = 300.0  # the first start on a machine compiles the matcher; a broker that ends is noticed at once
_STOP_S = 20
"""Timeout of a broker's shutdown."""
_SCHEDULED = 2
"""Number of the clock that counts a process's scheduled time: CPUCLOCK_SCHED of Linux."""
_PORT = re.compile(r"\bmqtt=([0-9]+)")


@dataclass(frozen=True, slots=True)
class Served:
    """A Whimbrel broker that runs in its own process."""

    port: int
    pid: int


@contextmanager
def serve(folder: Path, *options: str) -> Iterator[Served]:
    """Run ``whimbrel serve`` with its data in *folder*, on any free port of this machine."""
    log = folder / "broker.log"
    command = [sys.executable, "-m", "whimbrel", "serve", "--port", "0", "--data", str(folder / "data"), *options]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=file)  # noqa: S603 # our own command
    try:
        yield Served(_listening(process, log), process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listening(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        text = log.read_text(encoding="utf-8", errors="replace")
        found = _PORT.search(text)
        if found is not None:
            return int(found[1])
        if process.poll() is not None:
            raise LoadError(" ".join(text.split()[-60:]) or "nothing", "a broker that listens")
        time.sleep(0.02)
    raise LoadError(f"a broker that is not ready after {_START_S:g} s", "one that listens")


def cpu_s(pid: int | None) -> float | None:
    """Return the processor time of a process, or None if the system cannot report it.

    Linux has a clock for each process, which counts nanoseconds; ``/proc`` has ticks of 10 ms.
    """
    if pid is None or sys.platform != "linux":
        return None
    try:
        return time.clock_gettime((~pid << 3) | _SCHEDULED)
    except OSError:
        return None


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has now, or 0 if the system cannot report it."""
    statm = Path(f"/proc/{pid}/statm")
    return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def raise_file_limit(count: int) -> int:
    """Raise the limit of open files to *count* for this process and its later children; return what is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        soft = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return count if soft == resource.RLIM_INFINITY else soft
