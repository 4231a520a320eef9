"""The queue of transforms: each device in turn, equal work once, bounded in number and bytes. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from whimbrel.shape.transforms import Work

__all__ = ["WorkQueue"]


class WorkQueue:
    """Work that waits for a process; devices take turns, so that one with much to do does not delay the others."""

    def __init__(self, *, max_jobs: int, max_bytes: int) -> None:
        self._max_jobs, self._max_bytes = max_jobs, max_bytes
        self._waiting: dict[Hashable, deque[tuple[bytes, Work]]] = {}
        self._known: set[bytes] = set()
        self.jobs = 0
        self.bytes = 0

    def offer(self, device: Hashable, key: bytes, work: Work) -> bool:
        """Take *work* in, unless equal work waits or runs already; return false if there is no room."""
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
        """Return the next work, of the device whose turn it is; None if none waits."""
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
        """Say that the work of *key*, which was taken, has ended."""
        self._known.discard(key)
