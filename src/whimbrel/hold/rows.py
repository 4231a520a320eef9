"""Rows: how the hold's state is kept in a view, row by row.

A row is known by its kind and whose it is; its value is CBOR. A store that follows the hold writes the changed
rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import cbor2

from whimbrel.hold.state import Copy, Flight, Member, Pending, Session, State
from whimbrel.model.facts import Outcome
from whimbrel.model.keys import KeyHashes
from whimbrel.model.near import ANYWHERE, Around, Near
from whimbrel.model.place import Area, Place
from whimbrel.model.polygon import Polygon
from whimbrel.model.proximity import Sighting
from whimbrel.model.subscription import Subscription

_UNKNOWN_QOS = 2
_WITHOUT_SHARES = 2
"""How many values the row of a copy has beside its devices, where no share has others."""

__all__ = ["Key", "changed_rows", "keys", "restore_state"]

Key: TypeAlias = tuple[str | int | None, ...]
"""What a row is known by: its kind, a text, then whose it is: ``("notification", 17)``."""


def keys(state: State) -> Iterable[Key]:
    """Yield the keys of all rows of *state*."""
    for name, session in state.sessions.items():
        yield ("session", name)
        yield from (("subscription", name, *identity) for identity in session.subscriptions)
        yield from (("member", name, device) for device in session.members)
        yield from (("pending", name, seq) for seq in session.pending)
    yield from (("copy", seq) for seq in state.copies)
    yield from (("place", device) for device in state.places)
    yield from (("shaped", device) for device in state.shaped)
    yield from (("turn", share, name) for share, turns in state.turns.items() for name in turns)


def changed_rows(state: State, touched: Iterable[Key]) -> tuple[dict[Key, bytes], set[Key]]:
    """Return the rows of *touched* keys that there are, and the keys of those that there are not."""
    put: dict[Key, bytes] = {("now",): cbor2.dumps(state.now)}
    drop: set[Key] = set()
    for key in touched:
        value = _row(state, key)
        if value is None:
            drop.add(key)
        else:
            put[key] = cbor2.dumps(value)
    return put, drop


def _row(state: State, key: tuple[Any, ...]) -> object | None:
    """Return what is kept under *key*, or None if there is nothing."""
    kind, whose, *rest = key
    if kind == "copy":
        copy = state.copies.get(whose)
        if copy is None:
            return None
        row = [sorted(copy.received), dict(sorted(copy.attempted.items())), copy.qos, copy.expires_at]
        if not copy.shares:
            return row
        shares = {
            share: [[name, [own for _, own in identities]] for name, identities in others]
            for share, others in sorted(copy.shares.items())
        }
        return [*row, copy.published_at, shares]
    if kind == "shaped":
        return True if whose in state.shaped else None
    if kind == "place":
        seen = state.places.get(whose)
        return None if seen is None else [seen.seq, seen.reported_at, seen.place.latitude, seen.place.longitude]
    if kind == "turn":
        return state.turns.get(whose, {}).get(rest[0])
    session = state.sessions.get(whose)
    if session is None:
        return None
    if kind == "session":
        return [session.access, [list(identity) for identity in session.subscriptions], list(session.members)]
    if kind == "subscription":
        subscription = session.subscriptions.get(tuple(rest))
        return None if subscription is None else _subscription_row(subscription)
    if kind == "member":
        member = session.members.get(rest[0])
        return None if member is None else [member.is_present, member.takes, member.confirms]
    pending = session.pending.get(rest[0])
    return None if pending is None else _pending_row(session, rest[0], pending)


def _pending_row(session: Session, seq: int, pending: Pending) -> object:
    end = pending.end
    flights = {device: session.members[device].in_flight[seq] for device in sorted(pending.in_flight)}
    return [
        [[*identity, lapse] for identity, lapse in pending.held.items()],
        pending.lapses_at,
        None if end is None else [end[0].value, [list(identity) for identity in end[1]], end[2]],
        sorted(pending.settled),
        {device: [list(identity) for identity in flights[device].identities] for device in flights},
        {device: flight.qos for device, flight in flights.items()},
    ]


def restore_state(rows: Iterable[tuple[Key, bytes]]) -> State:
    """Return the state that a view has the rows of."""
    state = State()
    found: dict[tuple[Any, ...], Any] = {key: cbor2.loads(value) for key, value in rows if key[0] != "notification"}
    state.now = found.get(("now",), state.now)
    for key, value in found.items():
        if key[0] == "session":
            _restore_session(state, str(key[1]), value, found)
        elif key[0] == "copy":
            received, attempted, *later = value  # older views have no quality, or do not say when it expires
            qos, expires_at = (*later, None, None)[:2]
            copy = state.copies[key[1]] = Copy(_UNKNOWN_QOS if qos is None else qos, expires_at=expires_at)
            # Views from before quality was kept have a list of devices: at least once is the most they may be owed.
            copy.received = set(received)
            copy.attempted = attempted if isinstance(attempted, dict) else dict.fromkeys(attempted, copy.qos)
            copy.has_row = True
            if len(later) > _WITHOUT_SHARES:
                copy.published_at = later[2]
                copy.shares = {
                    share: [(name, tuple((share, own) for own in names)) for name, names in others]
                    for share, others in later[3].items()
                }
        elif key[0] == "place":
            number, reported_at, *where = value
            state.places[str(key[1])] = Sighting(number, reported_at, Place(*where))
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
        state.put(session, _subscription(name, row))
    for device in devices:
        is_present, takes, *confirms = found["member", name, device]
        session.members[device] = Member(is_present=is_present, takes=takes, confirms=confirms[0] if confirms else None)
        if is_present:
            state.joined.setdefault(device, set()).add(name)


def _restore_pending(state: State, name: str, seq: int, value: Any) -> None:
    held, lapses_at, end, settled, in_flight, *qualities = value
    qos = qualities[0] if qualities else {}
    session = state.sessions[name]
    pending = session.pending[seq] = Pending({(subject, own): lapse for subject, own, lapse in held}, lapses_at)
    state.pendings += 1
    state.copies[seq].sessions.add(name)
    for identity, lapse in pending.held.items():
        session.counts.setdefault(identity, {})[seq] = None
        state.lapses.push(lapse, seq, name)
    if end is not None:
        outcome, identities, moment = end
        pending.end = (Outcome(outcome), tuple((subject, own) for subject, own in identities), moment)
    pending.settled = set(settled)
    for device, identities in in_flight.items():
        pending.in_flight.add(device)
        flight = tuple((subject, own) for subject, own in identities)
        session.members[device].in_flight[seq] = Flight(flight, qos.get(device, state.copies[seq].qos))


def _subscription_row(subscription: Subscription) -> list[object]:
    """Return *subscription* as plain values."""
    near = subscription.near
    return [
        subscription.subject_filter,
        subscription.name,
        subscription.filter_text,
        subscription.ttl_us,
        subscription.max_held,
        subscription.policy,
        [near.centre.latitude, near.centre.longitude, near.radius_m] if isinstance(near, Area) else _text_of(near),
        list(subscription.keys.texts()),
        subscription.accept_insecure,
        subscription.qos,
        subscription.no_local,
        subscription.retain_as_published,
        subscription.identifier,
        subscription.stale_us,
    ]


def _subscription(session: str, row: Any) -> Subscription:
    """Return the subscription; the value checks itself."""
    subject_filter, name, filter_text, ttl_us, max_held, policy, near, keys, accept_insecure, *of_mqtt = row
    qos, no_local, retain_as_published, identifier = of_mqtt[:4] or (None, False, False, None)
    stale_us = of_mqtt[4] if len(of_mqtt) > 4 else None  # older views end before it
    return Subscription(
        session=session,
        subject_filter=subject_filter,
        name=name,
        filter_text=filter_text,
        ttl_us=ttl_us,
        max_held=max_held,
        policy=policy,
        near=_near(near),
        stale_us=stale_us,
        keys=KeyHashes.parse(keys),
        accept_insecure=accept_insecure,
        qos=qos,
        no_local=no_local,
        retain_as_published=retain_as_published,
        identifier=identifier,
    )


def _text_of(near: Near | None) -> str | None:
    return None if near is None else str(near)


def _near(value: Any) -> Near | None:
    """Return where a subscription wants notifications from: a circle is three numbers, the others their text."""
    if value is None:
        return None
    if not isinstance(value, str):
        return Area(Place(value[0], value[1]), value[2])
    if value == str(ANYWHERE):
        return ANYWHERE
    return Polygon.parse(value) if ";" in value else Around(float(value))
