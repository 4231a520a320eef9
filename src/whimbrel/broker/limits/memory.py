"""The memory limit: an estimate of the memory that the broker's data take, and whether more may be kept.

These data are held and retained messages, wills, connections and the bytes that wait to be written to them, incomplete
packets, subscriptions, sessions, policies, and reports of devices.
Rule: each change is counted when it is made; the total is never recomputed.
Rule: all data that a client can make grow are counted by their size, also if another limit bounds them
(``tests/unit/test_broker_memory_kinds.py`` fills each kind and compares with the memory that Python allocated).
Rule: the sizes are estimates, measured on CPython 3.11 and rounded up. They bound the process within a small factor;
the interpreter, its libraries and the compiled matcher take a constant amount beside them.
Rule: an eighth of the limit is reserved for data that only pass through: notifications for clients that keep up,
connections and subscriptions. Otherwise a client could fill the memory with messages that no device fetches, and no
other client would be served.
Rule: the limit applies to new data only. Existing data stay, also after a restart with a lower limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from whimbrel.mqtt.codes import ReasonCode
from whimbrel.node.memory import MemoryCount

__all__ = ["CONNECTION_BYTES", "PACKET_BYTES", "PENDING_BYTES", "RETAINED_COPY_BYTES", "Memory", "NoRoom"]

CONNECTION_BYTES = 3_500
"""Memory of a connection, before or after its CONNECT."""
PACKET_BYTES = 200
"""Memory of a decoded packet that waits for its turn, without its payload, which is counted separately."""
RETAINED_COPY_BYTES = 300
"""Memory of a queue entry for a retained message that waits to be sent to a client, without the message itself."""
PENDING_BYTES = 1_200
"""Memory of one notification that one session has not received yet, without the notification itself."""
_PASSING = 8
"""The limit divided by this is reserved for data that only pass through."""


class NoRoom(str):
    """Text of a refusal because memory or disk is full; later there may be room, whatever the client does."""

    __slots__ = ()


class _Tally(Protocol):
    pendings: int
    """Number of pending notifications, counted once for each session that they are held for."""


class _NothingHeld:
    pendings = 0


class Memory(MemoryCount):
    """Estimated memory in use, in bytes; *most* is the limit, 0 means that there is none."""

    __slots__ = ("_is_guess", "hold", "incoming", "measure", "most", "outgoing")

    def __init__(self, most: int = 0) -> None:
        super().__init__()
        self.most = most
        self.hold: _Tally = _NothingHeld()
        """Source of the number of pending notifications: the hold, once it exists."""
        self.incoming = 0
        """Bytes of ``used`` for received packets: incomplete, behind a CONNECT, or waiting for their turn."""
        self.outgoing = 0
        """Bytes of ``used`` that wait to be written to connections, or were written since the last measurement."""
        self._is_guess = False
        """Whether ``outgoing`` was estimated since the last measurement."""
        self.measure: Callable[[], int] = int
        """Function that returns the bytes that wait to be written to connections; set by the shell."""

    @property
    def used(self) -> int:
        """Estimated memory in use, in bytes."""
        return self.counted + self.hold.pendings * PENDING_BYTES

    def has_room(self, more: int = 0) -> bool:
        """Return whether *more* bytes may be kept; if an estimate says no, first measure the bytes in send buffers."""
        if self.counted + self.hold.pendings * PENDING_BYTES + more <= self.most or not self.most:
            return True
        if self._is_guess:  # clients may have read much of what was written
            self.set_outgoing(self.measure())
        return self.used + more <= self.most

    def refusal(self, more: int = 0, *, is_lasting: bool = False) -> tuple[ReasonCode, NoRoom] | None:
        """Return the reason code and text for refusing *more* bytes, or None if they may be kept.

        The last eighth of the limit is reserved for data that only pass through the broker, so data that it stores
        (*is_lasting*) are refused earlier.
        """
        if self.has_room(more + (self.most // _PASSING if is_lasting else 0)):
            return None
        reason = f"all that is kept takes {self.most} bytes (limits.memory_bytes), no more may"
        return ReasonCode.QUOTA_EXCEEDED, NoRoom(reason)

    def count_incoming(self, change: int) -> None:
        """Change the number of received bytes that wait by *change*: above 0 for arrived bytes, below 0 for handled."""
        self.incoming += change
        self.counted += change

    def count_outgoing(self, size: int) -> None:
        """Add *size* bytes, just written to a connection, to the estimate of bytes that wait to be sent.

        The next measurement of the send buffers replaces the estimate.
        """
        self.outgoing += size
        self.counted += size
        self._is_guess = True

    def set_outgoing(self, size: int) -> None:
        """Set the measured number of bytes that wait to be written."""
        self.counted += size - self.outgoing
        self.outgoing, self._is_guess = size, False
