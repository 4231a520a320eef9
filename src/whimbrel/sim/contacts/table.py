"""The contacts of a world: intervals in which two nodes hear each other, computed once and replayed as often as needed.

Rule: a contact has low < high and start ≤ end; contacts of one pair neither overlap nor touch; zero length is allowed.
Rule: contacts are ordered by (start, low, high); nothing else decides which of two simultaneous contacts comes first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["Contacts"]

_FIELDS = ("start", "end", "low", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contacts:
    """The contacts among *nodes* nodes, numbered from 0, from time 0 to *seconds*."""

    nodes: int
    seconds: float
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    low: NDArray[np.int32]
    high: NDArray[np.int32]

    @classmethod
    def of(cls, contacts: Iterable[tuple[float, float, int, int]], *, nodes: int, seconds: float) -> Contacts:
        """Build a table from (start, end, low, high) rows in any order."""
        rows = sorted(contacts, key=lambda row: (row[0], row[2], row[3]))
        columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
        return cls(
            nodes=nodes,
            seconds=seconds,
            start=np.array(columns[0], np.float64),
            end=np.array(columns[1], np.float64),
            low=np.array(columns[2], np.int32),
            high=np.array(columns[3], np.int32),
        )

    def __len__(self) -> int:
        return len(self.start)

    def rows(self) -> list[tuple[float, float, int, int]]:
        """Return (start, end, low, high) of each contact."""
        return list(zip(*(getattr(self, name).tolist() for name in _FIELDS), strict=True))

    def end_order(self) -> NDArray[np.int64]:
        """Return the row numbers of the contacts, ordered by end."""
        return np.argsort(self.end, kind="stable")

    def looked_at(self, every_s: float) -> Contacts:
        """Return the contacts that radios see which scan only every *every_s*: later starts, no short contacts."""
        if every_s <= 0:
            return self
        seen = np.ceil(self.start / every_s) * every_s
        kept = np.flatnonzero(seen <= self.end)
        order = kept[np.lexsort((self.high[kept], self.low[kept], seen[kept]))]
        return Contacts(
            nodes=self.nodes,
            seconds=self.seconds,
            start=seen[order],
            end=self.end[order],
            low=self.low[order],
            high=self.high[order],
        )

    def save(self, path: Path) -> None:
        """Write the table to a file, atomically: the file is complete or absent."""
        unfinished = path.with_name(f".{path.name}.tmp.npz")
        shape = np.array([self.nodes, self.seconds])
        np.savez(unfinished, shape=shape, start=self.start, end=self.end, low=self.low, high=self.high)
        unfinished.replace(path)

    @classmethod
    def load(cls, path: Path) -> Contacts:
        """Read a table that ``save`` wrote."""
        with np.load(path) as saved:
            nodes, seconds = saved["shape"].tolist()
            start, end, low, high = (saved[name] for name in _FIELDS)
            return cls(nodes=int(nodes), seconds=seconds, start=start, end=end, low=low, high=high)
