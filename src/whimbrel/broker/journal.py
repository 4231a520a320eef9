"""The journal: facts are numbered, written down, and applied when they are accepted.

Rule: a fact gets its seq when it is entered and is applied in order of seq. Where somebody could ask for it after a
crash (it is *owed*), accepted means durable; otherwise it means entered, unless one that is owed stands before it.
Rule: what is to be answered is answered when the fact is applied, so nobody is told of anything that is not accepted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Fact, later

__all__ = ["Journal"]


class Journal:
    """The log of a node, and what waits for its disk."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self.node = log.node
        self.waiting: deque[tuple[int, Callable[[], None]]] = deque()
        """What is entered and not yet accepted, by number."""
        self._last_at = log.last_at
        self.append, self.append_body = log.append, log.append_body

    @property
    def seq(self) -> int:
        """The number of the next fact."""
        return self._log.next_seq

    @property
    def last_at(self) -> int:
        """The time of the last fact."""
        return self._last_at

    def now(self, now: int) -> int:
        """Return the time to stamp a fact with; it never goes back."""
        self._last_at = now = later(self._last_at, now)
        return now

    @property
    def applied(self) -> int:
        """The number of the last fact that was applied."""
        return (self.waiting[0][0] if self.waiting else self._log.next_seq) - 1

    def enter(self, fact: Fact, apply: Callable[[], None], *, is_owed: bool) -> None:
        """Write *fact* down and *apply* it when it is accepted."""
        self._log.append(fact)
        self.entered(fact.seq, apply, is_owed=is_owed)

    def entered(self, seq: int, apply: Callable[[], None], *, is_owed: bool) -> None:
        """Apply a fact, whose body was appended as *seq*, when it is accepted."""
        if is_owed or self.waiting:
            self.waiting.append((seq, apply))
        else:
            apply()

    def then(self, action: Callable[[], None]) -> None:
        """Act when everything entered so far is accepted: now, if nothing waits."""
        if self.waiting:
            self.waiting.append((self._log.next_seq - 1, action))
        else:
            action()

    def durable(self, seq: int) -> None:
        """Apply what waited for the disk up to *seq*."""
        waiting = self.waiting
        while waiting and waiting[0][0] <= seq:
            waiting.popleft()[1]()
