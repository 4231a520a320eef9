"""Cutting: measure the disk usage of a node's log, and remove the segments that a plan names.

Rule: the oldest segment is removed first, and the folder is fsynced after each, so a crash leaves no gap.
Rule: readers that lose unread records are marked before any segment is removed, so that they learn of it even after a
crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from whimbrel.log import layout
from whimbrel.log.errors import LogWriteError
from whimbrel.log.files import sync_file
from whimbrel.log.keeping.plan import ClosedSegment, Plan
from whimbrel.log.keeping.readers import mark_lost
from whimbrel.log.segments import is_torn_creation, read_header

__all__ = ["OnDisk", "cut", "on_disk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDisk:
    """Disk usage of a node's log: its segments and checkpoints, with their sizes."""

    segments: tuple[ClosedSegment, ...]
    open_bytes: int
    """Size of the segments that are not closed, in bytes: usually the one that the node appends to."""
    checkpoints: tuple[tuple[int, int], ...]
    """Seq and size in bytes of each checkpoint, in order."""
    oldest: int
    """The first seq in the segments; 0 if there are none."""
    oldest_at: int = 0
    """The time of the record before ``oldest``, which was cut; 0 if none was cut."""

    @property
    def segment_bytes(self) -> int:
        """Size of all segments, in bytes."""
        return self.open_bytes + sum(each.size_bytes for each in self.segments)

    @property
    def checkpoint_bytes(self) -> int:
        """Size of all checkpoints, in bytes."""
        return sum(size for _, size in self.checkpoints)

    def find_uncovered(self, seq: int) -> tuple[ClosedSegment, ...]:
        """Return the closed segments that have a record after *seq*."""
        return tuple(each for each in self.segments if each.last > seq)


def on_disk(directory: Path, node: str) -> OnDisk:
    """List a node's segments and checkpoints with their sizes; only headers of segments are read."""
    found = layout.segments(directory, node)
    closed: list[ClosedSegment] = []
    for (first, path), (following, next_path) in pairwise(found):
        if is_torn_creation(next_path):
            break
        with next_path.open("rb") as stream:
            last_at = read_header(stream, next_path).last_at
        size = path.stat().st_size
        closed.append(ClosedSegment(first=first, last=following - 1, size_bytes=size, last_at=last_at))
    rest = found[len(closed) :]
    oldest_at = 0
    if found and found[0][0] > 1 and not is_torn_creation(found[0][1]):
        with found[0][1].open("rb") as stream:
            oldest_at = max(read_header(stream, found[0][1]).last_at, 0)
    return OnDisk(
        segments=tuple(closed),
        open_bytes=sum(path.stat().st_size for _, path in rest),
        checkpoints=tuple((seq, path.stat().st_size) for seq, path in layout.checkpoints(directory, node)),
        oldest=found[0][0] if found else 0,
        oldest_at=oldest_at,
    )


def cut(directory: Path, node: str, plan: Plan) -> int:
    """Remove the segments that *plan* names; return their total size in bytes."""
    if not plan.segments:
        return 0
    for reader in plan.lost:
        mark_lost(directory, node, reader)
    folder = layout.segments_folder(directory, node)
    try:
        for each in plan.segments:
            layout.segment_path(directory, node, each.first).unlink(missing_ok=True)
            sync_file(folder)
    except OSError as error:
        raise LogWriteError(folder, error.strerror or str(error), "older segments stay") from error
    return sum(each.size_bytes for each in plan.segments)
