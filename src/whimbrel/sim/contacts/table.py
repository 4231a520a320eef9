"""The contacts of a world: intervals in which two nodes can hear each other, made once and replayed at will.

Rule: a contact has low < high and start ≤ end; contacts of one pair neither overlap nor touch; one of no length is one.
Rule: contacts stand in the order of (start, low, high); nothing else decides which of two simultaneous ones is first.
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
    """The contacts among *nodes*, numbered from 0, in the time from 0 to *seconds*."""

    nodes: int
    seconds: float
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    low: NDArray[np.int32]
    high: NDArray[np.int32]

    @classmethod
    def of(cls, contacts: Iterable[tuple[float, float, int, int]], *, nodes: int, seconds: float) -> Contacts:
        """Return a table of (start, end, low, high) in any order."""
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
        """Return the numbers of the contacts in the order in which they end."""
        return np.argsort(self.end, kind="stable")

    def looked_at(self, every_s: float) -> Contacts:
        """Return the contacts as radios see them that look only every *every_s*: later, and the shortest not at all."""
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
        """Write the table to a file; it appears whole or not at all."""
        unfinished = path.with_name(f".{path.name}.tmp.npz")
        shape = np.array([self.nodes, self.seconds])
        np.savez(unfinished, shape=shape, start=self.start, end=self.end, low=self.low, high=self.high)
        unfinished.replace(path)

    @classmethod
    def load(cls, path: Path) -> Contacts:
        """Return what ``save`` wrote."""
        with np.load(path) as saved:
            nodes, seconds = saved["shape"].tolist()
            start, end, low, high = (saved[name] for name in _FIELDS)
            return cls(nodes=int(nodes), seconds=seconds, start=start, end=end, low=low, high=high)
