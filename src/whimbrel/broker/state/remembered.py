"""A cache with subjects as keys, bounded by the number of its entries and by the bytes that they take.

The bound on bytes is needed because the entry of one subject may take as much memory as a thousand other entries, where
many sessions subscribe to everything.
Rule: a cache may take a small share of ``limits.memory_bytes``. This memory is not counted against the limit, because
the cache can be emptied at any time.
"""

from __future__ import annotations

from typing import TypeVar

from whimbrel.broker.limits.memory import Memory

__all__ = ["Remembered"]

_V = TypeVar("_V")

_MOST = 100_000
_SHARE, _UNLIMITED_BYTES = 32, 128 << 20
"""Most bytes of a cache: the memory limit divided by ``_SHARE``, or ``_UNLIMITED_BYTES`` if there is no limit."""
_ENTRY_BYTES = 160
"""Approximate memory of an entry in bytes, without its subject and its items."""


class Remembered(dict[str, _V]):
    """Cache of one value per subject; a value consists of items of *item_bytes* each.

    A full cache is emptied, and then filled from the start; *memory* has the limit that bounds it.
    """

    __slots__ = ("_bytes", "_item_bytes", "_memory")

    def __init__(self, memory: Memory, *, item_bytes: int) -> None:
        super().__init__()
        self._memory, self._item_bytes, self._bytes = memory, item_bytes, 0

    def put(self, subject: str, value: _V, items: int) -> None:
        """Store the *value* of a subject, which consists of *items* items; empty the cache before if it is full."""
        size = _ENTRY_BYTES + len(subject) + items * self._item_bytes
        most = self._memory.most // _SHARE or _UNLIMITED_BYTES
        if len(self) >= _MOST or self._bytes + size > most:
            self.clear()
        self._bytes += size
        self[subject] = value

    def clear(self) -> None:
        """Remove all entries."""
        super().clear()
        self._bytes = 0
