"""A room of phones: every phone can always be found by every other, and every second phone seeks its partner.

With plain Bluetooth all phones answer all inquiries, also those for other phones. Through a controller, each phone
publishes once and sleeps; a seeker asks for its partner by name. All phones arrive in the first minutes and stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from whimbrel.model.bounds import real, whole
from whimbrel.model.clock import US_PER_S
from whimbrel.rendezvous.controller import Parameters
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.events import Subscription
from whimbrel.rendezvous.radio.simulated.air import Air
from whimbrel.rendezvous.radio.simulated.usage import Usage
from whimbrel.sim.hall import Hall
from whimbrel.sim.rendezvous.discovery import TALK_US, PlainSeeker, Search, add_device, address
from whimbrel.sim.rendezvous.pairs import System

__all__ = ["play_room"]

_FIRST = 16
MAX_PHONES = 200


def play_room(
    *,
    system: str,
    phones: int,
    seed: int,
    seconds: float = 600.0,
    arrivals_s: float = 300.0,
    every_s: float = 30.0,
    is_whole: bool = True,
) -> dict[str, object]:
    """Simulate one room; return the mean use of a phone's radio, and the number of pairs that met."""
    begun = time.process_time()
    whole("phones", phones, 2, MAX_PHONES)
    real("arrivals_s", arrivals_s, 0, seconds)
    how, random = System(system), Random(f"room {seed}")
    arrivals = [round(random.uniform(0, arrivals_s) * US_PER_S) for _ in range(phones)]
    if how is System.PLAIN:
        row = _plain(arrivals, seconds, Search(every_s=every_s, is_whole=is_whole), seed)
    else:
        row = _simulate_controller(how, arrivals, seconds, is_whole=is_whole, seed=seed)
    settings = {
        "system": system,
        "phones": phones,
        "seconds": seconds,
        "arrivals_s": arrivals_s,
        "every_s": every_s,
        "is_whole": is_whole,
        "seed": seed,
    }
    return {"kind": "room", **settings, **row, "core_s": time.process_time() - begun}


def _plain(arrivals: list[int], seconds: float, search: Search, seed: int) -> dict[str, object]:
    air = Air(Random(f"room {seed}"))
    waits: list[float] = []
    seekers: list[PlainSeeker] = []

    def arrive(number: int) -> Callable[[], None]:
        def come() -> None:
            radio = air.add(address(_FIRST + number), name=f"phone {number}")
            radio.set_scans(inquiry=True, page=True)
            partner = number + 1
            if number % 2 == 0 and partner < len(arrivals):
                second = max(arrivals[number], arrivals[partner])
                sought = address(_FIRST + partner)

                def meet(now: int) -> None:
                    waits.append((now - second) / US_PER_S)
                    air.after(TALK_US, lambda: radio.disconnect(sought))

                seekers.append(PlainSeeker(air, radio, sought, search, meet))
                seekers[-1].begin()

        return come

    for number, at in enumerate(arrivals):
        air.reserve(address(_FIRST + number))
        air.after(at, arrive(number))
    air.run(round(seconds * US_PER_S))
    usages = [air.reserve(address(_FIRST + number)).current_usage() for number in range(len(arrivals))]
    unwanted = sum(each.unwanted for each in seekers)
    return _report(usages, waits, len(arrivals), unwanted=unwanted, collisions=air.collisions)


def _simulate_controller(
    how: System, arrivals: list[int], seconds: float, *, is_whole: bool, seed: int
) -> dict[str, object]:
    hall = Hall(seed, Parameters(has_park=how is not System.RELEASE, max_released=max(40, len(arrivals))))
    devices = [
        Device(address=address(_FIRST + number), name=f"phone {number}", is_discoverable=how is System.FOUND)
        for number in range(len(arrivals))
    ]

    def arrive(number: int) -> Callable[[], None]:
        def come() -> None:
            device = devices[number]
            node = add_device(hall, device, is_shown=how is System.FOUND, is_whole=is_whole, has_short_talks=True)
            if how is not System.FOUND:
                node.do(device.publish(is_lasting=True))
            if number % 2 == 0 and number + 1 < len(arrivals):
                node.do(device.subscribe(Subscription(name=f"phone {number + 1}"), is_lasting=True))

        return come

    for number, at in enumerate(arrivals):
        hall.air.after(at, arrive(number))
    hall.air.run(round(seconds * US_PER_S))
    waits = []
    for number in range(0, len(arrivals) - 1, 2):
        seeker, sought = devices[number].address, devices[number + 1].address
        met = [at for who, at in hall.list_introductions(seeker) if who == sought]
        if met:
            waits.append((met[0] - max(arrivals[number], arrivals[number + 1])) / US_PER_S)
    usages = [hall.air.reserve(each.address).current_usage() for each in devices]
    answers = sum(each.answers for each in usages)
    return _report(usages, waits, len(arrivals), unwanted=answers, collisions=hall.air.collisions)


def _report(
    usages: list[Usage], waits: list[float], phones: int, *, unwanted: int, collisions: int
) -> dict[str, object]:
    figures = [each.figures() for each in usages]
    mean = {name: sum(each[name] for each in figures) / phones for name in figures[0]}
    return {
        "phone": mean,
        "pairs": phones // 2,
        "met": len(waits),
        "wait_s": sum(waits) / len(waits) if waits else None,
        "unwanted": unwanted / phones,
        "collisions": collisions,
    }
