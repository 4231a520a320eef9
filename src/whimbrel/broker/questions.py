"""Questions: what takes too long to be answered between two packets, such as whether a password is right.

The core writes a question down; the shell asks it in a thread, a few at a time and in order, and tells the answer.
Rule: a question whose time is over when its turn comes is not asked: whoever gave too many wrong passwords meanwhile
learns nothing from the ones that still wait.
Rule: a question that nobody waits for any more is not asked either: hashing a password takes most of a second, and
clients that gave up and came again must not wait behind themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from whimbrel.broker.counters import Counters
from whimbrel.broker.patience import Patience

__all__ = ["Question", "Questions"]

_Answer = TypeVar("_Answer")


class Question:
    """One question: *ask* may run in any thread; *then*, which is given the time, and *refuse* are the core's."""

    __slots__ = ("address", "ask", "is_wanted", "refuse", "then")

    def __init__(
        self,
        address: str,
        ask: Callable[[], object],
        then: Callable[[object, int], None],
        refuse: Callable[[], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self.address, self.ask, self.then, self.refuse = address, ask, then, refuse
        self.is_wanted = is_wanted


class Questions:
    """The questions of a broker; at most *most* wait."""

    def __init__(self, patience: Patience, counters: Counters, *, most: int) -> None:
        self._patience, self._counters, self._most = patience, counters, most
        self._waiting: deque[Question] = deque()
        self.listened_us = 0
        """The time of ``Broker.end_silent``, which passes evenly: steps of a wall clock would give failures back."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether no more can wait."""
        return len(self._waiting) >= self._most

    def put(
        self,
        address: str,
        ask: Callable[[], _Answer],
        then: Callable[[_Answer, int], None],
        refuse: Callable[[], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Let a question wait for its turn; *refuse* is called instead if *address* has to wait when it comes.

        Where nobody wants to know by then (*is_wanted*), nothing is done.
        """
        self._waiting.append(Question(address, ask, partial(_told, then), refuse, is_wanted))

    def next(self, listened_us: int) -> Question | None:
        """Return the next question to be asked, if there is one."""
        self.listened_us = listened_us
        while self._waiting:
            question = self._waiting.popleft()
            if not question.is_wanted():
                continue
            if self._patience.may_try(question.address, listened_us):
                return question
            question.refuse()
        return None

    def was_wrong(self, address: str) -> None:
        """Note that a password, which was asked about, was wrong."""
        self._counters.wrong_passwords += 1
        self._patience.failed(address, self.listened_us)


def _told(then: Callable[[_Answer, int], None], answer: object, now: int) -> None:
    then(answer, now)  # type: ignore[arg-type]  # the answer is what *ask* returned
