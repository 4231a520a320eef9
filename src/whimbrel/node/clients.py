"""Clients: the devices that have a session of their own, as far as a restart knows them (MQTT 5, 4.1).

Rule: what only a connection knows (queues, what is in flight, keep alive) is not here; ``broker/wire/clients`` adds it.
Rule: a change of a client is a fact of the log, so that a replay ends with the same clients.
"""

from __future__ import annotations

from whimbrel.node.memory import IDENTIFIER_BYTES, MemoryCount

__all__ = ["StoredClient"]


class StoredClient:
    """A device and its private session: the fields of its row."""

    __slots__ = (
        "_counted_bytes",
        "_memory",
        "confirms",
        "disconnected_at",
        "expiry_us",
        "id",
        "is_unclaimed",
        "owner",
        "received",
        "releasing",
        "session",
    )

    def __init__(self, client_id: str, session: str, memory: MemoryCount) -> None:
        self.id, self.session, self._memory = client_id, session, memory
        self._counted_bytes = 0
        self.owner: str | None = None
        """The verified user whose session it is; None if no user was verified."""
        self.is_unclaimed = False
        """The session's owner is unknown: it is from before owners were written down, or was released."""
        self.expiry_us = 0
        """How long the session outlives the connection."""
        self.disconnected_at: int | None = None
        """When its connection ended; None while it has one."""
        self.received: set[int] = set()
        """Packet identifiers of QoS 2 publications that were accepted and not yet released."""
        self.releasing: set[int] = set()
        """Packet identifiers of QoS 2 deliveries that were received and not yet completed."""
        self.confirms = False
        """Its QoS 0 deliveries in its private session have receipts (rule 16 of the hold)."""

    @property
    def is_persistent(self) -> bool:
        """Whether the session outlives the connection."""
        return self.expiry_us > 0

    def recount(self) -> None:
        """Count the memory of its packet identifiers anew."""
        size = IDENTIFIER_BYTES * (len(self.received) + len(self.releasing))
        self._memory.counted += size - self._counted_bytes
        self._counted_bytes = size

    def forget_identifiers(self) -> None:
        """Forget its packet identifiers: its session is over."""
        self.received.clear()
        self.releasing.clear()
        self.recount()
