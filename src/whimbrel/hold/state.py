"""State of the hold: sessions with members and pending notifications, and one record per stored notification."""

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
    "LaneOptions",
    "Member",
    "Pending",
    "Session",
    "State",
]


NO_SHARES: Mapping[str, Matches] = MappingProxyType({})


class Flight(NamedTuple):
    """A delivery that a device has not confirmed yet."""

    identities: tuple[Identity, ...]
    """Subscriptions that the delivery is for."""
    qos: int
    """QoS of the delivery; it does not change until the delivery is confirmed, even if the subscriptions do."""


NO_FLIGHTS: Mapping[str, Flight] = MappingProxyType({})


class Member:
    """A device that joined a session, and its deliveries in flight (sent and not confirmed)."""

    __slots__ = ("away_at", "confirms", "in_flight", "is_present", "takes")

    def __init__(
        self, *, is_present: bool, takes: bool, confirms: bool | None = None, away_at: int | None = None
    ) -> None:
        self.is_present, self.takes = is_present, takes
        self.away_at = away_at
        """Time at which it went away from a named session; None while it is present."""
        self.confirms = confirms
        """Which deliveries at QoS 0 the device confirms (rule 16): True all, False those that may expire, None none."""
        self.in_flight: dict[int, Flight] = {}
        """Unconfirmed deliveries to the device, by seq."""

    def confirms_qos_0(self, *, is_expiring: bool) -> bool:
        """Return whether the device confirms a delivery at QoS 0; *is_expiring*: the notification has an expiry."""
        return bool(self.confirms) or (is_expiring and self.confirms is False)


class Pending:
    """A notification in the queue of a session, until the session has ended it and no device has it in flight."""

    __slots__ = ("end", "held", "in_flight", "lapses_at", "left", "settled")

    def __init__(self, held: dict[Identity, int], lapses_at: int | None) -> None:
        self.held = held
        """Subscriptions that the notification is held for, each with the time at which it is no longer held for it."""
        self.lapses_at = lapses_at
        self.end: tuple[Outcome, tuple[Identity, ...], int] | None = None
        """Outcome, subscriptions and time of its end in the session; devices that have it in flight may end later."""
        self.settled: set[str] = set()
        self.in_flight: set[str] = set()
        self.left: Mapping[str, Flight] = NO_FLIGHTS
        """Unconfirmed deliveries of devices that left the session; each gets its outcome when the notification ends."""


class LaneOptions:
    """Options of fast delivery to a private session, for one combination of matching subscriptions; computed once."""

    __slots__ = ("handed", "has_policy", "identities", "kept", "longest_us", "qos", "room", "shortest_us")

    def __init__(self, session: str, identities: tuple[Identity, ...]) -> None:
        self.identities = identities
        self.handed: Matches = ((session, identities),)
        self.qos = -1
        """Highest QoS granted to these subscriptions; -1: the fast lane must not be used."""
        self.kept: tuple[tuple[Identity, int], ...] = ()
        """Subscriptions that hold a notification, each with its time to live in microseconds."""
        self.room = 0
        """Least maximum of held notifications of these subscriptions: with as many pending, one would be displaced."""
        self.shortest_us = self.longest_us = 0
        self.has_policy = False
        """Whether any of the subscriptions has a policy, so that each delivery has a receipt (rule 16)."""


class FastLane:
    """Fast lane of a private session: unconfirmed deliveries that are not in its queue; see ``rules.fast_lane``."""

    __slots__ = ("device", "flights", "member", "name", "pending", "session", "terms")

    def __init__(self, session: Session, device: str, member: Member) -> None:
        self.session = session
        self.name, self.device, self.member, self.pending = session.name, device, member, session.pending
        self.flights: dict[int, LaneOptions] = {}
        """Unconfirmed deliveries by seq, oldest first."""
        self.terms: dict[tuple[Identity, ...], LaneOptions] = {}


class AssumedResult:
    """How publications end in a session if receipts are assumed, for one combination of matching subscriptions.

    It is valid until the session, its devices or its subscriptions change; see ``rules.assumed``.
    """

    __slots__ = (
        "absent",
        "earlier",
        "ended",
        "held",
        "identities",
        "is_held",
        "is_plain",
        "longest_us",
        "outcome",
        "present",
        "session",
        "shortest_us",
    )

    def __init__(self, session: Session, identities: tuple[Identity, ...]) -> None:
        self.session, self.identities = session, identities
        self.is_plain = False
        """Whether the result holds; False: the rules must apply each publication."""
        self.held: tuple[tuple[Identity, int, int], ...] = ()
        """Subscriptions that may hold a notification, each with time to live (µs) and maximum of held notifications."""
        self.shortest_us = self.longest_us = INT64_MAX
        self.is_held = False
        """Whether the session holds a notification, because no present device takes it."""
        self.present: tuple[str, ...] = ()
        """Present devices; each receives a notification."""
        self.absent: tuple[str | None, ...] = ()
        """Absent devices that have their outcome at once; None stands for a session without devices."""
        self.outcome = Outcome.DROPPED
        """Outcome for ``absent``."""
        self.ended: tuple[Identity, ...] = ()
        """Subscriptions in that outcome: those that may hold a notification, or all if none may."""
        self.earlier: tuple[str, ...] = ()
        """Absent devices before the first device that takes, by name; one of them may have received it elsewhere."""


class Session:
    """A session: its subscriptions, its devices, and the notifications that they are owed."""

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
        "results",
        "subscriptions",
        "with_policy",
        "with_qos",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_private = is_private(name)
        self.lane: FastLane | None = None
        self.results: dict[tuple[Identity, ...], AssumedResult] = {}
        """Cache of ``rules.assumed`` by matching subscriptions; empty in a broker."""
        self.access: str | None = None
        self.subscriptions: dict[Identity, Subscription] = {}
        self.members: dict[str, Member] = {}
        self.departed: dict[str, Member] = {}
        """Devices that left with deliveries in flight, until they confirm these or are disconnected."""
        self.pending: dict[int, Pending] = {}
        """Pending notifications by seq, in ascending order."""
        self.counts: dict[Identity, dict[int, None]] = {}
        """Seqs of the notifications that are held for each subscription, oldest first."""
        self.with_qos = 0
        """Number of subscriptions with a QoS: those made over MQTT."""
        self.with_policy = 0
        """Number of subscriptions with a policy."""
        self.conditional = 0
        """Number of subscriptions whose match may not count: shares and, in private sessions, those with no-local."""

    def bearer(self, device: str) -> Member | None:
        """Return the record of a device with its deliveries in flight, also if it has left; None without one."""
        return self.members.get(device) or self.departed.get(device)


class Copy:
    """Record of one stored notification, shared by all sessions in which it is pending or in flight."""

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
        """The notification itself; None if the record was restored and the notification not attached yet."""
        self.is_stored = False
        """Whether the follower was notified of this record; it is then notified of its removal too."""
        self.qos = qos
        self.published_at, self.expires_at = published_at, expires_at
        """``published_at`` is used only in fast lanes and for shares; elsewhere ``Pending`` has the lapse times."""
        self.flight_count = 0
        """Number of sessions that have the notification in flight in a fast lane."""
        self.has_row = False
        """Whether the saved state may have a row of this record; a notification only in fast lanes has none."""
        self.sessions: set[str] = set()
        self.received: set[str] = set()
        """Devices that have received the notification, through any session; it is not sent to them again."""
        self.attempted: dict[str, int] = {}
        """QoS by device of deliveries that were cancelled unconfirmed: the device may have received them."""
        self.shares: Mapping[str, Matches] = NO_SHARES
        """More candidates of each share: sessions that may get it if a policy withholds it from the first (rule 21)."""

    def lapse_of(self, ttl_us: int) -> int:
        """Return the time at which a subscription with this time to live stops holding the notification (rule 3)."""
        lapse, expires_at = self.published_at + ttl_us, self.expires_at
        if expires_at is not None and expires_at < lapse:
            return expires_at
        return lapse if lapse < INT64_MAX else INT64_MAX  # noqa: FURB136  # min() would double the time of this method


class CopyFollower:
    """Observer of the stored notifications; this class does nothing, and callers pass a subclass."""

    def stored(self, copy: Copy) -> None:
        """Handle a notification that is now stored, because some session has it pending or in flight."""

    def forgotten(self, seq: int, copy: Copy) -> None:
        """Handle the removal of a notification that no device has yet to receive or confirm any more."""


class State:
    """Complete state of the hold of one node."""

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
        """Sessions in which each device is present."""
        self.departed: dict[str, set[str]] = {}
        """Sessions that each device left with deliveries in flight."""
        self.copies: dict[int, Copy] = {}
        self.follower = CopyFollower()
        """Observer to notify when a notification is stored or forgotten."""
        self.lapses = Lapses()
        self.pendings = 0
        """Number of pending notifications, counted once in each session."""
        self.privates = 0
        """Number of private sessions; without any, fast lanes are not tried."""
        self.conditional = 0
        """Number of subscriptions, in all sessions, whose match may not count (``Session.conditional``)."""
        self.turns: dict[str, dict[str, int]] = {}
        """Round robin of shares: seq of the last notification that a session got, by share and session (rule 18)."""
        self.shaped: set[str] = set()
        """Devices that have chosen a policy: each delivery to them has a receipt (rule 16)."""

    def store(self, copy: Copy) -> None:
        """Mark the record of a notification as stored, and notify the observer (``follower``)."""
        copy.is_stored = True
        self.follower.stored(copy)

    def forget(self, seq: int) -> None:
        """Remove the record of a notification that no device has yet to receive or confirm."""
        copy = self.copies.pop(seq)
        if copy.is_stored:
            self.follower.forgotten(seq, copy)

    def is_held(self, seq: int, session: str) -> bool:
        """Return whether a session still holds a notification for at least one of its subscriptions."""
        found = self.sessions.get(session)
        pending = None if found is None else found.pending.get(seq)
        return pending is not None and bool(pending.held)

    def has_policy(self, session: Session, identities: tuple[Identity, ...]) -> bool:
        """Return whether any of the session's subscriptions *identities* (subject filter and name) has a policy."""
        if not session.with_policy:
            return False
        found = (session.subscriptions.get(identity) for identity in identities)
        return any(subscription is not None and subscription.policy is not None for subscription in found)

    def begin(self, name: str) -> Session:
        """Create a session and return it."""
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
        """Add or replace a subscription; a replaced one keeps its position in the order."""
        identity = (subscription.subject_filter, subscription.name)
        self._count(session, session.subscriptions.get(identity), -1)
        session.subscriptions[identity] = subscription
        self._count(session, subscription, 1)

    def remove(self, session: Session, identity: Identity) -> None:
        """Remove a subscription, if it exists.

        If it was the session's last one to a share, forget when the share last chose the session.
        """
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
