"""The fast lane: what is on its way to a client that is there, and will nearly always be confirmed in a moment.

To hold such a notification by the rules, only to let it go again, is most of the work of a broker. In a lane it is no
more than an entry of a dictionary, a *flight*; the rules are caught up with when anybody could see a difference (it
*lands*), and nobody ever can: with one device, which has it in flight, a lapse and an ending give no command.
Rule: a lane is that of a private session whose one device is present, takes, and is present nowhere else; it is closed
by whatever changes that, or the session's subscriptions.
Rule: all flights of a session are younger than what is pending there, so that landing keeps the order.
"""

from __future__ import annotations

from whimbrel.hold.commands import Identity
from whimbrel.hold.counting import Matches, sorted_identities
from whimbrel.hold.private import client_of
from whimbrel.hold.retention import Retention
from whimbrel.hold.state import Copy, Flight, Member, Pending, Session, State
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import Outcome

__all__ = ["Lane", "Terms", "lane_of", "lapse_of"]

_MANY = 64


class Terms:
    """What some subscriptions of a session say together, worked out once."""

    __slots__ = ("handed", "identities", "kept", "longest_us", "qos", "room", "shortest_us")

    def __init__(self, session: Session, matched: tuple[Identity, ...], retention: Retention) -> None:
        self.identities = sorted_identities(matched)
        self.handed: Matches = ((session.name, self.identities),)
        self.qos = -1
        """The highest granted; -1: not for the fast lane."""
        self.kept: tuple[tuple[Identity, int], ...] = ()
        """For whom it is held, and how long."""
        self.room = 0
        """How many may be pending before any of them must displace one; 0 if any is live only."""
        self.shortest_us = self.longest_us = 0
        subscriptions = [session.subscriptions.get(identity) for identity in self.identities]
        granted = [None if found is None else found.qos for found in subscriptions]
        bounds = [retention.of(found) for found in subscriptions]
        asked = [qos for qos in granted if qos is not None]
        held = [(i, *b) for i, qos, b in zip(self.identities, granted, bounds, strict=True) if qos]
        if len(asked) < len(granted):
            return
        self.qos = max(asked)
        self.kept = tuple((identity, ttl_us) for identity, ttl_us, _ in held)
        self.room = min((most for _, _, most in held), default=0)
        self.shortest_us = min((ttl_us for _, ttl_us in self.kept), default=0)
        self.longest_us = max((ttl_us for _, ttl_us in self.kept), default=0)


def lapse_of(copy: Copy, ttl_us: int) -> int:
    """Return until when it is held for a subscription (rule 3)."""
    lapse, expires_at = copy.published_at + ttl_us, copy.expires_at
    if expires_at is not None and expires_at < lapse:
        return expires_at
    return lapse if lapse < INT64_MAX else INT64_MAX  # noqa: FURB136  # min() takes as long as all of it


class Lane:
    """The fast lane of a session."""

    __slots__ = ("_retention", "_session", "device", "flights", "member", "name", "pending", "terms")

    def __init__(self, session: Session, device: str, member: Member, retention: Retention) -> None:
        self._session, self._retention = session, retention
        self.name, self.device, self.member, self.pending = session.name, device, member, session.pending
        self.flights: dict[int, Terms] = {}
        """By number, the oldest first."""
        self.terms: dict[tuple[Identity, ...], Terms] = {}

    def work_out(self, matched: tuple[Identity, ...]) -> Terms:
        """Return the terms of some subscriptions, and remember them."""
        if len(self.terms) >= _MANY:
            self.terms.clear()
        terms = self.terms[matched] = Terms(self._session, matched, self._retention)
        return terms

    def land(self, state: State) -> list[int]:
        """Hold by the rules what is in flight, as it would be by now; return what that is."""
        landed, self.flights = self.flights, {}
        for seq, terms in landed.items():
            copy = state.copies[seq]
            copy.aloft -= 1
            copy.has_row = True
            copy.sessions.add(self.name)
            self.pending[seq] = self._as_pending(state, seq, terms, copy)
            state.pendings += 1
            self.member.in_flight[seq] = Flight(terms.identities, min(terms.qos, copy.qos))
        return list(landed)

    def _as_pending(self, state: State, seq: int, terms: Terms, copy: Copy) -> Pending:
        lapses = {identity: lapse_of(copy, ttl_us) for identity, ttl_us in terms.kept}
        latest = max(lapses.values())
        pending = Pending({identity: lapse for identity, lapse in lapses.items() if lapse > state.now}, latest)
        pending.in_flight.add(self.device)
        if not pending.held:
            last = tuple(identity for identity, lapse in lapses.items() if lapse == latest)
            pending.end = (Outcome.EXPIRED, last, latest)
        for identity, lapse in pending.held.items():
            self._session.counts.setdefault(identity, {})[seq] = None
            state.lapses.push(lapse, seq, self.name)
        return pending


def lane_of(state: State, session: Session, retention: Retention) -> Lane | None:
    """Return a lane for a session that may have one."""
    if not session.is_private or len(session.members) != 1:
        return None
    ((device, member),) = session.members.items()
    if not member.is_present or not member.takes or device != client_of(session.name):
        return None
    return Lane(session, device, member, retention) if len(state.joined[device]) == 1 else None
