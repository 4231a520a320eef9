# mypy: disable-error-code="arg-type, assignment, attr-defined, call-arg, no-any-return, no-untyped-call, unreachable"
# (numba infers the types inside a kernel; mypy cannot know them)
"""The hash table of the index: open addressing with linear probing, in one flat array.

The number of rows is a power of two; a row has one, two or four words. The first word is the key, or ``EMPTY``. In rows
of four words, the second word is part of the key. A table of texts has rows of one word, the number of the text; the
texts lie one after the other in a separate array.
Rule: at least one row is empty, or the search for a missing key would never end; ``rows_for`` leaves half of them
empty.
Rule: 64-bit integers wrap on purpose. Hashes are seeded, so that a stranger cannot aim at one bucket.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whimbrel.match.kernels.compiled import njit

__all__ = ["EMPTY", "find_row", "find_text", "free_row", "hash_bytes", "mix", "rows_for", "table_of_texts"]

_PRIME_A, _PRIME_B, _PRIME_C = 0x9E3779B97F4A7C1, 0x2545F4914F6CDD1D, 0x27D4EB2F165667C5
EMPTY = -1
_TWO_KEYS = 2


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
def rows_for(entries: int) -> int:
    """Return the number of rows that a hash table for *entries* keys needs."""
    rows = 2
    while rows < 2 * entries:
        rows *= 2
    return rows


@njit(cache=True)
def find_row(table: Any, shift: int, hashed: int, key: int, second: int) -> int:
    """Return the position of a key's row, or ``EMPTY`` if the key is not in the table.

    A row has ``2 ** shift`` words; *second* counts only in rows of four. Callers pass *shift* as a constant, so that
    the compiler drops the code that does not apply.
    """
    mask = (table.size >> shift) - 1
    at = hashed & mask
    while table[at << shift] != EMPTY:
        if table[at << shift] == key and (shift < _TWO_KEYS or table[(at << shift) + 1] == second):
            return at << shift
        at = (at + 1) & mask
    return EMPTY


@njit(cache=True)
def free_row(table: Any, shift: int, hashed: int) -> int:
    """Return the position of the empty row for a key that is not in the table."""
    mask = (table.size >> shift) - 1
    at = hashed & mask
    while table[at << shift] != EMPTY:
        at = (at + 1) & mask
    return at << shift


@njit(cache=True, nogil=True)
def table_of_texts(starts: Any, texts: Any, seed: int) -> Any:
    """Return a hash table of the distinct texts ``texts[starts[i]:starts[i + 1]]``."""
    table = np.full(rows_for(starts.size), EMPTY, np.int32)
    for i in range(starts.size - 1):
        table[free_row(table, 0, hash_bytes(texts, starts[i], starts[i + 1], seed))] = i
    return table


@njit(cache=True)
def find_text(table: Any, starts: Any, texts: Any, data: Any, start: int, end: int, hashed: int) -> int:
    """Return the number of the text ``data[start:end]``, or ``EMPTY`` if it is not in the table."""
    mask = table.size - 1
    at = hashed & mask
    while True:
        found = table[at]
        if found < 0:
            return EMPTY
        begin = starts[found]
        if starts[found + 1] - begin == end - start:
            i = 0
            while i < end - start and texts[begin + i] == data[start + i]:
                i += 1
            if i == end - start:
                return found
        at = (at + 1) & mask
