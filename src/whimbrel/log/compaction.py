"""Compaction: merge the many small Parquet files (parts) of a day into one.

Rule: only neighbouring parts are merged. The range of the new part covers the old ones. So once the new part is renamed
to its final name, the old ones are superseded (``layout.parts``). Only then are they removed, so a reader that lists
the folder in between sees each row once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from whimbrel.log import layout
from whimbrel.log.errors import LogWriteError
from whimbrel.log.export import export_lock
from whimbrel.log.files import locked
from whimbrel.log.layout import Part
from whimbrel.log.parts import PartWriter, batches, publish, remove_leftovers
from whimbrel.model.rows import COLUMNS

__all__ = ["Compacted", "compact"]

SMALL_BYTES = 64 << 20
"""Size in bytes from which on a part (a Parquet file) is not merged; merged parts stay below it, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """Counts of one compaction."""

    merged: int
    """Number of small parts that were merged."""
    made: int
    removed: int
    """Number of superseded files that were removed, those of crashed exports included."""


def compact(directory: Path, *, small_bytes: int = SMALL_BYTES) -> Compacted:
    """Merge neighbouring Parquet files below *small_bytes* of the same table, date and node; remove superseded ones."""
    layout.check_format(directory)
    merged = made = removed = 0
    for node in layout.nodes(directory):
        with locked(export_lock(directory, node), "exporting this log"):
            remove_leftovers(directory, node)
            exported = layout.exported_seq(directory, node)
            for table in COLUMNS:
                # Parts of a crashed export, beyond exported.json, are left to the next export.
                mine = [p for p in layout.parts(directory, table) if p.node == node and p.last <= exported]
                for run in _runs(mine, small_bytes):
                    _merge(directory, table, run)
                    merged, made = merged + len(run), made + 1
                removed += _remove_superseded(directory, table, node)
    return Compacted(merged=merged, made=made, removed=removed)


def _runs(parts: list[Part], small_bytes: int) -> Iterator[list[Part]]:
    """Yield lists of two or more small neighbouring Parquet files, each list of at most *small_bytes* together."""
    for _, of_day in groupby(parts, key=lambda part: part.date):
        run: list[Part] = []
        size = 0
        for part in of_day:
            part_bytes = part.path.stat().st_size
            if size + part_bytes > small_bytes:
                if len(run) > 1:
                    yield run
                run, size = [], 0
            if part_bytes < small_bytes:
                run, size = [*run, part], size + part_bytes
        if len(run) > 1:
            yield run


def _merge(directory: Path, table: str, run: list[Part]) -> None:
    first, last = run[0], run[-1]
    path = layout.part_path(directory, table, day=first.date, node=first.node, first=first.first, last=last.last)
    writer = PartWriter(path, table)
    try:
        for part in run:
            for batch in batches(part):
                writer.add_arrow(batch)
        writer.finish()
        publish([writer])
    except OSError as error:
        raise LogWriteError(path, error.strerror or str(error), "the small parts are as they were") from error
    finally:
        writer.abandon()


def _remove_superseded(directory: Path, table: str, node: str) -> int:
    kept = {part.path for part in layout.parts(directory, table)}
    gone = [p for p in layout.all_parts(directory, table) if p.node == node and p.path not in kept]
    for part in gone:
        part.path.unlink(missing_ok=True)
    return len(gone)
