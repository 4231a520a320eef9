"""Facts: everything that a node accepted; each fact has a seq and is a row of one of the log's tables.

A publication is a ``Notification``; the other facts are defined here.
Rule: facts of one node are ordered by ``seq`` alone. Their times never run backwards: the node that stamps them ensures
that (``later``), so that an expired notification stays expired in every replay of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import INT64_MAX, check_time, flag, name, node_name, real, text, whole
from whimbrel.model.device import DeviceState, Display
from whimbrel.model.notification import MAX_PACKET_ID, MAX_SUBJECT_BYTES, Notification, NotificationId
from whimbrel.model.outcome import Outcome
from whimbrel.model.policies import Decided, PolicyChange, PolicyChanged
from whimbrel.model.subscription import InterestChange, Subscription, SubscriptionIdentity
from whimbrel.model.will import LastWill

__all__ = [
    "MAX_ACCESS_BYTES",
    "Decided",
    "Fact",
    "InterestChanged",
    "Mode",
    "Outcome",
    "PolicyChange",
    "PolicyChanged",
    "PresenceChange",
    "PresenceChanged",
    "Receipt",
    "Reported",
    "SessionChange",
    "SessionChanged",
    "WillChange",
    "WillChanged",
    "later",
    "time_of",
]

MAX_ACCESS_BYTES = 65_536
_HASH_BYTES = 32


class Mode(Enum):
    """Effect of a receipt on the copy held for other devices (Elvin proxy, 4.4): take removes it, keep does not."""

    TAKE = "take"
    KEEP = "keep"


class PresenceChange(Enum):
    """A device's action; the ``change`` column of ``presence``."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    JOINED = "joined"
    LEFT = "left"
    RELEASED = "released"
    """The device finished publishing with quality of service 2 (MQTT's PUBREL): the packet id is free again."""
    COMPLETED = "completed"
    """The device finished receiving with quality of service 2 (MQTT's PUBCOMP)."""
    RECEIPTS = "receipts"
    """The device changes whether its hand-overs of quality 0 in a session have receipts (rule 16 of the hold)."""


_OF_A_PACKET = frozenset({PresenceChange.RELEASED, PresenceChange.COMPLETED})
_OF_A_SESSION = frozenset({PresenceChange.JOINED, PresenceChange.LEFT, PresenceChange.RECEIPTS})
_GOING = frozenset({PresenceChange.DISCONNECTED, PresenceChange.LEFT})
_WITH_EXPIRY = frozenset({PresenceChange.JOINED, PresenceChange.DISCONNECTED})
_WITH_RECEIPTS = frozenset({PresenceChange.JOINED, PresenceChange.RECEIPTS})


class SessionChange(Enum):
    """A change of the session itself; the ``change`` column of ``sessions``."""

    CREATED = "created"
    ACCESS = "access"
    """The session's passwords or its access control list were replaced."""
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class InterestChanged:
    """One row of ``interests``; for a removed subscription it has only the identity."""

    node: str
    seq: int
    changed_at: int
    change: InterestChange
    subscription: Subscription
    device: str | None = None
    """Device that made the change; the other devices of the session are notified."""

    def __post_init__(self) -> None:
        _number(self.node, self.seq, "changed_at", self.changed_at)
        if self.device is not None:
            name("device", self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class PresenceChanged:
    """One row of ``presence``."""

    node: str
    seq: int
    changed_at: int
    device: str
    change: PresenceChange
    session: str | None = None
    receipt: Mode | None = None
    packet_id: int | None = None
    """Packet id of the publication that was released or completed."""
    session_expiry_us: int | None = None
    """Time for which the device's private session is kept after its connection ends; ``None``: not specified."""
    sent_seq: int | None = None
    """Seq of the last notification sent to a device that disconnected or left a session, and not confirmed; ``None``:
    unknown, so any may have been sent."""
    confirms: bool | None = None
    """Hand-overs of quality 0 that have receipts in the session from here on: all (true), only those of
    notifications that may expire (false), or none (``None``), as in older logs (rule 16 of the hold)."""
    owner: str | None = None
    """The verified user who joined a private session; ``None`` if no user was verified."""

    def __post_init__(self) -> None:
        _number(self.node, self.seq, "changed_at", self.changed_at)
        name("device", self.device)
        is_of_session = self.change in _OF_A_SESSION
        if is_of_session != (self.session is not None):
            allowed = "a session" if is_of_session else "none"
            raise InvalidValueError(f"session of a device that {self.change.value}", self.session, allowed)
        if self.session is not None:
            name("session", self.session)
        if (self.change is PresenceChange.JOINED) != (self.receipt is not None):
            raise InvalidValueError("receipt", self.receipt, "take or keep where a device joins, else none")
        if (self.change in _OF_A_PACKET) != (self.packet_id is not None):
            raise InvalidValueError(
                "packet_id", self.packet_id, "one where a packet is released or completed, else none"
            )
        if self.packet_id is not None:
            whole("packet_id", self.packet_id, 1, MAX_PACKET_ID)
        if self.session_expiry_us is not None:
            if self.change not in _WITH_EXPIRY:
                raise InvalidValueError(
                    "session_expiry_us", self.session_expiry_us, "none unless joined or disconnected"
                )
            whole("session_expiry_us", self.session_expiry_us, 0, INT64_MAX)
        if self.sent_seq is not None:
            if self.change not in _GOING:
                raise InvalidValueError("sent_seq", self.sent_seq, "none unless disconnected or left")
            whole("sent_seq", self.sent_seq, 0, INT64_MAX)
        self._check_joining()

    def _check_joining(self) -> None:
        if self.confirms is not None:
            flag("confirms", self.confirms)
        if self.change not in _WITH_RECEIPTS and self.confirms is not None:
            raise InvalidValueError("confirms", self.confirms, "none unless joined or receipts")
        if self.change is PresenceChange.RECEIPTS and self.confirms is None:
            raise InvalidValueError("confirms", None, "true or false where it changes")
        if self.owner is not None:
            if self.change is not PresenceChange.JOINED:
                raise InvalidValueError("owner", self.owner, "none unless joined")
            name("owner", self.owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """One row of ``reports``."""

    node: str
    seq: int
    state: DeviceState

    def __post_init__(self) -> None:
        _number(self.node, self.seq, "reported_at", self.state.reported_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One row of ``receipts``: the outcome of handing a notification over to a device."""

    node: str
    seq: int
    handed_at: int
    session: str
    device: str
    notification: NotificationId
    subscriptions: tuple[SubscriptionIdentity, ...] = ()
    outcome: Outcome = Outcome.DELIVERED
    body_hash: bytes | None = None
    via: str | None = None
    battery: float | None = None
    network_connection: float | None = None
    display: Display | None = None
    published_at: int | None = None
    """Acceptance time of a retained notification, which readers may no longer have; ``None`` if it was not retained."""
    subject: str | None = None
    """Subject of a retained notification."""

    def __post_init__(self) -> None:
        _number(self.node, self.seq, "handed_at", self.handed_at)
        name("session", self.session)
        name("device", self.device)
        if self.body_hash is not None and (type(self.body_hash) is not bytes or len(self.body_hash) != _HASH_BYTES):
            raise InvalidValueError("body_hash", self.body_hash, f"{_HASH_BYTES} bytes of SHA-256")
        if self.via is not None and self.via not in ("live", "held", "retained"):
            raise InvalidValueError("via", self.via, "live, held or retained")
        if self.battery is not None:
            object.__setattr__(self, "battery", real("battery", self.battery, 0, 1))
        if self.network_connection is not None:
            checked = real("network_connection", self.network_connection, 0, 1)
            object.__setattr__(self, "network_connection", checked)
        if self.published_at is not None:
            check_time("published_at", self.published_at)
        if self.subject is not None:
            name("subject", self.subject, max_bytes=MAX_SUBJECT_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChanged:
    """One row of ``sessions``; *access* is JSON: password hashes made by the broker, or a list (``hold.access``)."""

    node: str
    seq: int
    changed_at: int
    session: str
    change: SessionChange
    access: str | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        _number(self.node, self.seq, "changed_at", self.changed_at)
        name("session", self.session)
        if self.access is not None:
            text("access", self.access, max_bytes=MAX_ACCESS_BYTES)
        if self.device is not None:
            name("device", self.device)


class WillChange(Enum):
    """A change of a device's will; the ``change`` column of ``wills``.

    The publication of a will is not a change: the publication itself names the will (``will_seq``).
    """

    LEFT = "left"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class WillChanged:
    """One row of ``wills``."""

    node: str
    seq: int
    changed_at: int
    device: str
    change: WillChange
    will: LastWill | None = None

    def __post_init__(self) -> None:
        _number(self.node, self.seq, "changed_at", self.changed_at)
        name("device", self.device)
        if (self.change is WillChange.LEFT) != (self.will is not None):
            raise InvalidValueError("will", self.will, "one where it is left, else none")


Fact: TypeAlias = (
    Notification
    | InterestChanged
    | PresenceChanged
    | Reported
    | Receipt
    | SessionChanged
    | WillChanged
    | PolicyChanged
    | Decided
)


def time_of(fact: Fact) -> int:
    """Return the time at which the node accepted *fact*: the third column of every table."""
    match fact:
        case Notification():
            return fact.published_at
        case Receipt():
            return fact.handed_at
        case Reported():
            return fact.state.reported_at
        case Decided():
            return fact.decided_at
        case _:
            return fact.changed_at


def later(last: int, now: int) -> int:
    """Return the time to stamp a fact with: *now*, or *last* if the clock was set back."""
    return max(last, now)


def _number(node: str, seq: int, what: str, moment: int) -> None:
    node_name(node)
    whole("seq", seq, 0, INT64_MAX)
    check_time(what, moment)
