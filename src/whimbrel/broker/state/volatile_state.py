"""Volatile state: what a broker knows only while it runs.

Rule: none of this is in the log or in the view. A restart begins without it, and while a log is replayed it is empty.
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
    """The way to connected clients, what is due to them, ``$SYS``, and requests that wait for the disk."""

    __slots__ = ("arrived", "changing", "counters", "deleting", "gate", "publishing_wills", "ready", "sender", "system")

    def __init__(self) -> None:
        self.counters = Counters()
        self.sender: Sender | None = None
        """Writes to connections; None while a log is replayed, because no client is connected."""
        self.gate: Gate | None = None
        """Decides what may be sent to a connection; None as long as ``sender`` is."""
        self.system = Retained()
        """What the broker retains of itself under ``$SYS``: it has no number, and no log has it."""
        self.ready: list[LiveClient] = []
        """Clients that something was handed over to, and that ``Delivering`` has not looked at since."""
        self.arrived: list[tuple[str, KeptNotification]] = []
        """Sessions that entered the area of a retained message, and the message; ``subscribe`` sends it."""
        self.changing: dict[str, str] = {}
        """Named sessions whose creation or new access waits for fsync, and the device that asked for it."""
        self.publishing_wills: set[int] = set()
        """The numbers of wills whose publications are written and wait for the disk."""
        self.deleting: set[str] = set()
        """Named sessions whose deletion waits for fsync."""

    def may_send(self, link: Link, client: LiveClient, message: KeptNotification, now: int) -> bool:
        """Tell whether the gate lets a message pass to a connection now."""
        return self.gate is None or self.gate.refusal(link, client.id, message, now) is None
