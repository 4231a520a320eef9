"""Sight: whether a Hello that names a newer sample is believed, and for how long without the sample itself.

The paper makes a copy removable as soon as a neighbour names a newer sample (section 3.2.2). One neighbour that lies
would then make every copy in its reach removable. A provisional sight also stops the spreading at once, but requests
the sample from that neighbour; only when the sample arrives does the place become free.

Rule: a request fails if the neighbour has not answered by its second Hello afterwards, or refuses a request for proof.
Rule: after ``MAX_FAILURES`` failures in a row for a topic, the neighbour's announcements of that topic are ignored.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum

__all__ = ["MAX_FAILURES", "MAX_HELLOS", "Believers", "PendingRequest", "Sight"]

MAX_HELLOS = 2
"""Hellos of a neighbour after which a request without an answer has failed."""
MAX_FAILURES = 3
"""Failures in a row before announcements are ignored; radios lose frames, so one failure must not be enough."""
_MAX_PAIRS = 4_096
"""Pairs of neighbour and topic whose failures are remembered, the newest; invented addresses cost no more."""


class Sight(Enum):
    """The effect of a Hello that names a newer sample on the copy that is stored."""

    FINAL = "final"
    """The copy becomes removable: the paper's rule."""
    PROVISIONAL = "provisional"
    """The copy is not spread any more, and becomes removable when the newer sample has arrived."""


@dataclass(slots=True)
class PendingRequest:
    """A request to *neighbour* without an answer so far."""

    neighbour: int
    reserves_place: bool
    wants_proof: bool = False
    hellos: int = 0
    """Hellos of the neighbour since the request."""


class Believers:
    """Failures in a row, by neighbour and topic."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[int, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def believes(self, neighbour: int, topic: int) -> bool:
        """Return whether announcements of *neighbour* count for *topic*."""
        return self._failures.get((neighbour, topic), 0) < MAX_FAILURES

    def fail(self, neighbour: int, topic: int) -> None:
        """Count a failed request to *neighbour*."""
        pair = neighbour, topic
        self._failures[pair] = self._failures.pop(pair, 0) + 1
        if len(self._failures) > _MAX_PAIRS:
            self._failures.popitem(last=False)

    def forgive(self) -> None:
        """Allow one more request to each neighbour that is not believed; its radio may have failed only for a while."""
        for pair, failures in self._failures.items():
            self._failures[pair] = min(failures, MAX_FAILURES - 1)

    def answer(self, neighbour: int, topic: int) -> None:
        """Forget the failures of *neighbour* for *topic*, because it has answered."""
        self._failures.pop((neighbour, topic), None)
