"""Timers: advance the core's time four times a second; write the snapshot and run the log keeper every few seconds.

Rule: time in which this process was stopped, or too busy to read, does not count towards a client's keep-alive timeout.
The timeouts are checked a moment after a tick, when all data waiting in the sockets has been read.
"""

from __future__ import annotations

import time

from whimbrel.broker.shell.disk.heartbeat_writer import HeartbeatWriter
from whimbrel.broker.shell.disk.log_sync import LogSync
from whimbrel.broker.shell.disk.storage import Storage
from whimbrel.broker.shell.disk.view_writer import ViewWriter
from whimbrel.broker.shell.net.listeners import Listeners
from whimbrel.broker.shell.net.socket_scheduler import SocketScheduler
from whimbrel.broker.shell.running import Running, monotonic_us, until_closed

__all__ = ["Timers"]

_TICK_S, _PREPARE_S = 0.25, 0.01
_MAX_TICK_US = 500_000
"""Most time between two ticks that counts towards timeouts; a tick is later than that if the process was stopped."""
_READ_S = 0.01
"""Delay of the timeout check after a tick; the event loop reads all readable sockets in between."""
_SETTLE_TICKS = 4


class Timers:
    """The timers of a server: they call its parts at intervals."""

    def __init__(
        self,
        running: Running,
        turns: SocketScheduler,
        listeners: Listeners,
        log_sync: LogSync,
        view_writer: ViewWriter,
        heartbeat: HeartbeatWriter,
        storage: Storage,
    ) -> None:
        self._storage = storage
        self.running, self._turns, self._listeners = running, turns, listeners
        self._log_sync, self._view_writer, self._heartbeat = log_sync, view_writer, heartbeat
        self._ticked_us = running.started_us
        self._ticks = 0

    def start(self) -> None:
        """Start the timers."""
        loop = self.running.loop
        loop.call_later(_TICK_S, self._tick)
        loop.call_soon(self._write_view)  # the next start then need not replay the same records
        self._prepare_transforms()

    @until_closed
    def _tick(self) -> None:
        running, broker = self.running, self.running.broker
        if running.failure is not None:
            return
        now_us = monotonic_us()
        running.listened_us += min(now_us - self._ticked_us, _MAX_TICK_US)
        self._ticked_us = now_us
        running.clock.adjust()
        broker.tick(running.clock.now())
        self._heartbeat.tick()
        self._listeners.end_handshakes()
        running.loop.call_later(_READ_S, self._end_silent)
        broker.state.routes.near.prepare_for(_PREPARE_S, time.perf_counter)
        self._turns.read_slowed()
        self._ticks += 1
        if self._ticks % _SETTLE_TICKS == 0:
            broker.state.routes.settle()
            self._log_sync.settle()
            broker.memory.set_outgoing(self._turns.measure_outgoing())
            self._look_at_disk()
        self._prepare_transforms()
        self._turns.flush_soon()
        running.loop.call_later(_TICK_S, self._tick)

    def _prepare_transforms(self) -> None:
        """Start a process for transforms if a policy may need one: starting it takes longer than a transform."""
        if self.running.broker.state.decisions.shape.may_compress:
            self._turns.transforms.prepare()

    def _look_at_disk(self) -> None:
        """Refuse publications while the disk is nearly full, slow publishers, and make space at once."""
        keeper, running = self._storage.keeper, self.running
        running.broker.spare(is_short=not self._storage.space.takes_publications)
        self._turns.is_slowing = keeper.is_tight
        if keeper.is_urgent or not self._storage.space.takes_publications:
            self._view_writer.turn(running.loop)
            keeper.turn(running.loop, running.clock.now())

    @until_closed
    def _end_silent(self) -> None:
        """Disconnect clients that have sent nothing (keep-alive timeout) or have read nothing for too long."""
        running = self.running
        if running.failure is None:
            running.broker.end_silent(running.clock.now(), running.listened_us)
            self._turns.slow_readers.end()
            self._turns.flush_soon()

    @until_closed
    def _write_view(self) -> None:
        running = self.running
        if running.failure is None:
            self._view_writer.turn(running.loop)
            self._storage.keeper.turn(running.loop, running.clock.now())
            running.broker.history.begins(*self._storage.keeper.begin)
        running.loop.call_later(running.config.log.view_interval_s, self._write_view)
