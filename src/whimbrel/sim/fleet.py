"""A fleet: the devices of a hospital ward, their subscriptions and publications, and when they connect.

Sensors at the beds and badges publish (``ward``). Each person has one session, shared by a phone and a desk computer.
While both are away, the session holds notifications, within the ttl and maximum of its subscriptions. Workers divide
the readings among themselves in a shared subscription; displays are plain MQTT clients.

Rule: the same seed gives the same fleet. It is a plan; the shell around it owns the clock and the sockets.
Rule: a reading that expires is published at QoS 1, so that one that was never sent cannot count as received.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from whimbrel.model.attributes import Scalar
from whimbrel.model.clock import US_PER_S
from whimbrel.sim.ward.monitors import BADGES, BEDS, ward

__all__ = ["FLEET", "Change", "Device", "Fleet", "Move", "Person", "Reading", "Wish", "moves", "readings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A subscription that a session or device makes, at QoS 1."""

    subject_filter: str
    filter_text: str | None = None
    ttl_s: int | None = None
    max_held: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device, and the times for which it stays and is away."""

    name: str
    session: str | None = None
    """The named session that it joins; None: it has only its private session."""
    receipt: Literal["take", "keep"] = "take"
    is_kept: bool = False
    """Whether its private session survives its connections."""
    wishes: tuple[Wish, ...] = ()
    """Subscriptions of its private session."""
    stays_s: float = 60.0
    """Mean seconds of a connection."""
    away_s: float = 5.0
    """Mean seconds between two connections."""
    vanishes: float = 0.5
    """Probability (0 to 1) that it disconnects without a DISCONNECT packet."""
    handles_s: float = 0.0
    """Seconds for which it processes a message before it acknowledges it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A person whose devices share a session."""

    session: str
    wishes: tuple[Wish, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All people and devices that take part."""

    people: tuple[Person, ...]
    devices: tuple[Device, ...]

    def listening(self) -> tuple[Device, ...]:
        """Return the devices that subscribe to anything."""
        return tuple(device for device in self.devices if device.session is not None or device.wishes)


class Change(Enum):
    """A device connects or disconnects."""

    COMES = "comes"
    LEAVES = "leaves"
    """It sends DISCONNECT."""
    VANISHES = "vanishes"
    """Its connection breaks without DISCONNECT."""


class Move(NamedTuple):
    """One connect or disconnect of a device, and when."""

    at_s: float
    device: str
    change: Change


class Reading(NamedTuple):
    """One publication of a sensor."""

    at_s: float
    device: str
    subject: str
    values: Mapping[str, Scalar]
    qos: int
    expiry_s: int | None

    def body(self, number: int, sent_us: int) -> bytes:
        """Return the JSON body; the unique *number* makes it different from every other body."""
        said = {"reading": number, "sent_us": sent_us, **self.values}
        return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


# -- members of the fleet ----------------------------------------------------------------------------------------------

_PEOPLE = (
    Person(
        session="nurse",
        wishes=(
            Wish(
                subject_filter="bed/+/vitals",
                filter_text="begins-with(bed, 'ICU-') && (pulse > 105 || spo2 < 94)",
                ttl_s=20,
                max_held=60,
            ),
        ),
    ),
    Person(
        session="doctor",
        wishes=(
            Wish(subject_filter="bed/#", filter_text="temperature >= 37.8 && !(pulse < 80)", ttl_s=30, max_held=25),
        ),
    ),
    Person(
        session="pharmacist",
        wishes=(
            Wish(
                subject_filter="bed/+/pump",
                filter_text="contains(fold-case(drug), 'morphine') && dose-mg > 6.0",
                ttl_s=60,
                max_held=8,
            ),
        ),
    ),
    Person(
        session="technician",
        wishes=(
            Wish(subject_filter="badge/#", filter_text="battery < 20 && charging == false", ttl_s=8, max_held=100),
            Wish(subject_filter="bed/+/pump", filter_text="dose-mg < 1.5", ttl_s=15, max_held=10),
        ),
    ),
    Person(
        session="family",
        wishes=(
            Wish(
                subject_filter="bed/+/vitals",
                filter_text="patient == 'Okafor' && require(spo2)",
                ttl_s=4,
                max_held=200,
            ),
        ),
    ),
)

_EXPIRY_S = {"pump": 10}
"""Seconds after which a reading is useless, by the kind of its sensor."""


def _sensors() -> Iterator[Device]:
    names = [f"{kind}-{bed}" for kind in ("monitor", "pump") for bed in BEDS] + [f"badge-{badge}" for badge in BADGES]
    for name in names:
        yield Device(name=name, stays_s=90.0, away_s=4.0)


def _list_devices() -> Iterator[Device]:
    for person in _PEOPLE:
        owner = person.session
        yield Device(name=f"{owner}-phone", session=owner, stays_s=9.0, away_s=6.0, vanishes=0.7, handles_s=0.02)
        yield Device(name=f"{owner}-desk", session=owner, receipt="keep", stays_s=20.0, away_s=15.0, vanishes=0.2)
    yield Device(
        name="nurse-watch", session="nurse", receipt="keep", stays_s=6.0, away_s=5.0, vanishes=0.9, handles_s=0.03
    )


def _others() -> Iterator[Device]:
    share = Wish(subject_filter="$share/archive/bed/+/vitals", ttl_s=30, max_held=500)
    for number in range(1, 5):
        yield Device(name=f"worker-{number}", is_kept=True, wishes=(share,), stays_s=25.0, away_s=5.0)
    pumps = Wish(subject_filter="bed/+/pump", ttl_s=20, max_held=40)
    yield Device(name="display-pumps", is_kept=True, wishes=(pumps,), stays_s=15.0, away_s=8.0)
    hot = Wish(subject_filter="bed/#", filter_text="temperature > 38.2", ttl_s=25, max_held=30)
    yield Device(name="display-fever", is_kept=True, wishes=(hot,), stays_s=20.0, away_s=10.0)
    badges = Wish(subject_filter="badge/#")
    yield Device(name="display-badges", wishes=(badges,), stays_s=30.0, away_s=5.0)
    intensive = Wish(subject_filter="bed/+/vitals", filter_text="begins-with(bed, 'ICU-')")
    yield Device(name="display-icu", wishes=(intensive,), stays_s=18.0, away_s=6.0)
    auditor = Wish(subject_filter="bed/+/pump", filter_text="dose-mg > 11.0", ttl_s=5, max_held=50)
    yield Device(name="auditor", is_kept=True, wishes=(auditor,), stays_s=8.0, away_s=14.0)
    night = Wish(subject_filter="bed/+/vitals", filter_text="pulse > 120", ttl_s=12, max_held=4)
    yield Device(name="night-desk", is_kept=True, wishes=(night,), stays_s=7.0, away_s=12.0)


FLEET = Fleet(people=_PEOPLE, devices=(*_sensors(), *_list_devices(), *_others()))
"""The fleet of the demo: forty devices."""


# -- events ------------------------------------------------------------------------------------------------------------


def moves(fleet: Fleet, rng: random.Random) -> Iterator[Move]:
    """Yield connects and disconnects in the order of time, endlessly; at time 0 all devices connect."""
    due: list[tuple[float, int, Change]] = []
    for place, device in enumerate(fleet.devices):
        yield Move(0.0, device.name, Change.COMES)
        due.append((rng.expovariate(1 / device.stays_s), place, _going(device, rng)))
    heapq.heapify(due)
    while due:
        at_s, place, change = heapq.heappop(due)
        device = fleet.devices[place]
        yield Move(at_s, device.name, change)
        if change is Change.COMES:
            heapq.heappush(due, (at_s + rng.expovariate(1 / device.stays_s), place, _going(device, rng)))
        else:
            heapq.heappush(due, (at_s + rng.expovariate(1 / device.away_s), place, Change.COMES))


def _going(device: Device, rng: random.Random) -> Change:
    return Change.VANISHES if rng.random() < device.vanishes else Change.LEAVES


def readings(rng: random.Random, *, per_s: float) -> Iterator[Reading]:
    """Yield the sensors' publications in the order of time, endlessly, with a mean rate of *per_s*."""
    for notification in ward(rng, start=0, every_s=1 / per_s):
        assert notification.subject is not None
        kind, whose, *rest = notification.subject.split("/")
        sensor = "monitor" if rest == ["vitals"] else rest[0] if rest else kind
        is_sure = sensor == "pump" or whose.startswith("ICU-")
        expiry_s = _EXPIRY_S.get(sensor)
        at_s = notification.published_at / US_PER_S
        yield Reading(at_s, f"{sensor}-{whose}", notification.subject, notification.attributes, int(is_sure), expiry_s)
