"""The point at which one cost falls below another in a sweep, by linear interpolation of the mean difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whimbrel.lab.confidence import Estimate, estimate

__all__ = ["Crossing", "find_crossing"]


@dataclass(frozen=True, slots=True)
class Crossing:
    """The smallest value from which ours is cheaper, with its 95 % confidence interval.

    ``-inf``: cheaper everywhere; ``inf``: nowhere in the sweep.
    """

    at: float
    low: float
    high: float

    def describe(self, unit: str) -> str:
        """Return the crossing as a cell of a table."""
        if self.at == -math.inf:
            return "always"
        if self.at == math.inf:
            return "never"
        low = "0" if self.low == -math.inf else f"{self.low:.0f}"
        high = "?" if self.high == math.inf else f"{self.high:.0f}"
        return f"{self.at:.0f} {unit} ({low} to {high})"


def find_crossing(places: Sequence[float], difference: Callable[[float], Sequence[float]]) -> Crossing:
    """Return the value among *places* from which the mean of *difference*, ours minus theirs, stays below zero."""
    found: list[Estimate] = [estimate(difference(place)) for place in places]

    def first_below(shift: Callable[[Estimate], float]) -> float:
        values = [shift(each) for each in found]
        if values[-1] >= 0:
            return math.inf
        above = [number for number, value in enumerate(values) if value >= 0]
        if not above:
            return -math.inf
        last = above[-1]
        one, other = values[last], values[last + 1]
        return places[last] + (places[last + 1] - places[last]) * one / (one - other)

    return Crossing(
        first_below(lambda each: each.mean),
        first_below(lambda each: each.mean - each.margin),
        first_below(lambda each: each.mean + each.margin),
    )
