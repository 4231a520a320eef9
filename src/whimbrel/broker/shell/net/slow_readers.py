"""Slow readers: disconnect clients whose write buffer is full and that have read nothing for too long."""

from __future__ import annotations

import asyncio
from typing import Protocol

from whimbrel.broker.shell.running import Running
from whimbrel.broker.wire.clients import Link
from whimbrel.broker.wire.events import Event

__all__ = ["SlowReaders"]


class _Connection(Protocol):
    link: Link | None
    transport: asyncio.Transport | None

    @property
    def taken_bytes(self) -> int: ...


class SlowReaders:
    """Connections with full write buffers, the bytes that each has read so far, and the times of the last change."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._waiting: dict[_Connection, tuple[int, int]] = {}

    def add(self, connection: _Connection) -> None:
        """Start to observe a connection whose write buffer is full."""
        self._waiting[connection] = connection.taken_bytes, self._running.listened_us

    def discard(self, connection: _Connection) -> None:
        """Stop observing a connection that reads again, or is closed."""
        self._waiting.pop(connection, None)

    def end(self) -> None:
        """Abort the connections that have read nothing for ``limits.slow_reader_s``."""
        if not self._waiting:
            return
        limits, now_us = self._running.config.limits, self._running.listened_us
        patience_us = int(limits.slow_reader_s * 1_000_000)
        for connection, (taken_bytes, since_us) in list(self._waiting.items()):
            link, transport, taken_now = connection.link, connection.transport, connection.taken_bytes
            if taken_now > taken_bytes:
                self._waiting[connection] = taken_now, now_us
            elif now_us - since_us > patience_us and link is not None and transport is not None:
                self._running.broker.counters.slow_readers += 1
                link.closing = link.closing or f"it took nothing for {limits.slow_reader_s:g} s"
                broker = self._running.broker
                broker.events.note(Event.SLOW_READER, link, link.last_at, reason=link.closing)
                transport.abort()
