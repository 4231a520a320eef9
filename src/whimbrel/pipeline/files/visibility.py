"""Visibility: wait until a worker on another machine sees the same files of a log as the driver.

The seqs of a node have no gaps, so a span that the driver saw has every seq from its first to its last. A worker that
sees fewer seqs waits and looks again. In the end it raises an error that names the seqs that it does not see.
Rule: a span is never processed without some of its seqs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from whimbrel.errors import WhimbrelError
from whimbrel.log.errors import CorruptLogError
from whimbrel.pipeline.files.snapshots import Missing

__all__ = ["NO_PATIENCE", "PATIENT", "Patience", "UnseenNumbersError", "first_unseen"]

T = TypeVar("T")

_NUMBERS_AT_ONCE = 1 << 20
_PATIENCE_S = 90.0
"""Time to wait, in seconds: longer than NFS clients cache a folder (``acdirmax``, a minute)."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


class UnseenNumbersError(WhimbrelError):
    """A worker does not see seqs of a log that the driver saw. Reaction: check the folder on that machine; restart."""

    def __init__(self, log: Path, node: str, first: int, last: int) -> None:
        super().__init__(log, node, first, last)
        self.log, self.node, self.first, self.last = log, node, first, last

    def __str__(self) -> str:
        numbers = f"numbers {self.first} to {self.last} are" if self.first < self.last else f"number {self.first} is"
        return (
            f"log of {self.node}: {numbers} in the log as the driver sees it, and not in {self.log} on this machine; "
            "no row of them was written: check that the folder is the same on all machines, and whole "
            "(whimbrel log verify), and start again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Time for which a worker waits for seqs that it does not see yet, in seconds."""

    seconds: float = _PATIENCE_S
    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def wait_for(self, read: Callable[[], T], again: Callable[[], object] = lambda: None) -> T:
        """Return the result of *read*; if it does not see all seqs yet, wait, call *again*, and repeat *read*.

        ``CorruptLogError`` is repeated too: a file of which only the beginning is visible looks damaged.
        """
        began_s, pause_s = self.clock(), _FIRST_PAUSE_S
        while True:
            try:
                return read()
            except (UnseenNumbersError, CorruptLogError):
                left_s = began_s + self.seconds - self.clock()
                if left_s <= 0:
                    raise
                self.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                again()


PATIENT, NO_PATIENCE = Patience(), Patience(seconds=0)


def first_unseen(
    first: int, last: int, seqs: Iterable[Any], *, missing: Sequence[Missing] = (), spare: int = 0
) -> int | None:
    """Return the first seq from *first* to *last* that is in none of *seqs* (numpy arrays); None if all are seen.

    Seqs that are known to be *missing* from the log count as seen. If at most *spare* seqs are unseen, all count as
    seen, because that many rows lack their seq. Seqs begin with 1.
    """
    arrays = list(seqs)
    unseen: list[int] = []
    for begin in range(max(first, 1), last + 1, _NUMBERS_AT_ONCE):
        end = min(last, begin + _NUMBERS_AT_ONCE - 1)
        is_seen = np.zeros(end - begin + 1, np.bool_)
        for own in arrays:
            is_seen[own[(own >= begin) & (own <= end)] - begin] = True
        for each in missing:
            is_seen[max(each.first - begin, 0) : max(each.last + 1 - begin, 0)] = True
        unseen += (np.flatnonzero(~is_seen)[: spare + 1 - len(unseen)] + begin).tolist()
        if len(unseen) > spare:
            return int(unseen[0])
    return None
