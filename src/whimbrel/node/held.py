"""Held notifications: how many the hold keeps and how much memory they take, and which of their rows have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from whimbrel.hold.sessions import Hold
from whimbrel.hold.state import Copy, CopyFollower
from whimbrel.hold.touched_rows import Key
from whimbrel.node.memory import MemoryCount
from whimbrel.node.policies import Policies
from whimbrel.node.publication import LONG, KeptNotification

__all__ = ["HeldNotifications"]


class HeldNotifications(CopyFollower):
    """Counts in *memory* what the hold keeps; *policies* keep no decision about what is forgotten."""

    __slots__ = ("_count", "_hold", "_memory", "_node", "_policies", "size_bytes", "touch")

    def __init__(self, node: str, hold: Hold[KeptNotification], memory: MemoryCount, policies: Policies) -> None:
        self._node, self._hold, self._memory, self._policies = node, hold, memory, policies
        hold.follow(self)
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
        if self._policies.are_used:
            self._policies.forget(seq)
        self.touch(("notification", seq))

    # -- rows --------------------------------------------------------------------------------------------------------

    @property
    def kinds(self) -> frozenset[str]:
        """The kind of its rows."""
        return frozenset({"notification"})

    def keys(self) -> Iterator[Key]:
        """Yield the keys of all rows."""
        yield from (("notification", seq) for seq, kept in self._hold.all_kept() if kept is not None)

    def row(self, key: Key) -> bytes | None:
        """Return the record of a notification; None if no device is owed it."""
        kept = self._hold.kept(int(str(key[1])))
        return None if kept is None else kept.record

    def restore(self, rows: Mapping[Key, bytes]) -> None:
        """Restore from *rows* the notifications of the hold's copies."""
        for value in rows.values():
            self._hold.keep_again(KeptNotification.restored(self._node, value))


def _ignore(_: Key) -> None:
    """Take no note of a row: nothing follows yet."""
