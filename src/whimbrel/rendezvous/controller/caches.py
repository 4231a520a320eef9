"""Caches with a time to live: data that a controller keeps for a while (Huang, 4.1.3 and 5.4.1).

Rule: an entry is alive iff ``now < expires_at``. All entries of a cache have the same time to live, so the oldest
expires first, and a full cache drops its oldest entry.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["TimedCache"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TimedCache(Generic[K, V]):
    """At most *capacity* entries, each alive for *ttl_us* after ``put`` or, with ``touch``, after its last use."""

    def __init__(self, ttl_us: int, capacity: int) -> None:
        self._ttl_us, self._capacity = ttl_us, capacity
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def put(self, key: K, value: V, *, now: int) -> None:
        """Store *value* for *key*, alive from *now*."""
        self._entries[key] = value, now + self._ttl_us
        self._entries.move_to_end(key)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def get(self, key: K, *, now: int) -> V | None:
        """Return the cached value of *key*, or None if there is none or it has expired."""
        found = self._entries.get(key)
        return found[0] if found is not None and now < found[1] else None

    def touch(self, key: K, *, now: int) -> V | None:
        """Return the cached value of *key*, like ``get``, and restart its time to live."""
        value = self.get(key, now=now)
        if value is not None:
            self.put(key, value, now=now)
        return value

    def discard(self, key: K) -> None:
        """Remove *key*."""
        self._entries.pop(key, None)

    def clean(self, *, now: int, work: int) -> int:
        """Remove at most *work* expired entries, and return how many."""
        done = 0
        while done < work and self._entries and next(iter(self._entries.values()))[1] <= now:
            self._entries.popitem(last=False)
            done += 1
        return done

    @property
    def next_due(self) -> int | None:
        """Time at which the next entry expires."""
        return next(iter(self._entries.values()))[1] if self._entries else None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)
