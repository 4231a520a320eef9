"""Membership: a consumer's state of one group, and the joins and requests made from it.

It has the latest beacon, the numbers of received and of missing events, and the neighbours to ask for the latter.

Rule: a member is owed every event after the latest one at the time of its join, and that one if it is still valid.
Each is received, outside, expired or missed, once; ``accounted`` is the number up to which that is known.
Rule: a missing event is requested until its deadline at the latest, from the neighbour heard last, then from the one
before it and so on, ties by id. If a gap is too long, only its newest events are requested; the others are missed.
Rule: the seen numbers are kept when the membership ends, so that nothing is delivered twice after a return.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from whimbrel.model.bounds import INT64_MAX
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Beacon, GroupId, Join, Request, ViewDigest
from whimbrel.nearby.group.numbers import REMEMBERED, SeenNumbers
from whimbrel.nearby.group.view import digest_of

__all__ = ["Membership"]

_MAX_NEIGHBOURS = 16


@dataclass(slots=True)
class _MissingEvent:
    asks_at: int
    gives_up_at: int
    tries: int = 0


@dataclass(slots=True, kw_only=True)
class Membership:
    """A consumer's state of one group."""

    epoch: int
    beacon: Beacon | None = None
    """The latest beacon; ``None`` if only events were heard."""
    is_joined: bool = False
    has_lapsed: bool = False
    """Whether it ended because the producer timed out or ended the announcement: the consumer did not leave."""
    key: bytes | None = None
    lapses_at: int = 0
    join_at: int = 0
    taken_hops: int = 0
    """Number of repetitions of the latest beacon on its shortest path here."""
    latest: int = 0
    """Number of the latest event that is known to exist, or was published before this member joined."""
    seen: SeenNumbers = field(default_factory=SeenNumbers)
    missing: dict[int, _MissingEvent] = field(default_factory=dict)
    expired: int = 0
    missed: int = 0
    view: frozenset[int] = frozenset()
    _neighbours: dict[str, int] = field(default_factory=dict)
    """Time at which each neighbour was last heard; the most recent stands at the end."""

    @property
    def accounted(self) -> int:
        """The number up to which the outcome of each event is known."""
        return min(self.missing, default=self.latest + 1) - 1

    @property
    def digest(self) -> ViewDigest:
        """The digest of the view that this member knows."""
        return digest_of(self.view)

    @property
    def next_due(self) -> int:
        """Time of the next join, request or lapse."""
        due = min(self.join_at, self.lapses_at) if self.is_joined else INT64_MAX
        if self.missing:
            due = min(due, *(min(each.asks_at, each.gives_up_at) for each in self.missing.values()))
        return due

    @property
    def is_active(self) -> bool:
        """Whether this node is a member, or still requests missing events."""
        return self.is_joined or bool(self.missing)

    # -- neighbours --------------------------------------------------------------------------------------------------

    def hear(self, neighbour: str, *, now: int) -> None:
        """Record that *neighbour* transmitted a frame of this group."""
        self._neighbours.pop(neighbour, None)
        self._neighbours[neighbour] = now
        if len(self._neighbours) > _MAX_NEIGHBOURS:
            del self._neighbours[next(iter(self._neighbours))]

    def neighbour(self, tries: int) -> str | None:
        """Return the node for the next request after *tries*: the one heard last, then the one before; ties by id."""
        if not self._neighbours:
            return None
        order = sorted(self._neighbours.items(), key=lambda each: (-each[1], each[0]))
        return order[tries % len(order)][0]

    # -- numbers -----------------------------------------------------------------------------------------------------

    def begin(self, latest: int, *, is_good: bool) -> int:
        """Become a member while *latest* is the latest event; return the number of events missed while cut off."""
        owed_from = latest if is_good and latest else latest + 1
        cut_off = self._pass_over(owed_from - 1) if self.has_lapsed else 0
        self.latest = max(self.latest, owed_from - 1) if self.has_lapsed else owed_from - 1
        if not self.has_lapsed:  # events before the join; after a lapse, missing ones may still be requested
            self.seen.fill(self.latest)
        self.is_joined, self.has_lapsed = True, False
        return cut_off

    def lapse(self) -> None:
        """End the membership after the producer timed out or ended; missing events are still requested."""
        self.is_joined, self.has_lapsed = False, True

    def leave(self) -> None:
        """End the membership by this node's own decision: no event is owed any more."""
        self.missing.clear()
        self.is_joined = self.has_lapsed = False

    def know(self, number: int, *, deployment: Deployment, lasts_us: int, now: int) -> int:
        """Record that events up to *number* exist; return the number of them that are missed without a request."""
        if number <= self.latest:
            return 0
        skipped = self._pass_over(number - max(1, deployment.max_missing - len(self.missing)))
        for each in range(self.latest + 1, number + 1):
            if each not in self.seen:
                self.missing[each] = _MissingEvent(now + deployment.repair_us, now + lasts_us)
        self.latest = number
        return skipped

    def _pass_over(self, last: int) -> int:
        """Count the unknown events up to *last* as missed, and mark them seen, so that none is delivered later."""
        passed = max(0, last - self.latest)
        if passed:
            recent = range(max(self.latest + 1, last - REMEMBERED), last + 1)
            passed -= sum(not self.seen.add(number) for number in recent)
            self.latest = last
            self.missed += passed
        return passed

    def settle(self, number: int) -> bool:
        """Remove the event *number* from the missing ones; return whether it is new."""
        self.missing.pop(number, None)
        return self.seen.add(number)

    def learn(self, beacon: Beacon, *, deployment: Deployment, now: int) -> tuple[int, bool]:
        """Record the events that a beacon announces: the latest is requested while it is valid, else it is expired.

        Return the number of events that are missed without a request, and whether the latest is expired.
        """
        skipped = 0
        if beacon.latest > self.latest + 1:
            lasts_us = beacon.max_remaining_us
            skipped = self.know(beacon.latest - 1, deployment=deployment, lasts_us=lasts_us, now=now)
        if beacon.latest <= self.latest:
            return skipped, False
        skipped += self.know(beacon.latest, deployment=deployment, lasts_us=beacon.latest_us, now=now)
        if beacon.latest not in self.missing or beacon.latest_us:
            return skipped, False
        self.settle(beacon.latest)
        self.expired += 1
        return skipped, True

    # -- what it says ------------------------------------------------------------------------------------------------

    def join(self, member: str, beacon: Beacon, *, seq: int, deployment: Deployment, is_leaving: bool = False) -> Join:
        """Return the join of *member*, with its account of events."""
        return Join(
            origin=member,
            seq=seq,
            sender=member,
            hops=self.taken_hops,
            max_hops=self.taken_hops,
            subject=beacon.subject,
            area=beacon.area,
            producer=beacon.origin,
            epoch=self.epoch,
            accounted=self.accounted,
            expired=self.expired,
            missed=self.missed,
            wants_view=self.digest != beacon.view and beacon.view.size <= deployment.max_listed,
            is_leaving=is_leaving,
        )

    def requests(
        self, member: str, group: GroupId, *, deployment: Deployment, now: int
    ) -> tuple[list[Request], list[int]]:
        """Return the requests of *member* that are due, and the numbers of events that are given up."""
        asked, vain = self._due_numbers(deployment=deployment, now=now)
        if self.beacon is None:
            return [], vain
        made = [
            Request(
                sender=member,
                to=neighbour,
                area=self.beacon.area,
                producer=group.producer,
                subject=group.subject,
                epoch=self.epoch,
                numbers=tuple(numbers),
            )
            for neighbour, numbers in sorted(asked.items())
        ]
        return made, vain

    def _due_numbers(self, *, deployment: Deployment, now: int) -> tuple[dict[str, list[int]], list[int]]:
        """Return the numbers to request now, per neighbour, and the numbers of events that are given up."""
        vain = [number for number, each in self.missing.items() if each.gives_up_at <= now]
        for number in vain:
            self.settle(number)
        self.missed += len(vain)
        asked: dict[str, list[int]] = {}
        for number, each in self.missing.items():
            if each.asks_at <= now:
                neighbour = self.neighbour(each.tries)
                each.asks_at = now + deployment.repair_us
                if neighbour is not None:
                    each.tries += 1
                    asked.setdefault(neighbour, []).append(number)
        return asked, vain
