"""Volatile state: the values that a broker has only while it runs.

Rule: none of these values is in the log or in the stored snapshot of the state. They are empty after a restart, and
while a log is replayed.
"""

from __future__ import annotations

from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.gate import Gate
from whimbrel.broker.wire.sender import Sender
from whimbrel.node.publication import KeptNotification
from whimbrel.node.retained import Retained

__all__ = ["VolatileState"]


class VolatileState:
    """Volatile values of a broker: access to connected clients, ``$SYS`` messages, and requests that wait for fsync."""

    __slots__ = ("arrived", "changing", "counters", "deleting", "gate", "publishing_wills", "ready", "sender", "system")

    def __init__(self) -> None:
        self.counters = Counters()
        self.sender: Sender | None = None
        """The sender, which writes to connections; None while a log is replayed, because no client is connected."""
        self.gate: Gate | None = None
        """The gate, which decides what messages may be sent to a connection; None while ``sender`` is None."""
        self.system = Retained()
        """The retained messages under ``$SYS``, in which the broker publishes its own state: no log has them."""
        self.ready: list[LiveClient] = []
        """Clients whose queue got a message since ``DeliveryHandler`` last sent from it."""
        self.arrived: list[tuple[str, KeptNotification]] = []
        """Sessions that entered the area of a retained message, each with the message that is to be sent to it."""
        self.changing: dict[str, str] = {}
        """Named sessions whose creation or new access waits for fsync, each with the device that requested it."""
        self.publishing_wills: set[int] = set()
        """Seqs of the wills whose publications are appended to the log but not yet fsynced."""
        self.deleting: set[str] = set()
        """Named sessions whose deletion waits for fsync."""

    def may_send(self, link: Link, client: LiveClient, message: KeptNotification, now: int) -> bool:
        """Return whether *message* may be sent to the *client* over *link* (its connection) at the time *now*.

        The gate refuses a message that has expired, or that the client has no right to receive.
        """
        return self.gate is None or self.gate.refusal(link, client.id, message, now) is None
