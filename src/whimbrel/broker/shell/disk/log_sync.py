"""Log sync: writes and fsyncs the log in a thread, and reports to the core up to which seq the log is durable.

Rule: one fsync at a time. Records accepted meanwhile are all written by the next one (group commit).
Rule: if the disk is full, the write is retried with the space of the reserve file, and until it succeeds the broker
refuses messages that must be durable. A line is logged at the beginning, every minute, and at the end of the outage. A
log that has to be reopened stops the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

import structlog

from whimbrel.broker.shell.disk.log_truncator import LogTruncator
from whimbrel.broker.shell.disk.outage import Outage
from whimbrel.broker.shell.running import Running, monotonic_us, until_closed
from whimbrel.broker.wire.clients import Link
from whimbrel.errors import WhimbrelError
from whimbrel.log.writer import LogWriter

__all__ = ["LogSync"]

_log = structlog.get_logger("whimbrel")
_RETRY_S = 1.0


class LogSync:
    """Scheduler of writes and fsyncs of *log*, in a thread of *pool*; it calls *stop* if the log must be reopened."""

    def __init__(
        self, running: Running, log: LogWriter, pool: Executor, stop: Callable[[], None], keeper: LogTruncator
    ) -> None:
        self.running, self._log, self._pool, self._stop, self._keeper = running, log, pool, stop, keeper
        self._outage, self._space = Outage(), keeper.space
        self._looked_at_bytes = 0
        """Bytes written to the log when its growth last made the keeper run."""
        self.is_syncing = False
        self.read_on: Callable[[], None] = lambda: None
        """Callback after each write: the server resumes reading from clients that sent faster than the disk writes."""
        self.flush: Callable[[], None] = lambda: None
        """Called when the core knows which records are durable, to send its answers to the clients."""
        self.after_log: list[Link] = []
        """Connections whose messages wait until the decisions about them (policies) are written to the log."""

    def start(self) -> None:
        """Start the timer that writes buffered records every ``[log] sync_interval_ms``."""
        self.running.loop.call_later(self.running.config.log.sync_interval_ms / 1_000, self._write_out)

    def sync_if_wanted(self) -> None:
        """Begin an fsync if an answer waits for it, or a write if a message waits for that, one at a time."""
        if self.running.broker.wants_sync and not self.is_syncing and self.running.failure is None:
            self._sync(wait=True)
        elif self.after_log and self.running.failure is None:
            self.write_now()

    def must_wait(self, link: Link) -> bool:
        """Return whether *link* may not be written to yet, because the log lacks a decision about its messages.

        It is then remembered, and written to after the next write of the log.
        """
        is_early = link.after_seq > self._log.written_seq
        if is_early:
            self.after_log.append(link)
        return is_early

    def write_now(self) -> None:
        """Begin to write the buffered records without an fsync, unless a write or fsync is under way."""
        if not self.is_syncing:
            self._sync(wait=False)

    def settle(self) -> None:
        """Write a commit marker, so that readers of an idle log (the pipeline) see its last records."""
        if not self.is_syncing and not self._log.is_settled and not self.running.broker.is_refusing:
            self._begin(self._log.settle, wait=True)

    def fail(self, error: WhimbrelError) -> None:
        """Refuse messages that must be durable, and retry in a second; stop the server if the log must be reopened."""
        broker = self.running.broker
        broker.on_sync(self._log.durable_seq)  # the first records may have been written
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
        """Fsync all records when the server stops; raise ``WhimbrelError`` if that fails."""
        self.running.broker.on_sync(await self.running.loop.run_in_executor(self._pool, self._log.sync))

    def _sync(self, *, wait: bool) -> None:
        self._begin(partial(self._log.sync, wait=wait), wait=wait)

    def _begin(self, work: Callable[[], int], *, wait: bool) -> None:
        self.is_syncing = True
        future = self.running.loop.run_in_executor(self._pool, self._looking, work)
        future.add_done_callback(lambda done: self._end(done, wait=wait))

    def _looking(self, work: Callable[[], int]) -> int:
        """Run *work*, which writes the log, then measure the free space of the disk; this runs in the disk thread."""
        try:
            return work()
        finally:
            if self._space is not None:
                self._space.look()

    def _end(self, done: asyncio.Future[int], *, wait: bool) -> None:
        if done.cancelled():  # the server closes, and closing the log fsyncs the last records
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
        broker.dirty.extend(self.after_log)
        self.after_log.clear()
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
        """Write the records that no answer waits for, so that they do not stay in memory for long; repeat by timer."""
        if not self.is_syncing and self._log.pending and self.running.failure is None:
            self._sync(wait=False)
        self.running.loop.call_later(self.running.config.log.sync_interval_ms / 1_000, self._write_out)
