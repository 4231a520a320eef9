"""Memory: how much all that a broker keeps takes together, and whether there is room for more.

Held and retained messages, wills, connections and what waits to be written to them, packets that are not whole yet,
subscriptions, sessions, policies, and what devices reported. Rule: each change is counted when it is made; no total is
ever recomputed.
Rule: what a client can make grow counts by its size, also where a limit of its own bounds it
(``tests/unit/test_broker_memory_kinds.py`` fills each kind and compares with what Python allocated).
Rule: these are estimates, measured on CPython 3.11 and rounded up. They bound the process within a small factor; what
an interpreter, its libraries and the compiled matcher take beside them is a constant.
Rule: an eighth of it is for what only passes through: notifications for clients that keep up, connections and
subscriptions. Otherwise a client could fill the memory with what no device fetches, and no other would be served.
Rule: the limit decides about what is new. What is there stays, also after a restart with a lower limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from whimbrel.hold.private import is_private
from whimbrel.hold.sessions import Hold
from whimbrel.model.keys import NO_KEYS
from whimbrel.model.polygon import Polygon
from whimbrel.model.subscription import Subscription
from whimbrel.mqtt.codes import ReasonCode

__all__ = [
    "AREA_BYTES",
    "CLIENT_BYTES",
    "CONNECTION_BYTES",
    "IDENTIFIER_BYTES",
    "KEY_BYTES",
    "LEVEL_BYTES",
    "LINK_BYTES",
    "MEMBER_BYTES",
    "NAMED_SESSION_BYTES",
    "PACKET_BYTES",
    "PENDING_BYTES",
    "PLACE_BYTES",
    "RETAINED_COPY_BYTES",
    "SEEN_BYTES",
    "Memory",
    "NoRoom",
    "session_bytes",
    "subscription_bytes",
]

AREA_BYTES = 2_000
"""The area of a retained message, and its places in the cells that it reaches."""
CLIENT_BYTES = 4_500
"""A client, connected or away, with its private session."""
CONNECTION_BYTES = 3_500
"""A connection, whether its CONNECT has come or not."""
IDENTIFIER_BYTES = 250
"""A packet identifier of QoS 2 that is not released, or not completed."""
KEY_BYTES = 200
"""The hash of a key, of a subscription or a connection."""
LEVEL_BYTES = 320
"""One level of the topic of a retained message."""
PACKET_BYTES = 200
"""A decoded packet that waits for its turn, beside its payload, which counts as well."""
RETAINED_COPY_BYTES = 300
"""A retained message that waits to be sent to a client, beside the message itself."""
SEEN_BYTES = 150
"""A retained message with an area that has come to a session."""
LINK_BYTES = 300
"""How good the link of a device was that reported."""
MEMBER_BYTES = 600
"""A device of a named session."""
NAMED_SESSION_BYTES = 2_000
PENDING_BYTES = 1_200
"""One notification that one session has not received yet, beside the notification itself, which is there once."""
_PASSING = 8
"""One in so many bytes is for what passes through."""
PLACE_BYTES = 700
"""Where a device is: it is forgotten after a week, whether the device comes back or not."""
_NEAR_BYTES, _CORNER_BYTES = 1_600, 220
"""A near of a subscription, and each corner of a polygon."""
_PLAIN_BYTES, _TOPIC_BYTE_BYTES = 1_700, 2
_CONTENT_BYTES, _CHARACTER_BYTES = 3_600, 30


def subscription_bytes(subscription: Subscription) -> int:
    """Return how much memory a subscription takes, about."""
    near, text = subscription.near, subscription.filter_text
    size = _PLAIN_BYTES + _TOPIC_BYTE_BYTES * (len(subscription.subject_filter or "") + len(subscription.name))
    if subscription.keys != NO_KEYS:
        size += KEY_BYTES * len(subscription.keys.hashes)
    if near is not None:
        size += _NEAR_BYTES + (_CORNER_BYTES * len(near.corners) if isinstance(near, Polygon) else 0)
    return size if text is None else size + _CONTENT_BYTES + _CHARACTER_BYTES * len(text)


def session_bytes(hold: Hold, session: str | None) -> int:
    """Return how much memory a named session takes, beside its subscriptions and what it holds; 0 if there is none."""
    if session is None or is_private(session) or not hold.has(session):
        return 0
    return NAMED_SESSION_BYTES + len(hold.access(session) or "") + MEMBER_BYTES * hold.member_count(session)


class NoRoom(str):
    """Why there is no room now; there may be later, without anything that its client does."""

    __slots__ = ()


class _Tally(Protocol):
    pendings: int
    """How many notifications are pending, counted in each session."""


class _NothingHeld:
    pendings = 0


class Memory:
    """What is counted; *most* is the limit, 0 for none."""

    __slots__ = ("_is_guess", "counted", "hold", "incoming", "measure", "most", "outgoing")

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self.counted = 0
        """The sum of everything but what is pending."""
        self.hold: _Tally = _NothingHeld()
        """Who counts what is pending."""
        self.incoming = 0
        """Of the sum: packets that are not whole yet, or wait for their CONNACK or their turn."""
        self.outgoing = 0
        """Of the sum: bytes that wait to be written to connections, or were written since it was last measured."""
        self._is_guess = False
        self.measure: Callable[[], int] = int
        """How many bytes wait to be written; the shell knows."""

    @property
    def used(self) -> int:
        """How much is in use."""
        return self.counted + self.hold.pendings * PENDING_BYTES

    def has_room(self, more: int = 0) -> bool:
        """Tell whether *more* bytes may be kept."""
        if self.counted + self.hold.pendings * PENDING_BYTES + more <= self.most or not self.most:
            return True
        if self._is_guess:  # much of what was written has been read, perhaps
            self.set_outgoing(self.measure())
        return self.used + more <= self.most

    def refusal(self, more: int = 0, *, is_lasting: bool = False) -> tuple[ReasonCode, NoRoom] | None:
        """Return why nothing more is kept, if so; what *is_lasting* may not take the last eighth."""
        if self.has_room(more + (self.most // _PASSING if is_lasting else 0)):
            return None
        reason = f"all that is kept takes {self.most} bytes (limits.memory_bytes), no more may"
        return ReasonCode.QUOTA_EXCEEDED, NoRoom(reason)

    def count_incoming(self, change: int) -> None:
        """Count bytes that came or were handled."""
        self.incoming += change
        self.counted += change

    def count_outgoing(self, size: int) -> None:
        """Count bytes that are written, as if the client read none of them, until it is measured how many wait."""
        self.outgoing += size
        self.counted += size
        self._is_guess = True

    def set_outgoing(self, size: int) -> None:
        """Take in how many bytes wait to be written."""
        self.counted += size - self.outgoing
        self.outgoing, self._is_guess = size, False
