"""The view writer: has the view follow the log, a little behind it, while the broker serves.

Rule: rows are gathered on the event loop, some in each turn, and committed by a thread of their own.
Rule: a commit that fails (a full disk) leaves the view as it was. What it was to be told is forgotten, since nothing
bounds how much that would become; the next try, which waits longer each time, gathers everything there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

import structlog

from whimbrel.broker.core import Broker
from whimbrel.broker.storage import Storage
from whimbrel.errors import WhimbrelError
from whimbrel.hold.rows import Key

__all__ = ["ViewWriter"]

_log = structlog.get_logger("whimbrel")
_PAUSE_S = 0.002
_MOST_ROWS = 500_000
_MOST_WAITS = 64
"""How many intervals lie between two tries at most."""


class ViewWriter:
    """Writes the view of *broker*; *unwritten* is why it could not be written so far, if it could not."""

    def __init__(self, broker: Broker, storage: Storage, pool: Executor, *, unwritten: str | None = None) -> None:
        self._broker, self._storage, self._pool = broker, storage, pool
        self.is_writing = False
        self._is_behind = False
        """The view lacks changes that nobody remembers: the next commit is of everything."""
        self._waits = self._to_wait = 0
        if unwritten is not None:
            self._fail(unwritten)

    def turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bring the view up to date, unless that is under way or cannot succeed now."""
        if self.is_writing or self._broker.is_refusing:
            return
        if self._is_behind:
            if self._to_wait:
                self._to_wait -= 1
                self._broker.state.discard_changes()
                return
            self._broker.state.touch_all()
        self.is_writing = True
        self._gather(loop, {}, set())

    def _gather(self, loop: asyncio.AbstractEventLoop, put: dict[Key, bytes], drop: set[Key]) -> None:
        """Gather what the view is to be told, a little in each turn while it is much; the rest in one moment."""
        state = self._broker.state
        is_last = not state.has_many_changes or len(put) > _MOST_ROWS
        more, gone = state.changes() if is_last else state.some_changes()
        put.update(more)
        for key in gone:
            put.pop(key, None)
        drop |= gone
        if not is_last:
            loop.call_later(_PAUSE_S, self._gather, loop, put, drop)
            return
        drop.difference_update(put)
        commit = self._commit(self._broker.applied, put, drop)
        loop.run_in_executor(self._pool, commit).add_done_callback(self._committed)

    def _commit(self, applied: int, put: dict[Key, bytes], drop: set[Key]) -> Callable[[], None]:
        if self._is_behind:
            return lambda: self._storage.replace_view(applied, put)
        return lambda: self._storage.write_view(applied, put, drop)

    def _committed(self, done: asyncio.Future[None]) -> None:
        self.is_writing = False
        if done.cancelled():
            return
        try:
            done.result()
        except WhimbrelError as error:
            self._fail(str(error))
        else:
            self._succeed()

    def finish(self) -> None:
        """Bring the view up to date now, at the end; ``WhimbrelError`` if that cannot be done."""
        if self._is_behind:
            self._broker.state.touch_all()
        self._commit(self._broker.applied, *self._broker.state.changes())()

    def _fail(self, reason: str) -> None:
        if not self._is_behind:
            _log.warning("the view cannot be written; it is tried again, and a restart replays more", reason=reason)
        self._is_behind = True
        self._waits = min(max(2 * self._waits, 1), _MOST_WAITS)
        self._to_wait = self._waits

    def _succeed(self) -> None:
        if self._is_behind:
            _log.info("the view follows the log again")
        self._is_behind, self._waits = False, 0
