"""Retention: what is older than a day is removed, as whole files.

Rule: a segment goes only if all of it is in Parquet and older, and not beyond the older of the last two checkpoints;
the last one of a node never goes, for it knows the next seq. Parts go by their date, and where there are no segments
(a log that was exported there) the checkpoints that end before the oldest part go with them.
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
    """What is gone."""

    parts: int
    segments: int
    bytes: int


def retain(directory: Path, *, before: date, now: int) -> Removed:
    """Remove what is of days *before* that one; a day after today is taken for a mistake."""
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
                sync_file(path.parent)  # in order: a crash must not leave an older one before a gap
                segments += 1
            firsts = (part.first for table in COLUMNS for part in layout.all_parts(directory, table, node))
            size += remove_short(directory, node, first=min(firsts, default=layout.exported_seq(directory, node) + 1))
    return Removed(parts=parts, segments=segments, bytes=size)


def _old_parts(directory: Path, node: str, before: date) -> Iterator[Path]:
    exported = layout.exported_seq(directory, node)
    for table in layout.tables_present(directory):
        for part in layout.all_parts(directory, table):
            is_settled = part.last <= exported or table == layout.DEAD_LETTERS  # else the next export writes it again
            if part.node == node and part.date < before and is_settled:
                yield part.path


def _old_segments(directory: Path, node: str, before: date) -> Iterator[Path]:
    limit, exported = cut_limit(directory, node), layout.exported_seq(directory, node)
    if limit is not None:  # a broker begins with the older checkpoint, if the newer is damaged
        exported = min(exported, limit)
    for (_, path), (first, following) in pairwise(layout.segments(directory, node)):
        if is_torn_creation(following):
            return  # how old the one before is, is not known
        with following.open("rb") as stream:
            last_at = read_header(stream, following).last_at
        if first - 1 > exported or (last_at != NEVER and layout.date_of(last_at) >= before):
            return  # seqs and times only grow: what follows is newer
        yield path


def _remove(path: Path) -> int:
    size = path.stat().st_size
    path.unlink()
    with suppress(OSError):  # the folder of the node, then of the day, once they are empty
        if path.suffix == ".parquet":
            path.parent.rmdir()
            path.parent.parent.rmdir()
    return size
