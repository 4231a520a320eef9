"""Exposure of a publisher on the simulated radio, with our controller and without (Huang, requirement 2).

One device arrives and wants to be found; another device arrives *gap* later and seeks it. The exposure is the time for
which anybody can find the first by inquiry, and the time for which anybody who knows its address can page it, until
the two are connected.

Rule: everything follows from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

from whimbrel.model.clock import US_PER_S
from whimbrel.rendezvous.controller import Parameters
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.events import Address, Subscription, address_from
from whimbrel.rendezvous.exposure import Exposure
from whimbrel.rendezvous.radio.interface import InquiryResult, LinkMade, RadioEvent
from whimbrel.rendezvous.radio.simulated.air import Air
from whimbrel.sim.hall import Hall

__all__ = ["ExposureRun", "Way", "measure_exposure"]

_PAGE_US = 5_120_000
_LIMIT_US = 120 * US_PER_S
_STEP_US = 100_000


class Way(Enum):
    """The way in which the two devices find each other."""

    PLAIN = "plain Bluetooth"
    PARKED = "published, with park"
    RELEASED = "published, without park"
    FOUND = "found by the controller's inquiry, without park"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposureRun:
    """Result of one pair: its publisher's exposure, and the second device's wait (None: they did not meet)."""

    discoverable_s: float
    connectable_s: float
    wait_s: float | None


def measure_exposure(way: Way, *, gap_s: float, seed: int) -> ExposureRun:
    """Simulate one pair."""
    return _plain(gap_s, seed) if way is Way.PLAIN else _simulate_controller(way, gap_s, seed)


def _simulate_controller(way: Way, gap_s: float, seed: int) -> ExposureRun:
    hall = Hall(seed, Parameters(has_park=way is Way.PARKED))
    sought, seeking = (_address(number) for number in (2, 3))
    device = Device(address=sought, name="sought", is_discoverable=way is Way.FOUND)
    node = hall.add(device, is_shown=way is Way.FOUND)
    if way is not Way.FOUND:
        node.do(device.publish(is_lasting=True))
    hall.air.run(round(gap_s * US_PER_S))
    began = hall.now()
    seeker = hall.add(Device(address=seeking, name="seeker"))
    seeker.do(seeker.core.subscribe(Subscription(name="sought"), is_lasting=True))
    while not hall.list_introductions(sought) and hall.now() - began < _LIMIT_US:
        hall.air.run(_STEP_US)
    met = hall.list_introductions(sought)
    return _report(node.exposure, hall.now(), began, met[0][1] if met else None)


def _plain(gap_s: float, seed: int) -> ExposureRun:
    air = Air(Random(f"plain {seed}"))  # reproducible from the seed
    sought = air.add(_address(2), name="sought")
    exposure = Exposure(air.now)
    exposure.set_scans(inquiry=True, page=True, now=air.now)
    sought.set_scans(inquiry=True, page=True)
    air.run(round(gap_s * US_PER_S))
    began, met = air.now, list[int]()
    seeker = air.add(_address(3), name="seeker")

    def happen(event: RadioEvent, now: int) -> None:
        if isinstance(event, InquiryResult):
            seeker.inquire(is_on=False)
            seeker.page(event.address, event.clock_offset, timeout_us=_PAGE_US)
        elif isinstance(event, LinkMade):
            met.append(now)

    seeker.handler = happen
    seeker.inquire(is_on=True)
    while not met and air.now - began < _LIMIT_US:
        air.run(_STEP_US)
    return _report(exposure, air.now, began, met[0] if met else None)


def _report(exposure: Exposure, now: int, began: int, met: int | None) -> ExposureRun:
    seconds = exposure.seconds(now)
    return ExposureRun(
        discoverable_s=seconds["discoverable_s"],
        connectable_s=seconds["connectable_s"],
        wait_s=None if met is None else (met - began) / US_PER_S,
    )


def _address(number: int) -> Address:
    return address_from((0x020000000000 + number).to_bytes(6, "big"))
