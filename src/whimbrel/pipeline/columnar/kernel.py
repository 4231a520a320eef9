# mypy: disable-error-code="arg-type, assignment, no-any-return, no-untyped-call, return-value"
# (numba infers the types inside a kernel; mypy cannot know them)
"""Kernel of the columnar hold: replays the events of plain sessions over flat tables, and appends rows of outcomes.

It computes the outcomes of ``hold.rules`` (docs/explanation/holding.md, rules 1 to 14) if every delivery counts as
received at once. Then nothing is ever in flight between two events, and two facts make sets of devices unnecessary:

- While a notification is in a session's queue, every present device gets it. So a member has its outcome for a queued
  notification exactly if it is present, or was present at some time after the publication (``M_ABSENT_SINCE``).
- A device received a notification through another session exactly if that session matched it, and the device was
  present there at some time from the publication until the notification left that session's queue. A *visit* is such an
  interval of presence. A stored notification lists the sessions that it matched, each with the seq at which it left.

Rule: the order of the output rows means nothing; the order of the events decides everything else.
Rule: all tables are large enough before the kernel is called (``columnar_hold``). A publication needs at most one row
of ``State.rows``, each of its matches two, and one of ``State.listed`` and of ``State.heap``; a join needs one row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whimbrel.match.kernels.compiled import njit
from whimbrel.pipeline.columnar.endings import (
    advance,
    end,
    received_elsewhere,
)
from whimbrel.pipeline.columnar.publications import (
    publish,
)
from whimbrel.pipeline.columnar.rows import (
    append,
    bit_of,
    drop_entry,
    forget_obsolete,
    free_row,
    held_for,
    new_row,
)
from whimbrel.pipeline.columnar.tables import (
    AWAY,
    C_COUNT,
    C_FIRST,
    C_IS_SEEN,
    C_NOTIFICATION,
    C_SEQ,
    C_SHIFT,
    D_MEMBERS,
    DELETE,
    DELIVERED,
    DISCONNECT,
    DROPPED,
    FOREVER,
    H_PENDING,
    HELD,
    I_HEAD,
    I_MOST,
    I_TTL,
    JOIN,
    KEEPS,
    LEAVE,
    M_ABSENT_SINCE,
    M_DEVICE,
    M_IS_MEMBER,
    M_NEXT,
    M_NEXT_OF_DEVICE,
    M_PRESENCE,
    M_SESSION,
    M_VISIT,
    MATCHED,
    NO_VIA,
    NONE,
    NOW,
    P_COPY,
    P_ENTRY,
    P_LAPSES_AT,
    P_LISTED,
    P_NEXT,
    PUBLISH,
    PUT,
    REMOVE,
    S_HEAD,
    S_LAST_PRESENT,
    S_MEMBERS,
    S_PRESENT,
    TAKEN,
    TAKES,
    V_BEGIN,
    V_END,
    V_NEXT,
)

__all__ = ["replay", "tidy"]


# -- members, subscriptions and sessions (rules 6, 10, 11 and 12) ------------------------------------------------------


@njit(cache=True)
def _join(state: Any, out: Any, n: int, seq: int, member: int, takes: int) -> Any:
    """Apply that a device joins a session: deliver what the session holds (rule 6); return the output."""
    session, device, now = state.rows[member, M_SESSION], state.rows[member, M_DEVICE], state.rows[0, NOW]
    was_present, absent_since = state.rows[member, M_PRESENCE] != AWAY, state.rows[member, M_ABSENT_SINCE]
    state.rows[member, M_PRESENCE] = TAKES if takes else KEEPS
    if not was_present:
        state.rows[member, M_IS_MEMBER] = 1
        state.rows[session, S_PRESENT] += 1
        visit = new_row(state)
        state.rows[visit, V_BEGIN], state.rows[visit, V_END], state.rows[visit, V_NEXT] = (
            seq,
            FOREVER,
            state.rows[member, M_VISIT],
        )
        state.rows[member, M_VISIT] = visit
    pending = state.rows[session, S_HEAD] if not was_present else NONE
    while pending != NONE:
        after, copy = state.rows[pending, P_NEXT], state.rows[pending, P_COPY]
        if absent_since <= state.rows[copy, C_SEQ]:
            identities = held_for(state, pending)
            via = NO_VIA if received_elsewhere(state, member, copy) else HELD
            out, n = append(
                out,
                n,
                state.rows[copy, C_NOTIFICATION],
                session,
                device,
                identities,
                DELIVERED,
                now,
                state.rows[pending, P_LAPSES_AT],
                via,
            )
            if takes:
                out, n = end(state, out, n, pending, TAKEN, identities, now, seq)
        pending = after
    return out, n


@njit(cache=True)
def _go_away(state: Any, member: int, seq: int) -> None:
    """Apply that a present device is no longer present in a session."""
    if state.rows[member, M_PRESENCE] != AWAY:
        session = state.rows[member, M_SESSION]
        state.rows[member, M_PRESENCE], state.rows[member, M_ABSENT_SINCE] = AWAY, seq
        state.rows[state.rows[member, M_VISIT], V_END] = seq
        state.rows[session, S_PRESENT] -= 1
        state.rows[session, S_LAST_PRESENT] = seq


@njit(cache=True)
def _remove(state: Any, out: Any, n: int, seq: int, interest: int) -> Any:
    """Remove a subscription: what was held for it alone is dropped (rule 11); return the output."""
    while state.rows[interest, I_HEAD] != NONE:
        entry = state.rows[interest, I_HEAD]
        pending = state.rows[entry, H_PENDING]
        drop_entry(state, pending, entry)
        if state.rows[pending, P_ENTRY] == NONE:
            out, n = end(state, out, n, pending, DROPPED, bit_of(state, interest), state.rows[0, NOW], seq)
    return out, n


@njit(cache=True)
def _delete(state: Any, out: Any, n: int, seq: int, session: int) -> Any:
    """Delete a session: drop what it holds, and remove its members (rule 12); return the output."""
    while state.rows[session, S_HEAD] != NONE:
        pending = state.rows[session, S_HEAD]
        identities = held_for(state, pending)
        out, n = end(state, out, n, pending, DROPPED, identities, state.rows[0, NOW], seq)
    member = state.rows[session, S_MEMBERS]
    while member != NONE:
        _go_away(state, member, seq)
        state.rows[member, M_IS_MEMBER] = 0
        member = state.rows[member, M_NEXT]
    return out, n


@njit(cache=True)
def replay(state: Any, events: Any, first: int, last: int, out: Any, most: int) -> Any:
    """Apply the events from number *first* up to, but not including, *last*, or until the output has *most* rows.

    Return the output, its number of rows, and the number of the next event. The output may be a larger array than
    *out*.
    """
    n, longest = np.int64(0), np.int64(0)
    for row in range(events.starts.size - 1):
        longest = max(longest, events.starts[row + 1] - events.starts[row])
    chain, order = np.empty(longest, np.int64), np.empty(longest, np.int64)
    for number in range(first, last):
        if n >= most:
            return out, n, number
        kind, seq, at, row = events.kind[number], events.seq[number], events.at[number], events.row[number]
        out, n = advance(state, out, n, at, seq)
        if kind == PUBLISH:
            out, n = publish(state, events, out, n, seq, at, row, chain, order)
        elif kind == JOIN:
            out, n = _join(state, out, n, seq, row, events.first[number])
        elif kind == DISCONNECT:
            member = state.rows[row, D_MEMBERS]
            while member != NONE:
                _go_away(state, member, seq)
                member = state.rows[member, M_NEXT_OF_DEVICE]
        elif kind == LEAVE:
            _go_away(state, row, seq)
            state.rows[row, M_IS_MEMBER] = 0
        elif kind == PUT:
            state.rows[row, I_TTL], state.rows[row, I_MOST] = events.first[number], events.second[number]
        elif kind == REMOVE:
            out, n = _remove(state, out, n, seq, row)
        elif kind == DELETE:
            out, n = _delete(state, out, n, seq, row)
        forget_obsolete(state)
    return out, n, last


# -- memory ------------------------------------------------------------------------------------------------------------


@njit(cache=True)
def tidy(state: Any, sessions: Any, members: Any) -> Any:
    """Free what only notifications that are in no queue any more needed; return the rows of the others.

    *sessions* and *members* are the rows of all sessions and memberships.
    """
    found = np.empty(state.rows.shape[0], np.int64)
    count = used = 0
    oldest = FOREVER
    for session in sessions:
        pending = state.rows[session, S_HEAD]
        while pending != NONE:
            copy = state.rows[pending, P_COPY]
            if not state.rows[copy, C_IS_SEEN]:
                state.rows[copy, C_IS_SEEN] = 1
                found[count] = copy
                count += 1
                used += state.rows[copy, C_COUNT]
                oldest = min(oldest, state.rows[copy, C_SEQ])
            pending = state.rows[pending, P_NEXT]
    listed = np.empty((used, 2), np.int64)
    used = 0
    for copy in found[:count]:
        first, size = state.rows[copy, C_FIRST], state.rows[copy, C_COUNT]
        listed[used : used + size] = state.listed[first : first + size]
        state.rows[copy, C_IS_SEEN], state.rows[copy, C_FIRST], state.rows[copy, C_SHIFT] = 0, used, used - first
        used += size
    state.listed[:used] = listed
    state.rows[0, MATCHED] = used
    for session in sessions:
        pending = state.rows[session, S_HEAD]
        while pending != NONE:
            state.rows[pending, P_LISTED] += state.rows[state.rows[pending, P_COPY], C_SHIFT]
            pending = state.rows[pending, P_NEXT]
    for member in members:
        _forget_visits(state, member, oldest)
    return found[:count]


@njit(cache=True)
def _forget_visits(state: Any, member: int, oldest: int) -> None:
    """Free the visits that ended before the seq *oldest*."""
    before, visit = NONE, state.rows[member, M_VISIT]
    while visit != NONE and state.rows[visit, V_END] >= oldest:
        before, visit = visit, state.rows[visit, V_NEXT]
    if visit == NONE:
        return
    if before == NONE:
        state.rows[member, M_VISIT] = NONE
    else:
        state.rows[before, V_NEXT] = NONE
    while visit != NONE:
        after = state.rows[visit, V_NEXT]
        free_row(state, visit)
        visit = after
