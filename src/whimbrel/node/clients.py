"""Clients: the devices that have a private session, with the state that a restart restores (MQTT 5, 4.1).

Rule: the state of a connection (queues, messages in flight, keep alive) is not here; ``broker/wire/clients`` adds it.
Rule: every change of a client is a fact of the log, so that a replay ends with the same clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

import cbor2

from whimbrel.hold.touched_rows import Key
from whimbrel.model.facts import PresenceChange, PresenceChanged
from whimbrel.node.memory import CLIENT_BYTES, IDENTIFIER_BYTES, MemoryCount
from whimbrel.node.publication import packet_id_of

__all__ = ["Clients", "StoredClient"]


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
        """Whether the session's owner is unknown: the session is older than owners in the log, or was released."""
        self.expiry_us = 0
        """Time for which the session outlives the connection, in microseconds."""
        self.disconnected_at: int | None = None
        """Time when its connection ended; None while it is connected."""
        self.received: set[int] = set()
        """Packet identifiers of QoS 2 publications that were accepted and not yet released."""
        self.releasing: set[int] = set()
        """Packet identifiers of QoS 2 deliveries that were received and not yet completed."""
        self.confirms = False
        """Whether QoS 0 deliveries in its private session have receipts (rule 16 of the hold)."""

    @property
    def is_persistent(self) -> bool:
        """Whether the session outlives the connection."""
        return self.expiry_us > 0

    def recount(self) -> None:
        """Update the memory count for its packet identifiers."""
        size = IDENTIFIER_BYTES * (len(self.received) + len(self.releasing))
        self._memory.counted += size - self._counted_bytes
        self._counted_bytes = size

    def forget_identifiers(self) -> None:
        """Forget its packet identifiers: its session is over."""
        self.received.clear()
        self.releasing.clear()
        self.recount()


C = TypeVar("C", bound=StoredClient)


class Clients(Generic[C]):
    """The clients by identifier; *make* returns a new client, to which a shell may add fields."""

    def __init__(
        self, make: Callable[[str, str, MemoryCount], C], touch: Callable[[Key], None], memory: MemoryCount
    ) -> None:
        self._make, self._touch, self._memory = make, touch, memory
        self.by_id: dict[str, C] = {}

    # -- facts -------------------------------------------------------------------------------------------------------

    def on_join(self, fact: PresenceChanged) -> C:
        """Apply that a client joined its private session; return the client, a new one if it was unknown."""
        assert fact.session is not None
        client = self.by_id.get(fact.device)
        if client is None:
            client = self.by_id[fact.device] = self._make(fact.device, fact.session, self._memory)
            self._memory.counted += CLIENT_BYTES
        client.expiry_us = fact.session_expiry_us or 0
        client.disconnected_at = None
        client.owner = fact.owner
        client.is_unclaimed = fact.owner is None and fact.confirms is None  # an older log has neither
        return client

    def present(self, client: C, fact: PresenceChanged) -> None:
        """Apply that a client disconnected, or that one of its packet identifiers was released."""
        change = fact.change
        if change is PresenceChange.DISCONNECTED:
            client.disconnected_at = fact.changed_at
            if fact.session_expiry_us is not None:
                client.expiry_us = fact.session_expiry_us
        elif change is PresenceChange.RELEASED:
            client.received.discard(fact.packet_id or 0)
            client.recount()
        elif change is PresenceChange.COMPLETED:
            client.releasing.discard(fact.packet_id or 0)
            client.recount()

    def on_publication(self, publisher: str | None, packet_id: int) -> None:
        """Store the packet identifier of a QoS 2 publication, to detect its retransmission."""
        client = self.by_id.get(publisher or "")
        if client is not None:
            client.received.add(packet_id)
            client.recount()
            self._touch(("client", client.id))

    def await_completion(self, device: str, seq: int) -> None:
        """Record that a device has received a QoS 2 copy: PUBREL is repeated until PUBCOMP."""
        client = self.by_id.get(device)
        if client is not None:
            client.releasing.add(packet_id_of(seq))
            client.recount()
            self._touch(("client", device))

    def release(self, client_id: str | None) -> None:
        """Remove the owner of a session."""
        released = self.by_id.get(client_id or "")
        if released is not None:
            released.owner, released.is_unclaimed = None, True
            self._touch(("client", released.id))

    def on_end(self, client_id: str) -> C | None:
        """Remove a client whose session has ended; return it, or None if it was unknown."""
        self._touch(("client", client_id))
        gone = self.by_id.pop(client_id, None)
        if gone is not None:
            self._memory.counted -= CLIENT_BYTES
            gone.forget_identifiers()
        return gone

    # -- rows --------------------------------------------------------------------------------------------------------

    @property
    def kinds(self) -> frozenset[str]:
        """The kind of its rows."""
        return frozenset({"client"})

    def keys(self) -> Iterator[Key]:
        """Yield the keys of all rows."""
        yield from (("client", name) for name in self.by_id)

    def row(self, key: Key) -> bytes | None:
        """Return the row of a client; None if there is none."""
        client = self.by_id.get(str(key[1]))
        if client is None:
            return None
        return cbor2.dumps(
            [
                client.session,
                client.expiry_us,
                client.disconnected_at,
                sorted(client.received),
                sorted(client.releasing),
                client.owner,
                client.is_unclaimed,
            ]
        )

    def restore(self, rows: Mapping[Key, bytes]) -> None:
        """Restore the clients from *rows*."""
        for (_, name), value in rows.items():
            session, expiry_us, disconnected_at, received, releasing, *more = cbor2.loads(value)
            client = self.by_id[str(name)] = self._make(str(name), session, self._memory)
            self._memory.counted += CLIENT_BYTES
            client.expiry_us, client.disconnected_at = expiry_us, disconnected_at
            client.received, client.releasing = set(received), set(releasing)
            client.owner, client.is_unclaimed = more or (None, True)  # older views have no owners
            client.recount()
