"""Snapshots: the seqs that a log has at one moment, and whether each is read from Parquet or from segments.

Rule: every row is read once. Up to the seq that the node states as exported, rows are read from Parquet; after it, from
segments. A part (Parquet file) that an export is still writing, or that a larger part has replaced, is ignored.
Rule: only records that are proven durable are read from segments.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import TypeVar

from whimbrel.log.layout import Part, exported_seq, parts, segments
from whimbrel.log.parts import statistics
from whimbrel.model.bounds import INT64_MAX
from whimbrel.pipeline.files.log_watch import LogWatch
from whimbrel.pipeline.files.schemas import TIMES

__all__ = [
    "Missing",
    "Snapshot",
    "first_number",
    "last_date",
    "missing_numbers",
    "parts_up_to",
    "read_undisturbed",
    "settled_seq",
    "snapshot",
]

T = TypeVar("T")

_TRIES = 100


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Last seq of each node's log at one moment; every table that is read with the same snapshot ends there."""

    settled: dict[str, int]
    """Last seq to read from Parquet, per node."""
    last: dict[str, int]
    """Last seq of the log, per node."""
    begins: dict[str, int] = field(default_factory=dict)
    """First seq that tables cover (``start_state``), per node whose log was cut."""


def snapshot(directory: Path, watch: LogWatch | None = None) -> Snapshot:
    """Return a snapshot of the log as of now; later facts and exports do not change what is read at it.

    *watch* is for callers that take snapshots repeatedly: unchanged files are not read again.
    """
    found = list((LogWatch(directory) if watch is None else watch).look())
    return Snapshot({node: settled for node, settled, _ in found}, {node: last for node, _, last in found})


def settled_seq(directory: Path, node: str) -> int:
    """Return the last seq of *node* to read from Parquet: it was exported, or is before the segments."""
    live = segments(directory, node)
    return max(exported_seq(directory, node), live[0][0] - 1) if live else INT64_MAX


def parts_up_to(directory: Path, table: str, node: str, settled: int) -> list[Part]:
    """Return the Parquet files of *node* that begin up to the seq *settled*; unfinished exports begin later."""
    return [part for part in parts(directory, table, node) if part.first <= settled]


def first_number(directory: Path, node: str) -> int:
    """Return the first seq that exists in a node's log; earlier facts may have been removed (``retention``)."""
    return read_undisturbed(partial(_first_number, directory, node))


@dataclass(frozen=True, slots=True)
class Missing:
    """A range of seqs whose facts are no longer in a node's log, so that no table has their rows."""

    node: str
    first: int
    last: int
    checkpoint: str = ""
    """File name of the checkpoint at which the tables start instead; empty if there is none."""

    def __str__(self) -> str:
        if self.checkpoint:
            return (
                f"log of {self.node}: it was cut, so its tables begin with number {self.last + 1}, "
                f"and with the state in {self.checkpoint}; numbers {self.first} to {self.last} are in no table"
            )
        return f"log of {self.node}: numbers {self.first} to {self.last} are not there any more, and in no table"


def missing_numbers(directory: Path, node: str, first: int | None = None) -> list[Missing]:
    """Return the ranges of seqs that a node's log lacks: cut from its beginning, or lost between Parquet and segments.

    *first* is the result of ``first_number`` (the first seq that exists), if the caller has it.
    """
    found: list[Missing] = []
    first = first_number(directory, node) if first is None else first
    if first > 1:
        found.append(Missing(node, 1, first - 1))
    live = segments(directory, node)  # read first: a concurrent export can only make the gap smaller
    exported = exported_seq(directory, node)
    if live and max(exported, first - 1) < live[0][0] - 1:
        found.append(Missing(node, max(exported + 1, first), live[0][0] - 1))
    return found


def _first_number(directory: Path, node: str) -> int:
    settled = settled_seq(directory, node)
    oldest = [own[0] for table in TIMES if (own := parts_up_to(directory, table, node, settled))]
    # Ignore segments whose facts are exported: these are read from Parquet, which may have been cut.
    return min(map(_least_number, oldest), default=0 if settled == INT64_MAX else settled + 1)


def _least_number(part: Part) -> int:
    """Return the first seq in a Parquet file, from its footer; the first seq in the file's name may be smaller."""
    _, found = statistics(part.path, ("seq",))
    return int(found["seq"][0]) if "seq" in found else part.first


def last_date(directory: Path, table: str) -> date | None:
    """Return the last date for which *table* has a part; None if it has no parts."""
    return max((part.date for part in parts(directory, table)), default=None)


def read_undisturbed(read: Callable[[], T]) -> T:
    """Return the result of *read*; repeat it if an export, a merge or retention removed a file meanwhile.

    After many tries the error of a missing file is raised.
    """
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            return read()
    return read()
