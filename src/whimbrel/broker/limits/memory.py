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

from whimbrel.mqtt.codes import ReasonCode
from whimbrel.node.memory import MemoryCount

__all__ = ["CONNECTION_BYTES", "PACKET_BYTES", "PENDING_BYTES", "RETAINED_COPY_BYTES", "Memory", "NoRoom"]

CONNECTION_BYTES = 3_500
"""A connection, whether its CONNECT has come or not."""
PACKET_BYTES = 200
"""A decoded packet that waits for its turn, beside its payload, which counts as well."""
RETAINED_COPY_BYTES = 300
"""A retained message that waits to be sent to a client, beside the message itself."""
PENDING_BYTES = 1_200
"""One notification that one session has not received yet, beside the notification itself, which is there once."""
_PASSING = 8
"""One in so many bytes is for what passes through."""


class NoRoom(str):
    """Why there is no room now; there may be later, without anything that its client does."""

    __slots__ = ()


class _Tally(Protocol):
    pendings: int
    """How many notifications are pending, counted in each session."""


class _NothingHeld:
    pendings = 0


class Memory(MemoryCount):
    """What is counted; *most* is the limit, 0 for none."""

    __slots__ = ("_is_guess", "hold", "incoming", "measure", "most", "outgoing")

    def __init__(self, most: int = 0) -> None:
        super().__init__()
        self.most = most
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
