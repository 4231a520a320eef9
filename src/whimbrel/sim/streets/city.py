"""A city: signalled junctions, speed-limit signs, an ambulance, and vehicles that subscribe once (STEAM, section 4).

Rule: a light or sign stands, and so does its area; the ambulance's area moves along. Vehicles subscribe at the start,
with content filters of their own, and never again.
Rule: the report holds what was counted against what the town knows: when an event was published and when delivered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import real, whole
from whimbrel.model.clock import US_PER_S
from whimbrel.model.place import Point
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Event, Frame, GroupId
from whimbrel.nearby.frames.wire import encode
from whimbrel.nearby.group.outputs import Deliver, Note, NoteKind
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.nearby.prediction import DurationHistogram
from whimbrel.nearby.vocabulary import Vocabulary
from whimbrel.sim.mobility.streets import StreetGrid
from whimbrel.sim.mobility.traffic import STREETS, recorded_drives
from whimbrel.sim.streets.radio import BroadcastRadio
from whimbrel.sim.streets.town import Resident, Town

__all__ = ["FILTERS", "VALUES", "WORDS", "City", "CityReport", "CityWatcher", "make_city", "run_city"]

WORDS = Vocabulary.of(
    {"traffic light": {"status": "string"}, "speed limit": {"limit": "int32"}, "ambulance": {"siren": "int32"}}
)
_COUNTED = {NoteKind.MISSED, NoteKind.MEMBER_MISSED, NoteKind.MEMBER_EXPIRED}
"""Notes whose count is of events."""
VALUES: Mapping[str, Mapping[str, object]] = {
    "traffic light": {"status": "green"},
    "speed limit": {"limit": 50},
    "ambulance": {"siren": 1},
}
FILTERS = {
    "traffic light": "approaching == 1",
    "speed limit": "approaching == 1 && heading_difference < 60",
    "ambulance": "distance_m < 120",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class City:
    """Who lives there, and their radio."""

    grid: StreetGrid = field(default_factory=StreetGrid)
    vehicles: int = 300
    ambulances: int = 1
    light_radius_m: float = 100.0
    sign_radius_m: float = 80.0
    ambulance_radius_m: float = 150.0
    every_s: float = 5.0
    """From one event of a light or sign to its next; an ambulance tells its place each second."""
    hops: int = 1
    deadline_us: int = 500_000
    range_m: float = 200.0
    loss: float = 0.0
    seconds: float = 60.0
    is_parked: bool = False
    """Whether vehicles stay where their drives begin."""
    is_recorded: bool = False
    """Whether vehicles drive as SUMO drove them; else at constant speeds, with stops and turns drawn from the seed."""
    warmup_s: float = 3.0
    """Until groups have formed; what is published before is not counted."""
    seed: int = 1

    def __post_init__(self) -> None:
        whole("vehicles", self.vehicles, 0, 1_000_000)
        whole("ambulances", self.ambulances, 0, 1_000)
        real("every_s", self.every_s, 0.01, 1e6)
        real("seconds", self.seconds, 1, 1e6)
        real("warmup_s", self.warmup_s, 0, 1e6)
        if self.is_recorded and self.grid != STREETS:
            raise InvalidValueError("grid of recorded vehicles", str(self.grid), f"the one of the trace, {STREETS}")

    @property
    def entities(self) -> int:
        """How many nodes there are: a light at every junction, a sign for every other one."""
        junctions = len(self.grid.junctions)
        return junctions + (junctions + 1) // 2 + self.ambulances + self.vehicles


@dataclass(slots=True)
class CityReport:
    """What happened, from the end of the warm-up on."""

    counts: Counter[str] = field(default_factory=Counter)
    latency: DurationHistogram = field(default_factory=DurationHistogram)
    late: int = 0
    """Delivered, but later than the bound that its producer gave out."""
    repaired: int = 0
    """Delivered after a request: outside of what the bound assumes."""
    caught_up: int = 0
    """Delivered to a vehicle that joined after the publication: the latest event, while it was good."""
    bounds: DurationHistogram = field(default_factory=DurationHistogram)
    """What producers promised, event by event."""
    event_frames: int = 0
    event_bytes: int = 0
    frames: Counter[str] = field(default_factory=Counter)
    touched: set[str] = field(default_factory=set)


class CityWatcher:
    """Counts for the report."""

    def __init__(self, town: Callable[[], Town]) -> None:
        self.report = CityReport()
        self.published: dict[tuple[str, int], tuple[int, int]] = {}
        """When, and the bound of its producer."""
        self.is_counting = False
        self._town = town
        self._size = 0
        self._joined_at: dict[tuple[str, GroupId], int] = {}

    def publish(self, event: Event, bound_us: int, *, now: int) -> None:
        """Remember when an event was published, and what its producer promised."""
        report = self.report
        report.counts["published"] += 1
        report.bounds.add(bound_us)
        self.published[event.origin, event.seq] = (now, bound_us)

    def transmitted(self, who: Resident, frame: Frame, *, heard_by: int, now: int) -> None:
        """Count a transmission."""
        del who, heard_by, now
        if not self.is_counting:
            return
        self.report.frames[type(frame).__name__.lower()] += 1
        if isinstance(frame, Event):
            self._size = self._size or len(encode(frame))
            self.report.event_frames += 1
            self.report.event_bytes += self._size

    def noted(self, who: Resident, note: Note, *, now: int) -> None:
        """Count a report."""
        if note.kind is NoteKind.JOINED:
            self._joined_at[who.node.name, note.group] = now
        if self.is_counting:
            self.report.counts[note.kind.value] += note.count if note.kind in _COUNTED else 1
            self.report.touched.add(who.node.name)

    def delivered(self, who: Resident, what: Deliver, *, now: int) -> None:
        """Count a delivery, and how long it took by true time."""
        at, bound_us = self.published.get((what.event.origin, what.event.seq), (None, 0))
        if at is None:
            return
        self.report.counts["delivered"] += 1
        if self._joined_at.get((who.node.name, what.event.group), at) > at:
            self.report.caught_up += 1
            return
        self.report.latency.add(now - at)
        # An event that was asked for left its sender with no hops; one that came by the flood has its first or fewer.
        is_repaired = what.event.hops == 0 and now - at >= self._town().deployment.repair_us
        self.report.repaired += is_repaired
        self.report.late += now - at > bound_us and not is_repaired


def run_city(city: City, *, deployment: Deployment | None = None) -> CityReport:
    """Play *city* and report."""
    town, watcher = make_city(city, deployment=deployment)
    town.run(city.warmup_s)
    watcher.is_counting = True
    town.run(city.seconds)
    watcher.is_counting = False
    town.run(1.0)
    return watcher.report


def make_city(city: City, *, deployment: Deployment | None = None) -> tuple[Town, CityWatcher]:
    """Return the town of *city*, and what watches it."""
    random = Random(f"{city.seed}/city")
    town: Town
    watcher = CityWatcher(lambda: town)
    radio = BroadcastRadio(range_m=city.range_m, random=Random(f"{city.seed}/radio"), loss=city.loss)
    town = Town(radio=radio, vocabulary=WORDS, deployment=deployment, watcher=watcher)
    for number, (x_m, y_m) in enumerate(city.grid.junctions):
        light = town.add(f"light-{number}", Point(x_m, y_m))
        _produce(city, town, watcher, light, "traffic light", radius_m=city.light_radius_m, random=random)
        if number % 2 == 0:
            sign = town.add(f"sign-{number}", Point(x_m + city.grid.block_m / 2, y_m))
            _produce(city, town, watcher, sign, "speed limit", radius_m=city.sign_radius_m, random=random)
    moving = [town.add(f"ambulance-{number}", Point(0, 0)) for number in range(city.ambulances)]
    cars = [town.add(f"car-{number}", Point(0, 0)) for number in range(city.vehicles)]
    seconds = city.warmup_s + city.seconds + 2
    if moving or cars:
        count = len(moving) + len(cars)
        drives = (
            recorded_drives(count, seconds) if city.is_recorded else city.grid.drives(count, seconds, seed=city.seed)
        )
        town.follow(drives, [*moving, *cars], until_s=0.0 if city.is_parked else None)
    for ambulance in moving:
        _produce(city, town, watcher, ambulance, "ambulance", radius_m=city.ambulance_radius_m, random=random)
    for car in cars:
        for subject, text in FILTERS.items():
            car.node.subscribe(NearbySubscription(subject=subject, filter_text=text))
    return town, watcher


def _produce(
    city: City, town: Town, watcher: CityWatcher, who: Resident, subject: str, *, radius_m: float, random: Random
) -> None:
    """Let *who* announce *subject* within the first second, and publish again and again."""
    is_moving = subject == "ambulance"
    every_us = round((1.0 if is_moving else city.every_s) * US_PER_S)

    def announce() -> None:
        _, outputs = who.node.announce(
            subject, radius_m=radius_m, hops=city.hops, moves=is_moving, deadline_us=city.deadline_us, now=town.now
        )
        town.perform(who, outputs)
        town.after(random.randrange(every_us), publish)

    def publish() -> None:
        event, outputs = who.node.publish(subject, VALUES[subject], now=town.now)
        if watcher.is_counting:
            bound_us = who.node.bounds.predict(city.hops).worst_us  # what it would promise now
            watcher.publish(event, bound_us, now=town.now)
        town.perform(who, outputs)
        town.after(every_us, publish)

    town.after(random.randrange(US_PER_S), announce)
