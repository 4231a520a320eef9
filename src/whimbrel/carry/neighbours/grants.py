"""Grants: copies that were given to a neighbour and that it has not acknowledged yet.

An answer that grants copies is one datagram, and it can be lost with the copies. So the giver remembers what it granted
and repeats the answer until it knows what became of the copies.

Rule: a neighbour that asks again gets the same grant again: a lost request or answer loses no copies, and none is
granted twice.
Rule: a neighbour acknowledges each answer whose copies it has stored, however often that comes. An answer with copies
that it did not ask for, or asked for too long ago, it refuses.
Rule: copies that are refused, or not acknowledged in time, go back to the giver. An acknowledgement that comes later
takes them away again, as far as they are still there; if every acknowledgement was lost, they exist twice.
Rule: at most so many grants wait at a time; while there is no room, samples are given without copies.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from whimbrel.carry.hello import Answer, SampleId

__all__ = ["MAX_GRANTS", "Due", "Grants"]

MAX_GRANTS = 256
"""Each keeps a sample of at most 1,024 bytes; so many stored ones are remembered, too."""

Name = tuple[int, int, SampleId]
"""Neighbour, topic and sample."""


@dataclass(slots=True)
class _Grant:
    answer: Answer
    asked_at: int
    """When the neighbour asked last."""
    sent_at: int


class Due(NamedTuple):
    """The grants for which there is something to do."""

    repeated: list[tuple[int, Answer]]
    """Neighbours and the answers that they have not acknowledged."""
    overdue: list[Answer]
    """The answers whose copies go back."""


class Grants:
    """The grants of a node: repeated every *repeat_us*, for at most *wait_us* after the neighbour asked last."""

    def __init__(self, *, repeat_us: int, wait_us: int) -> None:
        self._repeat_us, self._wait_us = repeat_us, wait_us
        self._open: OrderedDict[Name, _Grant] = OrderedDict()
        self._returned: OrderedDict[Name, Answer] = OrderedDict()
        """Grants that were not acknowledged in time; the last ones."""
        self._stored: OrderedDict[Name, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    # -- as the giver --------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether no other grant can be remembered."""
        return len(self._open) >= MAX_GRANTS

    def add(self, neighbour: int, answer: Answer, *, own: int) -> None:
        """Remember that *answer* grants copies to *neighbour*."""
        name = neighbour, answer.sample.topic, answer.sample.id
        self._returned.pop(name, None)  # it has asked again, so it did not have them
        self._open[name] = _Grant(answer, own, own)

    def repeat(self, name: Name, *, own: int) -> Answer | None:
        """Return the answer that a neighbour, which asks again, was sent and has not acknowledged; or None."""
        grant = self._open.get(name)
        if grant is None:
            return None
        grant.asked_at = grant.sent_at = own
        self._open.move_to_end(name)
        return grant.answer

    def end(self, name: Name) -> Answer | None:
        """Forget a grant, because the neighbour has said what became of it; return what was granted, or None."""
        grant = self._open.pop(name, None)
        return None if grant is None else grant.answer

    def late(self, name: Name) -> Answer | None:
        """Return what was granted and went back, because its acknowledgement has come so late; None if nothing did."""
        return self._returned.pop(name, None)

    def timer(self, *, own: int) -> Due:
        """Return the answers to repeat, and remove and return the grants that have waited too long."""
        overdue: list[Answer] = []
        while self._open:
            name, grant = next(iter(self._open.items()))
            if own - grant.asked_at < self._wait_us:
                break
            del self._open[name]
            overdue.append(grant.answer)
            self._returned[name] = grant.answer
            if len(self._returned) > MAX_GRANTS:
                self._returned.popitem(last=False)
        repeated: list[tuple[int, Answer]] = []
        for (neighbour, _, _), grant in self._open.items():
            if own - grant.sent_at >= self._repeat_us:
                grant.sent_at = own
                repeated.append((neighbour, grant.answer))
        return Due(repeated, overdue)

    # -- as the receiver -----------------------------------------------------------------------------------------------

    def store(self, name: Name) -> None:
        """Remember that the copies that a neighbour granted were stored."""
        self._stored[name] = None
        self._stored.move_to_end(name)
        if len(self._stored) > MAX_GRANTS:
            self._stored.popitem(last=False)

    def is_stored(self, name: Name) -> bool:
        """Return whether the copies that a neighbour granted were stored, a while ago at most."""
        return name in self._stored
