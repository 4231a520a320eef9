# mypy: disable-error-code="arg-type, assignment, no-any-return, no-untyped-call, return-value"
# (numba infers the types inside a kernel; mypy cannot know them)
"""Endings in the columnar hold: when a queued notification ends, and the outcome of each member (rules 1, 8 and 9)."""

from __future__ import annotations

from typing import Any

from whimbrel.match.kernels.compiled import njit
from whimbrel.pipeline.columnar.rows import (
    append,
    bit_of,
    drop_entry,
    free_row,
    pop,
    release,
)
from whimbrel.pipeline.columnar.tables import (
    AWAY,
    C_COUNT,
    C_FIRST,
    C_NOTIFICATION,
    C_SEQ,
    C_SESSIONS,
    D_MEMBERS,
    DELIVERED,
    EXPIRED,
    H_INTEREST,
    H_LAPSE,
    H_PENDING,
    H_SIBLING,
    HEAP,
    HEAP_ENTRY,
    HEAP_LAPSE,
    HEAP_SERIAL,
    L_END,
    L_SESSION,
    M_ABSENT_SINCE,
    M_DEVICE,
    M_IS_MEMBER,
    M_NEXT,
    M_NEXT_OF_DEVICE,
    M_PRESENCE,
    M_SESSION,
    M_VISIT,
    NO_DEVICE,
    NO_VIA,
    NONE,
    NOW,
    P_COPY,
    P_ENTRY,
    P_LAPSES_AT,
    P_LISTED,
    P_NEXT,
    P_PREV,
    P_SESSION,
    S_HEAD,
    S_LAST_PRESENT,
    S_MEMBERS,
    S_PRESENT,
    S_TAIL,
    SERIAL,
    STALE,
    V_BEGIN,
    V_END,
    V_NEXT,
)

__all__ = ["advance", "end", "received_elsewhere"]


# -- who has received what ---------------------------------------------------------------------------------------------


@njit(cache=True)
def _has_outcome(state: Any, member: int, seq: int) -> bool:
    """Return whether a member has its outcome for a queued notification of its session."""
    return state.rows[member, M_PRESENCE] != AWAY or state.rows[member, M_ABSENT_SINCE] > seq


@njit(cache=True)
def received_elsewhere(state: Any, member: int, copy: int) -> bool:
    """Return whether a device received a stored notification through another session than that of *member*."""
    seq, session = state.rows[copy, C_SEQ], state.rows[member, M_SESSION]
    other = state.rows[state.rows[member, M_DEVICE], D_MEMBERS]
    while other != NONE:
        if state.rows[other, M_SESSION] != session:
            for place in range(state.rows[copy, C_FIRST], state.rows[copy, C_FIRST] + state.rows[copy, C_COUNT]):
                if state.listed[place, L_SESSION] == state.rows[other, M_SESSION]:
                    visit = state.rows[other, M_VISIT]
                    while visit != NONE and state.rows[visit, V_END] > seq:
                        if state.rows[visit, V_BEGIN] <= state.listed[place, L_END]:
                            return True
                        visit = state.rows[visit, V_NEXT]
        other = state.rows[other, M_NEXT_OF_DEVICE]
    return False


# -- endings (rules 8 and 9) -------------------------------------------------------------------------------------------


@njit(cache=True)
def end(state: Any, out: Any, n: int, pending: int, outcome: int, identities: int, moment: int, seq: int) -> Any:
    """End a queued notification in its session: give every member without an outcome the *outcome*; return the output.

    *seq* is the last seq at which the notification was in the queue.
    """
    session, copy = state.rows[pending, P_SESSION], state.rows[pending, P_COPY]
    notification, published = state.rows[copy, C_NOTIFICATION], state.rows[copy, C_SEQ]
    entry = state.rows[pending, P_ENTRY]
    while entry != NONE:
        after = state.rows[entry, H_SIBLING]
        release(state, entry)
        entry = after
    is_settled = state.rows[session, S_PRESENT] > 0 or state.rows[session, S_LAST_PRESENT] > published
    member = state.rows[session, S_MEMBERS]
    while member != NONE:
        if state.rows[member, M_IS_MEMBER] and not _has_outcome(state, member, published):
            got = DELIVERED if received_elsewhere(state, member, copy) else outcome
            out, n = append(
                out,
                n,
                notification,
                session,
                state.rows[member, M_DEVICE],
                identities,
                got,
                moment,
                state.rows[pending, P_LAPSES_AT],
                NO_VIA,
            )
            is_settled = True
        member = state.rows[member, M_NEXT]
    if not is_settled:
        out, n = append(
            out,
            n,
            notification,
            session,
            NO_DEVICE,
            identities,
            outcome,
            moment,
            state.rows[pending, P_LAPSES_AT],
            NO_VIA,
        )
    before, after = state.rows[pending, P_PREV], state.rows[pending, P_NEXT]
    if before == NONE:
        state.rows[session, S_HEAD] = after
    else:
        state.rows[before, P_NEXT] = after
    if after == NONE:
        state.rows[session, S_TAIL] = before
    else:
        state.rows[after, P_PREV] = before
    state.listed[state.rows[pending, P_LISTED], L_END] = seq
    free_row(state, pending)
    state.rows[copy, C_SESSIONS] -= 1
    if not state.rows[copy, C_SESSIONS]:
        free_row(state, copy)
    return out, n


@njit(cache=True)
def advance(state: Any, out: Any, n: int, at: int, seq: int) -> Any:
    """Advance the time to *at*, and end what has lapsed (rules 1 and 8), before the event *seq* is applied."""
    now = state.rows[0, NOW] = max(at, state.rows[0, NOW])
    while state.rows[0, HEAP] and state.heap[0, HEAP_LAPSE] <= now:
        lapse, entry, serial = state.heap[0, HEAP_LAPSE], state.heap[0, HEAP_ENTRY], state.heap[0, HEAP_SERIAL]
        pop(state)
        if state.rows[entry, SERIAL] != serial:
            state.rows[0, STALE] -= 1
            continue
        pending = state.rows[entry, H_PENDING]
        identities, entry = 0, state.rows[pending, P_ENTRY]
        while entry != NONE:
            after = state.rows[entry, H_SIBLING]
            if state.rows[entry, H_LAPSE] == lapse:
                identities |= bit_of(state, state.rows[entry, H_INTEREST])
                drop_entry(state, pending, entry)
            entry = after
        state.rows[0, STALE] -= 1  # the element that was removed above
        if state.rows[pending, P_ENTRY] == NONE:
            out, n = end(state, out, n, pending, EXPIRED, identities, lapse, seq - 1)
    return out, n
