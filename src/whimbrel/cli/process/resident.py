"""Memory of this process."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

__all__ = ["resident_mb"]


def resident_mb() -> float:
    """Return the resident memory in megabytes: the current value if the system gives it, else the peak."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize() / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
