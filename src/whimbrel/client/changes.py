"""Changes that other devices make to the sessions in which this device is present.

Rule: each iterator has a queue of its own, and is removed when no reference to it is left: the queue of an abandoned
loop must not fill up for ever.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self

from whimbrel.client.answers import SessionChange
from whimbrel.client.errors import ClientClosedError, ClientError

__all__ = ["ChangeQueues", "SessionChanges"]


class SessionChanges(AsyncIterator[SessionChange]):
    """An iterator over changes. It receives them from its first step on, or from ``async with`` on, where that is used.

    >>> async def report(changes: SessionChanges) -> None:
    ...     async with changes:
    ...         async for change in changes:
    ...             print(change.device, change.change, change.session)
    """

    def __init__(self, queues: ChangeQueues) -> None:
        self._queues = queues
        self._queue: deque[SessionChange] = deque()
        self._arrived = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._queues.listen(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._queues.forget(self)

    async def __anext__(self) -> SessionChange:
        try:
            await self._queues.listen(self)
        except ClientClosedError:
            if not self._queues.is_over:
                raise
            raise StopAsyncIteration from None
        while not self._queue:
            if self._queues.is_over:
                if self._queues.failure is not None:
                    raise self._queues.failure
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        found = self._queue.popleft()
        self._queues.taken()
        return found

    def put(self, change: SessionChange) -> None:
        """Add *change* to the queue, and wake the iterator."""
        self._queue.append(change)
        self._arrived.set()

    def wake(self) -> None:
        """Wake the iterator, if it waits."""
        self._arrived.set()

    @property
    def size(self) -> int:
        """Number of changes in the queue."""
        return len(self._queue)

    def __del__(self) -> None:
        self._queues.taken()  # the client may have stopped reading because this queue was full


class ChangeQueues:
    """All iterators over the changes of one client."""

    def __init__(self, subscribe: Callable[[], Awaitable[None]], taken: Callable[[], None], *, bound: int) -> None:
        self._subscribe, self._bound = subscribe, bound
        self._all: weakref.WeakSet[SessionChanges] = weakref.WeakSet()
        self._is_subscribed = False
        self.taken = taken
        """Callback for when a queue may have room again."""
        self.is_over = False
        self.failure: ClientError | None = None

    async def listen(self, changes: SessionChanges) -> None:
        """Register *changes* for changes from now on; subscribe to them at the broker if it is the first."""
        self._all.add(changes)
        if not self._is_subscribed and not self.is_over:
            await self._subscribe()
            self._is_subscribed = True

    def forget(self, changes: SessionChanges) -> None:
        """Remove the registration of *changes*."""
        self._all.discard(changes)
        self.taken()

    def put(self, change: SessionChange) -> None:
        """Add a change to the queues of all iterators."""
        for changes in list(self._all):
            changes.put(change)

    @property
    def is_full(self) -> bool:
        """Whether the queue of an iterator is full."""
        return any(changes.size >= self._bound for changes in self._all)

    def end(self, failure: ClientError | None) -> None:
        """Wake all iterators that wait; they raise *failure*, or end if it is None."""
        self.is_over, self.failure = True, failure
        for changes in list(self._all):
            changes.wake()
