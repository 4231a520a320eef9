"""Upkeep of tables that no stream keeps now: merge small files, and remove what no reader needs any more.

A stream does this by itself. A folder of batch runs, or one whose stream has ended, may need it once in a while.
Rule: upkeep holds the lock of the stream, so it never runs beside one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from whimbrel.errors import InvalidValueError
from whimbrel.log.files import locked
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.files.delta import DeltaOutput, data_files

__all__ = ["TableUpkeep", "compact_tables", "vacuum_tables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUpkeep:
    """Effect of upkeep on one table."""

    table: str
    files_before: int
    """Number of data files of the newest version before."""
    files: int
    """Number of data files of the newest version now."""
    removed: int = 0
    """Number of files that were removed from the disk: data files, commits and checkpoints."""


def compact_tables(out: Path, tables: Sequence[str] = ()) -> list[TableUpkeep]:
    """Merge the small files of *tables* in the folder *out*, or of all tables; the rows stay the same."""
    found = []
    with _tables(out, tables) as outputs:
        for output in outputs:
            before = len(data_files(out, output.table))
            while output.compact():
                pass
            found.append(TableUpkeep(table=output.table, files_before=before, files=len(data_files(out, output.table))))
    return found


def vacuum_tables(out: Path, tables: Sequence[str] = ()) -> list[TableUpkeep]:
    """Remove data files that no version of the last six hours needs, and commits and checkpoints that are older.

    Raise ``InvalidValueError`` if a stopped stream has made a batch whose files are not committed yet.
    """
    found = []
    with _tables(out, tables) as outputs:
        _check_batch_done(out / "_stream" / "batch.json")
        for output in outputs:
            files = len(data_files(out, output.table))
            removed = output.sweep() + output.tidy_log()
            found.append(TableUpkeep(table=output.table, files_before=files, files=files, removed=removed))
    return found


def _check_batch_done(record: Path) -> None:
    """Refuse to remove files while the last batch of a stream has files that no commit names yet."""
    try:
        is_done = json.loads(record.read_text(encoding="utf-8"))["is_done"]
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):
        is_done = False  # the start of the stream says what is wrong
    if not is_done:
        sentence = (
            f"{record}: the stream was stopped before it committed its last batch, and nothing was removed; "
            "start the stream once to finish that batch, then try again"
        )
        raise InvalidValueError("record of the last batch", str(record), "one of a finished batch", sentence)


@contextmanager
def _tables(out: Path, tables: Sequence[str]) -> Iterator[list[DeltaOutput]]:
    """Yield the tables in *out*, which no stream changes in the ``with`` block."""
    there = [name for name in TABLES_MADE if (out / name / "_delta_log").is_dir()]
    for name in tables:
        if name not in there:
            raise InvalidValueError(f"table in {out}", name, ", ".join(there) or "none: there are no tables")
    chosen = [name for name in there if not tables or name in tables]
    if not chosen:
        raise InvalidValueError("directory of the tables", str(out), "one in which `whimbrel pipeline run` made tables")
    with locked(out / "_stream" if (out / "_stream").is_dir() else out, "keeping these tables"):
        yield [DeltaOutput(out, name) for name in chosen]
