"""Stats: number of rows, size, and range of seqs and times of each table in a log.

Exported rows are counted from the footers of the Parquet files, which is quick; only the rest is read from segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from whimbrel.errors import InvalidValueError
from whimbrel.log import layout
from whimbrel.log.checkpoints.folder import checked
from whimbrel.log.errors import CorruptLogError
from whimbrel.log.parts import statistics
from whimbrel.log.reader import LogReader
from whimbrel.log.records import BODY, HEAD, TABLE_NAMES, time_from
from whimbrel.model.rows import COLUMNS

__all__ = ["CHECKPOINT", "TableStats", "stats"]

CHECKPOINT = "checkpoint"
"""Table name that stands for checkpoints in ``TableStats``."""


@dataclass(slots=True, kw_only=True)
class TableStats:
    """Stats of one table of one node, or of one checkpoint."""

    table: str
    node: str
    rows: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    first_at: int | None = None
    last_at: int | None = None
    parquet_bytes: int = 0
    segment_bytes: int = 0
    """Size of the records that are not exported yet; of a checkpoint: the size of its file."""

    def cover(self, seqs: tuple[int, int] | None, times: tuple[int, int] | None) -> None:
        """Widen the ranges of these stats so that they include the ranges *seqs* and *times*."""
        if seqs is not None:
            self.first_seq = seqs[0] if self.first_seq is None else min(self.first_seq, seqs[0])
            self.last_seq = seqs[1] if self.last_seq is None else max(self.last_seq, seqs[1])
        if times is not None:
            self.first_at = times[0] if self.first_at is None else min(self.first_at, times[0])
            self.last_at = times[1] if self.last_at is None else max(self.last_at, times[1])


def stats(directory: Path) -> list[TableStats]:
    """Return the stats of every table and node that has any row."""
    layout.check_format(directory)
    found: list[TableStats] = []
    for node in layout.nodes(directory):
        exported = layout.exported_seq(directory, node)
        tables = {name: TableStats(table=name, node=node) for name in (*COLUMNS, layout.DEAD_LETTERS)}
        for each in tables.values():
            _count_parts(directory, each, exported)
        _count_segments(directory, node, exported, tables)
        found += [each for each in tables.values() if each.rows]
        found += [_of_checkpoint(path, node, seq) for seq, path in layout.checkpoints(directory, node)]
    return found


def _of_checkpoint(path: Path, node: str, seq: int) -> TableStats:
    """Return the stats of a checkpoint: number of rows and file size, at one seq and one time."""
    found = checked(path, node, seq)
    each = TableStats(table=CHECKPOINT, node=node, rows=found.rows, segment_bytes=found.size_bytes)
    each.cover((seq, seq), (found.header.state_at, found.header.state_at))
    return each


def _count_parts(directory: Path, each: TableStats, exported: int) -> None:
    is_log = each.table in COLUMNS
    time_column = COLUMNS[each.table][2] if is_log else "found_at"
    for part in layout.parts(directory, each.table):
        if part.node == each.node and (not is_log or part.last <= exported):
            rows, ranges = statistics(part.path, ("seq", time_column) if is_log else (time_column,))
            each.rows += rows
            each.parquet_bytes += part.path.stat().st_size
            each.cover(ranges.get("seq"), ranges.get(time_column))


def _count_segments(directory: Path, node: str, exported: int, tables: dict[str, TableStats]) -> None:
    for offset, seq, number, payload in LogReader(directory, node, first=exported + 1).records():
        name = TABLE_NAMES.get(number)
        try:
            at = time_from(number, payload)
        except InvalidValueError as error:
            raise CorruptLogError(layout.segments_folder(directory, node), offset, str(error)) from None
        if name is None:
            raise CorruptLogError(layout.segments_folder(directory, node), offset, f"found the table number {number}")
        each = tables[name]
        each.rows += 1
        each.segment_bytes += HEAD.size + BODY.size + len(payload)
        each.cover((seq, seq), (at, at))
