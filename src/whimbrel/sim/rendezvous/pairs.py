"""Two devices that arrive one after the other: the use of each radio until they are connected, and how long that takes.

Also a device whose target never arrives. Each with plain Bluetooth, and through a controller with and without park.
"""

from __future__ import annotations

import time
from enum import Enum
from random import Random

from whimbrel.errors import InvalidValueError
from whimbrel.model.clock import US_PER_S
from whimbrel.rendezvous.controller import Parameters
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.events import Subscription
from whimbrel.rendezvous.radio.simulated.air import Air
from whimbrel.sim.hall import Hall
from whimbrel.sim.rendezvous.discovery import PlainSeeker, Search, add_device, address

__all__ = ["First", "System", "play_pair", "play_waiting"]

_STEP_US = 100_000
_LIMIT_US = 180 * US_PER_S
_SEEKER, _SOUGHT = address(2), address(3)


class System(Enum):
    """The way in which devices find each other."""

    PLAIN = "plain Bluetooth"
    PARK = "published, with park"
    RELEASE = "published, without park"
    FOUND = "found by the controller, with park"


class First(Enum):
    """Which device arrives first."""

    SOUGHT = "the sought one"
    SEEKER = "the seeker"


def play_pair(
    *, system: str, first: str, gap_s: float, seed: int, every_s: float = 30.0, is_whole: bool = True
) -> dict[str, object]:
    """Simulate one pair; return the use of both radios, and the seconds from the second arrival to the connection."""
    begun = time.process_time()
    how, order = System(system), First(first)
    if how is System.PLAIN:
        row = _plain(order, gap_s, Search(every_s=every_s, is_whole=is_whole), seed)
    else:
        row = _simulate_controller(how, order, gap_s, is_whole=is_whole, seed=seed)
    settings = {
        "system": system,
        "first": first,
        "gap_s": gap_s,
        "every_s": every_s,
        "is_whole": is_whole,
        "seed": seed,
    }
    return {"kind": "pair", **settings, **row, "core_s": time.process_time() - begun}


def _plain(order: First, gap_s: float, search: Search, seed: int) -> dict[str, object]:
    air = Air(Random(f"pair {seed}"))  # reproducible from the seed
    met: list[int] = []
    sought = air.reserve(_SOUGHT)
    seeking = air.reserve(_SEEKER)

    def come_sought() -> None:
        air.add(_SOUGHT, name="sought").set_scans(inquiry=True, page=True)

    def come_seeker() -> None:
        PlainSeeker(air, air.add(_SEEKER, name="seeker"), _SOUGHT, search, met.append).begin()

    arrivals = (come_sought, come_seeker) if order is First.SOUGHT else (come_seeker, come_sought)
    arrivals[0]()
    air.run(round(gap_s * US_PER_S))
    began = air.now
    arrivals[1]()
    while not met and air.now - began < _LIMIT_US:
        air.run(_STEP_US)
    return {
        "seeker": seeking.current_usage().figures(),
        "sought": sought.current_usage().figures(),
        "wait_s": (met[0] - began) / US_PER_S if met else None,
    }


def _simulate_controller(how: System, order: First, gap_s: float, *, is_whole: bool, seed: int) -> dict[str, object]:
    hall = Hall(seed, Parameters(has_park=how is not System.RELEASE))
    is_found = how is System.FOUND
    sought = Device(address=_SOUGHT, name="sought", is_discoverable=is_found)
    seeker = Device(address=_SEEKER, name="seeker")

    def come_sought() -> None:
        node = add_device(hall, sought, is_shown=is_found, is_whole=is_whole)
        if not is_found:
            node.do(sought.publish(is_lasting=True))

    def come_seeker() -> None:
        node = add_device(hall, seeker, is_whole=is_whole)
        node.do(seeker.subscribe(Subscription(name="sought"), is_lasting=True))

    arrivals = (come_sought, come_seeker) if order is First.SOUGHT else (come_seeker, come_sought)
    arrivals[0]()
    hall.air.run(round(gap_s * US_PER_S))
    began = hall.now()
    arrivals[1]()
    while not hall.told.get(_SEEKER) or not hall.list_introductions(_SEEKER):
        if hall.now() - began >= _LIMIT_US:
            break
        hall.air.run(_STEP_US)
    met = hall.list_introductions(_SEEKER)
    return {
        "seeker": _figures(hall, seeker),
        "sought": _figures(hall, sought),
        "wait_s": (met[0][1] - began) / US_PER_S if met else None,
    }


def play_waiting(
    *, system: str, seconds: float, seed: int, every_s: float = 30.0, is_whole: bool = True
) -> dict[str, object]:
    """Simulate a seeker whose target never arrives; return the use of its radio."""
    begun = time.process_time()
    how = System(system)
    if how is System.PLAIN:
        air = Air(Random(f"waiting {seed}"))
        search = Search(every_s=every_s, is_whole=is_whole)
        radio = air.add(_SEEKER, name="seeker")
        PlainSeeker(air, radio, _SOUGHT, search, lambda _now: None).begin()
        air.run(round(seconds * US_PER_S))
        figures = radio.current_usage().figures()
    elif how is System.FOUND:
        raise InvalidValueError("system", system, "a system in which a seeker asks for itself")
    else:
        hall = Hall(seed, Parameters(has_park=how is System.PARK))
        seeker = Device(address=_SEEKER, name="seeker")
        add_device(hall, seeker, is_whole=is_whole).do(seeker.subscribe(Subscription(name="sought"), is_lasting=True))
        hall.air.run(round(seconds * US_PER_S))
        figures = _figures(hall, seeker)
    settings = {"system": system, "seconds": seconds, "every_s": every_s, "is_whole": is_whole, "seed": seed}
    return {"kind": "waiting", **settings, "seeker": figures, "core_s": time.process_time() - begun}


def _figures(hall: Hall, device: Device) -> dict[str, float]:
    radio = hall.air.radio(device.address)
    assert radio is not None
    return radio.current_usage().figures()
