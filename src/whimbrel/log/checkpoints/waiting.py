"""Waiting: count the queue of each session whose devices are all away, to report it to an operator.

The queues of absent sessions are stored in the checkpoints. They keep no segment from being cut, and each
subscription's ttl and max bound them. So they do not fill the disk, but they are what makes a checkpoint large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import cbor2

from whimbrel.hold.rows import Key

__all__ = ["Waiting"]


class Waiting:
    """Counter of held notifications per session, over the rows of a checkpoint."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._present: set[str] = set()

    def count_each(self, rows: Iterable[tuple[Key, bytes]]) -> Iterator[tuple[Key, bytes]]:
        """Yield *rows* unchanged, and count the held notifications of each session and its present devices."""
        for key, value in rows:
            if key[0] == "pending":
                self._held[str(key[1])] += 1
            elif key[0] == "member" and cbor2.loads(value)[0]:
                self._present.add(str(key[1]))
            yield key, value

    def absent(self) -> list[tuple[str, int]]:
        """Return pairs (session, number of held notifications) of sessions without a present device, largest first."""
        away = [(name, count) for name, count in self._held.items() if name not in self._present]
        return sorted(away, key=lambda each: (-each[1], each[0]))
