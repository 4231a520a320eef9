"""Vehicles on a grid of streets: they drive straight between junctions, turn at random, and stop at some junctions.

The trace is generated without a traffic model: vehicles have constant speeds and do not cause jams. It is meant for
their positions only.

Rule: the same seed gives the same drives; a vehicle's drive depends on the seed and its own number only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from whimbrel.model.bounds import real, whole
from whimbrel.sim.mobility.walks import Corner, Walks

__all__ = ["StreetGrid"]

_WAYS = ((1, 0), (0, 1), (-1, 0), (0, -1))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreetGrid:
    """A grid of *blocks* by *blocks* squares with sides of *block_m* metres, and a street along every side."""

    blocks: int = 6
    block_m: float = 250.0
    slowest_m_s: float = 8.0
    fastest_m_s: float = 14.0
    stop_share: float = 0.3
    """Share of the junctions at which a vehicle stops."""
    stop_s: float = 10.0

    def __post_init__(self) -> None:
        whole("blocks", self.blocks, 1, 10_000)
        real("block_m", self.block_m, 1, 1e6)
        real("slowest_m_s", self.slowest_m_s, 0.1, 1e3)
        real("fastest_m_s", self.fastest_m_s, self.slowest_m_s, 1e3)
        real("stop_share", self.stop_share, 0, 1)
        real("stop_s", self.stop_s, 0, 1e6)

    @property
    def junctions(self) -> list[tuple[float, float]]:
        """Positions of the junctions, in metres."""
        side = range(self.blocks + 1)
        return [(column * self.block_m, row * self.block_m) for column in side for row in side]

    def drives(self, vehicles: int, seconds: float, *, seed: int) -> Walks:
        """Return random drives of *vehicles* vehicles, *seconds* long."""
        found = [self._drive(seconds, random.Random(f"{seed}/drive/{number}")) for number in range(vehicles)]
        return Walks.of(found, seconds=seconds)

    def _drive(self, seconds: float, rng: random.Random) -> list[Corner]:
        speed_m_s = rng.uniform(self.slowest_m_s, self.fastest_m_s)
        column, row = rng.randint(0, self.blocks), rng.randint(0, self.blocks)
        way = self._turn(column, row, rng.randrange(4), rng)
        done = rng.random()  # it is on its first street when the trace begins
        step_column, step_row = _WAYS[way]
        x, y = (column + done * step_column) * self.block_m, (row + done * step_row) * self.block_m
        corners = [(0.0, x, y)]
        now = (1 - done) * self.block_m / speed_m_s
        while True:
            column, row = column + _WAYS[way][0], row + _WAYS[way][1]
            corners.append((now, column * self.block_m, row * self.block_m))
            if now >= seconds:
                return corners
            if rng.random() < self.stop_share:
                now += rng.uniform(0, self.stop_s) + 1e-3
                corners.append((now, column * self.block_m, row * self.block_m))
            way = self._turn(column, row, way, rng)
            now += self.block_m / speed_m_s

    def _turn(self, column: int, row: int, way: int, rng: random.Random) -> int:
        """Draw the next direction: straight on is twice as likely as left or right; back only at a dead end."""
        choices = [way, way, (way + 1) % 4, (way + 3) % 4]
        open_ways = [each for each in choices if self._is_street(column, row, each)]
        return rng.choice(open_ways or [(way + 2) % 4])

    def _is_street(self, column: int, row: int, way: int) -> bool:
        east, north = column + _WAYS[way][0], row + _WAYS[way][1]
        return 0 <= east <= self.blocks and 0 <= north <= self.blocks
