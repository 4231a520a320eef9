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

_MOST_APPLIED = 500
"""How many facts are applied in one turn of the event loop."""


class Journal:
    """The log of a node, and what waits for its disk."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self.node = log.node
        self.waiting: deque[tuple[int, Callable[[], None]]] = deque()
        """What is entered and not yet accepted, by number."""
        self._durable = 0
        """Everything up to this number is durable, though perhaps not applied yet."""
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
        """Take in that everything up to *seq* is durable, and begin to apply what waited for that."""
        self._durable = max(self._durable, seq)
        self.go_on()

    @property
    def is_behind(self) -> bool:
        """Whether something waits to be applied that is durable."""
        return bool(self.waiting) and self.waiting[0][0] <= self._durable

    @property
    def wants_sync(self) -> bool:
        """Whether something waits that is not durable yet."""
        return bool(self.waiting) and self.waiting[-1][0] > self._durable

    def go_on(self) -> None:
        """Apply some of what is durable: as much as one turn of the event loop may take."""
        waiting, left = self.waiting, _MOST_APPLIED
        while left and waiting and waiting[0][0] <= self._durable:
            waiting.popleft()[1]()
            left -= 1
