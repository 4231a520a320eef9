"""The inbox: a queue of received messages for the application.

Rule: a message is acknowledged to the broker when the application requests the next one, not when it arrives: only then
has it been handled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from whimbrel.client.errors import ClientError
from whimbrel.client.messages import Message, message_of
from whimbrel.mqtt.client import Delivery

__all__ = ["Inbox"]


class Inbox(AsyncIterator[Message]):
    """Iterator over the messages of a client. Not a generator, which could not continue after a loop was left.

    *confirm* is called with each handled message, and *taken* after each message that the application takes.
    """

    def __init__(self, confirm: Callable[[Delivery], None], taken: Callable[[], None], *, bound: int) -> None:
        self._confirm, self._taken, self._bound = confirm, taken, bound
        self._queue: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._in_hand: Delivery | None = None
        self._is_over = False
        self._failure: ClientError | None = None

    async def __anext__(self) -> Message:
        self.acknowledge()
        while not self._queue or (self._is_over and self._failure is None):
            if self._is_over:
                if self._failure is not None:
                    raise self._failure
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        self._in_hand = delivery = self._queue.popleft()
        self._taken()
        return message_of(delivery.packet)

    def acknowledge(self) -> None:
        """Acknowledge the message that the application took last, since it has handled it."""
        delivery, self._in_hand = self._in_hand, None
        if delivery is not None and delivery.inbound is not None:
            self._confirm(delivery)

    def put(self, delivery: Delivery) -> None:
        """Add *delivery* to the queue."""
        self._queue.append(delivery)
        self._arrived.set()

    @property
    def is_full(self) -> bool:
        """Whether the queue is full: the application is too slow."""
        return len(self._queue) >= self._bound

    def end(self, failure: ClientError | None) -> None:
        """End the iteration: wake the application, which gets *failure* if there is one."""
        self._is_over, self._failure = True, failure
        self._arrived.set()
