"""Random waypoint: walk to a random point at a constant speed, pause, choose the next point (Campus++, section 3.3).

The walk begins in its stationary distribution: at time 0, a node is on a leg or in a pause with the probabilities that
it has after a long time. So no warm-up must be cut off (Le Boudec and Vojnović, 2005). The leg at time 0 is drawn in
proportion to its length, because long legs take longer.

Rule: the same seed gives the same walks; a node's walk depends on the seed and its own number only.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import real, whole
from whimbrel.sim.mobility.walks import Walks

__all__ = ["MAX_NODES", "RandomWaypoint"]

MAX_NODES = 100_000
_MEAN_LEG = (2 + math.sqrt(2) + 5 * math.log(1 + math.sqrt(2))) / 15
"""Mean distance of two random points in a square of side 1."""
_DIAGONAL = math.sqrt(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomWaypoint:
    """Nodes on a square of *area_m* by *area_m* metres; the defaults are the paper's."""

    nodes: int = 100
    area_m: float = 500.0
    speed_m_s: float = 1.0
    pause_s: float = 5.0

    def __post_init__(self) -> None:
        whole("nodes", self.nodes, 2, MAX_NODES)
        real("area_m", self.area_m, 1e-3, 1e7)
        real("speed_m_s", self.speed_m_s, 1e-3, 1e4)
        real("pause_s", self.pause_s, 0, 1e9)

    def check_range(self, range_m: float) -> None:
        """Refuse a radio range above the side of the square, at which nearly all nodes are always neighbours."""
        real("range_m", range_m, 1e-3, 1e7)
        if range_m > self.area_m:
            raise InvalidValueError("area_m", self.area_m, f"at least the radio range of {range_m:g} m")

    def walks(self, seconds: float, *, seed: int) -> Walks:
        """Return the walks of all nodes for *seconds*."""
        real("seconds", seconds, 1e-3, 1e9)
        parts = [self._walk(seconds, random.Random(f"{seed}/walk/{node}")) for node in range(self.nodes)]
        first = np.cumsum([0, *(len(part[0]) for part in parts)]).astype(np.int64)
        time, x, y = (np.concatenate([part[axis] for part in parts]) for axis in range(3))
        return Walks(seconds=seconds, first=first, time=time, x=x, y=y)

    def _walk(self, seconds: float, rng: random.Random) -> tuple[NDArray[np.float64], ...]:
        leg_s = _MEAN_LEG * self.area_m / self.speed_m_s
        begin, target, until_s = self._begin(rng, leg_s)
        draw = rng.random
        points = np.array([begin, target])
        took_s = np.zeros(0)
        while until_s + took_s.sum() + len(took_s) * self.pause_s < seconds:
            left_s = seconds - until_s - took_s.sum() - len(took_s) * self.pause_s
            count = int(1.1 * left_s / (leg_s + self.pause_s)) + 4
            drawn = np.array([draw() for _ in range(2 * count)]).reshape(-1, 2) * self.area_m
            points = np.concatenate([points, drawn])
            took_s = np.hypot(*(points[2:] - points[1:-1]).T) / self.speed_m_s
        return self._corners(points, until_s, took_s, seconds)

    def _begin(self, rng: random.Random, leg_s: float) -> tuple[tuple[float, float], tuple[float, float], float]:
        """Draw the position of a node at time 0, its target, and the end of its pause there."""
        side = self.area_m
        if rng.random() * (leg_s + self.pause_s) < self.pause_s:
            here = (rng.random() * side, rng.random() * side)
            return here, here, rng.random() * self.pause_s
        while True:
            x0, y0, x1, y1 = (rng.random() * side for _ in range(4))
            length = math.hypot(x1 - x0, y1 - y0)
            if rng.random() * _DIAGONAL * side < length:
                break
        done = rng.random()
        here = (x0 + done * (x1 - x0), y0 + done * (y1 - y0))
        return here, (x1, y1), (1 - done) * length / self.speed_m_s + self.pause_s

    def _corners(
        self, points: NDArray[np.float64], until_s: float, took_s: NDArray[np.float64], seconds: float
    ) -> tuple[NDArray[np.float64], ...]:
        """Return times and coordinates of arrivals and departures; the node leaves the second point at *until_s*."""
        departs = until_s + np.concatenate([[0.0], np.cumsum(took_s + self.pause_s)])
        arrives = np.concatenate([[max(until_s - self.pause_s, 0.0)], departs[:-1] + took_s])
        time = np.concatenate([[0.0], np.stack([arrives, departs], axis=1).ravel()])
        x, y = (np.concatenate([points[:1, axis], np.repeat(points[1:, axis], 2)]) for axis in (0, 1))
        end = int(np.searchsorted(time, seconds)) + 1
        return time[:end], x[:end], y[:end]
