"""Caches: what a controller remembers for a while (Huang, 4.1.3 and 5.4.1).

Rule: alive iff ``now < expires_at``. All entries of a cache live equally long, so the oldest is always the next to go,
and a full cache gives up its oldest entry.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["TimedCache"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TimedCache(Generic[K, V]):
    """At most *capacity* entries, each alive for *ttl_us* from when it was put or, with ``touch``, last used."""

    def __init__(self, ttl_us: int, capacity: int) -> None:
        self._ttl_us, self._capacity = ttl_us, capacity
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def put(self, key: K, value: V, *, now: int) -> None:
        """Remember *value* from *now* on."""
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
        """Forget at most *work* entries that are dead, and return how many."""
        done = 0
        while done < work and self._entries and next(iter(self._entries.values()))[1] <= now:
            self._entries.popitem(last=False)
            done += 1
        return done

    @property
    def next_due(self) -> int | None:
        """When the next entry dies."""
        return next(iter(self._entries.values()))[1] if self._entries else None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)
