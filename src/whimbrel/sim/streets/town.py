"""A town: an event-driven simulation of nodes of nearby groups on a plane, with radio, clocks and applications.

Rule: the seed decides everything. Simultaneous events happen in the order in which they were scheduled.
Rule: the nodes are the cores of ``nearby``; the town only moves them, passes their frames on and observes. Frames are
passed as values, or encoded and decoded if ``through_bytes`` is set.
Rule: true time is the town's. A node knows only its own clock, which may differ and jump.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from random import Random
from typing import Protocol

import numpy as np

from whimbrel.model.clock import US_PER_S
from whimbrel.model.place import Place, Plane, Point
from whimbrel.nearby.datagrams import datagrams_of, tells_deployment
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Beacon, Event, Frame, GroupId
from whimbrel.nearby.frames.wire import decode, encode
from whimbrel.nearby.group.outputs import Deliver, Note, Output, Send
from whimbrel.nearby.node import Node
from whimbrel.nearby.vocabulary import Vocabulary
from whimbrel.sim.mobility.walks import Walks
from whimbrel.sim.streets.radio import BroadcastRadio

__all__ = ["DUBLIN", "Resident", "Town", "Watcher"]

DUBLIN = Place(53.3438, -6.2546)
"""Trinity College Dublin, where STEAM was developed."""


class Watcher(Protocol):
    """Observes the simulation, without any effect on it."""

    def on_transmission(self, who: Resident, frame: Frame, *, datagrams: int, heard_by: int, now: int) -> None:
        """Observe a transmission, and the number of datagrams that it would be on a real link."""

    def on_note(self, who: Resident, note: Note, *, now: int) -> None:
        """Observe a note of a node."""

    def on_delivery(self, who: Resident, what: Deliver, *, now: int) -> None:
        """Observe an event that is delivered to an application."""


class Resident:
    """One node of the town: its core, its clock and its application."""

    __slots__ = ("clock_us", "due", "free_at", "index", "node", "service_us")

    def __init__(self, index: int, node: Node, *, clock_us: int, service_us: int) -> None:
        self.index, self.node = index, node
        self.clock_us = clock_us
        """Microseconds by which its clock is ahead of true time."""
        self.service_us = service_us
        """Microseconds that its application needs for an event."""
        self.free_at = 0
        self.due: int | None = None
        """True time for which its timer is set."""


class Town:
    """Residents, a radio, and the simulated time."""

    def __init__(
        self,
        *,
        radio: BroadcastRadio,
        vocabulary: Vocabulary,
        deployment: Deployment | None = None,
        watcher: Watcher | None = None,
        origin: Place = DUBLIN,
        through_bytes: bool = False,
        jitter: Random | None = None,
    ) -> None:
        self.radio, self.vocabulary = radio, vocabulary
        self.deployment = deployment or Deployment()
        self.plane = Plane(origin)
        self.residents: list[Resident] = []
        self.now = 0
        self.counts: Counter[str] = Counter()
        self._watcher = watcher
        self._through_bytes = through_bytes
        self._jitter = jitter
        """With it, each receiver hears a transmission at its own time, so that frames overtake each other."""
        self._beacons: Counter[GroupId] = Counter()
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0

    def add(self, name: str, point: Point, *, clock_us: int = 0, service_us: int = 0, **settings: object) -> Resident:
        """Add a node to the town, at *point*."""
        settings.setdefault("deployment", self.deployment)
        node = Node(name, vocabulary=self.vocabulary, **settings)  # type: ignore[arg-type] # it checks
        resident = Resident(len(self.residents), node, clock_us=clock_us, service_us=service_us)
        self.residents.append(resident)
        self.move(resident, point)
        return resident

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Schedule *action* to run after *delay_us*."""
        self._order += 1
        heappush(self._queue, (self.now + delay_us, self._order, action))

    def run(self, seconds: float) -> None:
        """Advance the time by *seconds*, and run all scheduled actions that are due."""
        end, queue = self.now + round(seconds * US_PER_S), self._queue
        while queue and queue[0][0] <= end:
            self.now, _, action = heappop(queue)
            action()
        self.now = end

    def publish(self, resident: Resident, subject: str, values: Mapping[str, object]) -> Event | None:
        """Publish an event as *resident*, and return the event."""
        event, outputs = resident.node.publish(subject, values, now=self.now + resident.clock_us)
        self.perform(resident, outputs)
        return event

    def datagrams_of(self, resident: Resident, frame: Frame) -> int:
        """Return the number of datagrams of *frame* when *resident* transmits it."""
        found = datagrams_of(frame, deployment=self.deployment)
        if isinstance(frame, Beacon) and frame.origin == resident.node.name:
            found += tells_deployment(self._beacons[frame.group])
            self._beacons[frame.group] += 1
        return found

    def size_of(self, frame: Frame) -> int:
        """Return the bytes of *frame* on the air."""
        return len(encode(frame))

    def is_for(self, resident: Resident, found: Deliver) -> bool:
        """Return whether to deliver *found* to the application of *resident*; here always True."""
        del resident, found
        return True

    # -- movement and clocks -----------------------------------------------------------------------------------------

    def move(self, resident: Resident, point: Point) -> None:
        """Move *resident* to *point*, and give its node the new position."""
        self.radio.place(resident.index, point)
        place = self.plane.place(point)
        self.perform(resident, resident.node.move(place, now=self.now + resident.clock_us))

    def follow(
        self, walks: Walks, residents: list[Resident], *, every_s: float = 1.0, until_s: float | None = None
    ) -> None:
        """Move *residents* along *walks*, with a fix every *every_s* seconds; they stop at *until_s*."""
        times = np.arange(0, walks.seconds, every_s)
        if until_s is not None:
            times = times[: int(until_s / every_s) + 1]
        places = walks.positions(times)

        def step(tick: int) -> None:
            for number, resident in enumerate(residents):
                x, y = places[number, tick].tolist()
                self.move(resident, Point(x, y))
            if tick + 1 < len(times):
                self.after(round(every_s * US_PER_S), lambda: step(tick + 1))

        step(0)

    def jump(self, resident: Resident, by_us: int) -> None:
        """Move a node's clock by *by_us*, forward or back."""
        resident.clock_us += by_us
        self._set_timer(resident)

    # -- shells of the cores -----------------------------------------------------------------------------------------

    def perform(self, resident: Resident, outputs: list[Output]) -> None:
        """Perform the outputs of a core, in order."""
        for each in outputs:
            if isinstance(each, Send):
                self._transmit(resident, each.frame)
            else:
                self.counts[each.kind.value] += 1
                if self._watcher is not None:
                    self._watcher.on_note(resident, each, now=self.now)
        self._serve(resident)
        self._set_timer(resident)

    def _transmit(self, resident: Resident, frame: Frame) -> None:
        heard_by = self.radio.transmit(resident.index)
        datagrams = self.datagrams_of(resident, frame)
        self.counts["transmissions"] += 1
        self.counts["datagrams"] += datagrams
        self.counts["receptions"] += len(heard_by)
        if self._watcher is not None:
            self._watcher.on_transmission(resident, frame, datagrams=datagrams, heard_by=len(heard_by), now=self.now)
        if self._through_bytes:
            data = encode(frame)
            self.counts["bytes"] += len(data)
            frame = decode(data)
        if not heard_by:
            return
        if self._jitter is not None:
            for index in heard_by:
                self.after(self.radio.travel_us(datagrams), lambda index=index: self._receive([index], frame))  # type: ignore[misc] # bound now
            return
        self.after(self.radio.travel_us(datagrams), lambda: self._receive(heard_by, frame))

    def _receive(self, indices: list[int], frame: Frame) -> None:
        for index in indices:
            resident = self.residents[index]
            outputs = resident.node.receive(frame, now=self.now + resident.clock_us)
            if outputs:
                self.perform(resident, outputs)
            else:
                self._set_timer(resident)

    def _set_timer(self, resident: Resident) -> None:
        due = resident.node.next_due
        if due is None:
            return
        due = max(due - resident.clock_us, self.now)
        if resident.due is None or due < resident.due:
            resident.due = due
            self.after(due - self.now, lambda: self._fire(resident, due))

    def _fire(self, resident: Resident, due: int) -> None:
        if resident.due != due:
            return  # the timer has been set to an earlier time since
        resident.due = None
        self.perform(resident, resident.node.timer(now=self.now + resident.clock_us))

    def _serve(self, resident: Resident) -> None:
        """Deliver waiting events to the application while it is free."""
        while resident.free_at <= self.now:
            found, notes = resident.node.take(now=self.now + resident.clock_us)
            for note in notes:
                assert isinstance(note, Note)
                self.counts[note.kind.value] += 1
                if self._watcher is not None:
                    self._watcher.on_note(resident, note, now=self.now)
            if found is None:
                return
            if not self.is_for(resident, found):
                continue
            self.counts["delivered"] += 1
            if self._watcher is not None:
                self._watcher.on_delivery(resident, found, now=self.now)
            if resident.service_us:
                resident.free_at = self.now + resident.service_us
                self.after(resident.service_us, lambda: self._serve(resident))
