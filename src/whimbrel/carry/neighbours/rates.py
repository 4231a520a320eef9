"""Rate limits: for each neighbour, and for all of them together.

Rule: each neighbour has its own allowance, and all share another one, so that invented addresses do not add up.
Rule: the allowances of the ``_MAX_NEIGHBOURS`` neighbours seen last are remembered. A forgotten neighbour starts with a
full allowance, which the shared one bounds.
"""

from __future__ import annotations

from collections import OrderedDict

from whimbrel.model.clock import US_PER_S

__all__ = ["Allowance", "NeighbourRates"]

_MAX_NEIGHBOURS = 1_024


class Allowance:
    """A token bucket: *per_second* in the long run, at most *burst* at once."""

    def __init__(self, per_second: int, burst: int) -> None:
        self._per_second, self._burst = per_second, burst
        self._left = float(burst)
        self._at: int | None = None

    def take(self, *, now: int) -> bool:
        """Return whether one more event is allowed at *now*, in microseconds; if so, count it."""
        if self._at is not None:
            elapsed_us = max(0, now - self._at)
            self._left = min(self._burst, self._left + elapsed_us * self._per_second / US_PER_S)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class NeighbourRates:
    """An allowance for each neighbour, and one that all share."""

    def __init__(self, each: tuple[int, int], everyone: tuple[int, int]) -> None:
        self._each, self._all = each, Allowance(*everyone)
        self._neighbours: OrderedDict[int | str, Allowance] = OrderedDict()
        """By address of a node, or by host."""

    def __len__(self) -> int:
        return len(self._neighbours)

    def take(self, neighbour: int | str, *, now: int) -> bool:
        """Return whether one more event of *neighbour* is allowed at *now*; if so, count it."""
        own = self._neighbours.get(neighbour)
        if own is None:
            own = self._neighbours[neighbour] = Allowance(*self._each)
            if len(self._neighbours) > _MAX_NEIGHBOURS:
                self._neighbours.popitem(last=False)
        self._neighbours.move_to_end(neighbour)
        return own.take(now=now) and self._all.take(now=now)
