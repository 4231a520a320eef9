"""Log sync: writes and fsyncs the log in a thread, and tells the core what is durable.

Rule: one sync at a time. What is accepted meanwhile waits for the next, which takes all of it (group commit).
Rule: a disk that is full is tried again, with the room of the reserve, and the broker refuses what must be held until
then. The log of the process says so at the beginning, every minute, and at the end. A log that has to be opened again
stops the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

import structlog

from whimbrel.broker.shell.disk.log_keeper import LogKeeper
from whimbrel.broker.shell.disk.outage import Outage
from whimbrel.broker.shell.running import Running, monotonic_us, until_closed
from whimbrel.broker.wire.clients import Link
from whimbrel.errors import WhimbrelError
from whimbrel.log.writer import LogWriter

__all__ = ["LogSync"]

_log = structlog.get_logger("whimbrel")
_RETRY_S = 1.0


class LogSync:
    """Syncs *log* in a thread of *pool*; *stop* begins to stop the server."""

    def __init__(
        self, running: Running, log: LogWriter, pool: Executor, stop: Callable[[], None], keeper: LogKeeper
    ) -> None:
        self.running, self._log, self._pool, self._stop, self._keeper = running, log, pool, stop, keeper
        self._outage, self._space = Outage(), keeper.space
        self._looked_at_bytes = 0
        """How much had been written when the keeper last looked because of that."""
        self.is_syncing = False
        self.read_on: Callable[[], None] = lambda: None
        """Called when everything that was read has been written: clients may be read from again."""
        self.flush: Callable[[], None] = lambda: None
        """Called when the core knows what is durable, to write its answers."""
        self._after_log: list[Link] = []
        """Links that are written to once the log has the decisions about what they are sent."""

    def start(self) -> None:
        """Write at intervals from now on."""
        self.running.loop.call_later(self.running.config.log.sync_interval_ms / 1_000, self._write_out)

    def sync_if_wanted(self) -> None:
        """Begin a sync if an answer waits for it, and none is under way."""
        if self.running.broker.wants_sync and not self.is_syncing and self.running.failure is None:
            self._sync(wait=True)
        elif self._after_log and self.running.failure is None:
            self.write_now()

    def that_may_be_written(self, links: list[Link]) -> list[Link]:
        """Return those of *links* whose decisions are in the log; the others wait until theirs are."""
        written_seq = self._log.written_seq
        early = [link for link in links if link.after_seq > written_seq]
        if not early:
            return links
        self._after_log += early
        return [link for link in links if link.after_seq <= written_seq]

    def write_now(self) -> None:
        """Begin to write what there is, unless a sync is under way."""
        if not self.is_syncing:
            self._sync(wait=False)

    def settle(self) -> None:
        """Let readers of the log, the pipeline above all, see the last records, also if none come after them."""
        if not self.is_syncing and not self._log.is_settled and not self.running.broker.is_refusing:
            self._begin(self._log.settle, wait=True)

    def fail(self, error: WhimbrelError) -> None:
        """Refuse what must be held until the disk takes it; where the log must be opened again, stop."""
        broker = self.running.broker
        broker.on_sync(self._log.durable_seq)  # the disk may have taken the beginning
        if self._outage.fails(monotonic_us()) or self._log.is_faulty:
            _log.error("the log cannot be written; nothing is accepted that must be held", reason=str(error))
        broker.refuse()
        if self._log.is_faulty:
            self.running.failure = str(error)
            self.is_syncing = False
            self._stop()
            return
        if self._space is not None:
            self._space.give_up_reserve()
            broker.spare(is_short=True)
        self._keeper.turn(self.running.loop, self.running.clock.now())
        self.running.loop.call_later(_RETRY_S, self._sync_again)

    async def finish(self) -> None:
        """Sync everything at the end; ``WhimbrelError`` if that cannot be done."""
        self.running.broker.on_sync(await self.running.loop.run_in_executor(self._pool, self._log.sync))

    def _sync(self, *, wait: bool) -> None:
        self._begin(partial(self._log.sync, wait=wait), wait=wait)

    def _begin(self, work: Callable[[], int], *, wait: bool) -> None:
        self.is_syncing = True
        future = self.running.loop.run_in_executor(self._pool, self._looking, work)
        future.add_done_callback(lambda done: self._end(done, wait=wait))

    def _looking(self, work: Callable[[], int]) -> int:
        """Do what writes, and find out how much room is left, in the thread that writes."""
        try:
            return work()
        finally:
            if self._space is not None:
                self._space.look()

    def _end(self, done: asyncio.Future[int], *, wait: bool) -> None:
        if done.cancelled():  # the server closes, and the log syncs what is left
            return
        try:
            seq = done.result()
        except WhimbrelError as error:
            self.fail(error)
            return
        self.is_syncing = False
        broker = self.running.broker
        if (outage_s := self._outage.ends(monotonic_us())) is not None:
            _log.info("the log is written again", after_s=round(outage_s, 1))
        broker.counters.syncs += 1
        grown_bytes = self._log.grown_bytes
        if self._space is not None and not self._space.takes_publications:
            broker.spare(is_short=True)
        if grown_bytes - self._looked_at_bytes >= self._keeper.look_after_bytes:
            self._looked_at_bytes = grown_bytes
            self._keeper.turn(self.running.loop, self.running.clock.now())
        self.read_on()
        broker.dirty.extend(self._after_log)
        self._after_log.clear()
        if wait:
            broker.on_sync(seq)
        else:
            broker.refuse(is_refusing=False)
        self.flush()

    @until_closed
    def _sync_again(self) -> None:
        self._sync(wait=True)

    @until_closed
    def _write_out(self) -> None:
        """Write the records that no answer waits for, so that they do not stay in memory for long."""
        if not self.is_syncing and self._log.pending and self.running.failure is None:
            self._sync(wait=False)
        self.running.loop.call_later(self.running.config.log.sync_interval_ms / 1_000, self._write_out)
