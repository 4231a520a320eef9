"""Copying checkpoints to a log that is exported elsewhere, so that it too may be cut, or begin in the middle.

Rule: one a day is copied. A folder of exports that is cut by days then has one that reaches, and loses the tables of
at most a day more than was cut.
Rule: where numbers are missing before the segments (the log was cut before it was exported), the first sound one after
them is copied at once.
Rule: a copy is written beside its place, read back whole and renamed, as a checkpoint is (``folder``).
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from whimbrel.log import layout
from whimbrel.log.checkpoints.folder import opened, put, remove_unfinished
from whimbrel.log.errors import CorruptLogError

__all__ = ["APART_US", "copy_checkpoints", "remove_short"]

APART_US = 86_400_000_000


def copy_checkpoints(directory: Path, target: Path, node: str, *, first: int) -> None:
    """Copy checkpoints of *node* to *target*, which has no number between its last checkpoint or part and *first*."""
    remove_unfinished(target, node)
    there = layout.checkpoints(target, node)
    last_seq, last_at = 0, 0
    for seq, path in reversed(there):
        with suppress(CorruptLogError), opened(path, node, seq) as reader:
            last_seq, last_at = seq, reader.header.state_at
            break
    for seq, path in layout.checkpoints(directory, node):
        with suppress(CorruptLogError, FileNotFoundError), opened(path, node, seq) as reader:
            is_due = reader.header.state_at >= last_at + APART_US or last_seq < first - 1
            if seq > last_seq and is_due:
                put(target, reader.header, reader.rows())
                last_seq, last_at = seq, reader.header.state_at


def remove_short(directory: Path, node: str, *, first: int) -> int:
    """Remove the checkpoints of *node* that end before *first*, the oldest number there is; return how many bytes.

    The newest stays. In a folder with segments nothing is done: the broker keeps those (``folder.save``).
    """
    if layout.segments(directory, node):
        return 0
    size = 0
    for seq, path in layout.checkpoints(directory, node)[:-1]:
        if seq < first - 1:
            size += path.stat().st_size
            path.unlink()
    return size
