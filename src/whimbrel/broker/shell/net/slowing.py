"""Slowing: the shell around rate limits. Connections that are not read from until their rates allow it, and a timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from whimbrel.broker.limits.rate_limits import RateLimits
from whimbrel.broker.wire.clients import Link

__all__ = ["Slowing"]


class _Connection(Protocol):
    is_lost: bool

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def finish(self) -> None: ...


class Slowing:
    """The connections that are slowed; *handle* is given what may be handled of what they sent."""

    def __init__(
        self, rates: RateLimits, handle: Callable[[Link, bytes], None], monotonic_us: Callable[[], int]
    ) -> None:
        self._rates, self._handle, self._monotonic_us = rates, handle, monotonic_us
        self.is_on = rates.are_any
        self.connections: set[_Connection] = set()
        """Those that are not read from for now."""
        self._timer: asyncio.TimerHandle | None = None
        """Of the next time that some of them may go on."""

    def received(self, link: Link, data: bytes) -> bytes:
        """Return what may be handled now of what came over a link with a meter; read no more if that is not all."""
        assert link.meter is not None
        data = self._rates.receive(link.meter, data, self._monotonic_us())
        if link.meter.is_waiting:
            self._pause(cast("_Connection", link.shell))
            self.look_later()
        return data

    def _pause(self, connection: _Connection) -> None:
        connection.pause_reading()
        self.connections.add(connection)

    def look_later(self) -> None:
        """Look at the connections again as soon as one of them may go on."""
        now_us = self._monotonic_us()
        next_us = self._rates.next_at(now_us)
        if next_us is None:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0, next_us - now_us) / 1_000_000
        if self._timer is None or self._timer.when() > when:
            self.stop()
            self._timer = loop.call_at(when, self._look)

    def _look(self) -> None:
        """Handle what clients sent before, as far as their rates allow it by now."""
        self._timer = None
        passed = self._rates.turn(self._monotonic_us())
        for meter, data in passed:
            link = cast("Link | None", meter.link)  # None: it was closed for what another one sent
            if link is not None and data:
                self._handle(link, data)
        for meter in {meter for meter, _ in passed}:  # one may have had several turns
            link = cast("Link | None", meter.link)
            if link is not None and meter.is_waiting:
                self._pause(cast("_Connection", link.shell))
            elif link is not None:
                self.release(cast("_Connection", link.shell))
        self.look_later()

    def release(self, connection: _Connection) -> None:
        """Read on from a connection that is not slowed any more; of one that is gone, all has been handled now."""
        self.connections.discard(connection)
        if connection.is_lost:
            connection.finish()
        else:
            connection.resume_reading()

    def stop(self) -> None:
        """Let no timer come any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
