"""How much memory this process has."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

__all__ = ["resident_mb"]


def resident_mb() -> float:
    """Return the resident memory in megabytes: now where the system tells, else the most it ever was."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize() / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
