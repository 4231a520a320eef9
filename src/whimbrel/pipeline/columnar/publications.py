# mypy: disable-error-code="arg-type, assignment, no-any-return, no-untyped-call, return-value"
# (numba infers the types inside a kernel; mypy cannot know them)
"""Publications in the columnar hold: which devices get one now, and which queues hold it (rules 2 to 5)."""

from __future__ import annotations

from typing import Any

from whimbrel.match.kernels.compiled import njit
from whimbrel.pipeline.columnar.endings import (
    end,
)
from whimbrel.pipeline.columnar.rows import (
    append,
    bit_of,
    drop_entry,
    new_row,
    push,
)
from whimbrel.pipeline.columnar.tables import (
    AWAY,
    C_COUNT,
    C_FIRST,
    C_IS_SEEN,
    C_NOTIFICATION,
    C_SEQ,
    C_SESSIONS,
    D_MEMBERS,
    D_RANK,
    DELIVERED,
    DISPLACED,
    DROPPED,
    EXPIRED,
    FOREVER,
    H_INTEREST,
    H_LAPSE,
    H_NEXT,
    H_PENDING,
    H_PREV,
    H_SIBLING,
    I_COUNT,
    I_HEAD,
    I_MOST,
    I_SESSION,
    I_TAIL,
    I_TTL,
    L_END,
    L_SESSION,
    LIVE,
    M_DEVICE,
    M_IS_MEMBER,
    M_NEXT,
    M_NEXT_OF_DEVICE,
    M_PRESENCE,
    M_SESSION,
    MATCHED,
    NO_DEVICE,
    NO_VIA,
    NONE,
    NOW,
    NULL,
    P_COPY,
    P_ENTRY,
    P_LAPSES_AT,
    P_LISTED,
    P_NEXT,
    P_PREV,
    P_SESSION,
    S_FIRST,
    S_HEAD,
    S_MEMBERS,
    S_PRESENT,
    S_STAMP,
    S_TAIL,
    TAKEN,
    TAKES,
)

__all__ = ["publish"]


@njit(cache=True)
def _give_present(
    state: Any, out: Any, n: int, notification: int, session: int, identities: int, lapses_at: int
) -> Any:
    """Deliver a publication to the present devices of a session; return the output, and the first that takes."""
    first = FOREVER
    member = state.rows[session, S_MEMBERS] if state.rows[session, S_PRESENT] else NONE
    while member != NONE:
        if state.rows[member, M_PRESENCE] != AWAY:
            device = state.rows[member, M_DEVICE]
            out, n = append(
                out, n, notification, session, device, identities, DELIVERED, state.rows[0, NOW], lapses_at, LIVE
            )
            if state.rows[member, M_PRESENCE] == TAKES and state.rows[device, D_RANK] < first:
                first = state.rows[device, D_RANK]
        member = state.rows[member, M_NEXT]
    return out, n, first


@njit(cache=True)
def _is_given_before(state: Any, member: int, rank: int, seq: int) -> bool:
    """Return whether a device gets the publication *seq* in another session before the device of *rank* confirms it.

    Devices confirm in alphabetical order, and each confirms for all its sessions.
    """
    device = state.rows[member, M_DEVICE]
    if state.rows[device, D_RANK] > rank:
        return False
    other = state.rows[device, D_MEMBERS]
    while other != NONE:
        if (
            other != member
            and state.rows[other, M_PRESENCE] != AWAY
            and state.rows[state.rows[other, M_SESSION], S_STAMP] == seq
        ):
            return True
        other = state.rows[other, M_NEXT_OF_DEVICE]
    return False


@njit(cache=True)
def _end_at_once(
    state: Any,
    out: Any,
    n: int,
    notification: int,
    session: int,
    identities: int,
    outcome: int,
    moment: int,
    lapses_at: int,
    rank: int,
    seq: int,
) -> Any:
    """Give the absent members of a session the outcome of a publication that is not held; return the output.

    *rank* is that of the device that took it; below zero if the notification was not given to any device before.
    """
    has_row = False
    member = state.rows[session, S_MEMBERS]
    while member != NONE:
        if state.rows[member, M_IS_MEMBER] and state.rows[member, M_PRESENCE] == AWAY:
            got = DELIVERED if _is_given_before(state, member, rank, seq) else outcome
            out, n = append(
                out, n, notification, session, state.rows[member, M_DEVICE], identities, got, moment, lapses_at, NO_VIA
            )
            has_row = True
        member = state.rows[member, M_NEXT]
    if not has_row and not state.rows[session, S_PRESENT]:
        out, n = append(out, n, notification, session, NO_DEVICE, identities, outcome, moment, lapses_at, NO_VIA)
    return out, n


@njit(cache=True)
def _expire_at_once(state: Any, out: Any, n: int, notification: int, session: int, identities: int, moment: int) -> Any:
    """End a publication that has expired before it arrived, for all members; return the output (rule 2)."""
    has_row = False
    member = state.rows[session, S_MEMBERS]
    while member != NONE:
        if state.rows[member, M_IS_MEMBER]:
            out, n = append(
                out,
                n,
                notification,
                session,
                state.rows[member, M_DEVICE],
                identities,
                EXPIRED,
                moment,
                NULL,
                NO_VIA,
            )
            has_row = True
        member = state.rows[member, M_NEXT]
    if not has_row:
        out, n = append(out, n, notification, session, NO_DEVICE, identities, EXPIRED, moment, NULL, NO_VIA)
    return out, n


@njit(cache=True)
def _make_room(state: Any, out: Any, n: int, interest: int, seq: int) -> Any:
    """Displace the oldest notifications that are held for a subscription, until there is room for one (rule 4)."""
    while state.rows[interest, I_COUNT] >= state.rows[interest, I_MOST]:
        entry = state.rows[interest, I_HEAD]
        pending = state.rows[entry, H_PENDING]
        drop_entry(state, pending, entry)
        if state.rows[pending, P_ENTRY] == NONE:
            bit = bit_of(state, interest)
            out, n = end(state, out, n, pending, DISPLACED, bit, state.rows[0, NOW], seq)
    return out, n


@njit(cache=True)
def _lapse_of(published_at: int, ttl: int, expires_at: int) -> int:
    """Return the time at which a subscription with this time to live stops holding a publication (rule 3)."""
    if published_at > 0 and ttl > FOREVER - published_at:
        return expires_at
    return min(published_at + ttl, expires_at)


@njit(cache=True)
def _hold(state: Any, copy: int, listed: int, session: int, lapses_at: int) -> int:
    """Append a stored notification to the queue of a session, without entries; return its row."""
    pending = new_row(state)
    last = state.rows[session, S_TAIL]
    state.rows[pending, P_COPY], state.rows[pending, P_SESSION], state.rows[pending, P_LISTED] = (
        copy,
        session,
        listed,
    )
    state.rows[pending, P_LAPSES_AT], state.rows[pending, P_ENTRY] = lapses_at, NONE
    state.rows[pending, P_PREV], state.rows[pending, P_NEXT] = last, NONE
    if last == NONE:
        state.rows[session, S_HEAD] = pending
    else:
        state.rows[last, P_NEXT] = pending
    state.rows[session, S_TAIL] = pending
    state.listed[listed, L_END] = FOREVER
    state.rows[copy, C_SESSIONS] += 1
    return pending


@njit(cache=True)
def _hold_for(state: Any, pending: int, interest: int, lapse: int) -> None:
    """Hold a queued notification for a subscription until *lapse*."""
    entry = new_row(state)
    last = state.rows[interest, I_TAIL]
    state.rows[entry, H_PENDING], state.rows[entry, H_INTEREST], state.rows[entry, H_LAPSE] = (
        pending,
        interest,
        lapse,
    )
    state.rows[entry, H_PREV], state.rows[entry, H_NEXT] = last, NONE
    state.rows[entry, H_SIBLING] = state.rows[pending, P_ENTRY]
    state.rows[pending, P_ENTRY] = entry
    if last == NONE:
        state.rows[interest, I_HEAD] = entry
    else:
        state.rows[last, H_NEXT] = entry
    state.rows[interest, I_TAIL] = entry
    state.rows[interest, I_COUNT] += 1
    push(state, lapse, entry)


@njit(cache=True)
def publish(state: Any, events: Any, out: Any, n: int, seq: int, at: int, row: int, chain: Any, order: Any) -> Any:
    """Apply a publication to the sessions that it matches; return the output.

    *chain* and *order* are scratch: the next match of the same session for each match, and the sessions.
    """
    start, end = events.starts[row], events.starts[row + 1]
    notification, expires_at, now = events.notification[row], events.expires_at[row], state.rows[0, NOW]
    count = 0
    for place in range(start, end):
        session = state.rows[events.matches[place], I_SESSION]
        if state.rows[session, S_STAMP] != seq:
            state.rows[session, S_STAMP], state.rows[session, S_FIRST] = seq, NONE
            order[count] = session
            count += 1
        before, after = NONE, state.rows[session, S_FIRST]
        while after != NONE and events.matches[after] < events.matches[place]:
            before, after = after, chain[after - start]
        chain[place - start] = after
        if before == NONE:
            state.rows[session, S_FIRST] = place
        else:
            chain[before - start] = place
    is_dead, copy = expires_at <= now, NONE
    first_listed = state.rows[0, MATCHED]
    for nth in range(count):
        session = order[nth]
        identities = held = live_only = last_lapsed = 0
        longest = latest = NULL
        place = state.rows[session, S_FIRST]
        while place != NONE:
            interest = events.matches[place]
            bit = bit_of(state, interest)
            lapse = _lapse_of(at, state.rows[interest, I_TTL], expires_at)
            identities |= bit
            if state.rows[interest, I_MOST] == 0:
                live_only |= bit
            elif lapse <= now:
                if lapse > latest:
                    latest, last_lapsed = lapse, 0
                if lapse == latest:
                    last_lapsed |= bit
            else:
                held |= bit
                longest = max(longest, lapse)
            place = chain[place - start]
        if is_dead:
            out, n = _expire_at_once(state, out, n, notification, session, identities, expires_at)
            continue
        if held:
            place = state.rows[session, S_FIRST]
            while place != NONE:
                interest = events.matches[place]
                if held & bit_of(state, interest):
                    out, n = _make_room(state, out, n, interest, seq)
                place = chain[place - start]
        lapses_at = longest if held else NULL
        out, n, rank = _give_present(state, out, n, notification, session, identities, lapses_at)
        listed = first_listed + nth
        state.listed[listed, L_SESSION], state.listed[listed, L_END] = session, seq
        if not held:
            outcome, ended, moment = (DROPPED, live_only, now) if live_only else (EXPIRED, last_lapsed, latest)
            out, n = _end_at_once(state, out, n, notification, session, ended, outcome, moment, NULL, NO_DEVICE, seq)
        elif rank != FOREVER:
            out, n = _end_at_once(state, out, n, notification, session, held, TAKEN, now, lapses_at, rank, seq)
        else:
            if copy == NONE:
                copy = new_row(state)
                state.rows[copy, C_SEQ], state.rows[copy, C_NOTIFICATION] = seq, notification
                state.rows[copy, C_SESSIONS] = state.rows[copy, C_IS_SEEN] = 0
            pending = _hold(state, copy, listed, session, longest)
            place = state.rows[session, S_FIRST]
            while place != NONE:
                interest = events.matches[place]
                if held & bit_of(state, interest):
                    _hold_for(state, pending, interest, _lapse_of(at, state.rows[interest, I_TTL], expires_at))
                place = chain[place - start]
    if copy != NONE:
        state.rows[copy, C_FIRST], state.rows[copy, C_COUNT] = first_listed, count
        state.rows[0, MATCHED] += count
    return out, n
