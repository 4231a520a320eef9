"""Sight: whether a neighbour's Hello is believed that names a newer sample, and for how long without the sample.

The paper makes a copy removable as soon as a neighbour names a newer sample (section 3.2.2). One neighbour that lies
would then remove every copy in its reach. A provisional sight stops the spreading at once, as the paper does, and asks
the neighbour for the sample; only the sample itself makes the place free.

Rule: a request that its neighbour has not answered by the second Hello after it has failed, and so has a request for
a proof that it refuses.
Rule: a neighbour that fails for a topic so many times, and answers nothing between, is not believed there any more.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum

__all__ = ["MAX_FAILURES", "MAX_HELLOS", "Believers", "PendingRequest", "Sight"]

MAX_HELLOS = 2
"""Hellos of a neighbour that may pass before it has answered."""
MAX_FAILURES = 3
"""Requests in a row that may fail: frames are lost on a radio, and honest neighbours must not be shut out for it."""
_MAX_PAIRS = 4_096
"""Pairs of neighbour and topic that are remembered, the newest: ten thousand invented addresses cost no more."""


class Sight(Enum):
    """The effect of a Hello that names a newer sample on the copy that is stored."""

    FINAL = "final"
    """It is removable: the paper's rule."""
    PROVISIONAL = "provisional"
    """It is not spread any more, and removable when the newer sample has come."""


@dataclass(slots=True)
class PendingRequest:
    """A request to *neighbour* without an answer so far."""

    neighbour: int
    reserves_place: bool
    wants_proof: bool = False
    hellos: int = 0
    """Hellos of the neighbour since the request."""


class Believers:
    """The failures of neighbours, by topic."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[int, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def believes(self, neighbour: int, topic: int) -> bool:
        """Return whether announcements of *neighbour* count for *topic*."""
        return self._failures.get((neighbour, topic), 0) < MAX_FAILURES

    def fail(self, neighbour: int, topic: int) -> None:
        """Count a request that *neighbour* did not answer."""
        pair = neighbour, topic
        self._failures[pair] = self._failures.pop(pair, 0) + 1
        if len(self._failures) > _MAX_PAIRS:
            self._failures.popitem(last=False)

    def forgive(self) -> None:
        """Let each neighbour that is not believed have one more request: its radio may have been in the way."""
        for pair, failures in self._failures.items():
            self._failures[pair] = min(failures, MAX_FAILURES - 1)

    def answer(self, neighbour: int, topic: int) -> None:
        """Forget the failures of *neighbour* for *topic*: it has answered."""
        self._failures.pop((neighbour, topic), None)
