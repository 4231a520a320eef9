"""Grants: copies that were given to a neighbour and that it has not acknowledged yet.

An answer that grants copies is one datagram, and it can be lost with the copies. So the giver remembers what it granted
and repeats the answer until it knows what became of the copies.

Rule: a neighbour that asks again gets the same grant again: a lost request or answer loses no copies, and none is
granted twice.
Rule: a neighbour acknowledges each answer whose copies it has stored, however often that comes, and says how many of
them it keeps. It refuses an answer with copies that it did not ask for, or asked for too long ago.
Rule: copies that are refused, not kept, or not acknowledged in time go back to the giver. A late acknowledgement takes
them from the giver again, except its last copy. If every acknowledgement was lost, the copies exist twice.
Rule: all addresses of one host get copies of a sample once (``carry.neighbours.shares``). A late acknowledgement takes
nothing away if the host has got other copies meanwhile.
Rule: at most ``MAX_GRANTS`` wait at a time; while there is no room, samples are given without copies.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from whimbrel.carry.hello import Answer, SampleId
from whimbrel.carry.neighbours.shares import HostShares, SampleName

__all__ = ["MAX_GRANTS", "Due", "Grants"]

MAX_GRANTS = 256
"""Most grants that wait; each keeps a sample of at most 1,024 bytes. As many stored ones are remembered, too."""

Name = tuple[int, int, SampleId]
"""Neighbour, topic and sample."""


@dataclass(slots=True)
class _Grant:
    answer: Answer
    host: str
    """The machine of the neighbour that asked."""
    asked_at: int
    """Time of the neighbour's last request."""
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
        self._returned: OrderedDict[Name, _Grant] = OrderedDict()
        """The latest grants that were not acknowledged in time."""
        self._stored: OrderedDict[Name, int] = OrderedDict()
        """Copies that this node keeps of the grants of others."""
        self._shares = HostShares()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def shares(self) -> int:
        """The number of hosts that have had their share of a stored sample, over all samples."""
        return len(self._shares)

    # -- as the giver --------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether no other grant can be remembered."""
        return len(self._open) >= MAX_GRANTS

    def has_share(self, host: str, sample: SampleName) -> bool:
        """Return whether an address of *host* has got copies of *sample* already."""
        return self._shares.has(host, sample)

    def add(self, neighbour: int, answer: Answer, *, host: str, own: int) -> None:
        """Remember that *answer* grants copies to *neighbour*, which asked from *host*."""
        sample = answer.sample.topic, answer.sample.id
        self._returned.pop((neighbour, *sample), None)  # it has asked again, so it did not have them
        self._open[neighbour, *sample] = _Grant(answer, host, own, own)
        self._shares.add(host, sample)

    def repeat(self, name: Name, *, own: int) -> Answer | None:
        """Return the answer that a neighbour, which asks again, was sent and has not acknowledged; or None."""
        grant = self._open.get(name)
        if grant is None:
            return None
        grant.asked_at = grant.sent_at = own
        self._open.move_to_end(name)
        return grant.answer

    def acknowledge(self, name: Name) -> Answer | None:
        """Forget a grant, because the neighbour has stored the sample; return its answer, or None."""
        grant = self._open.pop(name, None)
        return None if grant is None else grant.answer

    def refuse(self, name: Name) -> Answer | None:
        """Forget a grant, because the neighbour does not take the copies; return its answer, or None."""
        grant = self._open.pop(name, None)
        if grant is None:
            return None
        self._shares.free(grant.host, name[1:])
        return grant.answer

    def late(self, name: Name) -> Answer | None:
        """Return the answer of a grant that went back before its acknowledgement, and note its share; else None."""
        grant = self._returned.pop(name, None)
        if grant is None or self._shares.has(grant.host, name[1:]):
            return None
        self._shares.add(grant.host, name[1:])
        return grant.answer

    def timer(self, *, stored: AbstractSet[SampleName], own: int) -> Due:
        """Return the answers to repeat, and remove and return the grants that have waited too long.

        Shares of samples that are not in *stored* any more are forgotten.
        """
        overdue: list[Answer] = []
        while self._open:
            name, grant = next(iter(self._open.items()))
            if own - grant.asked_at < self._wait_us:
                break
            del self._open[name]
            self._shares.free(grant.host, name[1:])
            overdue.append(grant.answer)
            self._returned[name] = grant
            if len(self._returned) > MAX_GRANTS:
                self._returned.popitem(last=False)
        self._shares.keep_only(stored)
        repeated: list[tuple[int, Answer]] = []
        for (neighbour, _, _), grant in self._open.items():
            if own - grant.sent_at >= self._repeat_us:
                grant.sent_at = own
                repeated.append((neighbour, grant.answer))
        return Due(repeated, overdue)

    # -- as the receiver -----------------------------------------------------------------------------------------------

    def store(self, name: Name, copies: int) -> None:
        """Remember that *copies* of those that a neighbour granted were stored."""
        self._stored[name] = copies
        self._stored.move_to_end(name)
        if len(self._stored) > MAX_GRANTS:
            self._stored.popitem(last=False)

    def stored_copies(self, name: Name) -> int | None:
        """Return how many copies of a neighbour's grant were stored, or None if that is unknown or long ago."""
        return self._stored.get(name)
