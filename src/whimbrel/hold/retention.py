"""Retention: how long notifications are held for a subscription, and how many (Elvin proxy, 4.7 and 5.1.3)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from whimbrel.model.bounds import INT32_MAX, INT64_MAX, whole
from whimbrel.model.subscription import Subscription

__all__ = ["DEFAULT_RETENTION", "Lapses", "Retention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Default time to live and maximum number of held notifications of a subscription; both bounds always exist."""

    ttl_us: int = 24 * 3_600 * 1_000_000
    max_held: int = 1_000

    def __post_init__(self) -> None:
        whole("ttl_us", self.ttl_us, 0, INT64_MAX)
        whole("max_held", self.max_held, 0, INT32_MAX)

    def of(self, subscription: Subscription | None) -> tuple[int, int]:
        """Return time to live (µs) and maximum number of a subscription; if it is None, return the defaults."""
        if subscription is None:  # the log was cut: the subscription was made before its first seq
            return self.ttl_us, self.max_held
        ttl_us, max_held = subscription.ttl_us, subscription.max_held
        return self.ttl_us if ttl_us is None else ttl_us, self.max_held if max_held is None else max_held


DEFAULT_RETENTION = Retention()

_LITTLE = 1_024


class Lapses:
    """Heap of the times at which held notifications lapse (are no longer held), earliest first.

    An entry stays in the heap when its notification is delivered, until it is due or such entries are the majority.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, str]] = []
        """Public so that hot paths read the time of the first entry without a call."""
        self._delivered = 0

    def push(self, lapse: int, seq: int, session: str) -> None:
        """Add the time *lapse* at which a notification is no longer held for some subscription of a session."""
        heapq.heappush(self.heap, (lapse, seq, session))

    def due(self, now: int) -> Iterator[tuple[int, int, str]]:
        """Remove and yield the entries (time, seq, session) that lapse at or before *now*, earliest first."""
        while self.heap and self.heap[0][0] <= now:
            yield heapq.heappop(self.heap)

    def release(self, count: int, is_held: Callable[[int, str], bool]) -> None:
        """Count *count* more entries as obsolete.

        If many are, remove all entries whose notification is not held (*is_held*).
        """
        self._delivered += count
        if self._delivered > _LITTLE and 2 * self._delivered > len(self.heap):
            self.heap = [entry for entry in self.heap if is_held(entry[1], entry[2])]
            heapq.heapify(self.heap)
            self._delivered = 0
