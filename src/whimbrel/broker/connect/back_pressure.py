"""Back-pressure: how much may wait in a connection, of what came over it and of what is to be written to it.

Rule: a client that reads too slowly is written no more than fits. What is QoS 0 waits for room, up to a bound, and has
receipts meanwhile: the log then says of each whether it was delivered or dropped.
Rule: while memory is full, long packets that are not complete are refused, except for a small share of it.
"""

from __future__ import annotations

from whimbrel.broker.connect.connecting import Connecting
from whimbrel.broker.deliver.delivering import Delivering
from whimbrel.broker.limits.memory import PACKET_BYTES, Memory
from whimbrel.broker.settings.config import LimitSettings
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.wire.clients import Link
from whimbrel.broker.wire.sender import Sender
from whimbrel.mqtt.packets import Packet, Publish

__all__ = ["BackPressure"]

_LONG_PACKET = 1 << 16
"""A packet of which more than this has come may be refused before all of it is there."""
_INCOMING_SHARE = 8
"""While memory is full, packets that are not complete may take one in so many of it, so that they can be answered."""
_LEAST_BUFFER = 1 << 16
"""How many bytes may wait in a connection while memory is full."""


def _waiting_bytes(packet: Packet) -> int:
    return PACKET_BYTES + (len(packet.payload) if isinstance(packet, Publish) else 0)


class BackPressure:
    """Counts what waits in connections, and bounds it."""

    def __init__(
        self,
        limits: LimitSettings,
        commits: CommitQueue,
        memory: Memory,
        sender: Sender,
        delivering: Delivering,
        connecting: Connecting,
    ) -> None:
        self._commits, self._memory, self._sender = commits, memory, sender
        self._delivering, self._connecting = delivering, connecting
        self._most_outgoing = limits.send_buffer_bytes
        self._most_incoming = max(limits.packet_bytes, limits.memory_bytes // _INCOMING_SHARE)
        """How much packets that are not complete may take together while memory is full."""

    def count_incoming(self, link: Link) -> None:
        """Count what came over a link and is not handled yet; refuse to take in a long packet where memory is full."""
        size = len(link.held) + (0 if link.meter is None else len(link.meter.inflow)) + link.machine.alias_bytes
        size += 0 if link.stalled is None else link.stalled.size_bytes
        if link.behind:
            size += sum(map(_waiting_bytes, link.behind))
        change, link.incoming_bytes = size - link.incoming_bytes, size
        self._memory.count_incoming(change)
        if size > _LONG_PACKET and change > 0 and self._memory.incoming > self._most_incoming:
            full = self._memory.refusal()
            if full is not None:
                self._sender.fail(link, *full)

    def choke(self, link: Link, now: int) -> None:
        """Write nothing more to a link whose buffer is full, but for what cannot wait."""
        link.room = 0
        self.lag(link, now, is_lagging=True)

    def drain(self, link: Link, unsent_bytes: int, now: int) -> None:
        """Write on to a link whose buffer is empty but for *unsent_bytes*: first what waited for room."""
        if link.closing is not None or link.is_choked:
            return
        most = self._most_outgoing if self._memory.has_room() else _LEAST_BUFFER
        link.room = max(1, most - unsent_bytes - link.unsent_bytes)
        client = link.client
        if client is not None and client.link is link:
            self._delivering.pump(client, self._commits.now(now))
            if not client.live:  # else what comes would overtake what waits
                self.lag(link, now, is_lagging=False)

    def lag(self, link: Link, now: int, *, is_lagging: bool) -> None:
        """Let QoS 0 for a client wait for room, up to a bound, and have receipts; or be written at once again."""
        if link.is_lagging is is_lagging or link.client is None or link.client.link is not link:
            return
        link.is_lagging = is_lagging
        if not link.confirms:  # what does not fit into its buffer is dropped, and the account has to say so
            self._connecting.change_receipts(link.client, now, is_confirming=is_lagging)

    def note_full(self, now: int) -> None:
        """Let QoS 0 wait for the links whose buffers were filled in this turn."""
        full = self._sender.full
        while full:
            link = full.pop()
            if link.room <= 0 and link.closing is None:
                self.lag(link, now, is_lagging=True)
