"""Giving memory back: packing a million filters leaves half as much again in the C library's free lists."""

from __future__ import annotations

import ctypes

__all__ = ["release_free_memory"]


def release_free_memory() -> None:
    """Return freed memory to the system, where the C library knows how (glibc does)."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    trim(0)
