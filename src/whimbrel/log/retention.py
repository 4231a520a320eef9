"""Retention: remove whole files whose facts are older than a given day.

Rule: a segment is removed only if all its facts are older, are in Parquet, and are not after the older of the last two
checkpoints. The last segment of a node is never removed, because it knows the next seq.
Rule: parts (Parquet files) are removed by their date. In a folder without segments (the target of an export), the
checkpoints that end before the oldest part are removed with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path

from whimbrel.errors import InvalidValueError
from whimbrel.log import layout
from whimbrel.log.checkpoints.copying import remove_short
from whimbrel.log.checkpoints.folder import cut_limit
from whimbrel.log.export import export_lock
from whimbrel.log.files import locked, sync_file
from whimbrel.log.segments import NEVER, is_torn_creation, read_header
from whimbrel.model.rows import COLUMNS

__all__ = ["Removed", "retain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Number of removed Parquet files and segments, and the total size of all removed files, with checkpoints."""

    parts: int
    segments: int
    bytes: int


def retain(directory: Path, *, before: date, now: int) -> Removed:
    """Remove the files whose facts are all from days before *before*; refuse a day after today as a mistake."""
    layout.check_format(directory)
    today = layout.date_of(now)
    if before > today:
        raise InvalidValueError("before", before.isoformat(), f"a day up to today, {today.isoformat()}")
    parts = segments = size = 0
    for node in layout.nodes(directory):
        with locked(export_lock(directory, node), "exporting this log"):
            for path in _old_parts(directory, node, before):
                size += _remove(path)
                parts += 1
            for path in _old_segments(directory, node, before):
                size += _remove(path)
                sync_file(path.parent)  # one after the other: a crash must not leave a gap between segments
                segments += 1
            firsts = (part.first for table in COLUMNS for part in layout.all_parts(directory, table, node))
            size += remove_short(directory, node, first=min(firsts, default=layout.exported_seq(directory, node) + 1))
    return Removed(parts=parts, segments=segments, bytes=size)


def _old_parts(directory: Path, node: str, before: date) -> Iterator[Path]:
    exported = layout.exported_seq(directory, node)
    for table in layout.tables_present(directory):
        for part in layout.all_parts(directory, table):
            # Parts after the last exported seq are from a crashed export, which the next export repeats: leave them.
            is_settled = part.last <= exported or table == layout.DEAD_LETTERS
            if part.node == node and part.date < before and is_settled:
                yield part.path


def _old_segments(directory: Path, node: str, before: date) -> Iterator[Path]:
    limit, exported = cut_limit(directory, node), layout.exported_seq(directory, node)
    if limit is not None:  # a broker starts from the older checkpoint if the newer is damaged
        exported = min(exported, limit)
    for (_, path), (first, following) in pairwise(layout.segments(directory, node)):
        if is_torn_creation(following):
            return  # then the age of the segment before it is unknown
        with following.open("rb") as stream:
            last_at = read_header(stream, following).last_at
        if first - 1 > exported or (last_at != NEVER and layout.date_of(last_at) >= before):
            return  # seqs and times only grow, so all later segments are newer
        yield path


def _remove(path: Path) -> int:
    size = path.stat().st_size
    path.unlink()
    with suppress(OSError):  # removes the node's folder, then the day's, once they are empty
        if path.suffix == ".parquet":
            path.parent.rmdir()
            path.parent.parent.rmdir()
    return size
