"""Startup responder: answers every CONNECT with 0x88 (server unavailable) while the broker is starting.

So a client learns the reason, and that it may try again, instead of "connection refused". MQTT 3.1.1 has code 3 for it.
Rule: the responder uses neither the state, the log nor the clock: it works before they are restored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property

from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.settings.config import Config
from whimbrel.broker.shell.net.connections import MAX_WEB_READ, Stream
from whimbrel.broker.wire.clients import Link
from whimbrel.broker.wire.listener_rules import OPEN_LISTENER, ListenerRules
from whimbrel.broker.wire.sender import Sender
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import Connect
from whimbrel.mqtt.server import ServerConnection, ServerLimits

__all__ = ["StartupResponder"]

_AGAIN = "the broker is starting; try again in a moment"


class StartupResponder:
    """Stand-in for the server until the broker serves clients; *reason* returns why it does not yet, or None."""

    def __init__(self, config: Config, reason: Callable[[], str | None]) -> None:
        self.config, self._reason = config, reason
        self.streams: set[Stream] = set()
        self.counters = Counters()
        self.is_full_of_frames = False
        self._sender = Sender(self.counters)
        self._limits = ServerLimits(packet_bytes=config.limits.packet_bytes)

    @cached_property
    def web_buffer(self) -> memoryview:
        """The buffer into which the bytes of all WebSocket connections are read."""
        return memoryview(bytearray(MAX_WEB_READ))

    def open(self, stream: Stream, address: str, user: str | None, listener: ListenerRules | None) -> Link:
        """Return an object (link) for a new connection, and start the usual timeout for its CONNECT."""
        assert stream.transport is not None
        asyncio.get_running_loop().call_later(self.config.limits.connect_timeout_s, stream.transport.abort)
        machine = ServerConnection(self._limits)
        return Link(machine, stream, address, verified_user=user, listener=listener or OPEN_LISTENER)

    def receive(self, link: Link, data: bytes) -> None:
        """Refuse a CONNECT with 0x88; close a connection whose first packet is another one."""
        stream = link.shell
        if link.closing is not None or not isinstance(stream, Stream):
            return
        packets = link.machine.receive(data)
        if packets and isinstance(packets[0], Connect):
            self._sender.refuse(link, ReasonCode.SERVER_UNAVAILABLE, self._reason() or _AGAIN)
        elif packets or link.machine.failure is not None:
            self._sender.close(link, "no CONNECT")
        for each in self._sender.leaving:
            stream.write(b"".join(each.out))
            stream.close()
        self._sender.leaving.clear()
        self._sender.dirty.clear()

    def choke(self, stream: Stream, *, is_choked: bool) -> None:
        """Do nothing about a full write buffer: the answers are too short to fill one."""

    def lose(self, stream: Stream) -> None:
        """Do nothing when a connection cannot be written to any more: ``forget`` removes it."""

    def finish(self, stream: Stream) -> None:
        """Drop the link (the object for the broker's core) of a closed connection."""
        stream.link = None

    def finish_later(self, stream: Stream) -> None:
        """Finish the connection now: no packets wait to be handled."""
        stream.finish()

    def count_frames(self, stream: Stream, frames: int) -> None:
        """Do not count WebSocket frames: a connection is read from only a few times."""

    def is_waited_for(self, stream: Stream) -> bool:
        """Return False: this server never pauses reading."""
        del stream
        return False

    def forget(self, stream: Stream) -> None:
        """Remove a closed connection."""
        self.streams.discard(stream)
