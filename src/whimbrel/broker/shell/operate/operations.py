"""Operations: requests of an operator to a running broker, by signal or through the control socket.

SIGHUP and ``whimbrel reload`` read users, rights, certificates and the log level again; SIGUSR1 and ``whimbrel status``
report the broker's status.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress

import structlog

from whimbrel.broker.shell.disk.storage import Storage
from whimbrel.broker.shell.net.listeners import Listeners
from whimbrel.broker.shell.net.socket_scheduler import SocketScheduler
from whimbrel.broker.shell.operate.control_socket import ControlSocket
from whimbrel.broker.shell.operate.reloading import Reloading
from whimbrel.broker.shell.operate.status import RecentRates, status
from whimbrel.broker.shell.operate.status_text import status_text
from whimbrel.broker.shell.running import Running, monotonic_us, on_signals, until_closed
from whimbrel.errors import WhimbrelError
from whimbrel.match.first_use import Kernels

__all__ = ["Operations"]

_log = structlog.get_logger("whimbrel")
_SAMPLE_S = 1.0


class Operations:
    """Handler of an operator's requests: status and reload; *reloading* reads the files again."""

    def __init__(
        self,
        running: Running,
        reloading: Reloading,
        storage: Storage,
        listeners: Listeners,
        turns: SocketScheduler,
        kernels: Kernels,
    ) -> None:
        self.running, self._reloading, self._storage = running, reloading, storage
        self._listeners, self._turns, self._kernels = listeners, turns, kernels
        self._recent = RecentRates()
        self._sampled_us = 0
        self._reloads: set[asyncio.Task[None]] = set()

    def start(self, control: ControlSocket) -> None:
        """Start to handle signals and the requests to *control*, and to sample counters every second."""
        self._sampled_us = monotonic_us() - int(_SAMPLE_S * 1_000_000)
        self._sample()
        on_signals(self.running.loop, {signal.SIGHUP: self.reload_soon, signal.SIGUSR1: self._print_status})
        control.acts = {"status": self._status, "reload": self._reload}

    def reload_soon(self) -> None:
        """Begin to read the files again; the result is logged."""
        task = self.running.loop.create_task(self._reload_quietly())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload_quietly(self) -> None:
        with suppress(WhimbrelError, OSError):  # the error is logged
            await self._reload()

    async def _reload(self) -> Mapping[str, object]:
        done = await self._reloading.reload(self.running)
        self._turns.flush_soon()
        return {"done": done}

    async def _status(self) -> Mapping[str, object]:
        return {"status": self._make_status()}

    def _make_status(self) -> dict[str, object]:
        ports = self._listeners.ports
        return status(self.running, ports, self._storage, self._reloading, self._kernels, self._recent)

    def _print_status(self) -> None:
        found = self._make_status()
        is_json = self.running.config.observe.log_format == "json"
        text = json.dumps({"event": "status", **found}, ensure_ascii=False) if is_json else status_text(found)
        sys.stderr.write(f"{text}\n")  # at any log level
        sys.stderr.flush()

    @until_closed
    def _sample(self) -> None:
        now_us = monotonic_us()
        late_us = max(now_us - self._sampled_us - int(_SAMPLE_S * 1_000_000), 0)
        self._sampled_us = now_us
        self._recent.sample(self.running.broker.counters, now_us, late_us)
        self.running.loop.call_later(_SAMPLE_S, self._sample)
