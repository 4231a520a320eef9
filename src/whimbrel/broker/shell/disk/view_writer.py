"""View writer: updates the view, the stored snapshot of the state, at intervals while the broker runs.

Rule: changed rows are collected on the event loop, some in each turn, and committed by a thread.
Rule: a commit that fails (a full disk) leaves the view unchanged. The changes are then forgotten, since their number is
not bounded; the next attempt, which waits longer each time (back-off), writes all rows of the state.
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
"""Most intervals between two attempts after failures."""


class ViewWriter:
    """Writer of a broker's view (snapshot), in a thread of *pool*; *unwritten* is the error of an earlier attempt."""

    def __init__(self, broker: Broker, storage: Storage, pool: Executor, *, unwritten: str | None = None) -> None:
        self._broker, self._storage, self._pool = broker, storage, pool
        self.is_writing = self._is_finished = False
        self._put: dict[Key, bytes] = {}
        self._drop: set[Key] = set()
        """Keys of rows to delete with the next commit; ``_put`` has the rows to write."""
        self._under_way: Future[None] | None = None
        """The commit that runs in the thread, or the last one; None before the first."""
        self._is_behind = False
        """Whether the view lacks changes that were forgotten, so that the next commit must write all rows."""
        self._waits = self._to_wait = 0
        if unwritten is not None:
            self._fail(unwritten)

    def turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to update the view (snapshot of the state), unless an update is under way or the disk fails.

        After a failed update, a number of calls (the back-off) do nothing.
        """
        if self.is_writing or self._is_finished or self._broker.is_refusing:
            return
        if self._is_behind:
            if self._to_wait:
                self._to_wait -= 1
                self._broker.state.view.discard_changes()
                return
            self._broker.complete()  # apply the rest of a half applied fact, so that the state is whole
            self._broker.state.view.touch_all()
        self.is_writing = True
        self._gather(loop)

    def _gather(self, loop: asyncio.AbstractEventLoop) -> None:
        """Collect the changed rows, some in each turn while there are many; then begin to commit them."""
        if self._is_finished:
            return
        if self._broker.is_applying:  # a fact is half applied
            self._broker.when_applied(lambda: self._gather(loop))
            return
        state = self._broker.state
        if state.view.has_many_changes and len(self._put) <= _MAX_ROWS:
            self._take(*state.view.some_changes())
            loop.call_later(_PAUSE_S, self._gather, loop)
            return
        self._take(*state.view.changes())
        self._under_way = self._pool.submit(self._commit())
        asyncio.wrap_future(self._under_way, loop=loop).add_done_callback(self._end_commit)

    def _take(self, put: dict[Key, bytes], drop: set[Key]) -> None:
        """Add changed rows to the next commit; a later change of a row replaces an earlier one."""
        for key in drop:
            self._put.pop(key, None)
        self._put.update(put)
        self._drop |= drop
        self._drop.difference_update(put)

    def _commit(self) -> Callable[[], None]:
        """Return a function that writes the collected rows, and start to collect the next ones."""
        applied, put, drop = self._broker.applied, self._put, self._drop
        self._put, self._drop = {}, set()
        if self._is_behind:
            return lambda: self._storage.replace_view(applied, put)
        return lambda: self._storage.write_view(applied, put, drop)

    def _end_commit(self, done: asyncio.Future[None]) -> None:
        self.is_writing = False
        if done.cancelled() or self._is_finished:
            return
        try:
            done.result()
        except WhimbrelError as error:
            self._fail(str(error))
        else:
            self._note_success()

    def finish(self) -> None:
        """Write the view (snapshot of the state) when the server stops; raise ``WhimbrelError`` if that fails.

        It waits for a commit that is under way, and then commits all rows that changed since.
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

    def _note_success(self) -> None:
        if self._is_behind:
            _log.info("the view follows the log again")
        self._is_behind, self._waits = False, 0
