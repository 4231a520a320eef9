"""The server: the core on its ports, with the threads that it needs; how it starts and how it stops.

What may wait for what: everything of the core happens on the event loop and never waits. One thread writes and fsyncs
the log (``_disk``), one writes the view (``_viewer``, which takes the log's lock while it syncs it), one makes
checkpoints and cuts the log (``LogKeeper``), one reads history (``HistoryReader``), one reads what the pipeline learned
(``_learner``), others verify passwords (``_askers``) or pack filters (``_packers``). They come back to the loop with
their results.
Its parts: ``net/listeners`` accepts connections, ``net/turns`` reads from and writes to them, ``disk/log_sync`` writes
the log, ``timers`` and ``system_topics`` act at intervals; all of them share one ``Running``.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice

import structlog

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.broker import Broker
from whimbrel.broker.config import Config
from whimbrel.broker.shell import health
from whimbrel.broker.shell.blocking_threads import MOST_AT_ONCE
from whimbrel.broker.shell.disk.heartbeat_writer import HeartbeatWriter
from whimbrel.broker.shell.disk.log_sync import LogSync
from whimbrel.broker.shell.disk.storage import Storage
from whimbrel.broker.shell.disk.view_writer import ViewWriter
from whimbrel.broker.shell.log_clock import LogClock
from whimbrel.broker.shell.net.listeners import Listeners
from whimbrel.broker.shell.net.turns import Turns
from whimbrel.broker.shell.operating.exposure import exposures
from whimbrel.broker.shell.operating.operations import Operations
from whimbrel.broker.shell.operating.reloading import Reloading
from whimbrel.broker.shell.running import Running
from whimbrel.broker.shell.system_topics import SystemTopics
from whimbrel.broker.shell.timers import Timers
from whimbrel.broker.state.places.near_routes import NearRoutes
from whimbrel.broker.state.routes import Routes
from whimbrel.errors import WhimbrelError
from whimbrel.match.first_use import Kernels
from whimbrel.match.index.packer import PackingProcess
from whimbrel.match.matcher import Matcher

__all__ = ["Server"]

_log = structlog.get_logger("whimbrel")
_DRAIN_S = 5.0
_MOST_NAMED = 100
"""Subscriptions that the log names one by one."""
_REFUSED_TODAY = (
    "an older version accepted this subscription's filter; it is beyond today's limits and matches only within the "
    "budget of patterns: subscribe again with a simpler filter"
)


class Server:
    """A broker on its ports; *accepts_loss*: start although records are missing from the log.

    A reload asks *reread* for the settings as they are then, and tells *set_log_level* which lines are to be written.
    """

    def __init__(
        self,
        config: Config,
        *,
        accepts_loss: bool = False,
        reread: Callable[[], Config] | None = None,
        set_log_level: Callable[[str], None] = lambda _level: None,
    ) -> None:
        self._learner = ThreadPoolExecutor(1, thread_name_prefix="learn")
        self._reloading = Reloading(config, self._learner, reread=reread, set_log_level=set_log_level)
        self.config = config = self._reloading.config
        self._pack = Kernels(PackingProcess(), say=_say)
        self._packers = ThreadPoolExecutor(2, thread_name_prefix="packing")
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._viewer = ThreadPoolExecutor(1, thread_name_prefix="view")
        self._askers = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="ask")
        self._storage = Storage(config, accepts_loss=accepts_loss)
        state, self.restored = self._storage.open(
            Routes(self._matcher, near=NearRoutes(self._matcher, self._pack.has_places))
        )
        clock = LogClock(self.restored.time.now, say=_tell_time)
        self.broker = Broker(
            config,
            self._storage.log,
            state,
            rng=random.SystemRandom(),
            authorizer=Authorizer(self._reloading.files.rights, self._reloading.groups),
            verify=self._reloading.verify,
            died_at=self.restored.time.died_at,
            now=clock.now(),
        )
        _name_refused(state.routes)
        self._running = Running(config, self.broker, clock)
        self._stopping: asyncio.Event | None = None
        self._view_writer = ViewWriter(self.broker, self._storage, self._viewer, unwritten=self.restored.unwritten)
        self._log_sync = LogSync(self._running, self._storage.log, self._disk, self.stop)
        self._turns = Turns(self._running, self._log_sync, self._askers, self._storage.history)
        answer = partial(health.answer, self._running, self._storage.keeper)
        self._listeners = Listeners(self._running, self._turns, answer, self._reloading.rules_of)
        heartbeat = HeartbeatWriter(self._running, self._storage.heartbeat, self._disk)
        self._timers = Timers(
            self._running, self._turns, self._listeners, self._log_sync, self._view_writer, heartbeat, self._storage
        )
        self._system_topics = SystemTopics(
            self._running, self._learner, self._turns.flush_soon, self._storage.keeper.figures
        )
        self._operations = Operations(
            self._running, self._reloading, self._storage, self._listeners, self._turns, self._pack
        )

    @property
    def ports(self) -> dict[str, int]:
        """The ports that it listens on, by kind."""
        return self._listeners.ports

    @property
    def sockets(self) -> dict[str, str]:
        """The Unix sockets that it listens on, by the name of their listener."""
        return self._listeners.sockets

    @property
    def failure(self) -> str | None:
        """Why the broker had to stop."""
        return self._running.failure

    @property
    def is_closed(self) -> bool:
        """Whether it has stopped."""
        return self._running.is_closed

    def _matcher(self) -> Matcher:
        return Matcher(run=self._packers.submit, pack=self._pack)

    async def start(self) -> None:
        """Listen."""
        self._running.loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        for warned in exposures(self.config):
            _say(warned.level, warned.text)
        self._pack.begin()
        if self.broker.preparation.reason is not None:
            _say("info", f"{self.broker.preparation.reason}: until then CONNECT is answered with 0x88")
        self.broker.tick(self._running.clock.now())  # before any client comes back to a session that is over
        await self._operations.start()
        await self._listeners.start(self._reloading.files.secured)
        self._timers.start()
        self._log_sync.start()
        self._system_topics.start()
        self._log_sync.sync_if_wanted()

    async def serve(self) -> None:
        """Serve until SIGTERM or SIGINT, or until ``stop``; then drain."""
        assert self._stopping is not None
        for each in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread
                self._running.loop.add_signal_handler(each, self.stop)
        await self._stopping.wait()
        await self._drain()

    def stop(self) -> None:
        """Begin to stop."""
        assert self._stopping is not None
        self._stopping.set()

    async def _drain(self) -> None:
        """Disconnect all clients, and write everything down."""
        self._listeners.close()
        self._operations.close()
        if self.failure is None:
            self.broker.drain()
            self._turns.flush()
        streams, deadline = self._turns.streams, time.monotonic() + _DRAIN_S
        while streams and time.monotonic() < deadline:  # noqa: ASYNC110 # a few turns at the very end
            await asyncio.sleep(0.01)
        for stream in list(streams):
            if stream.transport is not None:
                stream.transport.abort()
        await self._turns.transforms.close()
        deadline = time.monotonic() + _DRAIN_S
        while (self._log_sync.is_syncing or self._view_writer.is_writing) and time.monotonic() < deadline:  # noqa: ASYNC110 # see above
            await asyncio.sleep(0.005)
        if self.failure is None:
            try:
                await self._log_sync.finish()
                self._view_writer.finish()
            except WhimbrelError as error:  # a full disk: no client was promised what waits for it
                _log.error("stopped although the disk cannot be written to", reason=str(error))
        self.close()

    def close(self) -> None:
        """Let go of everything."""
        self._running.is_closed = True
        self._operations.close()
        self._turns.slowing.stop()
        self._pack.stop_compiling()
        for pool in (self._disk, self._viewer, self._askers, self._packers, self._learner):
            pool.shutdown(wait=True, cancel_futures=True)
        with suppress(WhimbrelError):
            self._storage.close()
        self._pack.close()


def _say(level: str, event: str) -> None:
    getattr(_log, level)(event)


def _tell_time(event: str, by_s: float) -> None:
    _log.warning(event, by_s=round(by_s, 1))


def _name_refused(routes: Routes) -> None:
    """Log the subscriptions whose filter this version refuses; they were restored all the same."""
    refused = {key: reason for key, reason in routes.refused_today.items() if key not in routes.unreadable}
    for (session, (subject_filter, name)), reason in islice(refused.items(), _MOST_NAMED):
        _log.warning(_REFUSED_TODAY, session=session, topic_filter=subject_filter, name=name, reason=reason)
    if len(refused) > _MOST_NAMED:
        _log.warning("more filters are beyond today's limits", named=_MOST_NAMED, count=len(refused))
