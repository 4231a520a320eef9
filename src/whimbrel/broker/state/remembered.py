"""A cache by subject that is bounded by count and by bytes.

Rule: a cache may take a small share of ``limits.memory_bytes``, which is not counted there: it can be emptied at any
time. Where many subscribe to everything, one subject may take as much as a thousand others.
"""

from __future__ import annotations

from typing import TypeVar

from whimbrel.broker.limits.memory import Memory

__all__ = ["Remembered"]

_V = TypeVar("_V")

_MOST = 100_000
_SHARE, _UNLIMITED_BYTES = 32, 128 << 20
"""A cache may take one in so many bytes of the limit, or so much where there is no limit."""
_ENTRY_BYTES = 160
"""Memory of an entry beside its subject and its items, about."""


class Remembered(dict[str, _V]):
    """Values worked out for subjects, each with items of *item_bytes*; a full cache is emptied and filled anew."""

    __slots__ = ("_bytes", "_item_bytes", "_memory")

    def __init__(self, memory: Memory, *, item_bytes: int) -> None:
        super().__init__()
        self._memory, self._item_bytes, self._bytes = memory, item_bytes, 0

    def put(self, subject: str, value: _V, items: int) -> None:
        """Remember the *value* of a subject, which has so many *items*."""
        size = _ENTRY_BYTES + len(subject) + items * self._item_bytes
        most = self._memory.most // _SHARE or _UNLIMITED_BYTES
        if len(self) >= _MOST or self._bytes + size > most:
            self.clear()
        self._bytes += size
        self[subject] = value

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._bytes = 0
