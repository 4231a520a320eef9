"""Worlds: publications, subscriptions and reports of a simulated hospital ward, a campus and a city.

Rule: the seq, the time and the seed decide the contents of a row (``draws``), computed for whole columns at once.
Rule: filters are valid in Whimbrel's language; a test parses every filter of a generated log.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from whimbrel.model.clock import US_PER_S
from whimbrel.model.place import Place, Plane
from whimbrel.sim.logs.draws import Draws, Flags, Integers, Reals
from whimbrel.sim.logs.made_attributes import Column

__all__ = ["WORLDS", "Campus", "City", "Happenings", "Rows", "Ward", "Wish", "World"]

Array: TypeAlias = Any
"""A ``pyarrow.Array``; pyarrow ships no types."""

_MINUTE = 60 * US_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Some rows of a node: their seqs, their times, and the node's random draws."""

    seq: Integers
    at: Integers
    draws: Draws

    def uniform(self, *names: object) -> Reals:
        """Draw a number from [0, 1) for each row."""
        return self.draws.of(*names).uniform(self.seq)

    def below(self, bound: int, *names: object) -> Integers:
        """Draw an integer from 0 to *bound* - 1 for each row."""
        return self.draws.of(*names).below(self.seq, bound)

    def chance(self, probability: float, *names: object) -> Flags:
        """Draw true with *probability* for each row."""
        return self.draws.of(*names).chance(self.seq, probability)

    def drift(self, who: Integers, period_us: int, *names: object) -> Reals:
        """Return the value, at each row's time, of the slow random curve of the row's *who*."""
        return self.draws.of(*names).drift(who, self.at, period_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Happenings:
    """The publications of some rows, as columns; a time of -1 means that a row has none."""

    subject: Array
    publisher: Array
    attributes: Sequence[Column]
    qos: Integers
    retain: Flags
    lives_us: Integers
    deadline_us: Integers
    places: tuple[Reals, Reals] | None = None
    """Latitudes and longitudes; NaN where a row has no place."""
    radius_m: Reals | None = None
    """NaN where a row has no radius."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Subject filter, content filter and area of a subscription."""

    subject_filter: str | None
    filter_text: str | None = None
    near: tuple[float, float, float] | None = None
    """Latitude, longitude, radius in metres."""


class World(Protocol):
    """A kind of simulated place; *devices* is the number of devices that a node serves."""

    title: ClassVar[str]
    people: ClassVar[str]
    """Prefix of the names of its sessions."""
    rhythm: ClassVar[Sequence[float]]
    """Relative traffic in each hour of the day."""
    reports: ClassVar[float]
    """Share of the rows that are reports; the others are publications."""
    devices: ClassVar[int]
    """Number of devices per node, by default."""

    def happen(self, rows: Rows, devices: int) -> Happenings:
        """Make the publications of *rows*."""
        ...

    def wish(self, who: Sequence[float], how: Sequence[float], devices: int) -> Wish:
        """Make a subscription: two draws *who* decide its subject filter, two draws *how* the rest."""
        ...

    def places(self, draws: Draws, who: Integers, at: Integers, devices: int) -> tuple[Reals, Reals] | None:
        """Return the positions of the devices *who* at the times *at*, or None if this world reports no positions."""
        ...


def _take_names(names: Sequence[str], which: Integers) -> Array:
    return pa.array(names, pa.string()).take(pa.array(which))


def _part(draw: float, of: Sequence[str]) -> str:
    return of[int(draw * len(of))]


# -- the ward --------------------------------------------------------------------------------------------------------

_PATIENTS = ("Okafor", "Lindqvist", "Tanaka", "Moreau", "Haddad", "Novak", "Reyes", "Byrne")
_DRUGS = ("Saline", "Morphine sulfate", "Insulin", "Heparin")
_ALARMS = ("pulse", "oxygen", "fall", "line")


class Ward:
    """A hospital ward: monitors at the beds, pumps, badges and alarms; nurses with a phone and a desk computer."""

    title: ClassVar[str] = "ward"
    people: ClassVar[str] = "nurse"
    rhythm: ClassVar[Sequence[float]] = (6, 6, 6, 6, 6, 7, 9, 10, 10, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 8, 8, 7, 7, 6)
    reports: ClassVar[float] = 0.04
    devices: ClassVar[int] = 60

    def happen(self, rows: Rows, devices: int) -> Happenings:
        """Make publications, 70 % of them vital signs; these change slowly, so alarms come in episodes."""
        beds = _beds(devices)
        bed, draw = rows.below(len(beds), "bed"), rows.uniform("kind")
        kind = np.searchsorted([0.70, 0.85, 0.97], draw, side="right")  # vitals, pump, badge, alarm
        is_vital, is_pump, is_badge, is_alarm = (kind == number for number in range(4))
        badge = rows.below(max(3, devices // 2), "badge")
        words = ("vitals", "pump", "badge", "alarm")
        subjects = [f"alarm/{name}" if word == "alarm" else f"bed/{name}/{word}" for word in words for name in beds]
        badges = [f"badge/{number}" for number in range(max(3, devices // 2))]
        subject = np.where(is_badge, len(subjects) + badge, kind * len(beds) + bed)
        senders = [f"monitor-{name}" for name in beds] + [f"pump-{name}" for name in beds]
        sender = np.where(is_badge, len(senders) + badge, np.where(is_pump, len(beds), 0) + bed)
        return Happenings(
            subject=_take_names(subjects + badges, subject),
            publisher=_take_names(senders + [name.replace("/", "-") for name in badges], sender),
            attributes=[
                Column(name="bed", present=~is_badge, text=_take_names(beds, bed)),
                *_vitals(rows, bed, is_vital),
                Column(name="drug", present=is_pump, text=_take_names(_DRUGS, rows.below(4, "drug"))),
                Column(name="dose-mg", present=is_pump, whole=10 + rows.below(110, "dose"), decimals=1),
                Column(name="badge", present=is_badge, whole=badge),
                Column(name="battery", present=is_badge, whole=_percent(rows.drift(badge, 600 * _MINUTE, "battery"))),
                Column(name="charging", present=is_badge, whole=rows.below(5, "charging") // 4),
                Column(name="alarm", present=is_alarm, text=_take_names(_ALARMS, rows.below(4, "alarm"))),
                Column(name="level", present=is_alarm, whole=1 + rows.below(3, "level")),
            ],
            qos=np.where(is_alarm, 2, np.where(is_pump, 1, 0)),
            retain=is_badge,
            lives_us=np.where(is_vital, 5 * _MINUTE, np.where(is_alarm, 10 * _MINUTE, -1)),
            deadline_us=np.where(is_alarm, 30 * US_PER_S, -1),
        )

    def wish(self, who: Sequence[float], how: Sequence[float], devices: int) -> Wish:
        """Make a subscription of a nurse, a doctor, the pharmacy, a technician, or the visitor of a patient."""
        bed, level = _part(who[1], _beds(devices)), int(how[0] * 20)
        wishes = (
            Wish("bed/+/vitals", f"begins-with(bed, 'ICU-') && (pulse > {100 + level} || spo2 < {94 - level // 4})"),
            Wish("bed/#", f"temperature >= {37.5 + level / 10:.1f} && !(pulse < 80)"),
            Wish("bed/+/pump", f"contains(fold-case(drug), 'morphine') && dose-mg > {4 + how[1] * 6:.1f}"),
            Wish("badge/+", f"battery < {10 + level} && charging == false"),
            Wish("alarm/+", f"level >= {2 + level // 15} || alarm == 'fall'"),
            Wish(f"bed/{bed}/#"),
            Wish(f"alarm/{bed}", "level > 1"),
            Wish(None, f"patient == '{_part(how[1], _PATIENTS)}' && require(spo2)"),
        )
        return wishes[int(who[0] * len(wishes))]

    def places(self, draws: Draws, who: Integers, at: Integers, devices: int) -> tuple[Reals, Reals] | None:
        """Return None: devices in a building receive no satellite signal."""
        del draws, who, at, devices
        return None


@functools.cache
def _beds(devices: int) -> list[str]:
    count = max(8, devices // 5)
    return [f"{'ICU' if number < 1 + count // 3 else 'W3'}-{number + 1}" for number in range(count)]


def _vitals(rows: Rows, bed: Integers, is_vital: Flags) -> list[Column]:
    """Return a monitor's attributes; some are missing, because clips slip off and not all wear a thermometer."""
    noise = rows.below(7, "pulse noise") - 3
    pulse = (58 + 70 * rows.drift(bed, 15 * _MINUTE, "pulse") + noise).astype(np.int64)
    spo2 = (100 - 12 * rows.drift(bed, 25 * _MINUTE, "spo2") ** 2).astype(np.int64)
    tenths = (362 + 34 * rows.drift(bed, 240 * _MINUTE, "temperature")).astype(np.int64)
    patients = [
        name if turn == 0 else f"{name} {turn + 1}"
        for turn in range(1 + int(bed.max(initial=0)) // 8)
        for name in _PATIENTS
    ]
    return [
        Column(name="patient", present=is_vital, text=_take_names(patients, bed)),
        Column(name="pulse", present=is_vital, whole=pulse),
        Column(name="spo2", present=is_vital & rows.chance(0.85, "clip"), whole=spo2),
        Column(name="temperature", present=is_vital & rows.chance(0.4, "thermometer"), whole=tenths, decimals=1),
    ]


def _percent(part: Reals) -> Integers:
    return (part * 100).astype(np.int64)


# -- the campus ------------------------------------------------------------------------------------------------------

_BUILDINGS = tuple(
    "library physics chemistry arts law sports north-hall south-hall canteen clinic station garden".split()
)
_KINDS = ("room", "event", "menu", "bus")
_CATEGORIES = ("talk", "concert", "exam", "sports", "party")
_DISHES = ("lasagne", "dal", "ramen", "falafel", "goulash", "salad")
_ALPHA = 0.8
"""Zipf's parameter, as in Campus++ (section 3.3)."""


class Campus:
    """A campus: topics whose popularity follows Zipf's law, for publications and for subscriptions."""

    title: ClassVar[str] = "campus"
    people: ClassVar[str] = "student"
    rhythm: ClassVar[Sequence[float]] = (1, 1, 1, 1, 1, 1, 2, 5, 9, 10, 10, 10, 9, 9, 9, 8, 8, 7, 6, 5, 4, 3, 2, 1)
    reports: ClassVar[float] = 0.08
    devices: ClassVar[int] = 500

    def happen(self, rows: Rows, devices: int) -> Happenings:
        """Make publications about free places in rooms, events, dishes and buses."""
        topic = _zipf(rows.uniform("topic"), _topics(devices))
        subjects = [_topic(number) for number in range(_topics(devices))]
        is_room, is_event, is_menu, is_bus = (topic % 4 == number for number in range(4))
        building = topic % len(_BUILDINGS)
        seats = 20 + 10 * (topic % 19)
        free = (seats * rows.drift(topic, 40 * _MINUTE, "free")).astype(np.int64)
        price = 50 * rows.below(24, "price") + 45
        return Happenings(
            subject=_take_names(subjects, topic),
            publisher=_take_names([f"way-server-{name}" for name in _BUILDINGS], building),
            attributes=[
                Column(name="building", present=np.ones(len(topic), np.bool_), text=_take_names(_BUILDINGS, building)),
                Column(name="seats", present=is_room, whole=seats),
                Column(name="free", present=is_room & rows.chance(0.95, "counter"), whole=free),
                Column(name="category", present=is_event, text=_take_names(_CATEGORIES, rows.below(5, "category"))),
                Column(name="dish", present=is_menu, text=_take_names(_DISHES, rows.below(6, "dish"))),
                Column(name="vegan", present=is_menu & rows.chance(0.7, "label"), whole=rows.below(2, "vegan")),
                Column(name="price", present=is_menu | (is_event & rows.chance(0.5, "paid")), whole=price, decimals=2),
                Column(name="line", present=is_bus, text=_take_names(("U1", "U2", "M4", "N7"), rows.below(4, "line"))),
                Column(name="delay-s", present=is_bus, whole=rows.below(900, "delay") - 60),
            ],
            qos=np.where(is_event, 1, 0),
            retain=is_room | is_menu,
            lives_us=np.where(is_bus, 10 * _MINUTE, np.where(is_room, 60 * _MINUTE, -1)),
            deadline_us=np.where(is_bus, 60 * US_PER_S, -1),
        )

    def wish(self, who: Sequence[float], how: Sequence[float], devices: int) -> Wish:
        """Make a subscription: 60 % to one topic, mostly a popular one; others to a building, a kind, or by content."""
        topic = int(_zipf(np.array([who[1]]), _topics(devices))[0])
        building = _part(who[1], _BUILDINGS)
        if who[0] < 0.6:
            asked = (
                f"free >= {1 + int(how[0] * 40)}",
                f"category == '{_part(how[0], _CATEGORIES)}'",
                f"price <= {1 + how[0] * 8:.2f} && vegan != 0",
                f"delay-s > {int(how[0] * 600)}",
            )
            return Wish(_topic(topic), asked[topic % 4] if how[1] < 0.5 else None)
        if who[0] < 0.8:
            return Wish(f"campus/{building}/#", f"free > {int(how[0] * 60)} || price < {how[0] * 6:.2f}")
        if who[0] < 0.9:
            return Wish("campus/+/menu/+", f"equals(dish, '{_part(how[0], _DISHES)}', 'dal') && price < 9.0")
        return Wish(None, f"building == '{building}' && (delay-s > {int(how[0] * 600)} || category == 'exam')")

    def places(self, draws: Draws, who: Integers, at: Integers, devices: int) -> tuple[Reals, Reals] | None:
        """Return positions of people who walk on a campus of some hundred metres."""
        return _walk(Plane(Place(41.8547, 12.6210)), draws, who, at, side_m=500.0 + devices / 10, speed_m_s=1.0)


def _topics(devices: int) -> int:
    return max(48, devices // 2)


def _topic(number: int) -> str:
    return f"campus/{_BUILDINGS[number % len(_BUILDINGS)]}/{_KINDS[number % 4]}/{number}"


def _zipf(draw: Reals, count: int) -> Integers:
    """Return ranks from 0; rank r is drawn with a probability in proportion to 1 / (r + 1) ** alpha."""
    return np.searchsorted(_shares(count), draw, side="right").clip(max=count - 1).astype(np.int64)


@functools.cache
def _shares(count: int) -> Reals:
    share: Reals = np.cumsum(1.0 / np.arange(1, count + 1) ** _ALPHA)
    return np.asarray(share / share[-1])


# -- the city --------------------------------------------------------------------------------------------------------

_LIGHTS = 200
_ZONES = 40
_HAZARDS = ("accident", "roadworks", "ice", "ambulance")
_COLOURS = ("red", "amber", "green")


class City:
    """A city: cars, traffic lights and hazards that are published within a radius, and people who move."""

    title: ClassVar[str] = "city"
    people: ClassVar[str] = "driver"
    rhythm: ClassVar[Sequence[float]] = (2, 1, 1, 1, 2, 4, 7, 10, 10, 7, 6, 6, 7, 6, 6, 7, 9, 10, 9, 7, 5, 4, 3, 2)
    reports: ClassVar[float] = 0.4
    devices: ClassVar[int] = 1_000
    plane: ClassVar[Plane] = Plane(Place(53.3498, -6.2603))

    def happen(self, rows: Rows, devices: int) -> Happenings:
        """Make publications, 60 % of them from cars that publish speed and heading."""
        kind = np.searchsorted([0.6, 0.8, 0.9], rows.uniform("kind"), side="right")
        is_car, is_light, is_hazard, is_zone = (kind == number for number in range(4))
        cars, side_m = max(20, devices), _side_m(devices)
        car, light = rows.below(cars, "car"), rows.below(_LIGHTS, "light")
        zone, hazard = rows.below(_ZONES, "zone"), rows.below(4, "hazard")
        who = np.where(is_light, cars + light, np.where(is_zone, cars + _LIGHTS + zone, car))
        still = np.zeros_like(rows.at)  # lights and zones do not move
        places = _walk(self.plane, rows.draws, who, np.where(is_light | is_zone, still, rows.at), side_m=side_m)
        subjects = [f"car/{number}" for number in range(cars)] + [f"light/{number}" for number in range(_LIGHTS)]
        subjects += [f"parking/{number}" for number in range(_ZONES)]
        senders = [name.replace("/", "-") for name in subjects]
        at_hazard = len(subjects) + hazard
        speed = (130 * rows.drift(car, 2 * _MINUTE, "speed") ** 1.5).astype(np.int64)
        everywhere = np.ones(len(kind), np.bool_)
        return Happenings(
            subject=_take_names(
                subjects + [f"hazard/{name}" for name in _HAZARDS], np.where(is_hazard, at_hazard, who)
            ),
            publisher=_take_names(senders, who),
            attributes=[
                Column(name="district", present=everywhere, whole=who % 24 + 1),
                Column(name="speed-kmh", present=is_car, whole=speed),
                Column(name="heading", present=is_car & rows.chance(0.9, "compass"), whole=rows.below(360, "heading")),
                Column(
                    name="trip",
                    present=is_car,
                    whole=3_000_000_000 + car * 1_000 + rows.at // (60 * _MINUTE) % 1_000,
                    is_wide=True,
                ),
                Column(name="state", present=is_light, text=_take_names(_COLOURS, rows.below(3, "state"))),
                Column(name="remaining-s", present=is_light, whole=rows.below(40, "remaining")),
                Column(name="hazard", present=is_hazard, text=_take_names(_HAZARDS, hazard)),
                Column(name="severity", present=is_hazard, whole=1 + rows.below(5, "severity")),
                Column(name="free", present=is_zone, whole=rows.below(80, "free")),
                Column(name="price", present=is_zone, whole=10 * rows.below(60, "price"), decimals=2),
            ],
            qos=np.where(is_hazard, 1, 0),
            retain=is_light | is_zone,
            lives_us=np.where(is_car | is_light, 30 * US_PER_S, np.where(is_hazard, 20 * _MINUTE, -1)),
            deadline_us=np.where(is_light, US_PER_S, np.where(is_hazard, 10 * US_PER_S, -1)),
            places=places,
            radius_m=np.where(is_car, 150.0, np.where(is_light, 200.0, np.where(is_hazard, 800.0, np.nan))),
        )

    def wish(self, who: Sequence[float], how: Sequence[float], devices: int) -> Wish:
        """Make a subscription to lights, hazards, parking, speeding cars, or events near the driver's home."""
        side_m = _side_m(devices)
        east, north = (2 * draw - 1 for draw in (who[1], how[0]))
        home = (
            self.plane.origin.latitude + north * side_m / 2 / self.plane.metres_north,
            self.plane.origin.longitude + east * side_m / 2 / self.plane.metres_east,
            300.0 + 50 * int(how[1] * 20),
        )
        wishes = (
            Wish("light/+", f"state == 'red' && remaining-s > {5 + int(how[0] * 30)}"),
            Wish(f"light/{int(who[1] * _LIGHTS)}"),
            Wish("hazard/#", f"severity >= {2 + int(how[0] * 4)}"),
            Wish("hazard/ambulance", near=home),
            Wish("car/+", f"speed-kmh > {90 + int(how[0] * 40)}", near=home),
            Wish(f"parking/{int(who[1] * _ZONES)}", f"free > {int(how[0] * 20)} && price <= {1 + how[1] * 4:.2f}"),
            Wish(None, f"district == {1 + int(how[0] * 24)} && (severity > 1 || speed-kmh > 110)", near=home),
        )
        return wishes[int(who[0] * len(wishes))]

    def places(self, draws: Draws, who: Integers, at: Integers, devices: int) -> tuple[Reals, Reals] | None:
        """Return positions of devices that drive and walk, at about five metres a second."""
        return _walk(self.plane, draws.of("devices"), who, at, side_m=_side_m(devices))


def _side_m(devices: int) -> float:
    """Return the side of a city for *devices* devices, at 100 m × 100 m per device, within bounds."""
    return float(min(max(1_000.0, 100.0 * devices**0.5), 40_000.0))


def _walk(
    plane: Plane, draws: Draws, who: Integers, at: Integers, *, side_m: float, speed_m_s: float = 5.0
) -> tuple[Reals, Reals]:
    """Return positions along smooth curves in a square of *side_m*; *speed_m_s* decides how often a curve bends."""
    period_us = int(side_m / 2 / speed_m_s * US_PER_S)
    east = (draws.of("east").drift(who, at, period_us) - 0.5) * side_m
    north = (draws.of("north").drift(who, at, period_us) - 0.5) * side_m
    latitude = plane.origin.latitude + north / plane.metres_north
    return latitude, plane.origin.longitude + east / plane.metres_east


WORLDS: Mapping[str, World] = {"ward": Ward(), "campus": Campus(), "city": City()}
"""All worlds by name."""
