"""A real broker in a process of its own, for an experiment: started with its settings, and stopped at the end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

from whimbrel.errors import WhimbrelError

__all__ = ["NODE", "BrokerEndedError", "BrokerRun"]

NODE = "ward"
_PORT = re.compile(r"\bmqtt=([0-9]+)")
_STOP_S = 60.0


class BrokerEndedError(WhimbrelError):
    """The broker of an experiment ended before its time. Reaction: read its last words."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words

    def __str__(self) -> str:
        return f"the broker ended; its last words: {self.words}"


class BrokerRun:
    """A broker with its data in *folder*, that listens on *host*; *limits* are of its configuration."""

    def __init__(self, folder: Path, *, host: str, limits: Mapping[str, int]) -> None:
        data, self.port = folder / "data", 0
        self.log = data / "log"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "broker.toml"
        lines = ["[limits]", *(f"{name} = {value}" for name, value in limits.items())]
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        options = ["--config", str(config), "--data", str(data), "--node", NODE, "--host", host, "--port", "0"]
        self._command = [sys.executable, "-m", "whimbrel", "serve", *options, "--insecure"]
        self._words: deque[str] = deque(maxlen=20)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603 # ourselves
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._words.append(line.strip())
            found = _PORT.search(line) if "listening" in line else None
            if found is not None:
                self.port = int(found[1])
                break
        else:
            raise BrokerEndedError(" ".join(self._words))
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reading.join()

    def _read(self) -> None:
        """Take what it says, so that it never waits for somebody to read it."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._words.append(line.strip())
