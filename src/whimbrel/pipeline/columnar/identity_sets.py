# mypy: disable-error-code="arg-type, assignment, no-any-return, no-untyped-call, return-value"
# (numba infers the types inside a kernel; mypy cannot know them)
"""Numbers for sets of subscriptions: one per pair of a session and the bits of some of its subscriptions."""

from __future__ import annotations

from typing import Any

import numpy as np

from whimbrel.match.kernels.compiled import njit
from whimbrel.pipeline.columnar.tables import (
    IDENTITIES,
    NONE,
    SESSION,
)

__all__ = ["intern_sets", "rehash_sets"]


@njit(cache=True)
def _slot(session: int, identities: int) -> int:
    """Return a hash of a session and a set of its subscriptions."""
    hashed = (identities ^ (session << np.int64(17))) * np.int64(0x2545F4914F6CDD1D)
    return (hashed >> np.int64(29)) ^ hashed


@njit(cache=True)
def intern_sets(rows: Any, table: Any, numbers: Any, count: int) -> int:
    """Give each pair (session, bits of subscriptions) of output rows a number, and replace the bits by it.

    *table* is a hash table with (session, bits) in each row, and *numbers* the number of each row's pair or ``NONE``.
    *count* pairs have a number. Return the new count, or ``NONE`` if the table is half full: nothing has changed then.
    """
    mask = numbers.size - 1
    places = np.empty(rows.shape[0], np.int64)
    for row in range(rows.shape[0]):
        session, identities = rows[row, SESSION], rows[row, IDENTITIES]
        place = _slot(session, identities) & mask
        while numbers[place] != NONE and (table[place, 0] != session or table[place, 1] != identities):
            place = (place + 1) & mask
        if numbers[place] == NONE:
            if 2 * count >= numbers.size:
                return NONE
            table[place, 0], table[place, 1], numbers[place] = session, identities, count
            count += 1
        places[row] = place
    for row in range(rows.shape[0]):
        rows[row, IDENTITIES] = numbers[places[row]]
    return count


@njit(cache=True)
def rehash_sets(table: Any, numbers: Any, count: int, larger: Any, larger_numbers: Any) -> None:
    """Copy the pairs of ``intern_sets`` with a number below *count* to a larger hash table, which is empty."""
    mask = larger_numbers.size - 1
    for row in range(numbers.size):
        if NONE < numbers[row] < count:
            place = _slot(table[row, 0], table[row, 1]) & mask
            while larger_numbers[place] != NONE:
                place = (place + 1) & mask
            larger[place, 0], larger[place, 1], larger_numbers[place] = table[row, 0], table[row, 1], numbers[row]
