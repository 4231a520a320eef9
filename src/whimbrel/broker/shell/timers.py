"""Timers: time passes for the core four times a second; every few seconds the view and the keeper of the log go on.

Rule: the time that this process was stopped, or too busy to read, counts as no client's silence. Silence is judged a
moment after a tick, when everything that waited in the sockets has been read.
"""

from __future__ import annotations

import time

from whimbrel.broker.shell.disk.heartbeat_writer import HeartbeatWriter
from whimbrel.broker.shell.disk.log_sync import LogSync
from whimbrel.broker.shell.disk.storage import Storage
from whimbrel.broker.shell.disk.view_writer import ViewWriter
from whimbrel.broker.shell.net.listeners import Listeners
from whimbrel.broker.shell.net.turns import Turns
from whimbrel.broker.shell.running import Running, monotonic_us, until_closed

__all__ = ["Timers"]

_TICK_S, _PREPARE_S = 0.25, 0.01
_MAX_TICK_US = 500_000
"""How much of the time between two ticks counts; ticks come later where the process was stopped."""
_READ_S = 0.01
"""How long after a tick silence is judged: timers and sockets take turns, so everything readable is read between."""
_SETTLE_TICKS = 4


class Timers:
    """Calls the parts of a server at intervals."""

    def __init__(
        self,
        running: Running,
        turns: Turns,
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
        """Call everything for the first time."""
        loop = self.running.loop
        loop.call_later(_TICK_S, self._tick)
        loop.call_soon(self._write_view)  # what was replayed now need not be replayed again

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
        if broker.state.decisions.shape.may_compress:
            self._turns.transforms.prepare()
        self._turns.flush_soon()
        running.loop.call_later(_TICK_S, self._tick)

    def _look_at_disk(self) -> None:
        """Accept publications only while there is room for them; where there is too little, make some at once."""
        keeper, running = self._storage.keeper, self.running
        running.broker.spare(is_short=not self._storage.space.takes_publications)
        self._turns.is_slowing = keeper.is_tight
        if keeper.is_urgent or not self._storage.space.takes_publications:
            self._view_writer.turn(running.loop)
            keeper.turn(running.loop, running.clock.now())

    @until_closed
    def _end_silent(self) -> None:
        """Disconnect clients that have said or taken nothing for too long."""
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
