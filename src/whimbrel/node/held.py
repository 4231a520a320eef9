"""Held notifications: their rows in a store, and their memory.

Rule: a notification that is published and confirmed between two writes to the store never gets a row there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar, cast

from whimbrel.hold.commands import Published
from whimbrel.hold.sessions import Hold
from whimbrel.hold.state import Copy, CopyFollower
from whimbrel.hold.touched_rows import Key
from whimbrel.node.memory import MemoryCount
from whimbrel.node.policies import Policies
from whimbrel.node.publication import LONG, KeptNotification

__all__ = ["CountedNotifications", "HeldNotifications", "Kept"]


class Kept(Published, Protocol):
    """The form in which a node keeps a notification while it is owed to any device."""

    is_written: bool
    """Whether the store may have a row of the notification."""


K = TypeVar("K", bound=Kept)


class HeldNotifications(CopyFollower, Generic[K]):
    """The rows of the notifications in *hold*; *encode* makes a row, *decode* a notification from seq and row."""

    def __init__(self, hold: Hold[K], encode: Callable[[K], bytes], decode: Callable[[int, bytes], K]) -> None:
        self._hold, self._encode, self._decode = hold, encode, decode
        hold.follow(self)
        self.touch: Callable[[Key], None] = _ignore
        """Called with the key of each row that changes."""
        self.untouch: Callable[[Key], None] = _ignore
        """Called with the key of a changed row that the store does not have and need not get."""

    def stored(self, copy: Copy) -> None:
        """Mark the row of a notification that is now held as changed."""
        kept = copy.kept
        assert kept is not None
        self.touch(("notification", kept.seq))

    def forgotten(self, seq: int, copy: Copy) -> None:
        """Mark the row of a notification that is no longer held as changed, if the store may have it."""
        if cast("Kept", copy.kept).is_written:
            self.touch(("notification", seq))
        else:
            self.untouch(("notification", seq))

    # -- rows --------------------------------------------------------------------------------------------------------

    @property
    def kinds(self) -> frozenset[str]:
        """The kind of its rows."""
        return frozenset({"notification"})

    def keys(self) -> Iterator[Key]:
        """Yield the keys of all rows."""
        yield from (("notification", seq) for seq, kept in self._hold.all_kept() if kept is not None)

    def row(self, key: Key) -> bytes | None:
        """Return the row of a notification, and record that the store has it; None if it is no longer held."""
        kept = self._hold.kept(int(str(key[1])))
        if kept is None:
            return None
        kept.is_written = True
        return self._encode(kept)

    def restore(self, rows: Mapping[Key, bytes]) -> None:
        """Restore from *rows* the notifications of the hold's copies."""
        for (_, seq), value in rows.items():
            kept = self._decode(int(str(seq)), value)
            kept.is_written = True
            self._hold.keep_again(kept)


class CountedNotifications(HeldNotifications[KeptNotification]):
    """Held notifications of a broker, counted in *memory*; once one is removed, *policies* drop its decisions."""

    def __init__(self, node: str, hold: Hold[KeptNotification], memory: MemoryCount, policies: Policies) -> None:
        def decode(_: int, row: bytes) -> KeptNotification:
            return KeptNotification.restored(node, row)

        super().__init__(hold, _record_of, decode)
        self._memory, self._policies = memory, policies
        self._count = 0
        self.size_bytes = 0
        """Estimated memory of the held notifications, in bytes."""

    def __len__(self) -> int:
        return self._count

    def stored(self, copy: Copy) -> None:
        """Add a notification that was published, or restored, to the memory count."""
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
        """Subtract a notification that is no longer held from the memory count."""
        kept = copy.kept
        assert isinstance(kept, KeptNotification)
        size = kept.size
        self._count -= 1
        self.size_bytes -= size
        self._memory.counted -= size
        if self._policies.are_used:
            self._policies.forget(seq)
        super().forgotten(seq, copy)


def _record_of(kept: KeptNotification) -> bytes:
    return kept.record


def _ignore(_: Key) -> None:
    """Ignore a changed row: no store follows yet."""
