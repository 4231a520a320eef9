"""JSON lines from files: bounded, with progress, and with errors that name file, line and column."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from whimbrel.errors import InvalidInputError, MalformedBodyError, MalformedLineError
from whimbrel.model.json_body import read_json

__all__ = ["MAX_LINE_BYTES", "json_lines", "name_of", "raw_lines"]

MAX_LINE_BYTES = 2 << 20
_EVERY = 1_000


def name_of(path: Path) -> str:
    """Return the name of *path* for messages; ``-`` is standard input."""
    return "standard input" if str(path) == "-" else str(path)


def raw_lines(path: Path, *, doing: str) -> Iterator[bytes]:
    """Yield the lines of *path* and show progress on a terminal; refuse a line that is too long."""
    with _open(path) as stream, _show_progress(doing, path) as progress:
        number = 0
        task = progress.add_task(doing, total=_size(path)) if progress is not None else None
        done = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                reason = f"longer than the {MAX_LINE_BYTES} bytes allowed"
                raise MalformedLineError(name_of(path), number, MAX_LINE_BYTES + 1, reason)
            done += len(line)
            if progress is not None and task is not None and number % _EVERY == 0:
                progress.update(task, completed=done)
            yield line


def json_lines(path: Path, *, doing: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield number and object of each line of *path* that is not blank."""
    for number, line in enumerate(raw_lines(path, doing=doing), start=1):
        if line.strip():
            try:
                yield number, read_json(line.rstrip(b"\r\n"))
            except MalformedBodyError as error:
                raise MalformedLineError(name_of(path), number, error.column or 1, error.reason) from None
            except InvalidInputError as error:
                raise MalformedLineError(name_of(path), number, 1, str(error)) from None


def _open(path: Path) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb")


def _size(path: Path) -> int | None:
    return None if str(path) == "-" else path.stat().st_size


def _show_progress(doing: str, path: Path) -> AbstractContextManager[Progress | None]:
    console = Console(stderr=True)
    if not console.is_terminal or str(path) == "-":
        return nullcontext(None)
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn("bytes"), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)
