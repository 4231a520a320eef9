"""Heartbeat writer: updates the heartbeat file every two seconds, in a thread, while the broker runs."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial

import structlog

from whimbrel.broker.shell.disk.heartbeat import BEAT_US, Beat, Heartbeat, beat_of
from whimbrel.broker.shell.running import Running

__all__ = ["HeartbeatWriter"]

_log = structlog.get_logger("whimbrel")
_SET_US = 500_000
"""If the machine's clock is set by more than this, a heartbeat is written at once, without waiting for its time."""


class HeartbeatWriter:
    """Writer of the file *heartbeat*, in a thread of *pool*; one write at a time."""

    def __init__(self, running: Running, heartbeat: Heartbeat, pool: Executor) -> None:
        self.running, self._heartbeat, self._pool = running, heartbeat, pool
        self._last = Beat(0, 0)
        self._is_writing = self._is_failing = False

    def tick(self) -> None:
        """Begin to write a heartbeat, if one is due and none is being written."""
        beat, last = beat_of(self.running.clock.now()), self._last
        is_set = abs(beat.at - beat.wall - (last.at - last.wall)) > _SET_US  # a restart compares these two clocks
        if self._is_writing or (beat.at - last.at < BEAT_US and not is_set):
            return
        self._last, self._is_writing = beat, True
        write = partial(self._heartbeat.write, beat)
        self.running.loop.run_in_executor(self._pool, write).add_done_callback(self._end)

    def _end(self, done: asyncio.Future[None]) -> None:
        self._is_writing = False
        error = None if done.cancelled() else done.exception()
        if error is not None and not self._is_failing:
            _log.warning("the heartbeat cannot be written; after a crash sessions may end early", reason=str(error))
        self._is_failing = error is not None
