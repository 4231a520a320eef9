"""A city: signalled junctions, speed-limit signs, an ambulance, and vehicles that subscribe once (STEAM, section 4).

Rule: a light or sign does not move, nor does its area, which is not centred on it; an ambulance's area moves with it.
Vehicles subscribe once, at the start, with their own content filters.
Rule: the alternatives to STEAM use the same cores and the same radio, with one idea of STEAM removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import real, whole
from whimbrel.model.clock import US_PER_S
from whimbrel.model.place import Place, Point
from whimbrel.nearby.deployment import MAX_HOPS, Deployment
from whimbrel.nearby.group.subscriptions import NearbySubscription
from whimbrel.nearby.vocabulary import Vocabulary
from whimbrel.sim.mobility.streets import StreetGrid
from whimbrel.sim.mobility.traffic import STREETS, recorded_drives
from whimbrel.sim.streets.filtering import FilteringTown
from whimbrel.sim.streets.radio import BroadcastRadio
from whimbrel.sim.streets.report import CityReport, CityWatcher
from whimbrel.sim.streets.town import Resident, Town

__all__ = ["FILTERS", "VALUES", "WORDS", "City", "Design", "make_city", "run_city"]

WORDS = Vocabulary.of(
    {"traffic light": {"status": "string"}, "speed limit": {"limit": "int32"}, "ambulance": {"siren": "int32"}}
)
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


_BOUNDLESS_US = 5_000_000
"""Deadline without proximity: with the largest hop bound, an earlier one cannot be promised."""


class Design(Enum):
    """Ways in which events reach those who want them."""

    STEAM = "STEAM"
    PRODUCER_FILTERS = "content filters at the producer"
    """Consumers send filter and motion with every join; the producer decides who gets an event (Figure 3a)."""
    NO_PROXIMITY = "no proximity"
    """An event is flooded through the whole city. Beacons and joins are left out, so the result is a lower bound. One
    extra consumer joins every group once, because a producer without members does not transmit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class City:
    """The nodes of the city, and their radio."""

    grid: StreetGrid = field(default_factory=StreetGrid)
    vehicles: int = 300
    ambulances: int = 1
    light_radius_m: float = 100.0
    sign_radius_m: float = 80.0
    ambulance_radius_m: float = 150.0
    off_centre: float = 0.4
    """Distance by which the centre of an area lies east of its light or sign, as a share of the radius."""
    every_s: float = 5.0
    """Seconds between two events of a light or sign; an ambulance publishes its place every second."""
    hops: int = 1
    deadline_us: int = 500_000
    range_m: float = 200.0
    loss: float = 0.0
    seconds: float = 60.0
    is_parked: bool = False
    """Whether vehicles stay at the start of their drives."""
    is_recorded: bool = False
    """Whether vehicles drive as SUMO drove them; else at constant speeds, with stops and turns drawn from the seed."""
    warmup_s: float = 3.0
    """Time for groups to form; events published before its end are not counted."""
    seed: int = 1
    design: Design = Design.STEAM

    def __post_init__(self) -> None:
        whole("vehicles", self.vehicles, 0, 1_000_000)
        whole("ambulances", self.ambulances, 0, 1_000)
        real("off_centre", self.off_centre, 0, 0.9)
        real("every_s", self.every_s, 0.01, 1e6)
        real("seconds", self.seconds, 1, 1e6)
        real("warmup_s", self.warmup_s, 0, 1e6)
        if self.is_recorded and self.grid != STREETS:
            raise InvalidValueError("grid of recorded vehicles", str(self.grid), f"the one of the trace, {STREETS}")

    @property
    def entities(self) -> int:
        """Number of nodes: a light at every junction, a sign for every second junction, ambulances and vehicles."""
        junctions = len(self.grid.junctions)
        return junctions + (junctions + 1) // 2 + self.ambulances + self.vehicles

    @property
    def everywhere_m(self) -> float:
        """A radius that reaches from any place of the city to any other place."""
        return 2.0 * self.grid.blocks * self.grid.block_m

    def radius_m(self, subject: str) -> float:
        """Return the radius around the producer within which an event of *subject* is delivered."""
        if self.design is Design.NO_PROXIMITY:
            return self.everywhere_m
        radii = {"traffic light": self.light_radius_m, "speed limit": self.sign_radius_m}
        return radii.get(subject, self.ambulance_radius_m)


def run_city(city: City, *, deployment: Deployment | None = None) -> CityReport:
    """Simulate *city* and return its report."""
    town, watcher = make_city(city, deployment=deployment)
    town.run(city.warmup_s)
    watcher.is_counting = True
    town.run(city.seconds)
    watcher.is_counting = False
    town.run(1.0)
    return watcher.report


def make_city(city: City, *, deployment: Deployment | None = None) -> tuple[Town, CityWatcher]:
    """Make the simulation of *city*, and the watcher that counts for its report."""
    random = Random(f"{city.seed}/city")
    watcher = CityWatcher(lambda: town)
    radio = BroadcastRadio(range_m=city.range_m, random=Random(f"{city.seed}/radio"), loss=city.loss)
    town: Town
    if city.design is Design.PRODUCER_FILTERS:
        town = FilteringTown(
            radio=radio, vocabulary=WORDS, deployment=deployment, watcher=watcher, filter_of=_filter_of
        )
    elif city.design is Design.NO_PROXIMITY:
        town = Town(radio=radio, vocabulary=WORDS, deployment=_boundless(city), watcher=watcher)
        _subscribe(town.add("witness", Point(0, 0)), is_filtering=False)
    else:
        town = Town(radio=radio, vocabulary=WORDS, deployment=deployment, watcher=watcher)
    for number, (x_m, y_m) in enumerate(city.grid.junctions):
        _produce(city, town, watcher, town.add(f"light-{number}", Point(x_m, y_m)), "traffic light", random=random)
        if number % 2 == 0:
            sign = town.add(f"sign-{number}", Point(x_m + city.grid.block_m / 2, y_m))
            _produce(city, town, watcher, sign, "speed limit", random=random)
    moving = [town.add(f"ambulance-{number}", Point(0, 0)) for number in range(city.ambulances)]
    cars = [town.add(f"car-{number}", Point(0, 0)) for number in range(city.vehicles)]
    _drive(city, town, [*moving, *cars])
    for ambulance in moving:
        _produce(city, town, watcher, ambulance, "ambulance", random=random)
    if city.design is Design.NO_PROXIMITY:  # too late to join: the flood alone reaches them
        town.after(round(city.warmup_s * US_PER_S), lambda: _subscribe(*cars))
    else:
        _subscribe(*cars, is_filtering=city.design is Design.STEAM)
    return town, watcher


def _filter_of(_car: str, subject: str) -> str:
    return FILTERS[subject]


def _boundless(city: City) -> Deployment:
    return Deployment(
        period_us=3_600 * US_PER_S, max_hops=MAX_HOPS, max_radius_m=city.everywhere_m, max_origins=1_000_000
    )


def _drive(city: City, town: Town, vehicles: list[Resident]) -> None:
    if not vehicles:
        return
    seconds = city.warmup_s + city.seconds + 2
    drives = (
        recorded_drives(len(vehicles), seconds)
        if city.is_recorded
        else city.grid.drives(len(vehicles), seconds, seed=city.seed)
    )
    town.follow(drives, vehicles, until_s=0.0 if city.is_parked else None)


def _subscribe(*cars: Resident, is_filtering: bool = True) -> None:
    for car in cars:
        for subject, text in FILTERS.items():
            car.node.subscribe(NearbySubscription(subject=subject, filter_text=text if is_filtering else None))


def _produce(city: City, town: Town, watcher: CityWatcher, who: Resident, subject: str, *, random: Random) -> None:
    """Schedule that *who* announces *subject* within the first second, and then publishes periodically."""
    is_moving = subject == "ambulance"
    every_us = round((1.0 if is_moving else city.every_s) * US_PER_S)
    hops = MAX_HOPS if city.design is Design.NO_PROXIMITY else city.hops

    def centre() -> Place | None:
        if is_moving or city.design is Design.NO_PROXIMITY:
            return None
        x_m, y_m = town.radio.point(who.index)
        return town.plane.place(Point(x_m + city.off_centre * city.radius_m(subject), y_m))

    def announce() -> None:
        _, outputs = who.node.announce(
            subject,
            radius_m=city.radius_m(subject),
            hops=hops,
            moves=is_moving,
            centre=centre(),
            deadline_us=_BOUNDLESS_US if city.design is Design.NO_PROXIMITY else city.deadline_us,
            now=town.now,
        )
        town.perform(who, outputs)
        town.after(random.randrange(every_us), publish)

    def publish() -> None:
        bound_us = who.node.predict(subject).worst_us  # the bound that it would promise now
        watcher.publish(town.publish(who, subject, VALUES[subject]), bound_us, now=town.now)
        town.after(every_us, publish)

    town.after(random.randrange(US_PER_S), announce)
