"""A headset and its phone arrive one after the other, with a controller that stands in for the phone and without it.

Without: the phone is always connectable, and a headset that arrives first repeats its page until the phone answers.
With: the phone publishes and sleeps, and the controller holds a headset that arrives first until the phone arrives.
"""

from __future__ import annotations

import time
from enum import Enum
from random import Random

from whimbrel.model.clock import US_PER_S
from whimbrel.rendezvous.controller import DumbPair, NoteKind
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.radio.simulated.air import Air
from whimbrel.sim.hall import Hall
from whimbrel.sim.rendezvous.discovery import add_device, address
from whimbrel.sim.rendezvous.headset import PAUSE_US, Headset, HeadsetFact

__all__ = ["Arrival", "play_headset"]

_STEP_US = 50_000
_LIMIT_US = 120 * US_PER_S
_HEADSET, _PHONE = address(4), address(2)


class Arrival(Enum):
    """Which of the two devices arrives first (5.4.4)."""

    SMART = "the phone"
    DUMB = "the headset"


def play_headset(
    *, first: str, gap_s: float, has_controller: bool, seed: int, pause_s: float = PAUSE_US / US_PER_S
) -> dict[str, object]:
    """Simulate one pair; return the use of both radios, the waiting time of the second, and when its page was heard."""
    begun = time.process_time()
    order = Arrival(first)
    hall = Hall(seed, pairs=[DumbPair(dumb=_HEADSET, smart=_PHONE)]) if has_controller else None
    air = Air(Random(f"headset {seed}")) if hall is None else hall.air  # reproducible from the seed
    headset = Headset(air, _HEADSET, smart=_PHONE, pause_us=round(pause_s * US_PER_S))
    phone = Device(address=_PHONE, name="phone")

    def come_phone() -> None:
        if hall is None:
            air.add(_PHONE, name="phone").set_scans(inquiry=False, page=True)
        else:
            add_device(hall, phone).do(phone.publish(is_lasting=True))

    arrivals = (come_phone, headset.switch_on) if order is Arrival.SMART else (headset.switch_on, come_phone)
    arrivals[0]()
    air.run(round(gap_s * US_PER_S))
    second_at = air.now
    arrivals[1]()
    while air.link(_HEADSET, _PHONE) is None or _is_held(hall):
        if air.now - second_at >= _LIMIT_US:
            break
        air.run(_STEP_US)
    connected = [each.at for each in headset.facts if each.fact is HeadsetFact.CONNECTED]
    is_met = air.link(_HEADSET, _PHONE) is not None and not _is_held(hall)
    settings = {
        "first": first,
        "gap_s": gap_s,
        "has_controller": has_controller,
        "pause_s": pause_s,
        "seed": seed,
    }
    return {
        "kind": "headset",
        **settings,
        "headset": headset.radio.current_usage().figures(),
        "phone": air.reserve(_PHONE).current_usage().figures(),
        "wait_s": (connected[-1] - second_at) / US_PER_S if is_met else None,
        "pages": headset.pages(),
        "heard_s": _heard_s(hall, headset, order),
        "core_s": time.process_time() - begun,
    }


def _is_held(hall: Hall | None) -> bool:
    """Return whether the headset is connected to the controller in place of the phone."""
    return hall is not None and hall.air.link(_HEADSET, hall.controller.core.address) is not None


def _heard_s(hall: Hall | None, headset: Headset, order: Arrival) -> float | None:
    """Return the seconds from the start of a page until the controller first heard it."""
    if hall is None:
        return None
    word = "heard" if order is Arrival.SMART else "holds"
    heard = [at for note, at in hall.notes if note.kind is NoteKind.STAND_IN and note.detail == word]
    paged = [each.at for each in headset.facts if each.fact is HeadsetFact.PAGES]
    begins = [at for at in paged if heard and at <= heard[0]]
    return (heard[0] - begins[-1]) / US_PER_S if begins else None
