"""The demo's broker: the real one, in a process of its own, on a free port of this machine only.

Rule: the process has a session of its own, so that Ctrl-C in the terminal reaches only the demo and not the broker.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from pathlib import Path

from whimbrel.errors import WhimbrelError

__all__ = ["NODE", "BrokerFailedError", "WardBroker"]

NODE = "ward"
_PORT = re.compile(r"\bmqtt=([0-9]+)")
_START_S = 300.0  # the first start on a machine may compile the matcher; an early end is noticed at once
_STOP_S = 30.0
_LINES = 20


class BrokerFailedError(WhimbrelError):
    """The demo's broker did not start or stop properly. Reaction: read its last log lines, and try again."""

    def __init__(self, what: str, lines: str) -> None:
        super().__init__(what, lines)
        self.what, self.lines = what, lines

    def __str__(self) -> str:
        return f"the demo's broker {self.what}; its last words:\n{self.lines}"


class WardBroker:
    """A broker with its data in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = 0
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._lines: deque[str] = deque(maxlen=_LINES)

    @property
    def log(self) -> Path:
        """Directory of the broker's log."""
        return self._folder / "log"

    async def start(self) -> None:
        """Start the broker, and wait until it listens."""
        command = [sys.executable, "-m", "whimbrel", "serve", "--data", str(self._folder), "--node", NODE]
        self._process = await asyncio.create_subprocess_exec(
            *command, "--host", "127.0.0.1", "--port", "0",
            stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, start_new_session=True,
        )  # fmt: skip
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(self._process, listening))
        try:
            async with asyncio.timeout(_START_S):
                self.port = await listening
        except TimeoutError:
            raise self._failure("did not listen in time") from None

    async def stop(self) -> None:
        """Stop the broker as an operator would, and wait until it has ended."""
        process = self._process
        assert process is not None
        if process.returncode is not None:
            raise self._failure(f"ended by itself, with status {process.returncode}")
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S):
                status = await process.wait()
        except TimeoutError:
            raise self._failure("did not stop in time") from None
        if status:
            raise self._failure(f"stopped with status {status}")

    async def kill(self) -> None:
        """Kill the broker if it still runs, because the demo was aborted."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading

    async def _read(self, process: Process, listening: asyncio.Future[int]) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            found = _PORT.search(text) if "listening" in text else None
            if found is not None and not listening.done():
                listening.set_result(int(found[1]))
        if not listening.done():
            listening.set_exception(self._failure("ended before it listened"))

    def _failure(self, what: str) -> BrokerFailedError:
        return BrokerFailedError(what, "\n".join(self._lines) or "none")
