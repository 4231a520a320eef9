# mypy: disable-error-code="arg-type, assignment, call-arg, no-any-return, unreachable"
# (inside a kernel a number is numba's, whatever mypy takes it for)
"""Bitmaps of long lists: per column, buckets of values, and per bucket the entries that a value in it may match."""

from __future__ import annotations

from typing import Any

import numpy as np

from whimbrel.match.kernels.compiled import njit
from whimbrel.match.kernels.intrinsics import lowest_bit

__all__ = ["LENGTH_BITS", "bitmap_place", "bucket_of", "gather", "intersect"]

LENGTH_BITS = 24
"""Bits of the length in a span; a span of entries to run is ``place << LENGTH_BITS | entries``."""


@njit(cache=True)
def bucket_of(bounds: Any, low: int, high: int, value: float) -> int:
    """Return the bucket of a number; bucket 0 is for events without a number."""
    first = low
    while low < high:
        middle = (low + high) >> 1
        if bounds[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return 1 + low - first


@njit(cache=True)
def bitmap_place(
    blocked: int,
    width: int,
    shift: int,
    epoch: int,
    blocked_column: Any,
    blocked_bitmaps: Any,
    slots: Any,
    buckets: Any,
) -> int:
    """Return the position of the bitmap for one column of a block, in the bucket of the event's value."""
    column = np.int64(blocked_column[blocked])
    bucket = buckets[column] if slots[4 * column] == epoch else 0
    if bucket > 0:
        bucket = 1 + ((bucket - 1) >> shift)
    return blocked_bitmaps[blocked] + bucket * width


@njit(cache=True)
def intersect(
    words: Any,
    width: int,
    first: int,
    last: int,
    shift: int,
    epoch: int,
    blocked_column: Any,
    blocked_bitmaps: Any,
    bitmaps: Any,
    slots: Any,
    buckets: Any,
) -> None:
    """Write the intersection of the bitmaps of a block's columns to *words*."""
    for blocked in range(first, last):
        at = bitmap_place(blocked, width, shift, epoch, blocked_column, blocked_bitmaps, slots, buckets)
        if blocked == first:
            for i in range(width):
                words[i] = bitmaps[at + i]
        else:
            for i in range(width):
                words[i] &= bitmaps[at + i]


@njit(cache=True)
def gather(words: Any, width: int, entry_place: Any, base: int, spans: Any, n: int) -> int:
    """Append a span of one entry for each bit that is set in *words*; return the number of spans."""
    for i in range(width):
        word = words[i]
        while word != 0:
            spans[n] = (entry_place[base + (i << 6) + lowest_bit(word)] << LENGTH_BITS) | 1
            n += 1
            word &= word - 1
    return n
