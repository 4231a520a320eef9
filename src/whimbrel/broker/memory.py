"""Memory: how much all that a broker keeps takes together, and whether there is room for more.

Held and retained messages, wills, what waits to be written to connections, packets that are not whole yet,
subscriptions and sessions. Rule: each change is counted when it is made; no total is ever recomputed.
Rule: these are estimates, measured on CPython 3.11 and rounded up. They bound the process within a small factor; what
an interpreter, its libraries and the compiled matcher take beside them is a constant.
Rule: an eighth of it is for what only passes through: notifications for clients that keep up, connections and
subscriptions. Otherwise a client could fill the memory with what no device fetches, and no other would be served.
Rule: the limit decides about what is new. What is there stays, also after a restart with a lower limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from whimbrel.mqtt.codes import ReasonCode

__all__ = [
    "CLIENT_BYTES",
    "LINK_BYTES",
    "NAMED_SESSION_BYTES",
    "PENDING_BYTES",
    "PLACE_BYTES",
    "Memory",
    "subscription_bytes",
]

CLIENT_BYTES = 4_500
"""A client, connected or away, with its private session."""
LINK_BYTES = 300
"""How good the link of a device was that reported."""
NAMED_SESSION_BYTES = 2_000
PENDING_BYTES = 1_200
"""One notification that one session has not received yet, beside the notification itself, which is there once."""
_PASSING = 8
"""One in so many bytes is for what passes through."""
PLACE_BYTES = 700
"""Where a device is: it is forgotten after a week, whether the device comes back or not."""
_NEAR_BYTES = 2_400
"""A near beside it: a polygon has up to 64 corners."""
_PLAIN_BYTES, _CONTENT_BYTES, _BYTES_A_CHARACTER = 1_200, 2_400, 5


def subscription_bytes(filter_text: str | None, *, is_near: bool = False) -> int:
    """Return how much memory a subscription takes, about."""
    if filter_text is None:
        return _PLAIN_BYTES + is_near * _NEAR_BYTES
    return _PLAIN_BYTES + is_near * _NEAR_BYTES + _CONTENT_BYTES + _BYTES_A_CHARACTER * len(filter_text)


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

    def refusal(self, more: int = 0, *, is_lasting: bool = False) -> tuple[ReasonCode, str] | None:
        """Return why nothing more is kept, if so; what *is_lasting* may not take the last eighth."""
        if self.has_room(more + (self.most // _PASSING if is_lasting else 0)):
            return None
        return ReasonCode.QUOTA_EXCEEDED, f"all that is kept takes {self.most} bytes (limits.memory_bytes), no more may"

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
