"""The relay: floods frames inside their area, and keeps events for neighbours that missed them (4.3; T23, T24).

Rule: a node repeats a frame at most once, after a delay fixed by its own id and the frame's, while hops are left, the
event is alive and the node is inside the area at that moment. It never transmits outside.
Rule: frames that are due together are sent in the order of their deadlines.
Rule: an event is kept until its deadline, as far as memory allows. It is sent to a neighbour that requests it, at most
once in half a repair interval however many request it: all neighbours hear the answer.
Rule: a join is repeated only for a group whose beacon this node has believed, within the area and the hops of that
beacon. Believed beacons are remembered for the time that a producer may be silent; their number is bounded.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import NamedTuple

from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.place import Area, Place
from whimbrel.nearby.datagrams import travel_us
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Beacon, Event, Flooded, GroupId, Join, Request
from whimbrel.nearby.group.numbers import SeenNumbers
from whimbrel.nearby.group.outputs import Output, Send

__all__ = ["GroupStanding", "Relay", "is_inside"]

_DEGREE_M = 111_200.0
_ROUGHLY = 0.015
"""Most relative error of a distance on the flat map, doubled, for areas up to 10 km and below latitude 80."""


def is_inside(area: Area, place: Place | None) -> bool:
    """Return ``area.contains(place)``, False without a place; the exact distance is computed near the rim only."""
    if place is None:
        return False
    centre, radius_m = area.centre, area.radius_m
    north = (place.latitude - centre.latitude) * _DEGREE_M
    if -80 < centre.latitude < 80 and radius_m <= 10_000 and abs(north) <= 20_000:
        turned = (place.longitude - centre.longitude + 180) % 360 - 180
        away_m = math.hypot(north, turned * _DEGREE_M * math.cos(math.radians(centre.latitude)))
        if away_m * (1 - _ROUGHLY) > radius_m + 1:
            return False
        if away_m * (1 + _ROUGHLY) < radius_m - 1:
            return True
    return area.contains(place)


class GroupStanding(NamedTuple):
    """Limits for the joins of a group, from its announcement."""

    epoch: int
    key: bytes | None
    """The producer's key; if it has one, its members sign, too."""
    max_hops: int
    radius_m: float

    def admits(self, join: Join) -> bool:
        """Return whether *join* is of this epoch, and stays within the group's hops and area."""
        is_within = join.max_hops <= self.max_hops and join.area.radius_m <= self.radius_m
        return join.epoch == self.epoch and is_within


@dataclass(slots=True)
class _KeptEvent:
    event: Event
    dies_at: int
    answered_at: int | None = None


class Relay:
    """Repetition of frames by one node, and its kept events."""

    def __init__(self, name: str, *, deployment: Deployment, is_repeating: bool, counts: Counter[str]) -> None:
        self.name, self._deployment, self._counts = name, deployment, counts
        self.is_repeating = is_repeating
        self._seen: OrderedDict[tuple[str, bool, bytes | None], SeenNumbers] = OrderedDict()
        """Seen seqs per origin, kind (join or not) and key: a frame must not mark seqs of another key as seen."""
        self._queue: list[tuple[int, int, Flooded, int]] = []
        """Heap of frames to repeat: due time, order of arrival, frame, and time of receipt."""
        self._order = 0
        self._kept: OrderedDict[tuple[GroupId, int, int], _KeptEvent] = OrderedDict()
        self._groups: OrderedDict[GroupId, tuple[GroupStanding, int]] = OrderedDict()
        """Limits and lapse time of the groups with believed beacons; the group heard last is at the end."""

    def is_new(self, frame: Flooded) -> bool:
        """Return whether *frame* was not heard before."""
        seen = self._seen.get((frame.origin, isinstance(frame, Join), frame.key))
        return seen is None or frame.seq not in seen

    def receive(self, frame: Flooded, *, now: int) -> None:
        """Record a new frame, and queue it for repetition; the node is inside its area."""
        series = (frame.origin, isinstance(frame, Join), frame.key)
        seen = self._seen.get(series)
        if seen is None:
            seen = self._seen[series] = SeenNumbers()
            if len(self._seen) > self._deployment.max_origins:
                self._seen.popitem(last=False)
        self._seen.move_to_end(series)
        seen.add(frame.seq)
        if not (self.is_repeating and frame.hops):
            return
        if len(self._queue) >= self._deployment.max_queue:
            self._counts["queue full"] += 1
            return
        self._order += 1
        heappush(self._queue, (now + self._delay_us(frame), self._order, frame, now))

    def _delay_us(self, frame: Flooded) -> int:
        """Return this node's delay before it repeats *frame*: a hash of ids, not a random number."""
        drawn = hashlib.blake2s(f"{self.name} {frame.origin}:{frame.seq}".encode(), digest_size=4).digest()
        return int.from_bytes(drawn, "big") % self._deployment.slots * self._deployment.slot_us

    @property
    def next_due(self) -> int | None:
        """Time at which ``timer`` should be called."""
        return self._queue[0][0] if self._queue else None

    def timer(self, *, place: Place | None, now: int) -> list[Output]:
        """Repeat the frames that are due, the earliest deadline first."""
        due: list[tuple[int, int, Flooded]] = []
        while self._queue and self._queue[0][0] <= now:
            _, order, frame, received_at = heappop(self._queue)
            aged = self.age(frame, now - received_at)
            if not is_inside(frame.area, place):
                self._counts["left before repeating"] += 1
            elif isinstance(aged, Event) and not aged.remaining_us:
                self._counts["expired before repeating"] += 1
            else:
                due.append((aged.remaining_us if isinstance(aged, Event) else INT64_MAX, order, aged))
        due.sort(key=lambda each: each[:2])
        self._counts["repeated"] += len(due)
        return [Send(replace(frame, sender=self.name, hops=frame.hops - 1)) for _, _, frame in due]

    def age(self, frame: Flooded, held_us: int) -> Flooded:
        """Return *frame* with its remaining times reduced by its transmission and by *held_us* here, to 0 at least."""
        gone_us = held_us + travel_us(frame, deployment=self._deployment)
        if isinstance(frame, Event):
            return replace(frame, remaining_us=max(0, frame.remaining_us - gone_us))
        if isinstance(frame, Beacon):
            return replace(frame, latest_us=max(0, frame.latest_us - gone_us))
        return frame

    # -- groups that are believed ------------------------------------------------------------------------------------

    def believe(self, beacon: Beacon, *, now: int) -> None:
        """Record the group of a believed *beacon*, or remove it if the announcement has ended."""
        group = beacon.group
        found = self.standing(group, now=now)
        if found is not None and (beacon.epoch < found.epoch or (found.key is not None and found.key != beacon.key)):
            return
        if not beacon.lifetime_us:
            self._groups.pop(group, None)
            return
        if group not in self._groups and len(self._groups) >= self._deployment.max_groups:
            oldest, (_, lapses_at) = next(iter(self._groups.items()))
            if lapses_at > now:
                self._counts["too many believed groups"] += 1
                return
            del self._groups[oldest]
        standing = GroupStanding(beacon.epoch, beacon.key, beacon.max_hops, beacon.area.radius_m)
        self._groups[group] = standing, now + min(beacon.lifetime_us, self._deployment.silence_us)
        self._groups.move_to_end(group)

    def standing(self, group: GroupId, *, now: int) -> GroupStanding | None:
        """Return the limits for joins of *group*, or ``None`` if it has no recent believed beacon."""
        found = self._groups.get(group)
        return None if found is None or found[1] <= now else found[0]

    # -- events for neighbours that missed them ------------------------------------------------------------------------

    def keep(self, event: Event, *, dies_at: int, now: int) -> None:
        """Keep *event* for neighbours that request it."""
        self._kept[event.group, event.epoch, event.number] = _KeptEvent(event, dies_at)
        while len(self._kept) > self._deployment.max_kept or next(iter(self._kept.values())).dies_at <= now:
            self._kept.popitem(last=False)
            if not self._kept:
                break

    def answer(self, request: Request, *, is_members_own: bool, place: Place | None, now: int) -> list[Output]:
        """Return the events that a neighbour requests, if they are kept and alive.

        Signed events are sent only to members that have signed their request.
        """
        sent: list[Output] = []
        for number in dict.fromkeys(request.numbers[: self._deployment.max_missing]):
            kept = self._kept.get((request.group, request.epoch, number))
            if kept is None or kept.dies_at <= now or not is_inside(kept.event.area, place):
                self._counts["could not answer"] += 1
                continue
            if kept.event.key is not None and not is_members_own:
                self._counts["unsigned requests"] += 1
                continue
            if kept.answered_at is not None and now - kept.answered_at < self._deployment.repair_us // 2:
                continue
            kept.answered_at = now
            self._counts["answered"] += 1
            sent.append(Send(replace(kept.event, sender=self.name, hops=0, remaining_us=kept.dies_at - now)))
        return sent
