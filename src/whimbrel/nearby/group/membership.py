"""Membership: what a consumer knows of one group, and says to it.

It has the latest beacon, which events were received, and which node to ask for the others; it makes joins and requests.

Rule: a member is owed every event after the number that was the latest when it joined, and that one if it is good yet.
Each is received, outside, expired or missed, once; ``accounted`` says up to where that is known.
Rule: a missing event is asked for until its deadline at the latest, of the neighbour heard last, then of the one before
it and so on, ties by id. Of a gap that is too long only the newest numbers are asked for; the others are missed.
Rule: what was seen is remembered when the membership ends, so that nothing is delivered twice after a return.
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
    """One group as a consumer knows it."""

    epoch: int
    beacon: Beacon | None = None
    """The latest beacon; ``None`` if only events were heard."""
    is_joined: bool = False
    has_lapsed: bool = False
    """Whether it ended by the producer's silence: the consumer did not leave."""
    key: bytes | None = None
    lapses_at: int = 0
    join_at: int = 0
    taken_hops: int = 0
    """How often the latest beacon was repeated on its shortest way here."""
    latest: int = 0
    """The highest number that is known to exist, or was before this member's time."""
    seen: SeenNumbers = field(default_factory=SeenNumbers)
    missing: dict[int, _MissingEvent] = field(default_factory=dict)
    expired: int = 0
    missed: int = 0
    view: frozenset[int] = frozenset()
    _neighbours: dict[str, int] = field(default_factory=dict)
    """When each was heard."""

    @property
    def accounted(self) -> int:
        """The number up to which the outcome of each event is known."""
        return min(self.missing, default=self.latest + 1) - 1

    @property
    def digest(self) -> ViewDigest:
        """The digest of the view as this member knows it."""
        return digest_of(self.view)

    @property
    def next_due(self) -> int:
        """When the next join, request or lapse is due."""
        due = min(self.join_at, self.lapses_at) if self.is_joined else INT64_MAX
        if self.missing:
            due = min(due, *(min(each.asks_at, each.gives_up_at) for each in self.missing.values()))
        return due

    @property
    def is_active(self) -> bool:
        """Whether there is anything to do."""
        return self.is_joined or bool(self.missing)

    # -- neighbours --------------------------------------------------------------------------------------------------

    def hear(self, neighbour: str, *, now: int) -> None:
        """Note that *neighbour* transmitted a frame of this group."""
        self._neighbours.pop(neighbour, None)
        self._neighbours[neighbour] = now
        if len(self._neighbours) > _MAX_NEIGHBOURS:
            del self._neighbours[next(iter(self._neighbours))]

    def neighbour(self, tries: int) -> str | None:
        """Return the node to ask after *tries* requests: the one heard last, then the one before; ties by id."""
        if not self._neighbours:
            return None
        order = sorted(self._neighbours.items(), key=lambda each: (-each[1], each[0]))
        return order[tries % len(order)][0]

    # -- numbers -----------------------------------------------------------------------------------------------------

    def begin(self, latest: int, *, is_good: bool) -> int:
        """Become a member when *latest* is the latest event; return how many were published while it was cut off."""
        owed_from = latest if is_good and latest else latest + 1
        cut_off = self._pass_over(owed_from - 1) if self.has_lapsed else 0
        self.latest = max(self.latest, owed_from - 1) if self.has_lapsed else owed_from - 1
        if not self.has_lapsed:  # what was before this member's time; of a lapsed one, events may still be asked for
            self.seen.fill(self.latest)
        self.is_joined, self.has_lapsed = True, False
        return cut_off

    def lapse(self) -> None:
        """Be no longer a member, because the producer is silent or has ended; what is missing is still asked for."""
        self.is_joined, self.has_lapsed = False, True

    def leave(self) -> None:
        """Be no longer a member by one's own wish: nothing is owed any more."""
        self.missing.clear()
        self.is_joined = self.has_lapsed = False

    def know(self, number: int, *, deployment: Deployment, lasts_us: int, now: int) -> int:
        """Learn that events up to *number* exist; return how many of them are missed at once."""
        if number <= self.latest:
            return 0
        skipped = self._pass_over(number - max(1, deployment.max_missing - len(self.missing)))
        for each in range(self.latest + 1, number + 1):
            if each not in self.seen:
                self.missing[each] = _MissingEvent(now + deployment.repair_us, now + lasts_us)
        self.latest = number
        return skipped

    def _pass_over(self, last: int) -> int:
        """Count the unknown events up to *last* as missed, and see to it that none of them is delivered later."""
        passed = max(0, last - self.latest)
        if passed:
            recent = range(max(self.latest + 1, last - REMEMBERED), last + 1)
            passed -= sum(not self.seen.add(number) for number in recent)
            self.latest = last
            self.missed += passed
        return passed

    def settle(self, number: int) -> bool:
        """Take the event *number* off what is missing; tell whether it is new."""
        self.missing.pop(number, None)
        return self.seen.add(number)

    def learn(self, beacon: Beacon, *, deployment: Deployment, now: int) -> tuple[int, bool]:
        """Take from a beacon which events there are: the latest is asked for while it is good, else it is expired.

        Return how many are missed at once, and whether the latest is expired.
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
        """Return the requests of *member* that are due, and the numbers that are given up."""
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
        """Return which node to ask for which numbers now, and the numbers that are given up."""
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
