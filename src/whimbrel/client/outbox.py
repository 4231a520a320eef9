"""The outbox: QoS 1 and 2 publications without their last answer, and the callers that wait for it."""

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
"""Most unanswered publications at a time; further callers wait."""


class _Answer(NamedTuple):
    """The last answer to a publication; *code* is None if the broker lost the session."""

    code: ReasonCode | None
    reason: str | None


class Outbox:
    """The unanswered publications of one client; *perform* is called with the events of sending one."""

    def __init__(self, session: ClientSession, perform: Callable[[list[Event]], None]) -> None:
        self._session, self._perform = session, perform
        self._waiting: dict[int, asyncio.Future[_Answer]] = {}
        self._turns = asyncio.Semaphore(_MAX_UNANSWERED)

    @property
    def is_waiting(self) -> bool:
        """Whether a caller waits for an answer."""
        return bool(self._waiting)

    async def publish(self, packet: Publish, link_now: Callable[[], Link | None]) -> ReasonCode:
        """Publish on the link at the time of its turn, or on the next link; return the broker's code."""
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
                    await link.flush_and_wait()
                code, reason = await future
            finally:
                if self._waiting.get(identifier) is future:
                    del self._waiting[identifier]
        if code is None:
            raise PublishLostError(packet.topic)
        if code.is_error:
            raise PublishRefusedError(packet.topic, code, reason)
        return code

    def on_answer(self, packet_id: int, code: ReasonCode | None, reason: str | None = None) -> None:
        """Pass the last answer to the waiting caller; *code* None: the broker lost the session before it answered."""
        future = self._waiting.pop(packet_id, None)
        if future is not None and not future.done():
            future.set_result(_Answer(code, reason))

    def end(self, failure: ClientError) -> None:
        """Wake all waiting callers with *failure*."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(failure)
                future.exception()  # retrieved, so that asyncio logs nothing if the caller is gone
