"""Release of freed memory to the system, since the C library keeps about half an index's size after packing it."""

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
