"""The controller's daemon: core, radio, log, broker and metrics, until it is told to stop.

Rule: on disk first. Facts are appended in their order, and fsynced before they are reported.
Rule: after an adapter fault that it survives (a refused page), the daemon counts and reports the fault and goes on. If
the adapter is lost (unplugged), the daemon ends with an error.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from whimbrel.errors import WhimbrelError
from whimbrel.log.writer import LogWriter
from whimbrel.rendezvous.controller import Controller, Note
from whimbrel.rendezvous.daemon.reporting import BrokerReport
from whimbrel.rendezvous.daemon.settings import ControllerSettings
from whimbrel.rendezvous.daemon.timers import LoopTimers, WallClock
from whimbrel.rendezvous.epochs import EpochFile
from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.journal import NoteLog
from whimbrel.rendezvous.nodes import ControllerNode

if TYPE_CHECKING:
    from whimbrel.rendezvous.radio.bumble.radio import BumbleRadio

__all__ = ["EPOCHS_FILE", "ControllerDaemon"]

EPOCHS_FILE = "epochs"
_NONCE_BYTES = 32


class ControllerDaemon:
    """One controller on one adapter; *told* gets lines for its operator."""

    node: ControllerNode

    def __init__(self, settings: ControllerSettings, *, told: Callable[[str], None]) -> None:
        self.settings, self._told = settings, told
        self.facts: Counter[str] = Counter()
        self.troubles: Counter[str] = Counter()
        self.report: BrokerReport | None = None
        self.metrics_port: int | None = None
        self._clock = WallClock()
        self._log: NoteLog | None = None
        self._unsynced: list[Note] = []
        self._failed: asyncio.Future[None] | None = None

    async def serve(self, stop: asyncio.Event, *, ready: Callable[[Address], None]) -> None:
        """Serve until *stop* is set; raise the error that ends the daemon earlier."""
        settings = self.settings
        loop = asyncio.get_running_loop()
        self._failed = loop.create_future()
        async with AsyncExitStack() as stack:
            self._log = stack.enter_context(NoteLog(LogWriter(settings.log, settings.node)))
            stack.callback(self._sync)
            epochs = EpochFile(settings.log / EPOCHS_FILE)
            if settings.broker is not None:
                self.report = BrokerReport(settings.broker, client_id=f"rendezvous-{settings.node}", told=self._told)
                reporting = loop.create_task(self.report.run())
                stack.callback(reporting.cancel)
                reporting.add_done_callback(self._end_report)
            radio = await self._open_radio()
            stack.push_async_callback(radio.close)
            parameters = settings.parameters
            core = Controller(
                parameters,
                address=radio.address,
                nonce_key=secrets.token_bytes(_NONCE_BYTES),
                epochs=epochs.epochs,
            )
            self.node = ControllerNode(
                core, radio, LoopTimers(), now=self._clock.now, note=self._note, keep_epoch=epochs.keep
            )
            radio.handler = self.node.handle
            self._serve_metrics(stack)
            self.node.start()
            ready(radio.address)
            stopping = loop.create_task(stop.wait())
            stack.callback(stopping.cancel)
            await asyncio.wait((stopping, self._failed, radio.lost), return_when=asyncio.FIRST_COMPLETED)
            for ended in (self._failed, radio.lost):
                if ended.done():
                    ended.result()

    async def _open_radio(self) -> BumbleRadio:
        from whimbrel.rendezvous.daemon.radios import open_radio  # Bumble is an extra

        settings = self.settings
        return await open_radio(
            settings.transport,
            name=settings.name,
            device_class=settings.device_class,
            unpaired=settings.unpaired,
            link_keys=settings.link_keys,
            now=self._clock.now,
            trouble=self._trouble,
        )

    def _serve_metrics(self, stack: AsyncExitStack) -> None:
        if self.settings.metrics_port is None:
            return
        from prometheus_client import start_http_server  # it need not be loaded without

        from whimbrel.rendezvous.daemon.metrics import registry_of

        server, _ = start_http_server(self.settings.metrics_port, addr="127.0.0.1", registry=registry_of(self))
        self.metrics_port = server.server_port
        stack.callback(server.server_close)
        stack.callback(server.shutdown)

    # -- what happens --------------------------------------------------------------------------------------------------

    def _note(self, note: Note, at: int) -> None:
        self.facts[note.kind.value] += 1
        try:
            assert self._log is not None
            self._log.append(note, at)
        except WhimbrelError as error:
            self._fail(error)
            return
        if not self._unsynced:
            asyncio.get_running_loop().call_soon(self._sync)
        self._unsynced.append(replace(note))

    def _sync(self) -> None:
        """Fsync the log, and then report the unsynced notes."""
        notes, self._unsynced = self._unsynced, []
        if not notes or self._log is None:
            return
        try:
            self._log.sync()
        except WhimbrelError as error:
            self._fail(error)
            return
        for note in notes if self.report is not None else ():
            assert self.report is not None
            self.report.put(note)

    def _trouble(self, error: WhimbrelError) -> None:
        name = type(error).__name__
        self.troubles[name] += 1
        if self.troubles[name] == 1:  # each kind is printed once; the metrics count all
            self._told(f"trouble: {error}")

    def _end_report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._told(f"reporting ended: {task.exception()}")

    def _fail(self, error: WhimbrelError) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)
