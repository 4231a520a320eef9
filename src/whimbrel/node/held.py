"""Held notifications: how many the hold keeps and how much memory they take, and which of their rows have changed."""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.hold.state import Copy, CopyFollower
from whimbrel.hold.touched_rows import Key
from whimbrel.node.memory import MemoryCount
from whimbrel.node.publication import LONG, KeptNotification

__all__ = ["HeldNotifications"]


class HeldNotifications(CopyFollower):
    """Counts in *memory* what the hold keeps; *forget* is told of each notification that no device is owed any more."""

    __slots__ = ("_count", "_forget", "_memory", "size_bytes", "touch")

    def __init__(self, memory: MemoryCount, forget: Callable[[int], None]) -> None:
        self._memory, self._forget = memory, forget
        self._count = 0
        self.size_bytes = 0
        """How much memory they take, about."""
        self.touch: Callable[[Key], None] = _ignore
        """Called with the key of each row that changes."""

    def __len__(self) -> int:
        return self._count

    def stored(self, copy: Copy) -> None:
        """Count a notification that was published, or restored."""
        kept = copy.kept
        assert isinstance(kept, KeptNotification)
        if len(kept.record) > LONG:
            kept.keep()
        size = kept.size
        self._count += 1
        self.size_bytes += size
        self._memory.counted += size
        self.touch(("notification", kept.seq))

    def forgotten(self, seq: int, copy: Copy) -> None:
        """Count a notification no more."""
        kept = copy.kept
        assert isinstance(kept, KeptNotification)
        size = kept.size
        self._count -= 1
        self.size_bytes -= size
        self._memory.counted -= size
        self._forget(seq)
        self.touch(("notification", seq))


def _ignore(_: Key) -> None:
    """Take no note of a row: nothing follows yet."""
