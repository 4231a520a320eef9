"""Exponential back-off with jitter: the time to wait before the next attempt to connect.

Rule: the bound of the wait doubles up to a maximum, and the wait is drawn at random from the upper half of the bound,
so that a thousand clients that lost one broker do not reconnect at the same moment.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from whimbrel.errors import InvalidValueError, Phrase

__all__ = ["Backoff"]

_MAX_DOUBLINGS = 62


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between attempts to connect, in seconds: the bound of the first, and the largest bound."""

    first_s: float = 0.5
    most_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.most_s:
            raise InvalidValueError("backoff", Phrase(f"{self.first_s} to {self.most_s} s"), "0 < first_s <= most_s")

    def bound_s(self, attempt: int) -> float:
        """Return the longest wait before *attempt*, in seconds; attempts count from 0."""
        return min(self.most_s, self.first_s * float(1 << min(attempt, _MAX_DOUBLINGS)))

    def wait_s(self, attempt: int, rng: random.Random) -> float:
        """Return the random wait before *attempt*, in seconds; attempts count from 0."""
        return self.bound_s(attempt) * rng.uniform(0.5, 1.0)
