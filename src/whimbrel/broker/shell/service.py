"""Service: the parts of a server that run once its state is restored; it starts and stops them.

``net/socket_scheduler`` reads from clients and writes to them, ``disk/log_sync`` writes the log, ``disk/view_writer``
writes the view, ``timers`` and ``system_topics`` act at intervals, ``operate`` answers operators. All share a
``Running``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import structlog

from whimbrel.broker.shell.disk.heartbeat_writer import HeartbeatWriter
from whimbrel.broker.shell.disk.log_sync import LogSync
from whimbrel.broker.shell.disk.storage import Restored, Storage
from whimbrel.broker.shell.disk.view_writer import ViewWriter
from whimbrel.broker.shell.net.listeners import Listeners
from whimbrel.broker.shell.net.socket_scheduler import SocketScheduler
from whimbrel.broker.shell.operate.control_socket import ControlSocket
from whimbrel.broker.shell.operate.operations import Operations
from whimbrel.broker.shell.operate.reloading import Reloading
from whimbrel.broker.shell.operate.system_topics import SystemTopics
from whimbrel.broker.shell.running import Running
from whimbrel.broker.shell.timers import Timers
from whimbrel.errors import WhimbrelError
from whimbrel.match.first_use import Kernels

__all__ = ["Pools", "Service"]

_log = structlog.get_logger("whimbrel")
_DRAIN_S = 5.0


class Pools(NamedTuple):
    """Thread pools of a server, by their work (see the module ``server``)."""

    disk: ThreadPoolExecutor
    viewer: ThreadPoolExecutor
    askers: ThreadPoolExecutor
    packers: ThreadPoolExecutor
    learner: ThreadPoolExecutor

    @classmethod
    def make(cls, askers: int) -> Pools:
        """Return the pools, with *askers* threads for passwords; threads are started when they are first needed."""
        sizes = {"disk": 1, "view": 1, "ask": askers, "packing": 2, "learn": 1}
        return cls(*(ThreadPoolExecutor(size, thread_name_prefix=name) for name, size in sizes.items()))

    def shutdown(self) -> None:
        """Stop all threads after the work that they are doing; queued work is dropped."""
        for pool in self:
            pool.shutdown(wait=True, cancel_futures=True)


class Service:
    """The running parts of one server; they call *stop* to stop the server if the log fails."""

    def __init__(
        self,
        running: Running,
        storage: Storage,
        restored: Restored,
        pools: Pools,
        listeners: Listeners,
        reloading: Reloading,
        kernels: Kernels,
        stop: Callable[[], None],
    ) -> None:
        self.running = running
        self._view_writer = ViewWriter(running.broker, storage, pools.viewer, unwritten=restored.unwritten)
        self._log_sync = LogSync(running, storage.log, pools.disk, stop, storage.keeper)
        self.turns = SocketScheduler(running, self._log_sync, pools.askers, storage.history)
        heartbeat = HeartbeatWriter(running, storage.heartbeat, pools.disk)
        self._timers = Timers(running, self.turns, listeners, self._log_sync, self._view_writer, heartbeat, storage)
        self._system_topics = SystemTopics(running, pools.learner, self.turns.flush_soon, storage.keeper.figures)
        self.operations = Operations(running, reloading, storage, listeners, self.turns, kernels)

    def start(self, control: ControlSocket) -> None:
        """Start all parts; *control* is the socket over which operators send commands."""
        self.running.broker.tick(self.running.clock.now())  # before a client resumes a session that has expired
        self.operations.start(control)
        self._timers.start()
        self._log_sync.start()
        self._system_topics.start()
        self._log_sync.sync_if_wanted()

    async def drain(self) -> None:
        """Disconnect all clients, then fsync the log and write the view (snapshot of the state)."""
        running, turns = self.running, self.turns
        if running.failure is None:
            running.broker.drain()
            turns.flush()
        streams, deadline = turns.streams, time.monotonic() + _DRAIN_S
        while streams and time.monotonic() < deadline:  # noqa: ASYNC110 # polled for a few turns, as the broker ends
            await asyncio.sleep(0.01)
        for stream in list(streams):
            if stream.transport is not None:
                stream.transport.abort()
        await turns.transforms.close()
        deadline = time.monotonic() + _DRAIN_S
        while (self._log_sync.is_syncing or self._view_writer.is_writing) and time.monotonic() < deadline:  # noqa: ASYNC110 # see above
            await asyncio.sleep(0.005)
        if running.failure is None:
            try:
                await self._log_sync.finish()
                self._view_writer.finish()
            except WhimbrelError as error:  # a full disk: no client got an answer about the records that wait for it
                _log.error("stopped although the disk cannot be written to", reason=str(error))

    def close(self) -> None:
        """Stop all timers."""
        self.running.is_closed = True
        self.turns.slowing.stop()
