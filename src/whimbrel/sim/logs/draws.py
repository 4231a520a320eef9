"""Draws: random numbers that depend on a row's number only, so that a generated log is the same for any partitioning.

Rule: a draw is a function of (seed, names, row); the order of the draws does not matter.

The function is the finaliser of SplitMix64, applied twice and keyed by a hash of the seed and the names. numpy computes
it for whole columns in a few nanoseconds per draw. It is good enough for simulated worlds, not for secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

__all__ = ["Draws", "Flags", "Integers", "Reals"]

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]

_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)
_FIRST, _SECOND = np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB)
_UNIT = 2.0**-53


@dataclass(frozen=True, slots=True)
class Draws:
    """A family of draws, one per row; ``of`` derives an independent family by name."""

    path: tuple[object, ...]

    def of(self, *names: object) -> Draws:
        """Return the family that is named *names* below this one."""
        return Draws((*self.path, *names))

    def uniform(self, rows: Integers) -> Reals:
        """Draw a number from [0, 1) for each of *rows*."""
        return (self._bits(rows) >> np.uint64(11)).astype(np.float64) * _UNIT

    def below(self, rows: Integers, bound: int) -> Integers:
        """Draw an integer from 0 to *bound* - 1 for each of *rows*."""
        return (self.uniform(rows) * bound).astype(np.int64)

    def chance(self, rows: Integers, probability: float) -> Flags:
        """Draw true with *probability* for each of *rows*."""
        return self.uniform(rows) < probability

    def drift(self, who: Integers, at: Integers, period_us: int) -> Reals:
        """Return a smooth curve in [0, 1] of the time *at* for each of *who*, with a new bend every *period_us*.

        A value can be computed without those of earlier moments, unlike that of a random walk.
        """
        step, rest = np.divmod(at, period_us)
        part = rest / period_us
        part = part * part * (3 - 2 * part)
        first = who * (1 << 34) + step  # enough steps for centuries of one-second periods
        return self.uniform(first) * (1 - part) + self.uniform(first + 1) * part

    def _bits(self, rows: Integers) -> NDArray[np.uint64]:
        digest = blake2b(repr(self.path).encode(), digest_size=8).digest()
        key = np.uint64(int.from_bytes(digest, "little"))
        return _mix_bits(_mix_bits(rows.astype(np.uint64) * _GOLDEN) ^ key)


def _mix_bits(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))
