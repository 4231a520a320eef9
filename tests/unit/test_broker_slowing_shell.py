"""The shell around rate limits: what was read is handled before a connection is read from again, or closed."""

from __future__ import annotations

import asyncio

from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.limits.rate_limits import RateLimits, Rates
from whimbrel.broker.shell.net.slowing import ReadThrottle
from whimbrel.broker.wire.clients import Link
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, Publish
from whimbrel.mqtt.server import ServerConnection, ServerLimits

MESSAGE = encode(Publish("t", b"x", 0), V5)


class _Connection:
    """A connection that notes what is done to it."""

    def __init__(self, done: list[str], *, is_lost: bool) -> None:
        self._done, self.is_lost = done, is_lost

    def pause_reading(self) -> None:
        self._done.append("paused")

    def resume_reading(self) -> None:
        self._done.append("resumed")

    def finish(self) -> None:
        self._done.append("finished")


def _driven(*, is_lost: bool) -> list[str]:
    """Let a client send eleven messages too many, and return what happened; they pass in as many turns, at once."""
    done: list[str] = []
    now = [0]
    rates = RateLimits(Rates(), Rates(messages=50), 1_000_000, Counters())

    def handle(_link: Link, data: bytes) -> None:
        done.extend(["handled"] * data.count(MESSAGE))

    async def drive() -> None:
        slowing = ReadThrottle(rates, handle, lambda: now[0])
        link = Link(ServerConnection(ServerLimits()), _Connection(done, is_lost=is_lost), "test", verified_user=None)
        link.meter = rates.open(link, "c", "ann", b"")
        assert slowing.admit(link, MESSAGE * 61) == MESSAGE * 50
        while rates.slowed:
            now[0] += 1_000_000
            slowing.look_later()
            await asyncio.sleep(0)
            slowing._look()
        slowing.stop()

    asyncio.run(drive())
    return done


def test_a_connection_is_read_from_again_when_all_is_handled() -> None:
    """Not between two turns of it."""
    done = _driven(is_lost=False)
    assert done.count("handled") == 11
    assert done[0] == "paused"
    assert done[-1] == "resumed"
    assert done.count("resumed") == 1


def test_a_connection_that_is_gone_is_finished_when_all_is_handled() -> None:
    """Closed earlier, it would lose what it had sent."""
    done = _driven(is_lost=True)
    assert done.count("handled") == 11
    assert done[-1] == "finished"
    assert done.count("finished") == 1
