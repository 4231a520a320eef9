"""A real broker in its own process, for an experiment: start it with settings, measure it, stop or kill it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import NamedTuple, Self
from urllib.request import urlopen

from whimbrel.errors import WhimbrelError

__all__ = ["NODE", "BrokerEndedError", "BrokerRun", "CoreTimes"]

NODE = "ward"
_PORT = re.compile(r"\b(mqtt|http)=([0-9]+)")
_OPTIONS = {"mqtt": "--port", "http": "--http-port"}
_STOP_S = 60.0
_WORDS = 200
_WARNED = re.compile(r"\b(warning|error)\b")


class BrokerEndedError(WhimbrelError):
    """The broker of an experiment ended unexpectedly. Reaction: read the last lines of its log."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words

    def __str__(self) -> str:
        return f"the broker ended; its last words: {self.words}"


class CoreTimes(NamedTuple):
    """Processor seconds so far: of the broker itself, and of its worker processes that shape bodies."""

    broker_s: float
    workers_s: float


class BrokerRun:
    """A broker with its data in *folder* that listens on *host*; *settings* by section, as in the configuration.

    *module* is the Python module to run, with the options of ``whimbrel serve``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str,
        settings: Mapping[str, Mapping[str, object]],
        module: tuple[str, ...] = ("whimbrel", "serve"),
    ) -> None:
        data = folder / "data"
        self.log = data / "log"
        self.ports = {"mqtt": 0, "http": 0}
        self.warnings: list[str] = []
        """The first warnings and errors of its log, as lines."""
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "broker.toml"
        lines = [
            line
            for section, values in settings.items()
            for line in (f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items()))
        ]
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        options = ["--config", str(config), "--data", str(data), "--node", NODE, "--host", host, "--insecure"]
        self._command = [sys.executable, "-m", *module, *options]
        self._words: deque[str] = deque(maxlen=20)

    @property
    def port(self) -> int:
        """The broker's MQTT port."""
        return self.ports["mqtt"]

    def start(self) -> Self:
        """Start the broker and wait until it listens; a restart uses the same ports."""
        ports = [option for kind, port in self.ports.items() for option in (_OPTIONS[kind], str(port))]
        self._process = subprocess.Popen(  # noqa: S603 # ourselves
            [*self._command, *ports],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._note(line)
            found = {kind: int(port) for kind, port in _PORT.findall(line)} if "listening" in line else {}
            if found:
                self.ports = found
                break
        else:
            raise BrokerEndedError(" ".join(self._words))
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()
        return self

    def stop(self) -> None:
        """Ask the broker to stop and wait for its end; kill it if it does not end in time."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._wait()

    def kill(self) -> None:
        """Kill the broker at once (SIGKILL)."""
        self._process.kill()
        self._wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.stop()

    def core_times(self) -> CoreTimes:
        """Return the processor seconds of the broker and of its children, including those that have ended."""
        pid, ticks = self._process.pid, os.sysconf("SC_CLK_TCK")
        own = _stat(pid)
        workers = own[2] + own[3] + sum(sum(_stat(child)[:2]) for child in _children(pid))
        return CoreTimes((own[0] + own[1]) / ticks, workers / ticks)

    def metrics(self) -> dict[str, float]:
        """Return the broker's metrics that have no labels."""
        with urlopen(f"http://127.0.0.1:{self.ports['http']}/metrics", timeout=_STOP_S) as answer:  # ours
            lines = answer.read().decode().splitlines()
        pairs = (line.split(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs if "{" not in name}

    def _wait(self) -> None:
        self._process.wait()
        self._reading.join()

    def _read(self) -> None:
        """Read the broker's log lines, so that it never blocks on a full pipe."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._note(line)

    def _note(self, line: str) -> None:
        self._words.append(line.strip())
        if len(self.warnings) < _WORDS and _WARNED.search(line):
            self.warnings.append(line.strip())


def _stat(pid: int) -> tuple[int, int, int, int]:
    """Return user and system time of a process, then of its ended children, in ticks; zeros if it has ended."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0, 0, 0, 0
    user, system, child_user, child_system = (int(each) for each in told[11:15])
    return user, system, child_user, child_system


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text(encoding="utf-8").split())
        except OSError:
            continue
    return found
