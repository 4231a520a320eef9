"""Places in the live broker: who hears a publication, by the grid and one by one; and reports that move a device.

Everything is the broker's own: the state that a log is applied to, its routes, and its handlers over a rig's packets.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count as counted
from pathlib import Path
from typing import Any

from measure import Check, Figure, Report
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.places.near_routes import NearRoutes
from whimbrel.broker.state.routes import Found, Routes
from whimbrel.hold.private import private_session
from whimbrel.match.matcher import Matcher
from whimbrel.model.device import DeviceState
from whimbrel.model.facts import InterestChanged, Mode, PresenceChange, PresenceChanged, Reported
from whimbrel.model.keys import OPEN
from whimbrel.model.near import Around, Near
from whimbrel.model.place import Area, Place
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.node.places.placing import Placing

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "differential"))

from broker_rig import Rig, publishing  # the path to it is set above

from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5

__all__ = ["core_us", "live", "reports"]

_NODE, _SUBJECT = "n", "hazard/ice"
_AT_ONCE = 10
_REACH_M = 200.0


def core_us(call: Callable[[], object], items: int, runs: int = 3) -> float:
    """Return the least core time of some runs, an item."""
    took = []
    for _ in range(runs):
        begin = time.process_time()
        call()
        took.append(time.process_time() - begin)
    return min(took) / items * 1e6


def _state(places: Iterable[Place], near: Near | None) -> BrokerState:
    """Return a broker's state with one session a place."""
    routes = Routes(near=NearRoutes(Matcher, lambda: True))
    state, seqs = BrokerState(_NODE, routes=routes), counted(1)
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
    while routes.near.grid is None:
        if near is not None:  # with ``near`` the timer makes the grid
            routes.near.prepare()
        else:  # without, the first publications for an area do
            _found(state, Place(0.0, 0.0), _REACH_M)
    return state


def _found(state: BrokerState, place: Place, radius_m: float | None, at: int = 1) -> Found:
    """Return who hears a publication, as the broker finds them."""
    routes, placing = state.routes, Placing(place, radius_m)
    near = routes.near.wanting(_SUBJECT, {}, OPEN, placing, at)
    return routes.subscribers_at(_SUBJECT, (), near, OPEN, placing, at)


def live(report: Report, devices: Any, events: list[Place]) -> None:
    """Measure the broker's own route with as many sessions as *devices* has places."""
    places, few = [Place(*at) for at in devices.tolist()], events[:3]
    for title, near in ((f"{len(places):,} sessions with near=200", Around(_REACH_M)), ("as many without near", None)):
        state = _state(places, near)
        took = core_us(partial(_all_found, state, events), len(events))
        by_grid = [_found(state, place, _REACH_M) for place in few]
        moved = core_us(partial(_moving, state, places, events), len(events))
        wanted = [(private_session(f"car-{car:06}"), (("hazard/#", ""),)) for car in range(len(places))]
        ask = partial(state.hold.places.heard, wanted, at=1)
        simple = core_us(lambda: ask(place=few[0], area=Area(few[0], _REACH_M)), 1, 1)  # noqa: B023 # it is asked at once
        by_hold = [ask(place=place, area=Area(place, _REACH_M)) for place in few]
        what = f"live route, {title}, a publication for 200 m"
        report.figures += [
            Figure(f"{what}: core time", took, "µs/publication"),
            Figure(f"{what}: rate on one core", 1e6 / took, "publications/s"),
            Figure(f"{what}: with a move before each", moved, "µs/publication"),
            Figure(f"{what}: hits", sum(map(len, by_grid)) / len(few), ""),
            Figure(f"{what}: one by one, without the grid", simple, "µs/publication"),
        ]
        report.checks.append(Check(f"{what}: the grid finds what is found one by one", by_grid == by_hold))


def _all_found(state: BrokerState, events: list[Place]) -> None:
    for place in events:
        _found(state, place, _REACH_M)


def reports(report: Report, count: int) -> None:
    """Measure position reports over MQTT, from bytes to the log, of a hundred clients in turns."""
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(Path(folder))
        links = [rig.client(f"car-{number}").link for number in range(100)]
        bodies = [f'{{"place": "52.5{number % 100:02},13.4{number % 97:02}"}}'.encode() for number in range(_AT_ONCE)]
        for title, at_once in (("one at a time", 1), (f"{_AT_ONCE} at a time", _AT_ONCE)):
            data = b"".join(encode(publishing("$whimbrel/report", body), V5) for body in bodies[:at_once])

            def take(data: bytes = data, at_once: int = at_once) -> None:
                for number in range(count // at_once):
                    rig.broker.receive(links[number % 100], data, rig.now)
                rig.log.sync()

            took = core_us(take, count, 5)
            report.figures += [
                Figure(f"position reports into the log, {title}: core time", took, "µs/report"),
                Figure(f"position reports into the log, {title}: rate on one core", 1e6 / took, "reports/s"),
            ]
        taken = rig.broker.counters.reports
        report.checks.append(Check("position reports: all were taken", taken == 5 * 2 * (count // _AT_ONCE) * _AT_ONCE))
        rig.close()


def _moving(state: BrokerState, places: list[Place], events: list[Place]) -> None:
    for number, place in enumerate(events):
        device = f"car-{number % len(places):06}"
        state.move(device, 10_000_000 + number, places[number % len(places)], 1)
        _found(state, place, _REACH_M)
