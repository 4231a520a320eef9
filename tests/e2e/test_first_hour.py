"""The new user's hour: the README's commands, word for word, in a fresh home, as fast as they can be typed.

A user who types reads the screen: the next command comes when the broker says that it listens, a subscriber that it has
subscribed, or the prompt is back. Nothing here sleeps. Every block of the README is typed here, or stands in
``ELSEWHERE`` with the test that runs it; a block that is neither fails.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(?P<language>[a-z]*)[ ]?(?P<title>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_READY = {"serve": "listening", "subscribe": "subscribed to"}
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
            self.read_until(_READY[command.split()[1]])
        return "".join(printed)

    def read_until(self, text: str) -> None:
        """Read the terminal until it has shown *text*."""
        seen = b""
        while text.encode() not in seen.replace(b"\r\n", b"\n"):
            ready, _, _ = select.select([self._terminal], [], [], 60)
            assert ready, f"the terminal never shows {text!r}, but {seen.decode()!r}"
            seen += os.read(self._terminal, 4_096)


ELSEWHERE = {
    "$ whimbrel pipeline ": "tests/e2e/test_docs.py::test_every_page_with_spark_shows_what_is_seen, with one Java",
    "make run ": "tests/e2e/test_demo.py starts what it starts; `make test` is what runs these tests",
    "python3 -m venv ": "`make test` installs so, with the same constraints",
}
"""How a block begins that is not typed here, and what runs it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a reader of the README does: write a file, type a command, or type a session of Python."""

    kind: str
    text: str
    output: str = ""


def _steps(readme: str) -> Iterator[Step]:
    """Yield each step of *readme*; a block that is not known how to be tried is an error."""
    for block in _FENCE.finditer(readme):
        text = block["text"]
        if any(text.startswith(begin) for begin in ELSEWHERE):
            continue
        if block["title"]:
            yield Step("file", block["title"], text)
        elif block["language"] == "python" and text.startswith(">>> "):
            yield Step("session", text)
        else:
            assert block["language"] == "console", f"no test runs this block of the README:\n{text}"
            before, *steps = re.split(r"^\$ ", text, flags=re.MULTILINE)
            assert not before, f"this block of the README begins with no command:\n{text}"
            for step in steps:
                command, _, output = step.partition("\n")
                yield Step("command", command, output)


def test_no_block_of_the_readme_is_left_out() -> None:
    """A block that no test runs is one that will be wrong some day."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    kinds = Counter(step.kind for step in _steps(readme))
    assert kinds["command"] > 12
    assert kinds["session"] > 0
    assert all(f"\n{begin}" in readme for begin in ELSEWHERE), "what is run elsewhere is not in the README any more"
    for block in ("```ruby\nputs 1\n```\n", "```console\nwhimbrel serve\n```\n"):
        with pytest.raises(AssertionError, match="of the README"):
            list(_steps(block))


def test_the_readme_works_as_it_is_typed(tmp_path: Path) -> None:
    """The first hour decides whether there is a second: no command fails, waits for a minute, or needs a sleep."""
    reason = _missing()
    if reason is not None:
        pytest.skip(reason)
    found, wanted, listens = "", "", False
    with Shell(tmp_path) as shell:
        for step in _steps((ROOT / "README.md").read_text(encoding="utf-8")):
            if step.kind == "file":
                (tmp_path / step.text).write_text(step.output, encoding="utf-8")
                continue
            if step.kind == "session":
                (tmp_path / "session.txt").write_text(step.text, encoding="utf-8")
                assert not shell.type("python -m doctest session.txt"), step.text
                continue
            command, output = step.text, step.output
            found += shell.type(command)
            if output.startswith("error "):  # it goes to the terminal, and is read there
                shell.read_until(output)
                output = ""
            wanted += "" if output == "...\n" else output  # the broker's log
            listens = (listens or (command.endswith("&") and "subscribe" in command)) and not command.startswith("wait")
            if not listens:  # a listener prints when a message comes, and the page shows it at its end
                assert re.sub(r" +$", "", found, flags=re.MULTILINE) == wanted, f"$ {command}"
                found = wanted = ""
