"""Tallies: counts that the ward's devices make while the demo runs, for the page.

Rule: nothing here decides anything; the account at the end comes from the pipeline.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from whimbrel.model.attributes import Scalar

__all__ = ["Latency", "Receipt", "Tallies", "percentiles"]

_SECONDS = 60
_RECENT_S = 10.0
_MAX_LATENCIES = 20_000
_RECEIPTS = 8


class Receipt(NamedTuple):
    """A notification that arrived at a device."""

    at_s: float
    device: str
    subject: str
    body: bytes
    waited_us: int
    is_live: bool
    """Whether the device was connected when the notification was published."""


class Latency(NamedTuple):
    """Latency percentiles in microseconds; None: nothing arrived."""

    p50_us: int | None = None
    p99_us: int | None = None


class Tallies:
    """Counts per second, and the last receipts; *begun_s* is the start, on the same clock as all other times."""

    def __init__(self, begun_s: float) -> None:
        self._begun_s = begun_s
        self.published = self.received = self.held_received = 0
        self._by_second: dict[str, deque[tuple[int, int]]] = {"published": deque(), "received": deque()}
        self._latencies: deque[tuple[float, int]] = deque(maxlen=_MAX_LATENCIES)
        self.longest_held_us = 0
        self.recent: deque[Receipt] = deque(maxlen=_RECEIPTS)
        self.vitals: dict[str, tuple[int, int | None]] = {}
        """Last published pulse and oxygen, per bed."""
        self.batteries: dict[str, int] = {}
        """Battery charge in percent, per badge."""

    def note_published(self, at_s: float) -> None:
        """Count one publication."""
        self.published += 1
        self._count("published", at_s)

    def note_values(self, values: Mapping[str, Scalar]) -> None:
        """Record the values that a sensor publishes."""
        bed, pulse, oxygen = values.get("bed"), values.get("pulse"), values.get("spo2")
        if isinstance(bed, str) and isinstance(pulse, int):
            self.vitals[bed] = pulse, oxygen if isinstance(oxygen, int) else None
        badge, battery = values.get("badge"), values.get("battery")
        if isinstance(badge, str) and isinstance(battery, int):
            self.batteries[badge] = battery

    def note_received(self, receipt: Receipt, *, is_told: bool) -> None:
        """Count one received notification; *is_told*: also add it to the last receipts, which the page shows."""
        self.received += 1
        self._count("received", receipt.at_s)
        if receipt.is_live:
            self._latencies.append((receipt.at_s, receipt.waited_us))
        else:
            self.held_received += 1
            self.longest_held_us = max(self.longest_held_us, receipt.waited_us)
        if is_told:
            self.recent.append(receipt)

    def _count(self, what: str, at_s: float) -> None:
        second, counts = int(at_s - self._begun_s), self._by_second[what]
        if counts and counts[-1][0] == second:
            counts[-1] = (second, counts[-1][1] + 1)
        else:
            counts.append((second, 1))
            if len(counts) > _SECONDS:
                counts.popleft()

    def per_second(self, what: str, now_s: float, seconds: int) -> list[int]:
        """Return the counts of the last whole seconds, the oldest first."""
        counts, now = dict(self._by_second[what]), int(now_s - self._begun_s)
        return [counts.get(second, 0) for second in range(max(0, now - seconds), now)]

    def latency(self, now_s: float) -> Latency:
        """Return the latency that connected devices measured in the last seconds."""
        while self._latencies and self._latencies[0][0] < now_s - _RECENT_S:
            self._latencies.popleft()
        return percentiles([waited for _, waited in self._latencies])


def percentiles(values: list[int], weights: list[int] | None = None) -> Latency:
    """Return the median and the 99th percentile; each value counts as often as its weight."""
    if not values:
        return Latency()
    pairs = sorted(zip(values, weights or [1] * len(values), strict=True))
    sums: list[int] = []
    for _, weight in pairs:
        sums.append((sums[-1] if sums else 0) + weight)
    found = [pairs[min(bisect_left(sums, part * sums[-1]), len(pairs) - 1)][0] for part in (0.5, 0.99)]
    return Latency(*found)
