"""The queue of transforms (round robin by device, equal work once) and the cache of their results; both are bounded."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable

from whimbrel.shape.transforms import Work

__all__ = ["ResultCache", "WorkQueue"]


class WorkQueue:
    """Work that waits for a process; devices take turns, so that one with much work does not delay the others."""

    def __init__(self, *, max_jobs: int, max_bytes: int) -> None:
        self._max_jobs, self._max_bytes = max_jobs, max_bytes
        self._waiting: dict[Hashable, deque[tuple[bytes, Work]]] = {}
        self._known: set[bytes] = set()
        self.jobs = 0
        self.bytes = 0

    def offer(self, device: Hashable, key: bytes, work: Work) -> bool:
        """Queue *work*, unless equal work waits or runs already; return false if the queue is full."""
        if key in self._known:
            return True
        if self.jobs >= self._max_jobs or self.bytes + len(work.body) > self._max_bytes:
            return False
        self._known.add(key)
        self._waiting.setdefault(device, deque()).append((key, work))
        self.jobs += 1
        self.bytes += len(work.body)
        return True

    def take(self) -> tuple[bytes, Work] | None:
        """Remove and return the next work, of the device whose turn it is; None if none waits."""
        if not self._waiting:
            return None
        device = next(iter(self._waiting))
        waiting = self._waiting.pop(device)
        key, work = waiting.popleft()
        if waiting:
            self._waiting[device] = waiting  # behind the others
        self.jobs -= 1
        self.bytes -= len(work.body)
        return key, work

    def done(self, key: bytes) -> None:
        """Record that the work of *key*, which ``take`` returned, has ended."""
        self._known.discard(key)


class ResultCache:
    """Cache of transformed bodies by the key of their work: two hundred doctors, one compression.

    It is bounded in bytes; the least recently used is evicted first, and a body that is too large is not cached.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self.bytes = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the cached result of equal work; None if there is none."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key]

    def put(self, key: bytes, result: bytes) -> None:
        """Cache *result*, unless it is too large."""
        if key in self._kept or len(result) > self._max_bytes:
            return
        self._kept[key] = result
        self.bytes += len(result)
        while self.bytes > self._max_bytes:
            self.bytes -= len(self._kept.popitem(last=False)[1])
