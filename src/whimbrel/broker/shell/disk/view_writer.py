"""The view writer: has the view follow the log, a little behind it, while the broker serves.

Rule: rows are gathered on the event loop, some in each turn, and committed by a thread of their own.
Rule: a commit that fails (a full disk) leaves the view as it was. What it was to be told is forgotten, since nothing
bounds how much that would become; the next try, which waits longer each time, gathers everything there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future

import structlog

from whimbrel.broker.broker import Broker
from whimbrel.broker.shell.disk.storage import Storage
from whimbrel.errors import WhimbrelError
from whimbrel.hold.rows import Key

__all__ = ["ViewWriter"]

_log = structlog.get_logger("whimbrel")
_PAUSE_S = 0.002
_MAX_ROWS = 500_000
_MAX_WAITS = 64
"""How many intervals lie between two tries at most."""


class ViewWriter:
    """Writes the view of *broker*; *unwritten* is why it could not be written so far, if it could not."""

    def __init__(self, broker: Broker, storage: Storage, pool: Executor, *, unwritten: str | None = None) -> None:
        self._broker, self._storage, self._pool = broker, storage, pool
        self.is_writing = self._is_finished = False
        self._put: dict[Key, bytes] = {}
        self._drop: set[Key] = set()
        """Rows that were gathered, and are not committed."""
        self._under_way: Future[None] | None = None
        """The last commit."""
        self._is_behind = False
        """The view lacks changes that are not remembered: the next commit is of everything."""
        self._waits = self._to_wait = 0
        if unwritten is not None:
            self._fail(unwritten)

    def turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bring the view up to date, unless that is under way or cannot succeed now."""
        if self.is_writing or self._is_finished or self._broker.is_refusing:
            return
        if self._is_behind:
            if self._to_wait:
                self._to_wait -= 1
                self._broker.state.view.discard_changes()
                return
            self._broker.complete()  # what is in lanes lands, also there where a piece has not come yet
            self._broker.state.view.touch_all()
        self.is_writing = True
        self._gather(loop)

    def _gather(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gather what the view is to be told, a little in each turn while it is much; the rest in one moment."""
        if self._is_finished:
            return
        if self._broker.is_applying:  # half a fact is in the state
            self._broker.when_applied(lambda: self._gather(loop))
            return
        state = self._broker.state
        if state.view.has_many_changes and len(self._put) <= _MAX_ROWS:
            self._take(*state.view.some_changes())
            loop.call_later(_PAUSE_S, self._gather, loop)
            return
        self._take(*state.view.changes())
        self._under_way = self._pool.submit(self._commit())
        asyncio.wrap_future(self._under_way, loop=loop).add_done_callback(self._committed)

    def _take(self, put: dict[Key, bytes], drop: set[Key]) -> None:
        """Remember rows until the next commit; later ones count."""
        for key in drop:
            self._put.pop(key, None)
        self._put.update(put)
        self._drop |= drop
        self._drop.difference_update(put)

    def _commit(self) -> Callable[[], None]:
        """Return what writes the rows that were gathered."""
        applied, put, drop = self._broker.applied, self._put, self._drop
        self._put, self._drop = {}, set()
        if self._is_behind:
            return lambda: self._storage.replace_view(applied, put)
        return lambda: self._storage.write_view(applied, put, drop)

    def _committed(self, done: asyncio.Future[None]) -> None:
        self.is_writing = False
        if done.cancelled() or self._is_finished:
            return
        try:
            done.result()
        except WhimbrelError as error:
            self._fail(str(error))
        else:
            self._succeed()

    def finish(self) -> None:
        """Bring the view up to date now, at the end; ``WhimbrelError`` if that cannot be done.

        What was gathered and not committed is committed with the rest, after a commit that is under way.
        """
        self._is_finished = True
        if self._under_way is not None and isinstance(self._under_way.exception(), WhimbrelError):
            self._is_behind = True
        self._broker.complete()
        if self._is_behind:
            self._broker.state.view.touch_all()
            self._put, self._drop = {}, set()
        self._take(*self._broker.state.view.changes())
        self._commit()()

    def _fail(self, reason: str) -> None:
        if not self._is_behind:
            _log.warning("the view cannot be written; it is tried again, and a restart replays more", reason=reason)
        self._is_behind = True
        self._waits = min(max(2 * self._waits, 1), _MAX_WAITS)
        self._to_wait = self._waits

    def _succeed(self) -> None:
        if self._is_behind:
            _log.info("the view follows the log again")
        self._is_behind, self._waits = False, 0
