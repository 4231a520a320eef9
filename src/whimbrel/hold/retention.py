"""Retention: how long and how many (Elvin proxy, 4.7 and 5.1.3)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from whimbrel.model.bounds import INT32_MAX, INT64_MAX, whole
from whimbrel.model.subscription import Subscription

__all__ = ["DEFAULT_RETENTION", "Lapses", "Retention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Default time to live and maximum count of held notifications; both bounds always exist."""

    ttl_us: int = 24 * 3_600 * 1_000_000
    max_held: int = 1_000

    def __post_init__(self) -> None:
        whole("ttl_us", self.ttl_us, 0, INT64_MAX)
        whole("max_held", self.max_held, 0, INT32_MAX)

    def of(self, subscription: Subscription | None) -> tuple[int, int]:
        """Return time to live and maximum count for a subscription; the defaults for an unknown one."""
        if subscription is None:  # the log was cut: its interest is older than its beginning
            return self.ttl_us, self.max_held
        ttl_us, max_held = subscription.ttl_us, subscription.max_held
        return self.ttl_us if ttl_us is None else ttl_us, self.max_held if max_held is None else max_held


DEFAULT_RETENTION = Retention()

_LITTLE = 1_024


class Lapses:
    """A heap of the times at which held notifications lapse: the expiry pass looks only at those that are due.

    An entry stays in the heap after its delivery until it is due, or until such entries are the majority.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, str]] = []
        """Public for the first entry alone: who asks for every fact whether anything is due has no time for a call."""
        self._delivered = 0

    def push(self, lapse: int, seq: int, session: str) -> None:
        """Note that something of a notification in a session lapses."""
        heapq.heappush(self.heap, (lapse, seq, session))

    def due(self, now: int) -> Iterator[tuple[int, int, str]]:
        """Yield and forget what lapses at or before *now*, the earliest first."""
        while self.heap and self.heap[0][0] <= now:
            yield heapq.heappop(self.heap)

    def release(self, count: int, is_held: Callable[[int, str], bool]) -> None:
        """Note that *count* entries will find nothing; once they are the most, throw them away."""
        self._delivered += count
        if self._delivered > _LITTLE and 2 * self._delivered > len(self.heap):
            self.heap = [entry for entry in self.heap if is_held(entry[1], entry[2])]
            heapq.heapify(self.heap)
            self._delivered = 0
