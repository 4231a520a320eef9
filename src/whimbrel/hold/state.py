"""State of the hold: sessions, their members, their pending notifications, and one record per notification."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from whimbrel.hold.commands import Identity, Matches, Published
from whimbrel.hold.private import is_private, is_shared
from whimbrel.hold.retention import Lapses
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import Outcome
from whimbrel.model.subscription import Subscription

__all__ = [
    "NO_FLIGHTS",
    "NO_SHARES",
    "Copy",
    "CopyFollower",
    "FastLane",
    "Flight",
    "LaneTerms",
    "Member",
    "Pending",
    "Session",
    "State",
]


NO_SHARES: Mapping[str, Matches] = MappingProxyType({})


class Flight(NamedTuple):
    """A delivery that a device has not confirmed yet."""

    identities: tuple[Identity, ...]
    """The subscriptions that it is for."""
    qos: int
    """Its QoS, which it keeps until it is confirmed, whatever happens to the subscriptions."""


NO_FLIGHTS: Mapping[str, Flight] = MappingProxyType({})


class Member:
    """A device of a session."""

    __slots__ = ("away_at", "confirms", "in_flight", "is_present", "takes")

    def __init__(
        self, *, is_present: bool, takes: bool, confirms: bool | None = None, away_at: int | None = None
    ) -> None:
        self.is_present, self.takes = is_present, takes
        self.away_at = away_at
        """When it went away from a named session; None while it is present."""
        self.confirms = confirms
        """Which hand-overs of quality 0 have receipts: all, or those that may expire; none if None (rule 16)."""
        self.in_flight: dict[int, Flight] = {}
        """By number."""

    def confirms_qos_0(self, *, is_expiring: bool) -> bool:
        """Return whether a hand-over of quality 0 has a receipt."""
        return bool(self.confirms) or (is_expiring and self.confirms is False)


class Pending:
    """A notification in a session, until it has ended there and no device has it in flight."""

    __slots__ = ("end", "held", "in_flight", "lapses_at", "left", "settled")

    def __init__(self, held: dict[Identity, int], lapses_at: int | None) -> None:
        self.held = held
        """Until when, by subscription."""
        self.lapses_at = lapses_at
        self.end: tuple[Outcome, tuple[Identity, ...], int] | None = None
        """How it ended here; waiting for those who have it in flight."""
        self.settled: set[str] = set()
        self.in_flight: set[str] = set()
        self.left: Mapping[str, Flight] = NO_FLIGHTS
        """Devices that left the session unconfirmed, with what they were handed: each is settled when this ends."""


class LaneTerms:
    """Delivery options of a session for one combination of matching subscriptions; computed once."""

    __slots__ = ("handed", "has_policy", "identities", "kept", "longest_us", "qos", "room", "shortest_us")

    def __init__(self, session: str, identities: tuple[Identity, ...]) -> None:
        self.identities = identities
        self.handed: Matches = ((session, identities),)
        self.qos = -1
        """The highest granted; -1: not for the fast lane."""
        self.kept: tuple[tuple[Identity, int], ...] = ()
        """The devices it is held for, and how long."""
        self.room = 0
        """How many may be pending before any of them must displace one; 0 if any is live only."""
        self.shortest_us = self.longest_us = 0
        self.has_policy = False
        """Whether any of them has a policy, so that each hand-over has a receipt (rule 16)."""


class FastLane:
    """The fast lane of a session; ``rules.fast_lane`` says when there is one, and what it is for."""

    __slots__ = ("device", "flights", "member", "name", "pending", "session", "terms")

    def __init__(self, session: Session, device: str, member: Member) -> None:
        self.session = session
        self.name, self.device, self.member, self.pending = session.name, device, member, session.pending
        self.flights: dict[int, LaneTerms] = {}
        """By number, the oldest first."""
        self.terms: dict[tuple[Identity, ...], LaneTerms] = {}


class Session:
    """Subscriptions, the devices that come and go, and what is owed to them."""

    __slots__ = (
        "access",
        "conditional",
        "counts",
        "departed",
        "is_private",
        "lane",
        "members",
        "name",
        "pending",
        "subscriptions",
        "with_policy",
        "with_qos",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_private = is_private(name)
        self.lane: FastLane | None = None
        self.access: str | None = None
        self.subscriptions: dict[Identity, Subscription] = {}
        self.members: dict[str, Member] = {}
        self.departed: dict[str, Member] = {}
        """Devices that left while they had something in flight, until they have confirmed it or are disconnected."""
        self.pending: dict[int, Pending] = {}
        """In order of their numbers."""
        self.counts: dict[Identity, dict[int, None]] = {}
        """What is held for each subscription, the oldest first."""
        self.with_qos = 0
        """How many subscriptions have a quality of service."""
        self.with_policy = 0
        """How many subscriptions have a policy."""
        self.conditional = 0
        """How many may match and yet not count: shares, and those that want nothing of their own."""

    def bearer(self, device: str) -> Member | None:
        """Return the device with what it has in flight here, whether it is a member or has left."""
        return self.members.get(device) or self.departed.get(device)


class Copy:
    """Record of a notification while any session has it pending, or in flight in a fast lane."""

    __slots__ = (
        "attempted",
        "expires_at",
        "flight_count",
        "has_row",
        "is_stored",
        "kept",
        "published_at",
        "qos",
        "received",
        "sessions",
        "shares",
    )

    def __init__(
        self, qos: int = 2, published_at: int = 0, expires_at: int | None = None, *, kept: Published | None = None
    ) -> None:
        self.kept = kept
        """The notification itself; None in one that was restored without it."""
        self.is_stored = False
        """Whether the shell was told that it is kept, and is to be told when it goes."""
        self.qos = qos
        self.published_at, self.expires_at = published_at, expires_at
        """When it was published is only for those in the fast lane and of a share: the others know their lapses."""
        self.flight_count = 0
        """How many have it in flight in a fast lane."""
        self.has_row = False
        """Whether a view may have a row of it; one that is in fast lanes alone has none."""
        self.sessions: set[str] = set()
        self.received: set[str] = set()
        """Devices that have it: never again to these."""
        self.attempted: dict[str, int] = {}
        """Devices that it may have been sent to and was taken back from without a receipt, and with which quality."""
        self.shares: Mapping[str, Matches] = NO_SHARES
        """By share, the sessions that are given it if a policy of the one that serves the share withholds (rule 21)."""

    def lapse_of(self, ttl_us: int) -> int:
        """Return until when it is held for a subscription with this time to live (rule 3)."""
        lapse, expires_at = self.published_at + ttl_us, self.expires_at
        if expires_at is not None and expires_at < lapse:
            return expires_at
        return lapse if lapse < INT64_MAX else INT64_MAX  # noqa: FURB136  # min() takes as long as all of it


class CopyFollower:
    """Follows which notifications are kept; a shell that follows has its own."""

    def stored(self, copy: Copy) -> None:
        """Note that a notification is kept: some session has it pending, or in flight."""

    def forgotten(self, seq: int, copy: Copy) -> None:
        """Note that no device is owed a notification any more."""


class State:
    """All of it, for one node."""

    __slots__ = (
        "conditional",
        "copies",
        "departed",
        "follower",
        "joined",
        "lapses",
        "now",
        "pendings",
        "privates",
        "sessions",
        "shaped",
        "turns",
    )

    def __init__(self) -> None:
        self.now = -(2**63)
        self.sessions: dict[str, Session] = {}
        self.joined: dict[str, set[str]] = {}
        """By device, the sessions it is present in."""
        self.departed: dict[str, set[str]] = {}
        """By device, the sessions that it left with something in flight."""
        self.copies: dict[int, Copy] = {}
        self.follower = CopyFollower()
        """Whom to tell which notifications are kept."""
        self.lapses = Lapses()
        self.pendings = 0
        """How many notifications are pending, counted in each session."""
        self.privates = 0
        """How many sessions are private: where none is, there is nothing to look for."""
        self.conditional = 0
        """How many subscriptions may match and yet not count, in all sessions."""
        self.turns: dict[str, dict[str, int]] = {}
        """By share and session, the last notification that the session was chosen for (rule 18)."""
        self.shaped: set[str] = set()
        """Devices that have chosen a policy: each hand-over to them has a receipt (rule 16)."""

    def store(self, copy: Copy) -> None:
        """Keep a notification that was published, if any session has it pending or in flight."""
        copy.is_stored = True
        self.follower.stored(copy)

    def forget(self, seq: int) -> None:
        """Keep a notification no more: no device is owed it."""
        copy = self.copies.pop(seq)
        if copy.is_stored:
            self.follower.forgotten(seq, copy)

    def is_held(self, seq: int, session: str) -> bool:
        """Return whether a notification is held for any subscription of a session."""
        found = self.sessions.get(session)
        pending = None if found is None else found.pending.get(seq)
        return pending is not None and bool(pending.held)

    def has_policy(self, session: Session, identities: tuple[Identity, ...]) -> bool:
        """Return whether any of some subscriptions has a policy."""
        if not session.with_policy:
            return False
        found = (session.subscriptions.get(identity) for identity in identities)
        return any(subscription is not None and subscription.policy is not None for subscription in found)

    def begin(self, name: str) -> Session:
        """Return a new session."""
        session = self.sessions[name] = Session(name)
        self.privates += session.is_private
        return session

    def delete(self, session: Session) -> None:
        """Remove a session with its subscriptions; it has no pending notification."""
        for identity in list(session.subscriptions):
            self.remove(session, identity)
        self.privates -= session.is_private
        del self.sessions[session.name]

    def put(self, session: Session, subscription: Subscription) -> None:
        """Put a subscription in place; one that is replaced keeps its place among the others."""
        identity = (subscription.subject_filter, subscription.name)
        self._count(session, session.subscriptions.get(identity), -1)
        session.subscriptions[identity] = subscription
        self._count(session, subscription, 1)

    def remove(self, session: Session, identity: Identity) -> None:
        """Remove a subscription, if it exists; a session that leaves a share loses its turn there."""
        self._count(session, session.subscriptions.pop(identity, None), -1)
        share = identity[0]
        if share is not None and share in self.turns and all(other != share for other, _ in session.subscriptions):
            self.turns[share].pop(session.name, None)
            if not self.turns[share]:
                del self.turns[share]

    def _count(self, session: Session, subscription: Subscription | None, change: int) -> None:
        if subscription is None:
            return
        if subscription.qos is not None:
            session.with_qos += change
        if subscription.policy is not None:
            session.with_policy += change
        if is_shared(subscription.subject_filter) or (session.is_private and subscription.no_local):
            session.conditional += change
            self.conditional += change
