"""Starts of a node, counted in a file, so that its seqs grow even if its clock is set back.

Rule: the seqs of a start are above those of every start before it. An announcement takes its epoch from them, so the
epochs of a restarted producer are above its former ones, even if its clock was set back.
Rule: the count is on disk before the first frame is sent. Without a file the count begins with the clock's minutes:
the seqs of a node that has lost its file are above its former ones, unless its clock went back, too.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.notification import NotificationId

__all__ = ["count_start", "first_seq_of", "state_folder"]

_SEQS_OF_A_START = 1 << 31
_MAX_STARTS = (INT64_MAX >> 1) // _SEQS_OF_A_START


def state_folder() -> Path:
    """Return the default folder of the counts of starts: in the user's state folder (XDG)."""
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "whimbrel" / "nearby"


def count_start(name: str, folder: Path) -> int:
    """Increment the count of starts of the node *name* in a file in *folder*, fsync it, and return it."""
    path = folder / f"{NotificationId(name, 0).node}.start"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = _read(path) + 1
        _write(path, number)
    except OSError as error:
        wanted = f"a file that can be read and written ({error.strerror}); --state names another folder"
        raise InvalidValueError("count of starts", str(path), wanted) from None
    return number


def first_seq_of(start: int) -> int:
    """Return the first seq of the start with the number *start*."""
    return start * _SEQS_OF_A_START


def _read(path: Path) -> int:
    try:
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return max(0, int(time.time()) // 60)
    except UnicodeDecodeError:
        text = ""
    if not (text.isdecimal() and int(text) < _MAX_STARTS):
        raise InvalidValueError(f"count of starts in {path}", text[:40], f"a number below {_MAX_STARTS}")
    return int(text)


def _write(path: Path, number: int) -> None:
    """Replace the file atomically: after a crash it has the old count or the new one."""
    fresh = path.with_suffix(".new")
    with fresh.open("w", encoding="ascii") as file:
        file.write(f"{number}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
