"""Points of a figure, each measured in its own process, so that none leaves anything in the memory of the next.

Rule: a point's key is a hash of everything that decides its result: the function, its settings, and Whimbrel's source.
The result is a file, written atomically; a point that has a result is not measured again.
Rule: an interrupt kills the running processes, with all that they started, and keeps the finished points.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

from whimbrel.errors import InvalidValueError, WhimbrelError
from whimbrel.log.files import put

__all__ = ["FailedPointError", "OwnPoint", "Row", "check_writable", "main", "make_points"]

Row = dict[str, Any]
_POLL_S = 0.05


class FailedPointError(WhimbrelError):
    """A point could not be measured. Reaction: read the output of its process; finished points are kept."""

    def __init__(self, point: str, said: str) -> None:
        super().__init__(point, said)
        self.point, self.said = point, said

    def __str__(self) -> str:
        return f"the point {self.point} could not be made: {self.said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPoint:
    """One point: *make*, as ``module:function``, is called with *settings* and returns a row for JSON."""

    make: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[str, ...] = ("whimbrel",)
    """Packages and modules whose source decides its result."""

    @property
    def text(self) -> str:
        """Everything that decides its result, except the source."""
        return json.dumps([self.make, self.settings], sort_keys=True)

    @property
    def key(self) -> str:
        """Name of its result."""
        return sha256((_source_digest(self.sources) + self.text).encode()).hexdigest()[:32]

    def measure(self) -> Row:
        """Measure the point in this process."""
        module, name = self.make.split(":")
        row: Row = getattr(import_module(module), name)(**self.settings)
        return row


class _Running(NamedTuple):
    point: OwnPoint
    process: subprocess.Popen[bytes]
    said: IO[bytes]


def check_writable(folder: Path) -> None:
    """Create *folder*, and raise ``InvalidValueError`` if no file can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise InvalidValueError("--out", str(folder), f"a folder that can be written to ({error.strerror})") from None


def make_points(
    points: Sequence[OwnPoint],
    folder: Path,
    *,
    processes: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Measure the missing *points* of *folder*, *processes* at a time; return the rows of all, in their order."""
    check_writable(folder)
    each_once = {point.key: point for point in points}
    missing = [point for key, point in each_once.items() if not _path(folder, key).exists()]
    running: list[_Running] = []
    try:
        while missing or running:
            while missing and len(running) < processes:
                point = missing.pop(0)
                running.append(_start(point, _path(folder, point.key)))
            _wait_for_one(running)
            if on_progress is not None:
                on_progress(len(each_once) - len(missing) - len(running), len(each_once))
    finally:
        for each in running:
            with suppress(ProcessLookupError):
                os.killpg(each.process.pid, signal.SIGKILL)  # with its children, such as a broker
            each.process.wait()
            each.said.close()
    return [json.loads(_path(folder, point.key).read_text(encoding="utf-8")) for point in points]


def _path(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"


def _start(point: OwnPoint, path: Path) -> _Running:
    said = TemporaryFile()  # noqa: SIM115 # closed when its process has ended
    command = [sys.executable, "-m", "whimbrel.lab.own_processes", point.text, str(path)]
    process = subprocess.Popen(  # noqa: S603 # ourselves
        command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, process_group=0
    )
    return _Running(point, process, said)


def _wait_for_one(running: list[_Running]) -> None:
    """Wait until a process has ended; raise an error if it failed."""
    while True:
        for number, each in enumerate(running):
            try:
                code = each.process.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                continue
            del running[number]
            with each.said as said:
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
            if code:
                raise FailedPointError(each.point.text, lines[-1] if lines else f"its process ended with {code}")
            return


@cache
def _source_digest(sources: tuple[str, ...]) -> str:
    digest = sha256()
    root = Path(str(files("whimbrel")))
    named = [root.parent.joinpath(*each.split(".")) for each in sources]
    paths = [*(each.with_suffix(".py") for each in named), *(path for each in named for path in each.rglob("*"))]
    for path in sorted(each for each in paths if each.suffix in {".py", ".policy"} and each.is_file()):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def main(arguments: Sequence[str]) -> int:
    """Measure one point; the entry point of its process."""
    text, path = arguments
    make, settings = json.loads(text)
    try:
        row = OwnPoint(make=make, settings=settings).measure()
    except KeyboardInterrupt:
        return 130
    put(Path(path), json.dumps(row).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
