"""A broker in a process of its own, for tests from end to end: started, stopped, killed and started again.

Rule: the data directory and the ports stay the same over a restart, so that a client finds its broker again.
Rule: nothing is polled: a thread reads what the broker writes, and ``start`` waits for the line that it listens.
Rule: it is a fork of a process that has loaded a broker's modules (``broker_forks``), unless a test says
``is_forked=False``: then it loads them itself, as a user's broker does.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

from tests.e2e.broker_forks import Forked, fork_broker
from tests.e2e.stepped_clock import SteppedClock

__all__ = ["BrokerProcess", "Settings"]

Settings = Mapping[str, Mapping[str, object]]
"""Values by section and name, as in the configuration file."""

_START_S = 300.0  # a machine that does much else, and may compile the matcher for the first time
_STOP_S = 30.0
_PORT = re.compile(r'\b(mqtt|mqtts|ws|wss|http)(?:=|": )([0-9]+)')  # as text or as JSON
_OPTIONS = {"mqtt": "--port", "mqtts": "--tls-port", "ws": "--ws-port", "wss": "--wss-port", "http": "--http-port"}


def _with_quick_passwords(settings: Settings) -> Settings:
    """Return settings with hashes that take milliseconds, where a test does not say what they take."""
    return {**settings, "access": {"password_hash_mib": 1, **settings.get("access", {})}}


class BrokerProcess:
    """One broker in *folder*, with the settings of a configuration file and the *options* of the command line.

    It listens for MQTT on any free port; options such as ``"--ws-port", "0"`` open more. It may have *most_files* open,
    if that is given. With *disk_bytes* its data are on a disk of that size, which is gone when it ends. It gets the
    variables of *environment* beside those of this process.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        settings: Settings | None = None,
        clock: SteppedClock | None = None,
        is_forked: bool = True,
        most_files: int | None = None,
        disk_bytes: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data = folder / "data"
        self.ports: dict[str, int] = {}
        """Where it listens, by kind: mqtt, mqtts, ws, wss, http."""
        self.lines: list[str] = []
        """What all its processes wrote to standard error."""
        self._options, self._clock, self._is_forked, self._most_files = options, clock, is_forked, most_files
        self._disk_bytes, self._environment = disk_bytes, dict(environment or {})
        self._config = folder / "broker.toml"
        folder.mkdir(parents=True, exist_ok=True)
        self._config.write_text(_toml(_with_quick_passwords(settings or {})), encoding="utf-8")
        self._process: subprocess.Popen[str] | Forked | None = None
        self._reader: Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started, and was neither stopped nor killed since."""
        return self._process is not None

    @property
    def port(self) -> int:
        """The port of MQTT over TCP."""
        return self.ports["mqtt"]

    @property
    def pid(self) -> int:
        """The id of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self, *options: str) -> Self:
        """Start it, this once with more *options*, and wait until it listens; on the ports that it had before."""
        assert self._process is None, "it runs"
        arguments = ["--config", str(self._config), "--data", str(self.data), "--port", "0", *self._options, *options]
        for kind, port in self.ports.items():
            arguments += [_OPTIONS[kind], str(port)]  # of two equal options the later one counts
        process: Forked | subprocess.Popen[str]
        if self._disk_bytes is not None:
            self.data.mkdir(exist_ok=True)
            process = _execute(arguments, self._environment, _on_disk(self.data, self._disk_bytes))
        elif self._is_forked:
            process = fork_broker(arguments, self._clock, most_files=self._most_files, environment=self._environment)
        else:
            process = _execute(arguments, self._environment)
        written: queue.Queue[str | None] = queue.Queue()
        self._process, self._reader = process, Thread(target=self._read, args=(process, written), daemon=True)
        self._reader.start()
        try:
            self.ports = self._listening(written)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> int:
        """Ask it to stop (SIGTERM), wait until it did, and return its exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it (SIGKILL): it has no time for anything."""
        self._end(signal.SIGKILL)

    def ends_within(self, seconds: float) -> bool:
        """Return whether it ends by itself within *seconds*; ``kill`` or ``stop`` must follow in any case."""
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def restart(self) -> Self:
        """Stop it and start it again."""
        self.stop()
        return self.start()

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()

    def _end(self, number: signal.Signals) -> int:
        process, reader = self._process, self._reader
        assert process is not None
        assert reader is not None
        process.send_signal(number)
        try:
            status = process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            reader.join()
            assert process.stderr is not None
            process.stderr.close()
            self._process = self._reader = None
        return status

    def _read(self, process: subprocess.Popen[str] | Forked, written: queue.Queue[str | None]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.lines.append(line)
            written.put(line)
        written.put(None)

    def _listening(self, written: queue.Queue[str | None]) -> dict[str, int]:
        while (line := written.get(timeout=_START_S)) is not None:
            if "listening" in line:
                return {kind: int(port) for kind, port in _PORT.findall(line)}
        raise AssertionError("the broker ended before it listened:\n" + "".join(self.lines))


def _on_disk(data: Path, size: int) -> list[str]:
    """Return what runs a command with a file system of its own at *data*, in namespaces that anybody may have."""
    mounting = f'mount -t tmpfs -o size={size} tmpfs "{data}" && exec "$@"'
    return ["unshare", "-Urm", "sh", "-c", mounting, "broker"]


def _execute(arguments: list[str], environment: Mapping[str, str], within: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [*within, sys.executable, "-m", "whimbrel", "serve", *arguments]
    variables = {**os.environ, **environment}
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=variables)


def _toml(settings: Settings) -> str:
    """Return *settings* as TOML; JSON spells booleans, numbers and strings the same way."""
    lines: list[str] = []
    for section, values in settings.items():
        lines += [f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    return "\n".join(lines) + "\n"
