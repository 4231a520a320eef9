"""The cache of states in a worker's process: a task that comes back finds the state that it wrote last.

Rule: a cached state is used only if it is the very state that the driver names.
Rule: a state is taken out of the cache while a task changes it. So after a failure it is not there any more.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

__all__ = ["Cached", "StateCache", "states"]

_CACHE_BYTES = 64 << 20
"""Size on disk of all states that a process caches; in memory they take several times as much."""

Key: TypeAlias = tuple[str, ...]


class Cached(Protocol):
    """A state that may be cached."""

    @property
    def name(self) -> str:
        """Name of the object in which the state was written last."""

    @property
    def size_bytes(self) -> int:
        """Size of the state on disk, in bytes."""

    def forget(self) -> None:
        """Release what the state has outside of itself, because it leaves the cache."""


class StateCache:
    """States by key, the oldest first, up to *most_bytes* in all; the newest one stays, however large."""

    def __init__(self, most_bytes: int = _CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self.kept: dict[Key, Cached] = {}

    def take(self, key: Key, name: str) -> Cached | None:
        """Remove and return the state under *key* if it has this *name*; forget another one, and return None."""
        found = self.kept.pop(key, None)
        if found is None or found.name == name:
            return found
        found.forget()
        return None

    def put(self, key: Key, state: Cached) -> None:
        """Add a state as the newest; remove the oldest ones if the cache is too large."""
        self.kept[key] = state
        size = sum(each.size_bytes for each in self.kept.values())
        while size > self._most_bytes and len(self.kept) > 1:
            gone = self.kept.pop(next(iter(self.kept)))
            size -= gone.size_bytes
            gone.forget()


states = StateCache()
"""The cache of this process."""
