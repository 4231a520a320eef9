"""The new user's hour: the README's commands, word for word, in a fresh home, as fast as they can be typed.

Whoever types reads the screen: the next command comes when the broker says that it listens, a subscriber that it has
subscribed, or the prompt is back. Nothing here sleeps. What the README does with Spark is run by ``test_docs``.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(?P<language>[a-z]*)[ ]?(?P<title>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_READY = {"serve": b"listening", "subscribe": b"subscribed to"}
_END = "the prompt is back"
_PORT = 1_883


def _missing() -> str | None:
    """Return why the README cannot be typed here, if it cannot."""
    for program in ("bash", "mosquitto_pub", "mosquitto_sub"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if find_spec("paho") is None:
        return "paho-mqtt is not installed"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", _PORT))
        except OSError:
            return f"port {_PORT}, which the README uses, is taken"
    return None


class Shell:
    """A shell in *folder*; what its programs say to the terminal is read apart from what they print."""

    def __init__(self, folder: Path) -> None:
        self._terminal, there = pty.openpty()
        home = folder / "home"
        home.mkdir()
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        environment |= {"HOME": str(home), "PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=there,
            text=True,
            bufsize=1,
        )
        os.close(there)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write("kill $(jobs -p) 2>/dev/null; wait; exit\n")
        self._bash.communicate(timeout=60)
        os.close(self._terminal)

    def type(self, command: str) -> str:
        """Type *command*; return what it prints, once the next can be typed."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{command}\necho '{_END}'\n")
        printed = []
        while (line := self._bash.stdout.readline()) != f"{_END}\n":
            assert line, "the shell has ended"
            printed.append(line)
        if command.endswith("&"):
            self._read_until(_READY[command.split()[1]])
        return "".join(printed)

    def _read_until(self, word: bytes) -> None:
        seen = b""
        while word not in seen:
            seen += os.read(self._terminal, 4_096)


def _steps() -> Iterator[tuple[str, str, str]]:
    """Yield title and text of each file of the README, and each command with its output, up to where Spark begins."""
    for block in _FENCE.finditer((ROOT / "README.md").read_text(encoding="utf-8")):
        if block["title"]:
            yield "file", block["title"], block["text"]
        if block["language"] == "console" and "whimbrel pipeline" not in block["text"]:
            for step in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
                command, _, output = step.partition("\n")
                yield "command", command, output


def test_the_readme_works_as_it_is_typed(tmp_path: Path) -> None:
    """The first hour decides whether there is a second: no command fails, waits for a minute, or needs a sleep."""
    reason = _missing()
    if reason is not None:
        pytest.skip(reason)
    typed, found, wanted, listens = 0, "", "", False
    with Shell(tmp_path) as shell:
        for kind, name, text in _steps():
            if kind == "file":
                (tmp_path / name).write_text(text, encoding="utf-8")
                continue
            found += shell.type(name)
            # What goes to the terminal (errors, the broker's log) is not what is printed.
            wanted += "" if text == "...\n" or "error " in text else text
            typed += 1
            listens = (listens or (name.endswith("&") and "subscribe" in name)) and not name.startswith("wait")
            if not listens:  # a listener prints when a message comes, and the page shows it at its end
                assert re.sub(r" +$", "", found, flags=re.MULTILINE) == wanted, f"$ {name}"
                found = wanted = ""
    assert typed > 15, "the README lost its commands"
