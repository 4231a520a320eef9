"""Server: runs a broker on its ports: it starts, restores the stored state, serves clients, and stops.

Threads: the core runs on the event loop and never blocks. One thread writes and fsyncs the log (``disk``), one reads
and writes the view (``viewer``, which takes the log's lock while it fsyncs the log), one makes checkpoints and cuts the
log (``LogTruncator``), one reads old publications (``HistoryReader``), one reads the pipeline's results (``learner``),
others verify passwords (``askers``) or pack filters (``packers``). They pass their results back to the event loop.
Rule: if the broker cannot start (settings, files, a folder that is locked, newer or lacks records), it stops before it
opens a port. Once ports are open, clients are answered: with 0x88 (``net/startup_responder``) until the state is
restored and the filters are packed (``Preparation``), then by the core.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import structlog

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.broker import Broker
from whimbrel.broker.settings.config import Config, constant_warnings
from whimbrel.broker.shell.blocking_threads import MAX_AT_ONCE
from whimbrel.broker.shell.disk.storage import AbandonedError, Restored, Storage
from whimbrel.broker.shell.log_clock import LogClock
from whimbrel.broker.shell.net.http import Answer
from whimbrel.broker.shell.net.listeners import Listeners
from whimbrel.broker.shell.net.open_files import make_room
from whimbrel.broker.shell.net.startup_responder import StartupResponder
from whimbrel.broker.shell.operate import health
from whimbrel.broker.shell.operate.control_socket import ControlSocket
from whimbrel.broker.shell.operate.exposure import exposures, note_users
from whimbrel.broker.shell.operate.reloading import Reloading
from whimbrel.broker.shell.operate.status import starting_status
from whimbrel.broker.shell.preparation import Preparation
from whimbrel.broker.shell.running import Running, on_signals
from whimbrel.broker.shell.service import Pools, Service
from whimbrel.broker.state.places.near_routes import NearRoutes
from whimbrel.broker.state.routes import Routes
from whimbrel.errors import WhimbrelError
from whimbrel.match.first_use import Kernels
from whimbrel.match.index.packer import PackingProcess
from whimbrel.match.matcher import Matcher

__all__ = ["Server"]

_log = structlog.get_logger("whimbrel")
_QUIET_S = 0.5
"""A restore that takes longer than this is logged while it is under way."""
_LOOK_S = 0.25
_MAX_NAMED = 100
"""Most refused subscriptions that are logged one by one."""
_REFUSED_TODAY = (
    "an older version accepted this subscription's filter; it is beyond today's limits and matches only within the "
    "budget of patterns: subscribe again with a simpler filter"
)


class _Begun(NamedTuple):
    restored: Restored
    broker: Broker
    clock: LogClock


class Server:
    """A broker on its ports; *accepts_loss*: start even if records are missing from the log.

    A reload calls *reread* to read the settings again, and *set_log_level* with the log level that they name.
    """

    def __init__(
        self,
        config: Config,
        *,
        accepts_loss: bool = False,
        reread: Callable[[], Config] | None = None,
        set_log_level: Callable[[str], None] = lambda _level: None,
    ) -> None:
        config, self._too_few_files = make_room(config)
        self._pools = Pools.make(MAX_AT_ONCE)
        again = (lambda: config) if reread is None else (lambda: make_room(reread())[0])
        self._reloading = Reloading(config, self._pools.learner, reread=again, set_log_level=set_log_level)
        self.config = config = self._reloading.config
        self._kernels = Kernels(PackingProcess(), say=_say)
        self._storage = Storage(config, accepts_loss=accepts_loss)
        self._storage.open_files()
        note_users(config)
        self._preparation = Preparation()
        self._doorkeeper = StartupResponder(config, lambda: self._preparation.reason)
        self._listeners = Listeners(config, self._doorkeeper, self._answer, self._reloading.rules_of)
        acts = {"status": self._starting_status, "reload": self._refuse_reload}
        self._control = ControlSocket(Path(config.node.data), acts)
        self._service: Service | None = None
        self._stopping: asyncio.Event | None = None
        self._is_reload_wanted = False
        self.is_closed = False
        """Whether the server has stopped."""

    @property
    def ports(self) -> dict[str, int]:
        """The TCP ports on which the server listens, by the kind of port or the name of the listener."""
        return self._listeners.ports

    @property
    def sockets(self) -> dict[str, str]:
        """The paths of the Unix sockets on which the server listens, by the name of the listener."""
        return self._listeners.sockets

    @property
    def failure(self) -> str | None:
        """Why the broker had to stop; None if it did not have to."""
        return None if self._service is None else self._service.running.failure

    # -- starting ----------------------------------------------------------------------------------------------------

    async def start(self) -> bool:
        """Open the ports, restore the state and accept clients; return False if it was told to stop meanwhile."""
        loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        on_signals(loop, {signal.SIGTERM: self.stop, signal.SIGINT: self.stop, signal.SIGHUP: self._note_reload})
        for warned in exposures(self.config):
            _say(warned.level, warned.text)
        for text in constant_warnings(self.config):
            _say("warning", text)
        if self._too_few_files is not None:
            _say("warning", self._too_few_files)
        self._kernels.begin()
        await self._control.start()
        await self._listeners.start(self._reloading.files.secured)
        begun = await self._restore(loop)
        if begun is None:
            return False
        restored, broker, clock = begun
        _tell_restored(restored, self.config.node.data)
        _name_refused(broker.state.routes)
        running = Running(self.config, broker, clock, self._preparation)
        running.loop, running.too_few_files = loop, self._too_few_files
        self._preparation.pack(broker.state.routes)
        self._service = service = Service(
            running, self._storage, restored, self._pools, self._listeners, self._reloading, self._kernels, self.stop
        )
        service.start(self._control)
        if self._is_reload_wanted:
            service.operations.reload_soon()
        if not await self._pack_filters(running):
            return False
        self._listeners.admit(service.turns)
        if count := self._doorkeeper.counters.refused_connections:
            _say("info", f"clients may connect; {count:,} CONNECT{'' if count == 1 else 's'} came before")
        return True

    def _note_reload(self) -> None:
        self._is_reload_wanted = True

    async def _restore(self, loop: asyncio.AbstractEventLoop) -> _Begun | None:
        """Restore the state in a thread, and return it with its core; None if the server is told to stop meanwhile."""
        assert self._stopping is not None
        begun = loop.run_in_executor(self._pools.viewer, self._begin)
        stopping = loop.create_task(self._stopping.wait())
        try:
            await asyncio.wait((begun, stopping), timeout=_QUIET_S, return_when=asyncio.FIRST_COMPLETED)
            if not begun.done() and not stopping.done():
                _say("info", f"the ports are open; {self._preparation.reason}: until then CONNECT is answered 0x88")
                await asyncio.wait((begun, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                return await begun
        finally:
            stopping.cancel()
            self._storage.abandon()
        with suppress(AbandonedError):
            await begun
        return None

    def _begin(self) -> _Begun:
        """Restore the state and create the core; this runs in a thread while clients are answered with 0x88."""
        state, restored = self._storage.restore(
            Routes(self._matcher, near=NearRoutes(self._matcher, self._kernels.has_places))
        )
        clock = LogClock(restored.time.now, say=_tell_time)
        broker = Broker(
            self.config,
            self._storage.log,
            state,
            rng=random.SystemRandom(),
            authorizer=Authorizer(self._reloading.files.rights, self._reloading.groups),
            verify=self._reloading.verify,
            died_at=restored.time.died_at,
            now=clock.now(),
        )
        if not self._storage.has_mounted_ids:
            broker.move_sessions(clock.now(), self._storage.log.sync)
            self._storage.note_mounted_ids()
        return _Begun(restored, broker, clock)

    def _matcher(self) -> Matcher:
        return Matcher(run=self._pools.packers.submit, pack=self._kernels)

    async def _pack_filters(self, running: Running) -> bool:
        """Wait until the stored filters are packed, if they are many; return False if the server is told to stop."""
        assert self._stopping is not None
        preparation = self._preparation
        if preparation.reason is not None:
            _say("info", f"{preparation.reason}: until then CONNECT is answered with 0x88")
        while preparation.reason is not None and not self._stopping.is_set():
            if (news := preparation.look(running.listened_us)) is not None:
                _say(*news)
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _LOOK_S)
        return not self._stopping.is_set()

    # -- before it serves --------------------------------------------------------------------------------------------

    def _answer(self, method: str, path: str) -> Answer:
        running = None if self._service is None else self._service.running
        return health.answer(running, self._preparation, self._storage.keeper, method, path)

    async def _starting_status(self) -> dict[str, object]:
        return {"status": starting_status(self.config, self.ports, self._preparation.reason)}

    async def _refuse_reload(self) -> dict[str, object]:
        raise NotServingError(self._preparation.reason or "the broker is starting")

    # -- serving and stopping ----------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Wait for SIGTERM, SIGINT or ``stop``; then disconnect all clients, write the state, and close."""
        assert self._stopping is not None
        await self._stopping.wait()
        self._listeners.close()
        self._control.close()
        if self._service is not None:
            await self._service.drain()
        self.close()

    def stop(self) -> None:
        """Begin to stop: ``serve`` then disconnects the clients, writes the state, and returns."""
        assert self._stopping is not None
        self._stopping.set()

    def close(self) -> None:
        """Stop all threads and processes, and close all files and sockets."""
        self.is_closed = True
        self._storage.abandon()
        self._control.close()
        if self._service is not None:
            self._service.close()
        self._kernels.stop_compiling()
        self._pools.shutdown()
        with suppress(WhimbrelError):
            self._storage.close()
        self._kernels.close()


class NotServingError(WhimbrelError):
    """The broker is not serving clients yet. Reaction: ask again a little later."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def _say(level: str, event: str) -> None:
    getattr(_log, level)(event)


def _tell_time(event: str, by_s: float) -> None:
    _log.warning(event, by_s=round(by_s, 1))


def _tell_restored(found: Restored, data: str) -> None:
    """Log how the state was restored from the data folder, with warnings about missing or damaged data."""
    if found.lost is not None:
        _log.warning("records are missing, and that is accepted", lost=found.lost)
    if found.rebuilt is not None:
        _log.warning("the view was set aside and rebuilt from the log", reason=found.rebuilt)
    for reason in found.unsound:
        _log.warning("a checkpoint is damaged, and an older one was used", reason=reason)
    if found.checkpoint:
        _log.info("began with a checkpoint, for want of a view", seq=found.checkpoint)
    recovery = found.recovery
    _log.info(
        "log opened", data=data, last_seq=recovery.last_seq, replayed=found.replayed, cut_bytes=recovery.cut_bytes
    )


def _name_refused(routes: Routes) -> None:
    """Log the subscriptions whose filters exceed the limits of this version; they were restored nevertheless."""
    refused = {key: reason for key, reason in routes.refused_today.items() if key not in routes.unreadable}
    for (session, (subject_filter, name)), reason in islice(refused.items(), _MAX_NAMED):
        _log.warning(_REFUSED_TODAY, session=session, topic_filter=subject_filter, name=name, reason=reason)
    if len(refused) > _MAX_NAMED:
        _log.warning("more filters are beyond today's limits", named=_MAX_NAMED, count=len(refused))
