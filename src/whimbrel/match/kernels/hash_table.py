# mypy: disable-error-code="arg-type, assignment, attr-defined, call-arg, no-any-return, no-untyped-call, unreachable"
# (inside a kernel a number is numba's, whatever mypy takes it for)
"""Hash tables in flat arrays: what is hashed how, and how an entry is found.

Rule: 64-bit integers wrap on purpose; hashes are seeded, so that a stranger cannot aim at one bucket.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whimbrel.match.kernels.compiled import njit

__all__ = ["find_string", "find_symbol", "hash_bytes", "mix"]

_PRIME_A, _PRIME_B, _PRIME_C = 0x9E3779B97F4A7C1, 0x2545F4914F6CDD1D, 0x27D4EB2F165667C5
_EMPTY = -1


@njit(cache=True)
def mix(a: int, b: int) -> int:
    """Return a well-spread non-negative hash of two integers."""
    h = (a * _PRIME_A) ^ (b * _PRIME_B)
    h ^= (h >> 29) & 0x7FFFFFFFF
    h *= _PRIME_C
    h ^= (h >> 32) & 0xFFFFFFFF
    return h & 0x7FFFFFFFFFFFFFFF


@njit(cache=True)
def hash_bytes(data: Any, start: int, end: int, seed: int) -> int:
    """Return a non-negative hash of ``data[start:end]``."""
    h = seed ^ ((end - start) * _PRIME_A)
    for i in range(start, end):
        h = (h ^ np.int64(data[i])) * _PRIME_C
        h ^= (h >> 31) & 0x1FFFFFFFF
    return mix(h, seed)


@njit(cache=True)
def find_string(table: Any, starts: Any, known: Any, data: Any, start: int, end: int, seed: int) -> int:
    """Return the id of the string ``data[start:end]``, or -1 if no filter names it."""
    mask = table.size - 1
    at = hash_bytes(data, start, end, seed) & mask
    while True:
        found = table[at]
        if found < 0:
            return -1
        begin = starts[found]
        if starts[found + 1] - begin == end - start:
            i = 0
            while i < end - start and known[begin + i] == data[start + i]:
                i += 1
            if i == end - start:
                return found
        at = (at + 1) & mask


@njit(cache=True)
def find_symbol(table: Any, column: int, bits: int, seed: int) -> int:
    """Return where in *table* the equality stands, or -1."""
    mask = (table.size >> 2) - 1
    at = mix(column ^ seed, bits) & mask
    while table[at << 2] != _EMPTY:
        if table[at << 2] == column and table[(at << 2) + 1] == bits:
            return at << 2
        at = (at + 1) & mask
    return -1
