"""Snapshots: which numbers of a log there are at one moment, and where they are to be read.

Rule: every row once. Parquet is the truth up to what the node says is exported, its segments after that; a part that
an export is still making, or that a larger one has replaced, is not looked at.
Rule: nothing that a crash could take back is read from segments.
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
    "settled_seq",
    "snapshot",
    "undisturbed",
]

T = TypeVar("T")

_TRIES = 100


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there is of a log at one moment: every table read at it ends at the same number of each node."""

    settled: dict[str, int]
    """By node, up to which number Parquet is the truth."""
    last: dict[str, int]
    """By node, the last number there is."""
    begins: dict[str, int] = field(default_factory=dict)
    """By node whose log was cut, the first number that tables are made of (``start_state``)."""


def snapshot(directory: Path, watch: LogWatch | None = None) -> Snapshot:
    """Return what there is now; facts that come later, and exports that move them, change nothing that reads it.

    *watch* is for callers that ask repeatedly, and want only what is new to be looked at.
    """
    found = list((LogWatch(directory) if watch is None else watch).look())
    return Snapshot({node: settled for node, settled, _ in found}, {node: last for node, _, last in found})


def settled_seq(directory: Path, node: str) -> int:
    """Return up to which number Parquet is the truth of *node*: what came before its segments, or was exported."""
    live = segments(directory, node)
    return max(exported_seq(directory, node), live[0][0] - 1) if live else INT64_MAX


def parts_up_to(directory: Path, table: str, node: str, settled: int) -> list[Part]:
    """Return the parts of *node* that hold numbers up to *settled*; what an export is still making begins after it."""
    return [part for part in parts(directory, table, node) if part.first <= settled]


def first_number(directory: Path, node: str) -> int:
    """Return the first number of a node's log that is there: what came before it may have been cut (``retention``)."""
    return undisturbed(partial(_first_number, directory, node))


@dataclass(frozen=True, slots=True)
class Missing:
    """Numbers of a node that were given, and are in no table."""

    node: str
    first: int
    last: int
    checkpoint: str = ""
    """The checkpoint that the tables begin at instead, if there is one."""

    def __str__(self) -> str:
        if self.checkpoint:
            return (
                f"log of {self.node}: it was cut, so its tables begin with number {self.last + 1}, "
                f"and with the state in {self.checkpoint}; numbers {self.first} to {self.last} are in no table"
            )
        return f"log of {self.node}: numbers {self.first} to {self.last} are not there any more, and in no table"


def missing_numbers(directory: Path, node: str, first: int | None = None) -> list[Missing]:
    """Return what is not there of a node: what was cut from the beginning, and what was lost before its segments.

    *first* is the node's ``first_number``, if that is known.
    """
    found: list[Missing] = []
    first = first_number(directory, node) if first is None else first
    if first > 1:
        found.append(Missing(node, 1, first - 1))
    live = segments(directory, node)  # first: an export that goes on meanwhile makes the gap smaller, never larger
    exported = exported_seq(directory, node)
    if live and max(exported, first - 1) < live[0][0] - 1:
        found.append(Missing(node, max(exported + 1, first), live[0][0] - 1))
    return found


def _first_number(directory: Path, node: str) -> int:
    settled = settled_seq(directory, node)
    oldest = [own[0] for table in TIMES if (own := parts_up_to(directory, table, node, settled))]
    # A segment whose facts are exported does not count: they are read from Parquet, and that may have been cut.
    return min(map(_least_number, oldest), default=0 if settled == INT64_MAX else settled + 1)


def _least_number(part: Part) -> int:
    """Return the first number in a part; its name says that of an export, of which this may be a later day."""
    _, found = statistics(part.path, ("seq",))
    return int(found["seq"][0]) if "seq" in found else part.first


def last_date(directory: Path, table: str) -> date | None:
    """Return the last day of which *table* has a part."""
    return max((part.date for part in parts(directory, table)), default=None)


def undisturbed(read: Callable[[], T]) -> T:
    """Return what *read* does, again if a file goes meanwhile: an export, a merge or retention went on.

    None of them goes on for ever; what is still missing after many tries is missing.
    """
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            return read()
    return read()
