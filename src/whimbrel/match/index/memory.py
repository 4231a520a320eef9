"""Release of freed memory to the system: after packing a million filters, the C library keeps half as much again."""

from __future__ import annotations

import ctypes

__all__ = ["release_free_memory"]


def release_free_memory() -> None:
    """Return freed memory to the system, if the C library can do that (glibc can)."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(0)
