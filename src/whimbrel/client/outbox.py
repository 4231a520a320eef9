"""The outbox: publications of QoS 1 and 2 that wait for their last answer, and the callers that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from whimbrel.client.errors import ClientError, PublishLostError, PublishRefusedError
from whimbrel.client.link import Link
from whimbrel.mqtt.client import ClientSession, Event
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import Publish

__all__ = ["Outbox"]

_MAX_UNANSWERED = 1_024
"""Publications that wait for their answer at a time; further ones wait for their turn."""


class _Answer(NamedTuple):
    """The last answer to a publication; *code* is None if the broker lost the session."""

    code: ReasonCode | None
    reason: str | None


class Outbox:
    """The publications of one client; *perform* is called with what happens at once."""

    def __init__(self, session: ClientSession, perform: Callable[[list[Event]], None]) -> None:
        self._session, self._perform = session, perform
        self._waiting: dict[int, asyncio.Future[_Answer]] = {}
        self._turns = asyncio.Semaphore(_MAX_UNANSWERED)

    @property
    def is_waiting(self) -> bool:
        """Whether a caller waits for an answer."""
        return bool(self._waiting)

    async def publish(self, packet: Publish, link_now: Callable[[], Link | None]) -> ReasonCode:
        """Publish on the link that there is when its turn comes, or on the next; return the broker's code."""
        async with self._turns:
            link = link_now()
            future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
            if link is None:
                identifier, events = self._session.publish(packet), list[Event]()
            else:
                identifier, events = link.connection.publish(packet)
            self._waiting[identifier] = future
            self._perform(events)
            try:
                if link is not None:
                    await link.sent()
                code, reason = await future
            finally:
                if self._waiting.get(identifier) is future:
                    del self._waiting[identifier]
        if code is None:
            raise PublishLostError(packet.topic)
        if code.is_error:
            raise PublishRefusedError(packet.topic, code, reason)
        return code

    def answered(self, packet_id: int, code: ReasonCode | None, reason: str | None = None) -> None:
        """Take in the last answer to a publication; None: the broker lost the session before it gave one."""
        future = self._waiting.pop(packet_id, None)
        if future is not None and not future.done():
            future.set_result(_Answer(code, reason))

    def end(self, failure: ClientError) -> None:
        """Wake all callers that wait."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(failure)
                future.exception()  # the caller may be gone, which is no mistake
