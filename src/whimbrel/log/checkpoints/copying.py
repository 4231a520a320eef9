"""Copying checkpoints to the folder of an export, so that its Parquet may be cut, or begin after the first seq.

Rule: one checkpoint per day is copied. So if days of exports are removed, a checkpoint exists from which the tables can
start, and at most one more day of the tables is lost.
Rule: if seqs are missing before the segments (the log was cut before it was exported), the first valid checkpoint after
the missing seqs is copied at once.
Rule: a copy is written to a temporary file, read back whole and renamed, as every checkpoint is (``folder``).
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
    """Copy the checkpoints of *node* that the export folder *target* needs.

    *first* is the first seq in *target* after missing ones; 1 if none are missing.
    """
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
    """Remove checkpoints of *node* that no table needs; return their total size in bytes.

    These end before the seq that precedes *first*, the oldest seq in the folder. The newest checkpoint stays. In a
    folder with segments nothing is removed: there ``folder.save`` removes old ones.
    """
    if layout.segments(directory, node):
        return 0
    size = 0
    for seq, path in layout.checkpoints(directory, node)[:-1]:
        if seq < first - 1:
            size += path.stat().st_size
            path.unlink()
    return size
