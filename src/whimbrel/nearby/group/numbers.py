"""Duplicate detection for a growing series of numbers, with a sliding window; and the seqs that a node gives out."""

from __future__ import annotations

from whimbrel.model.bounds import INT64_MAX, whole

__all__ = ["REMEMBERED", "Numbering", "SeenNumbers"]

REMEMBERED = 256
"""Size of the window below the highest frame number; older frames count as seen, since they come too late."""
_MASK = (1 << REMEMBERED) - 1


class SeenNumbers:
    """The seen numbers of one series: the highest, and a bit per number of the window below it."""

    __slots__ = ("_bits", "highest")

    def __init__(self) -> None:
        self.highest = -1
        self._bits = 0

    def add(self, number: int) -> bool:
        """Record *number*; return whether it is new."""
        ahead = number - self.highest
        if ahead > 0:
            self._bits = (self._bits << ahead | 1) & _MASK if ahead < REMEMBERED else 1
            self.highest = number
            return True
        if number in self:
            return False
        self._bits |= 1 << -ahead
        return True

    def fill(self, last: int) -> None:
        """Mark all numbers up to *last* as seen."""
        behind = self.highest - last
        if behind < 0:
            self.highest, self._bits = last, _MASK
        elif behind < REMEMBERED:  # else they are below the window, and count as seen already
            self._bits |= _MASK << behind & _MASK

    def __contains__(self, number: int) -> bool:
        behind = self.highest - number
        return behind >= 0 and (behind >= REMEMBERED or bool(self._bits >> behind & 1))


class Numbering:
    """Generator of one node's seqs; after a restart *first* must be above all seqs given out before."""

    __slots__ = ("_next",)

    def __init__(self, first: int = 0) -> None:
        self._next = whole("first seq", first, 0, INT64_MAX >> 1)

    def take(self) -> int:
        """Return the next seq."""
        self._next += 1
        return self._next - 1
