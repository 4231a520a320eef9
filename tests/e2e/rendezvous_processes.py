"""Programs of the rendezvous as processes of their own: each line they print is JSON and is remembered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Programs", "Running"]

_LIMIT_S = 60.0

Line = dict[str, Any]


class Running:
    """One process, and what it has printed."""

    def __init__(self, *arguments: str | Path, terminal: int | None = None) -> None:
        command = [sys.executable, "-m", "whimbrel", "rendezvous", *map(str, arguments)]
        self._process = subprocess.Popen(
            command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[Line] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(self._process.stdout, True), daemon=True),
            threading.Thread(target=self._read, args=(self._process.stderr, False), daemon=True),
        ]
        for each in self._readers:
            each.start()

    def _read(self, stream: Any, is_output: bool) -> None:  # noqa: FBT001 # a pipe
        for text in stream:
            with self._changed:
                if is_output:
                    self.lines.append(json.loads(text))
                else:
                    self.errors.append(text)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, is_so: Callable[[list[Line]], bool]) -> None:
        """Wait until what was printed satisfies *is_so*; a minute is a failure, not a measurement."""
        end = time.monotonic() + _LIMIT_S
        with self._changed:
            while not is_so(self.lines):
                left = end - time.monotonic()
                assert left > 0, f"{self.lines}\n{''.join(self.errors)}"
                assert self._process.poll() is None or any(each.is_alive() for each in self._readers), (
                    f"ended with {self._process.returncode}: {self.lines}\n{''.join(self.errors)}"
                )
                self._changed.wait(min(left, 1.0))

    def until(self, what: str, count: int = 1) -> Line:
        """Wait for the line number *count* of a kind, and return it."""
        self.wait_for(lambda lines: len([each for each in lines if each["what"] == what]) >= count)
        return self.all(what)[count - 1]

    def wait_for_error(self, text: str, count: int = 1) -> None:
        """Wait until *text* is on standard error so many times."""
        self.wait_for(lambda _: "".join(self.errors).count(text) >= count)

    def all(self, what: str) -> list[Line]:
        """Return the lines of a kind."""
        return [each for each in self.lines if each["what"] == what]

    @property
    def kinds(self) -> list[str]:
        """The kinds of all lines, in order."""
        return [str(each["what"]) for each in self.lines]

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        if self._process.poll() is None:
            os.kill(self._process.pid, number)
        return self.join()

    def join(self) -> int:
        """Wait for the end and return the exit code."""
        code = self._process.wait(timeout=_LIMIT_S)
        for each in self._readers:
            each.join(timeout=_LIMIT_S)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        return code


class Programs:
    """An air, and programs on its radios; all of them end with the block."""

    def __init__(self, *radios: str) -> None:
        self._stack = ExitStack()
        self._air = Running("air", *radios)
        self._radios = radios
        self.transports: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._stack.callback(self._air.end)
        self._air.until("radio", len(self._radios))
        self.transports = {each["address"]: each["transport"] for each in self._air.all("radio")}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def controller(self, address: str, log: Path, *more: str | Path) -> Running:
        """Start a controller, and wait until it is ready."""
        made = self._start("controller", "--transport", self.transports[address], "--log", log, *more)
        made.until("ready")
        return made

    def device(self, address: str, action: str, name: str, *more: str | Path, terminal: int | None = None) -> Running:
        """Start a device, with a *terminal* as its standard input if there is one."""
        where = ("--transport", self.transports[address])
        return self._start("device", *action.split(), *where, "--name", name, *more, terminal=terminal)

    def _start(self, *arguments: str | Path, terminal: int | None = None) -> Running:
        made = Running(*arguments, terminal=terminal)
        self._stack.callback(made.end)
        return made
