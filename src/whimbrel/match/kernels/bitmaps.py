# mypy: disable-error-code="arg-type, assignment, call-arg, no-any-return, unreachable"
# (numba infers the types inside a kernel; mypy cannot know them)
"""Bitmaps that shorten long lists of entries (clauses of filters) to those that an event's values can still match.

The values of a column fall into buckets; each bucket has a bitmap of the entries that a value in it does not rule out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whimbrel.match.kernels.compiled import njit
from whimbrel.match.kernels.intrinsics import lowest_bit

__all__ = ["LENGTH_BITS", "bitmap_place", "bucket_of", "gather", "intersect"]

LENGTH_BITS = 24
"""Bits of the length in a span; a span of entries to run is ``position << LENGTH_BITS | number of entries``."""


@njit(cache=True)
def bucket_of(bounds: Any, low: int, high: int, value: float) -> int:
    """Return the bucket of *value*: 1 plus the number of ``bounds[low:high]`` that are not above it.

    Bucket 0 is for events without a number.
    """
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
    """Return where the bitmap for the event's value begins in ``bitmaps``.

    *blocked* is the index of a list's column.
    """
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
    """Write to *words* one bit per entry of a list: whether the event's values can still match the entry.

    It is the intersection of the bitmaps for these values, one for each of the list's columns (*first* to *last* - 1).
    """
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
    """Append a span (run of entries) of length one to *spans* for each bit set in *words*.

    Return the number of spans.
    """
    for i in range(width):
        word = words[i]
        while word != 0:
            spans[n] = (entry_place[base + (i << 6) + lowest_bit(word)] << LENGTH_BITS) | 1
            n += 1
            word &= word - 1
    return n
