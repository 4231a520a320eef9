"""Places in the live broker: who hears a publication, by the grid and one by one; and reports that move a device.

Everything is the broker's own: the state that a log is applied to, its routes, and its handlers over a rig's packets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from measure import Check, Figure, Report
from whimbrel.broker.access.publication_keys import OPEN
from whimbrel.broker.placing import Placing
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.places.near_routes import NearRoutes
from whimbrel.broker.state.routes import Found, Routes
from whimbrel.hold.private import private_session
from whimbrel.match.matcher import Matcher
from whimbrel.model.device import DeviceState
from whimbrel.model.facts import InterestChanged, Mode, PresenceChange, PresenceChanged, Reported
from whimbrel.model.near import Around, Near
from whimbrel.model.place import Place
from whimbrel.model.subscription import InterestChange, Subscription

__all__ = ["core_us", "live"]

_NODE, _SUBJECT, _ALIKE = "n", "hazard/ice", 20
_REACH_M = 200.0


def core_us(call: Callable[[], object], items: int, runs: int = 3) -> float:
    """Return the least core time of some runs, an item."""
    took = []
    for _ in range(runs):
        begin = time.process_time()
        call()
        took.append(time.process_time() - begin)
    return min(took) / items * 1e6


def _state(places: Iterable[Place], near: Near | None, *, has_grid: bool) -> BrokerState:
    """Return a broker's state with one session a place."""
    routes = Routes(near=NearRoutes(Matcher, lambda: has_grid))
    state, seqs = BrokerState(_NODE, routes=routes), count(1)
    for car, place in enumerate(places):
        device = f"car-{car:06}"
        session = private_session(device)
        state.apply(
            PresenceChanged(
                node=_NODE,
                seq=next(seqs),
                changed_at=0,
                device=device,
                change=PresenceChange.JOINED,
                session=session,
                receipt=Mode.TAKE,
            )
        )
        wanted = Subscription(session=session, subject_filter="hazard/#", near=near, qos=0)
        change, number = InterestChange.ADDED, next(seqs)
        state.apply(InterestChanged(node=_NODE, seq=number, changed_at=0, change=change, subscription=wanted))
        reported = DeviceState(device=device, reported_at=0, place=place)
        state.apply(Reported(node=_NODE, seq=next(seqs), state=reported))
    if has_grid:
        # With ``near`` the timer makes the grid; without, the first publication for an area does.
        while routes.near.grid is None:
            routes.near.prepare() if near is not None else _found(state, Place(0.0, 0.0), _REACH_M)
    return state


def _found(state: BrokerState, place: Place, radius_m: float | None, at: int = 1) -> Found:
    """Return who hears a publication, as the broker finds them."""
    routes, placing = state.routes, Placing(place, radius_m)
    near = routes.near.wanting(_SUBJECT, {}, OPEN, placing, at)
    return routes.subscribers_at(_SUBJECT, (), near, OPEN, placing, at)


def live(report: Report, devices: Any, events: list[Place]) -> None:
    """Measure the broker's own route with as many sessions as *devices* has places."""
    places, few = [Place(*at) for at in devices.tolist()], events[:_ALIKE]
    for title, near in ((f"{len(places):,} sessions with near=200", Around(_REACH_M)), ("as many without near", None)):
        state = _state(places, near, has_grid=True)
        took = core_us(lambda: [_found(state, place, _REACH_M) for place in events], len(events))  # noqa: B023 # at once
        hits = sum(len(_found(state, place, _REACH_M)) for place in few) / len(few)
        moved = core_us(lambda: _moving(state, places, events), len(events))  # noqa: B023 # at once
        state = _state(places, near, has_grid=False)
        simple = core_us(lambda: [_found(state, place, _REACH_M) for place in few[:3]], 3, 1)  # noqa: B023 # at once
        by_hold = [_found(state, place, _REACH_M) for place in few[:3]]
        state = _state(places, near, has_grid=True)
        same = by_hold == [_found(state, place, _REACH_M) for place in few[:3]]
        what = f"live route, {title}, a publication for 200 m"
        report.figures += [
            Figure(f"{what}: core time", took, "µs/publication"),
            Figure(f"{what}: rate on one core", 1e6 / took, "publications/s"),
            Figure(f"{what}: with a move before each", moved, "µs/publication"),
            Figure(f"{what}: hits", hits, ""),
            Figure(f"{what}: one by one, without the grid", simple, "µs/publication"),
        ]
        report.checks.append(Check(f"{what}: the grid finds what is found one by one", same))


def _moving(state: BrokerState, places: list[Place], events: list[Place]) -> None:
    for number, place in enumerate(events):
        device = f"car-{number % len(places):06}"
        state.move(device, 10_000_000 + number, places[number % len(places)], 1)
        _found(state, place, _REACH_M)
