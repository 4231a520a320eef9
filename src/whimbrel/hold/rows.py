"""Rows: the form in which the state of the hold is saved in a store, and restored from it.

A row has a key (its kind, then the session, device or seq that it describes) and a value in CBOR. A store writes only
the rows that changed (``touched_rows``).
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import cbor2

from whimbrel.hold.commands import Identity
from whimbrel.hold.state import Copy, Flight, Member, Pending, Session, State
from whimbrel.hold.touched_rows import Key, RowTable
from whimbrel.model.facts import Outcome
from whimbrel.model.keys import KeyHashes
from whimbrel.model.near import ANYWHERE, Around, Near
from whimbrel.model.place import Area, Place
from whimbrel.model.polygon import Polygon
from whimbrel.model.rows import COLUMNS
from whimbrel.model.subscription import Subscription

_UNKNOWN_QOS = 2
_WITHOUT_SHARES = 2
"""Number of values after ``received`` and ``attempted`` in the row of a copy without candidates of shares (rule 21)."""

__all__ = ["KINDS", "Key", "keys", "restore_state", "row_table", "subscription_of", "subscription_row"]

KINDS = frozenset({"copy", "member", "now", "pending", "session", "shaped", "subscription", "turn"})
"""Kinds of rows: the first part of each key."""


def keys(state: State) -> Iterable[Key]:
    """Yield the keys of all rows of *state*."""
    for name, session in state.sessions.items():
        yield ("session", name)
        yield from (("subscription", name, *identity) for identity in session.subscriptions)
        yield from (("member", name, device) for device in session.members)
        yield from (("pending", name, seq) for seq in session.pending)
    yield from (("copy", seq) for seq in state.copies)
    yield from (("shaped", device) for device in state.shaped)
    yield from (("turn", share, name) for share, turns in state.turns.items() for name in turns)


def row_table(state: State) -> RowTable:
    """Return, for each kind of row, the function that builds a row from *state*; it returns None for a missing row."""
    sessions = state.sessions

    def session(name: str) -> object | None:
        found = sessions.get(name)
        if found is None:
            return None
        return [found.access, [list(identity) for identity in found.subscriptions], list(found.members)]

    def subscription(name: str, *identity: Any) -> object | None:
        found = sessions.get(name)
        wanted = None if found is None else found.subscriptions.get(identity)
        return None if wanted is None else subscription_row(wanted)

    def member(name: str, device: str) -> object | None:
        found = sessions.get(name)
        known = None if found is None else found.members.get(device)
        if known is None:
            return None
        row = [known.is_present, known.takes, known.confirms]
        return row if known.away_at is None else [*row, known.away_at]

    def pending(name: str, seq: int) -> object | None:
        found = sessions.get(name)
        waiting = None if found is None else found.pending.get(seq)
        return None if found is None or waiting is None else _pending_row(found, seq, waiting)

    def copy(seq: int) -> object | None:
        held = state.copies.get(seq)
        if held is None:
            return None
        row = [sorted(held.received), dict(sorted(held.attempted.items())), held.qos, held.expires_at]
        if not held.shares:
            return row
        shares = {
            share: [[name, [own for _, own in identities]] for name, identities in others]
            for share, others in sorted(held.shares.items())
        }
        return [*row, held.published_at, shares]

    def shaped(device: str) -> object | None:
        return True if device in state.shaped else None

    def turn(share: str, name: str) -> object | None:
        return state.turns.get(share, {}).get(name)

    return {
        "session": session,
        "subscription": subscription,
        "member": member,
        "pending": pending,
        "copy": copy,
        "shaped": shaped,
        "turn": turn,
    }


def _pending_row(session: Session, seq: int, pending: Pending) -> object:
    end = pending.end
    flights = {device: _flight(session, device, seq) for device in sorted(pending.in_flight)}
    row: list[object] = [
        [[*identity, lapse] for identity, lapse in pending.held.items()],
        pending.lapses_at,
        None if end is None else [end[0].value, [list(identity) for identity in end[1]], end[2]],
        sorted(pending.settled),
        {device: [list(identity) for identity in flights[device].identities] for device in flights},
        {device: flight.qos for device, flight in flights.items()},
    ]
    if pending.left:
        row.append({device: [flight.qos, *map(list, flight.identities)] for device, flight in pending.left.items()})
    return row


def _flight(session: Session, device: str, seq: int) -> Flight:
    bearer = session.bearer(device)
    assert bearer is not None, "only a member, or a device that left, has something in flight"
    return bearer.in_flight[seq]


def restore_state(rows: Iterable[tuple[Key, bytes]]) -> State:
    """Return the state of a hold that was saved as *rows*."""
    state = State()
    found: dict[tuple[Any, ...], Any] = {key: cbor2.loads(value) for key, value in rows if key[0] != "notification"}
    state.now = found.get(("now",), state.now)
    for key, value in found.items():
        if key[0] == "session":
            _restore_session(state, str(key[1]), value, found)
        elif key[0] == "copy":
            received, attempted, *later = value  # rows of older versions lack the QoS or the expiry
            qos, expires_at = (*later, None, None)[:2]
            copy = state.copies[key[1]] = Copy(_UNKNOWN_QOS if qos is None else qos, expires_at=expires_at)
            # Old rows have a list of devices without QoS here: assume the publisher's, the highest QoS possible.
            copy.received = set(received)
            copy.attempted = attempted if isinstance(attempted, dict) else dict.fromkeys(attempted, copy.qos)
            copy.has_row = True
            if len(later) > _WITHOUT_SHARES:
                copy.published_at = later[2]
                copy.shares = {
                    share: [(name, tuple((share, own) for own in names)) for name, names in others]
                    for share, others in later[3].items()
                }
        elif key[0] == "shaped":
            state.shaped.add(str(key[1]))
        elif key[0] == "turn":
            state.turns.setdefault(str(key[1]), {})[str(key[2])] = value
    pending = [key for key in found if key[0] == "pending"]
    for key in sorted(pending, key=lambda key: (key[2], key[1])):
        _restore_pending(state, str(key[1]), key[2], found[key])
    return state


def _restore_session(state: State, name: str, value: Any, found: dict[tuple[Any, ...], Any]) -> None:
    session = state.begin(name)
    session.access, identities, devices = value
    for subject_filter, own_name in identities:
        row = found[("subscription", name, subject_filter, own_name)]
        state.put(session, subscription_of(name, row))
    for device in devices:
        is_present, takes, *later = found["member", name, device]
        confirms, away_at = (*later, None, None)[:2]  # rows of older versions lack both
        if away_at is None and not is_present and not session.is_private:
            away_at = state.now
        session.members[device] = Member(is_present=is_present, takes=takes, confirms=confirms, away_at=away_at)
        if is_present:
            state.joined.setdefault(device, set()).add(name)


def _restore_pending(state: State, name: str, seq: int, value: Any) -> None:
    held, lapses_at, end, settled, in_flight, *later = value
    qos, left = (*later, {}, {})[:2]  # rows of older versions lack both
    session = state.sessions[name]
    pending = session.pending[seq] = Pending({(subject, own): lapse for subject, own, lapse in held}, lapses_at)
    state.pendings += 1
    state.copies[seq].sessions.add(name)
    for identity, lapse in pending.held.items():
        session.counts.setdefault(identity, {})[seq] = None
        state.lapses.push(lapse, seq, name)
    if end is not None:
        outcome, identities, moment = end
        pending.end = (Outcome(outcome), _identities(identities), moment)
    pending.settled = set(settled)
    for device, identities in in_flight.items():
        pending.in_flight.add(device)
        flight = Flight(_identities(identities), qos.get(device, state.copies[seq].qos))
        bearer = session.bearer(device)
        if bearer is None:  # the device left the session before it confirmed this delivery
            bearer = session.departed[device] = Member(is_present=False, takes=False)
            state.departed.setdefault(device, set()).add(name)
        bearer.in_flight[seq] = flight
    if left:
        pending.left = {device: Flight(_identities(found), its_qos) for device, (its_qos, *found) in left.items()}


def _identities(found: Any) -> tuple[Identity, ...]:
    return tuple((subject, own) for subject, own in found)


_FIRST = (
    *("subject_filter", "name", "filter_text", "ttl_us", "max_held", "policy", "near", "keys", "accept_insecure"),
    *("qos", "no_local", "retain_as_published", "identifier", "stale_us", "seq", "changed_at"),
)
"""First fields in the row of a subscription; other columns of the table ``interests`` follow, which old rows lack."""
_INTERESTS = COLUMNS["interests"]
_FIELDS = (*_FIRST, *_INTERESTS[_INTERESTS.index("stale_us") + 1 :])
_NEAR, _KEYS = _FIELDS.index("near"), _FIELDS.index("keys")
_fields_of = attrgetter(*_FIELDS)


def subscription_row(subscription: Subscription) -> list[object]:
    """Return the row of a subscription: a list of plain values, for CBOR."""
    row, near = [*_fields_of(subscription)], subscription.near
    row[_NEAR] = (
        [near.centre.latitude, near.centre.longitude, near.radius_m] if isinstance(near, Area) else _text_of(near)
    )
    row[_KEYS] = [*subscription.keys.texts()]
    return row


def subscription_of(session: str, row: Any) -> Subscription:
    """Return the subscription that *row* describes; ``Subscription`` validates the values."""
    given: dict[str, Any] = dict(zip(_FIELDS, row, strict=False))
    given["near"], given["keys"] = _near(given["near"]), KeyHashes.parse(given["keys"])
    return Subscription(session=session, **given)


def _text_of(near: Near | None) -> str | None:
    return None if near is None else str(near)


def _near(value: Any) -> Near | None:
    """Decode the field ``near`` of a subscription: three numbers are a circle, a text is any other area."""
    if value is None:
        return None
    if not isinstance(value, str):
        return Area(Place(value[0], value[1]), value[2])
    if value == str(ANYWHERE):
        return ANYWHERE
    return Polygon.parse(value) if ";" in value else Around(float(value))
