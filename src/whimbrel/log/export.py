"""Export: write closed segments as Parquet, for Spark and other readers.

Rule: only records that are proven durable are exported (``segments``), so a crash removes nothing that readers saw.
Rule: an export writes the parts (Parquet files) to temporary files and fsyncs them, renames them, then updates
``exported.json``. After a crash in between, the next export writes the same rows again. The names of its parts cover
those of the crashed export, which are then superseded (``layout.parts``).
Rule: export, compaction and retention of a node exclude one another by a lock; the writer does not need that lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from whimbrel.errors import InvalidValueError
from whimbrel.log import layout
from whimbrel.log.checkpoints.copying import copy_checkpoints
from whimbrel.log.errors import CorruptLogError, LogWriteError
from whimbrel.log.files import locked
from whimbrel.log.incarnation import copy_incarnation
from whimbrel.log.parts import PartWriter, publish, remove_leftovers
from whimbrel.log.reader import proven_seq, read_rows
from whimbrel.model.rows import COLUMNS

__all__ = ["EXPORT_LOCK", "Exported", "export", "export_lock"]

EXPORT_LOCK = ".export"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """Result of one export: number of rows, new Parquet files, and the last exported seq."""

    node: str
    rows: int
    parts: tuple[Path, ...]
    last_seq: int
    """The last seq that is in Parquet now."""


def export_lock(directory: Path, node: str) -> Path:
    """Return the folder whose lock a process must hold to change the Parquet files of *node*."""
    return layout.segments_folder(directory, node) / EXPORT_LOCK


def export(directory: Path, node: str, *, closed_only: bool = True, into: Path | None = None) -> Exported:
    """Export the facts that are not in Parquet yet: of closed segments or, without *closed_only*, all durable facts.

    The Parquet files and the last exported seq are written *into* the folder of another log, or into *directory*
    itself. Another folder gets checkpoints too (``checkpoints.copying``), so that its tables can start where those of
    *directory* do.
    """
    layout.check_format(directory)
    target = directory if into is None else into
    layout.create(target, has_receipts=not layout.assumes_receipts(directory))
    rows, paths = 0, []
    with locked(export_lock(target, node), "exporting this log"):
        if target != directory:
            copy_incarnation(directory, target, node)
        remove_leftovers(target, node)
        before = exported = layout.exported_seq(target, node)
        for first, last in _ranges(directory, target, node, exported, closed_only=closed_only):
            written = _export_range(directory, target, node, first, last)
            layout.set_exported_seq(target, node, last)
            exported = last
            rows += sum(writer.rows for writer in written)
            paths += [writer.path for writer in written]
        if target != directory and (found := layout.segments(directory, node)):
            begin = found[0][0]
            copy_checkpoints(directory, target, node, first=begin if begin > before + 1 else 1)
    return Exported(node=node, rows=rows, parts=tuple(paths), last_seq=exported)


def _ranges(directory: Path, target: Path, node: str, exported: int, *, closed_only: bool) -> list[tuple[int, int]]:
    """Return the ranges of seqs to export, usually one per segment."""
    found = [first for first, _ in layout.segments(directory, node)]
    if not found:
        return []
    if not closed_only:
        found.append(proven_seq(directory, node) + 1)
    # Parts that a crashed export published must lie within one new range: else readers would see their rows twice.
    published = max(
        (part.last for table in COLUMNS for part in layout.all_parts(target, table) if part.node == node), default=0
    )
    ends = sorted({max(first - 1, published) for first in found[1:]} | {max(published, exported)})
    ranges, begin = [], max(exported + 1, found[0])
    for end in ends:
        if end >= begin:
            ranges.append((begin, end))
            begin = end + 1
    return ranges


def _export_range(directory: Path, target: Path, node: str, first: int, last: int) -> list[PartWriter]:
    open_parts: dict[str, PartWriter] = {}
    finished: list[PartWriter] = []
    today: date | None = None
    expected = first
    try:
        for table, row in read_rows(directory, node, first=first, last=last):
            day = _day(directory, node, table, row)
            if day != today:  # times never run backwards, so the rows of the day before are complete
                finished += _finish(open_parts)
                today = day
            if table not in open_parts:
                path = layout.part_path(target, table, day=day, node=node, first=first, last=last)
                open_parts[table] = PartWriter(path, table)
            open_parts[table].add(row)
            expected += 1
        if expected != last + 1:
            raise CorruptLogError(layout.segments_folder(directory, node), 0, f"no record has seq {expected}")
        finished += _finish(open_parts)
        publish(finished)
    except InvalidValueError as error:
        path = layout.segments_folder(directory, node)
        raise CorruptLogError(path, 0, f"seq {first} to {last}: {error}") from None
    except OSError as error:
        raise LogWriteError(target, error.strerror or str(error), "nothing half-written is visible") from error
    finally:
        for writer in (*open_parts.values(), *finished):
            writer.abandon()  # does nothing to a part that was published
    return finished


def _finish(open_parts: dict[str, PartWriter]) -> list[PartWriter]:
    done = []
    for table in list(open_parts):
        open_parts[table].finish()
        done.append(open_parts.pop(table))
    return done


def _day(directory: Path, node: str, table: str, row: dict[str, object]) -> date:
    time_us = row.get(COLUMNS[table][2])
    if type(time_us) is not int:
        raise CorruptLogError(layout.segments_folder(directory, node), 0, f"row {row.get('seq')} has no time")
    return layout.date_of(time_us)
