# mypy: disable-error-code="arg-type, assignment, no-any-return, no-untyped-call, return-value"
# (numba infers the types inside a kernel; mypy cannot know them)
"""Rows of the columnar hold: output rows, free rows of the state, the heap of lapses, and entries of queues."""

from __future__ import annotations

from typing import Any

import numpy as np

from whimbrel.match.kernels.compiled import njit
from whimbrel.pipeline.columnar.tables import (
    AT,
    COLUMNS,
    DEVICE,
    FREE,
    FREE_COUNT,
    H_INTEREST,
    H_NEXT,
    H_PREV,
    H_SIBLING,
    HEAP,
    HEAP_ENTRY,
    HEAP_LAPSE,
    HEAP_SERIAL,
    I_BIT,
    I_COUNT,
    I_HEAD,
    I_TAIL,
    IDENTITIES,
    LAPSES_AT,
    NONE,
    NOTIFICATION,
    OUTCOME,
    P_ENTRY,
    SERIAL,
    SESSION,
    STALE,
    VIA,
)

__all__ = [
    "append",
    "bit_of",
    "drop_entry",
    "forget_obsolete",
    "free_row",
    "held_for",
    "new_row",
    "pop",
    "push",
    "release",
]


# -- output ------------------------------------------------------------------------------------------------------------


@njit(cache=True)
def append(
    out: Any,
    n: int,
    notification: int,
    session: int,
    device: int,
    identities: int,
    outcome: int,
    at: int,
    lapses_at: int,
    via: int,
) -> Any:
    """Append an output row; return the output, which may be a larger array, and its number of rows."""
    if n >= out.shape[0]:
        larger = np.empty((2 * out.shape[0], COLUMNS), np.int64)
        larger[:n] = out
        out = larger
    row = out[n]
    row[NOTIFICATION], row[SESSION], row[DEVICE], row[IDENTITIES] = notification, session, device, identities
    row[OUTCOME], row[AT], row[LAPSES_AT], row[VIA] = outcome, at, lapses_at, via
    return out, n + 1


# -- rows --------------------------------------------------------------------------------------------------------------


@njit(cache=True)
def new_row(state: Any) -> int:
    """Return a free row, which is in use from now on."""
    row = state.rows[0, FREE]
    state.rows[0, FREE] = state.rows[row, 0]
    state.rows[0, FREE_COUNT] -= 1
    return row


@njit(cache=True)
def free_row(state: Any, row: int) -> None:
    """Free a row."""
    state.rows[row, SERIAL] += 1
    state.rows[row, 0] = state.rows[0, FREE]
    state.rows[0, FREE] = row
    state.rows[0, FREE_COUNT] += 1


# -- the heap of lapses ------------------------------------------------------------------------------------------------


@njit(cache=True)
def push(state: Any, lapse: int, entry: int) -> None:
    """Add the time at which an entry lapses to the heap."""
    heap, place = state.heap, state.rows[0, HEAP]
    state.rows[0, HEAP] += 1
    while place:
        above = (place - 1) >> 1
        if heap[above, HEAP_LAPSE] <= lapse:
            break
        heap[place] = heap[above]
        place = above
    heap[place, HEAP_LAPSE], heap[place, HEAP_ENTRY], heap[place, HEAP_SERIAL] = lapse, entry, state.rows[entry, SERIAL]


@njit(cache=True)
def _sink(state: Any, place: int, lapse: int, entry: int, serial: int) -> None:
    """Put an element at *place* of the heap or below it, where it belongs."""
    heap, size = state.heap, state.rows[0, HEAP]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1, HEAP_LAPSE] < heap[child, HEAP_LAPSE]:
            child += 1
        if heap[child, HEAP_LAPSE] >= lapse:
            break
        heap[place] = heap[child]
        place = child
    heap[place, HEAP_LAPSE], heap[place, HEAP_ENTRY], heap[place, HEAP_SERIAL] = lapse, entry, serial


@njit(cache=True)
def pop(state: Any) -> None:
    """Remove the earliest element of the heap."""
    state.rows[0, HEAP] -= 1
    last = state.rows[0, HEAP]
    if last:
        _sink(state, 0, state.heap[last, HEAP_LAPSE], state.heap[last, HEAP_ENTRY], state.heap[last, HEAP_SERIAL])


@njit(cache=True)
def forget_obsolete(state: Any) -> None:
    """Remove obsolete elements once they are the majority of the heap."""
    size = state.rows[0, HEAP]
    if state.rows[0, STALE] < 1_024 or 2 * state.rows[0, STALE] < size:
        return
    kept = 0
    for place in range(size):
        entry = state.heap[place, HEAP_ENTRY]
        if state.rows[entry, SERIAL] == state.heap[place, HEAP_SERIAL]:
            state.heap[kept] = state.heap[place]
            kept += 1
    state.rows[0, HEAP], state.rows[0, STALE] = kept, 0
    for place in range(kept // 2 - 1, -1, -1):
        _sink(
            state, place, state.heap[place, HEAP_LAPSE], state.heap[place, HEAP_ENTRY], state.heap[place, HEAP_SERIAL]
        )


# -- entries -----------------------------------------------------------------------------------------------------------


@njit(cache=True)
def release(state: Any, entry: int) -> None:
    """Remove an entry from the queue of its subscription, and free it; its element of the heap becomes obsolete."""
    interest, before, after = (
        state.rows[entry, H_INTEREST],
        state.rows[entry, H_PREV],
        state.rows[entry, H_NEXT],
    )
    if before == NONE:
        state.rows[interest, I_HEAD] = after
    else:
        state.rows[before, H_NEXT] = after
    if after == NONE:
        state.rows[interest, I_TAIL] = before
    else:
        state.rows[after, H_PREV] = before
    state.rows[interest, I_COUNT] -= 1
    free_row(state, entry)
    state.rows[0, STALE] += 1


@njit(cache=True)
def drop_entry(state: Any, pending: int, entry: int) -> None:
    """Remove an entry from its queued notification, too, and free it."""
    place = state.rows[pending, P_ENTRY]
    if place == entry:
        state.rows[pending, P_ENTRY] = state.rows[entry, H_SIBLING]
    else:
        while state.rows[place, H_SIBLING] != entry:
            place = state.rows[place, H_SIBLING]
        state.rows[place, H_SIBLING] = state.rows[entry, H_SIBLING]
    release(state, entry)


@njit(cache=True)
def bit_of(state: Any, interest: int) -> int:
    """Return the bit of a subscription within its session."""
    return np.int64(1) << state.rows[interest, I_BIT]


@njit(cache=True)
def held_for(state: Any, pending: int) -> int:
    """Return the subscriptions that a queued notification is held for, as bits."""
    identities, entry = 0, state.rows[pending, P_ENTRY]
    while entry != NONE:
        identities |= bit_of(state, state.rows[entry, H_INTEREST])
        entry = state.rows[entry, H_SIBLING]
    return identities
