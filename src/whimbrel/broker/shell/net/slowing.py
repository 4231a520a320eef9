"""Rate limits of sockets: pause reading from a client that exceeds its rate, and resume by a timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from whimbrel.broker.limits.rate_limits import RateLimits
from whimbrel.broker.wire.clients import Link

__all__ = ["ReadThrottle"]


class _Connection(Protocol):
    is_lost: bool

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def finish(self) -> None: ...


class ReadThrottle:
    """Connections paused by rate limits; *handle* is called with their waiting bytes once the rates allow it."""

    def __init__(
        self, rates: RateLimits, handle: Callable[[Link, bytes], None], monotonic_us: Callable[[], int]
    ) -> None:
        self._rates, self._handle, self._monotonic_us = rates, handle, monotonic_us
        self.is_on = rates.are_any
        self.connections: set[_Connection] = set()
        """The connections that are paused now."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer for the next moment at which a paused connection may continue."""

    def admit(self, link: Link, data: bytes) -> bytes:
        """Return the received bytes that the rate limits admit now; pause the connection if some must wait."""
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
        """Set the timer to the moment at which the next paused connection may continue."""
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
        """Handle bytes that waited for a rate limit, as far as the rates allow it now; resume connections."""
        self._timer = None
        passed = self._rates.turn(self._monotonic_us())
        for meter, data in passed:
            link = cast("Link | None", meter.link)  # None: handling another connection's bytes has closed it
            if link is not None and data:
                self._handle(link, data)
        for meter in {meter for meter, _ in passed}:  # a connection may have had several turns
            link = cast("Link | None", meter.link)
            if link is not None and meter.is_waiting:
                self._pause(cast("_Connection", link.shell))
            elif link is not None:
                self.release(cast("_Connection", link.shell))
        self.look_later()

    def release(self, connection: _Connection) -> None:
        """Resume reading from a connection; if it was closed meanwhile, finish it, since all its bytes are handled."""
        self.connections.discard(connection)
        if connection.is_lost:
            connection.finish()
        else:
            connection.resume_reading()

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
