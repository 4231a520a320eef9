"""Packing in a process of its own, so that a match never waits for Python's global lock while a segment is made.

Packing a hundred thousand filters takes seconds of Python. A thread would compete with the matching: it holds the lock
for five milliseconds at a time, and longer where numpy does not release it. The process runs this module: it reads a
line {"parts": FILE, "segment": FILE}, packs, and answers {} or {"error": why}. It ends when its standard input ends,
which also happens when its parent dies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from whimbrel.errors import WhimbrelError
from whimbrel.match.index.parts import Part

if TYPE_CHECKING:
    from whimbrel.match.index.segments import Segment

__all__ = ["PackingProcess", "PackingProcessError"]

_NICE = 10
"""Niceness of the process: packing may wait, matching may not."""


class PackingProcessError(WhimbrelError):
    """The packing process failed or is gone. Reaction: nothing is lost; the next repacking starts another process."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the packing process failed: {self.reason}"


class PackingProcess:
    """Packs filters (``Part``) into a segment in a child process.

    A process is started if none is idle, and is then reused.
    """

    def __init__(self) -> None:
        self._idle: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def __call__(self, parts: Sequence[Part]) -> Segment:
        """Return one segment with the filters of *parts* that are not removed.

        Raise ``PackingProcessError`` if that failed.
        """
        from whimbrel.match.index.segments import Segment  # it loads numba

        with tempfile.TemporaryDirectory(prefix="whimbrel-packing-") as name:
            directory = Path(name)
            _write(directory / "parts", parts)
            self._ask({"parts": str(directory / "parts"), "segment": str(directory / "segment")})
            return Segment.read(directory / "segment")

    def _ask(self, request: dict[str, str]) -> None:
        with self._lock:
            process = self._idle.pop() if self._idle else _start()
        try:
            answer = _exchange(process, request)
        except (OSError, ValueError) as error:
            _end(process)
            raise PackingProcessError("it ended without an answer") from error
        except BaseException:  # interrupted between request and answer: the late answer would be taken for the next one
            _end(process)
            raise
        with self._lock:
            self._idle.append(process)
        if "error" in answer:
            raise PackingProcessError(str(answer["error"]))

    def close(self) -> None:
        """End the idle processes; a later packing starts a new one."""
        with self._lock:
            while self._idle:
                _end(self._idle.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", __name__]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603  # ours


def _exchange(process: subprocess.Popen[bytes], request: dict[str, str]) -> dict[str, str]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    answer: dict[str, str] = json.loads(process.stdout.readline())
    return answer


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _write(path: Path, parts: Sequence[Part]) -> None:
    arrays: dict[str, Any] = {}
    for number, part in enumerate(parts):
        arrays |= {f"{number}.{field}": array for field, array in part._asdict().items()}
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _read(path: Path) -> list[Part]:
    with np.load(path) as arrays:
        count = len(arrays.files) // len(Part._fields)
        return [Part(*(arrays[f"{number}.{field}"] for field in Part._fields)) for number in range(count)]


def _serve() -> None:
    from whimbrel.match.index.segments import pack_parts  # it loads numba

    os.nice(_NICE)
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, str] = {}
        try:
            pack_parts(_read(Path(request["parts"]))).save(Path(request["segment"]))
        except Exception as error:  # noqa: BLE001  # whatever fails, the parent is told and this process continues
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
