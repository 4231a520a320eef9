"""Back-pressure: bounds on the bytes that wait in a connection, received but not handled or still to be written.

Rule: a client that reads too slowly is sent no more than its send buffer holds. Its QoS 0 messages wait for space, up
to a bound. During this time they get receipts, so the log records each as delivered or dropped.
Rule: while memory is full, incomplete packets over ``_LONG_PACKET`` bytes are refused once all incomplete packets
together take more than ``_INCOMING_SHARE`` allows.
"""

from __future__ import annotations

from whimbrel.broker.connect.connecting import ConnectHandler
from whimbrel.broker.deliver.delivering import DeliveryHandler
from whimbrel.broker.limits.memory import PACKET_BYTES, Memory
from whimbrel.broker.settings.config import LimitSettings
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.wire.clients import Link
from whimbrel.broker.wire.sender import Sender
from whimbrel.mqtt.packets import Packet, Publish

__all__ = ["BackPressure"]

_LONG_PACKET = 1 << 16
"""A packet of which more than this many bytes have arrived may be refused before the rest arrives."""
_INCOMING_SHARE = 8
"""While memory is full, incomplete packets may take 1/8 of it, so that they can be completed and answered."""
_LEAST_BUFFER = 1 << 16
"""Most bytes that may wait to be written to one connection while memory is full."""


def _waiting_bytes(packet: Packet) -> int:
    return PACKET_BYTES + (len(packet.payload) if isinstance(packet, Publish) else 0)


class BackPressure:
    """Counts the bytes that wait in connections, and enforces the bounds on them."""

    def __init__(
        self,
        limits: LimitSettings,
        commits: CommitQueue,
        memory: Memory,
        sender: Sender,
        delivering: DeliveryHandler,
        connecting: ConnectHandler,
    ) -> None:
        self._commits, self._memory, self._sender = commits, memory, sender
        self._delivering, self._connecting = delivering, connecting
        self._most_outgoing = limits.send_buffer_bytes
        self._most_incoming = max(limits.packet_bytes, limits.memory_bytes // _INCOMING_SHARE)
        """Most bytes that all incomplete packets together may take while memory is full."""

    def count_incoming(self, link: Link) -> None:
        """Count a connection's received bytes that are not handled yet.

        If memory is full and the connection sends a long packet, disconnect its client.
        """
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
        """Pause writing to a connection whose send buffer is full, except for packets that cannot wait."""
        link.room = 0
        self.lag(link, now, is_lagging=True)

    def drain(self, link: Link, unsent_bytes: int, now: int) -> None:
        """Resume writing to a connection whose buffer has only *unsent_bytes* left; waiting messages go first."""
        if link.closing is not None or link.is_choked:
            return
        most = self._most_outgoing if self._memory.has_room() else _LEAST_BUFFER
        link.room = max(1, most - unsent_bytes - link.unsent_bytes)
        client = link.client
        if client is not None and client.link is link:
            self._delivering.pump(client, self._commits.now(now))
            if not client.live:  # while QoS 0 messages wait, new ones would overtake them
                self.lag(link, now, is_lagging=False)

    def lag(self, link: Link, now: int, *, is_lagging: bool) -> None:
        """Start or end the slow mode of a client that reads too slowly.

        In slow mode its QoS 0 messages wait for room, up to a bound, and the log has a receipt (delivered or dropped)
        of each.
        """
        if link.is_lagging is is_lagging or link.client is None or link.client.link is not link:
            return
        link.is_lagging = is_lagging
        if not link.confirms:  # messages may be dropped now, and the log has to record that
            self._connecting.change_receipts(link.client, now, is_confirming=is_lagging)

    def note_full(self, now: int) -> None:
        """Start the slow mode (``lag``) of each client whose send buffer was filled in this turn of the event loop."""
        full = self._sender.full
        while full:
            link = full.pop()
            if link.room <= 0 and link.closing is None:
                self.lag(link, now, is_lagging=True)
