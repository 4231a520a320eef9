"""Waiting windows: changed rows of time windows that wait for their commit, in files.

A window changes in nearly every batch, and each commit of it replaces a file. So a stream that goes on for ever commits
them once a minute; meanwhile the changed rows of each batch lie beside the stream's record.
Rule: rows wait in files that are fsynced before the batch is recorded as done, so a crash loses none.
Rule: of two rows of one window and subject, that of the later batch counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from whimbrel.log.files import sync_file
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files.delta import WHOLE, DeltaOutput, by_window

__all__ = ["WaitingRows", "WaitingWindows", "merge_changes", "merge_window", "read_changes"]

_WHOLE_TABLES = frozenset(("replicas", "meetings"))
_NAME = re.compile(r"waiting-([a-z_]+)-([0-9]{20})-([0-9]+)\.parquet")


class WaitingRows(NamedTuple):
    """A file with changed rows of a table, and the batch that made it."""

    batch: int
    number: int
    path: Path


class WaitingWindows:
    """The files of waiting rows in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, list[WaitingRows]] = {}
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            named = _NAME.fullmatch(path.name)
            if named is not None:
                self._files.setdefault(named[1], []).append(WaitingRows(int(named[2]), int(named[3]), path))

    def keep(self, table: str, batch: int, paths: Iterable[Path]) -> None:
        """Keep the files *paths*, with changed rows; a missing one was kept before, by an attempt that did not end."""
        there = self._files.setdefault(table, [])
        for number, path in enumerate(paths):
            target = self._folder / f"waiting-{table}-{batch:020}-{number}.parquet"
            if not target.exists():
                path.replace(target)
            each = WaitingRows(batch, number, target)
            if each not in there:
                there.append(each)
        sync_file(self._folder)

    def of(self, table: str, *, after: int) -> list[WaitingRows]:
        """Return the waiting files of a table, of batches later than *after*, in the order of the batches."""
        return sorted(each for each in self._files.get(table, ()) if each.batch > after)

    def drop(self, table: str) -> None:
        """Remove the waiting files of a table, which were committed."""
        for each in self._files.pop(table, ()):
            each.path.unlink(missing_ok=True)

    def drop_all(self) -> None:
        """Remove all waiting files."""
        for table in list(self._files):
            self.drop(table)

    def clear_others(self) -> None:
        """Remove all other files of the folder."""
        waiting = {each.path for files in self._files.values() for each in files}
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path not in waiting:
                path.unlink(missing_ok=True)


def read_changes(table: str, paths: Iterable[Path]) -> Any:  # a pyarrow.Table
    """Return changed rows of a table from the files of one batch."""
    return pa.concat_tables([pq.read_table(path, schema=TABLES[table].schema, partitioning=None) for path in paths])


def merge_changes(output: DeltaOutput, changes: Iterable[Any]) -> Mapping[int, Any]:  # of pyarrow.Tables
    """Return the new rows of each changed window of a table, for ``replace``; *changes* are in the order of batches."""
    merged: dict[int, Any] = {}
    for rows in changes:
        if output.table in _WHOLE_TABLES:
            merged = {WHOLE: rows}
        else:
            merged |= {window: merge_window(merged.get(window), new) for window, new in by_window(rows).items()}
    if output.table in _WHOLE_TABLES:
        return merged
    return {window: merge_window(output.window(window), new) for window, new in merged.items()}


def merge_window(before: Any | None, rows: Any) -> Any:  # pyarrow.Tables
    """Return the new *rows* of a window, and the rows of *before* for all other subjects."""
    if before is None:
        return rows
    stays = pc.invert(pc.is_in(before.column("subject"), rows.column("subject").combine_chunks()))
    return pa.concat_tables([before.filter(stays), rows.cast(before.schema)])
