"""Waiting: how much each session of a checkpoint holds for devices that are all away, to name it to an operator.

What absent sessions hold travels in the checkpoints: it pins no segment, and is bounded by each subscription's ttl and
max. So it does not fill the disk, but it is what a checkpoint is large of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import cbor2

from whimbrel.hold.rows import Key

__all__ = ["Waiting"]


class Waiting:
    """Counts rows of a view as they pass."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._present: set[str] = set()

    def counted(self, rows: Iterable[tuple[Key, bytes]]) -> Iterator[tuple[Key, bytes]]:
        """Yield *rows* as they are, and count what they say is held."""
        for key, value in rows:
            if key[0] == "pending":
                self._held[str(key[1])] += 1
            elif key[0] == "member" and cbor2.loads(value)[0]:
                self._present.add(str(key[1]))
            yield key, value

    def absent(self) -> list[tuple[str, int]]:
        """Return the sessions that hold something and that no device is present in, the one with most first."""
        away = [(name, count) for name, count in self._held.items() if name not in self._present]
        return sorted(away, key=lambda each: (-each[1], each[0]))
