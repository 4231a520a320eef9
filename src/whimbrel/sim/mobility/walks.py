"""Walks: the position of every node at any time, as corners that are joined by straight lines.

Rule: the corners of a node stand together, ordered by time; the first is at time 0, the last at the end or later.
Rule: a pause is a line from a corner to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Corner", "Walks"]

Corner = tuple[float, float, float]
"""Time in seconds, metres east and north."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walks:
    """The walks of all nodes for *seconds*; node i has the corners first[i] to first[i + 1] - 1."""

    seconds: float
    first: NDArray[np.int64]
    time: NDArray[np.float64]
    x: NDArray[np.float64]
    y: NDArray[np.float64]

    @classmethod
    def of(cls, walks: Sequence[Sequence[Corner]], *, seconds: float) -> Walks:
        """Build walks from corners, node by node."""
        corners = np.array([corner for walk in walks for corner in walk], np.float64).reshape(-1, 3)
        first = np.cumsum([0, *(len(walk) for walk in walks)]).astype(np.int64)
        time, x, y = (np.ascontiguousarray(column) for column in corners.T)
        return cls(seconds=seconds, first=first, time=time, x=x, y=y)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.first) - 1

    def corners(self, node: int) -> list[Corner]:
        """Return the corners of one node."""
        span = slice(self.first[node], self.first[node + 1])
        columns = (self.time[span].tolist(), self.x[span].tolist(), self.y[span].tolist())
        return list(zip(*columns, strict=True))

    def positions(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the position of each node at each of *times*, indexed by node, time and axis."""
        found = np.empty((self.nodes, len(times), 2))
        for node in range(self.nodes):
            span = slice(self.first[node], self.first[node + 1])
            found[node, :, 0] = np.interp(times, self.time[span], self.x[span])
            found[node, :, 1] = np.interp(times, self.time[span], self.y[span])
        return found
