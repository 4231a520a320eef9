"""Places of clients that mean no good: they are refused with what was found and allowed, or bounded and counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import NODE, QUICK, SECOND_US, Peer, Rig, publishing, subscribing

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.places.near_routes import NearRoutes
from whimbrel.broker.state.routes import Routes
from whimbrel.log.reader import read
from whimbrel.match.matcher import Matcher
from whimbrel.model.near import MAX_STALE_US
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import Puback, Publish, Suback
from whimbrel.mqtt.properties import Properties
from whimbrel.node.memory import PLACE_BYTES

HERE, FAR = "52.52,13.405", "-41.3,174.78"
WEEK_S = MAX_STALE_US // SECOND_US


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Return a broker that asks the grid, however few subscriptions there are."""
    near = NearRoutes(Matcher, lambda: True, few=0)
    yield (rig := Rig(tmp_path, state=BrokerState(NODE, routes=Routes(near=near))))
    rig.close()


def _report(peer: Peer, place: str, qos: int = 0) -> None:
    peer.send(publishing("$whimbrel/report", json.dumps({"place": place}).encode(), qos, 9 * qos))


@pytest.mark.parametrize("place", ["91,0", "0,181", "nan,0", "1e400,0", "52.52", "Kitchen"])
def test_a_place_that_is_none_is_refused(rig: Rig, place: str) -> None:
    """0x99, with what was found; the device stays where it was."""
    car = rig.client("car")
    _report(car, HERE)
    before = rig.state.hold.places.last("car")
    _report(car, place, qos=1)
    rig.settle()
    (answer,) = car.taken(Puback)
    assert answer.code == ReasonCode.PAYLOAD_FORMAT_INVALID
    assert rig.state.hold.places.last("car") == before
    assert rig.broker.counters.bad_reports == 1


def test_reports_without_end_are_one_place(rig: Rig) -> None:
    """A device that jumps around the Earth three thousand times takes as much memory as one that stands still."""
    car = rig.subscriber("car", "hazard")
    car.send(subscribing("$whimbrel/near/home", near=f"{HERE},150"))
    car.send(subscribing("hazard", near="200"))
    rig.settle()
    _report(car, HERE)
    light = rig.client("light")
    used, touched = rig.state.memory.counted, rig.state.hold.changed
    for number in range(1_500):
        _report(car, FAR)
        _report(car, f"{-60 + number % 100},{number / 10}")
        if number % 100 == 0:  # the grid is asked now and then
            light.send(Publish("hazard", b"x", properties=Properties(user=(("place", HERE), ("radius", "5")))))
    _report(car, HERE)
    assert rig.broker.counters.reports == 3_002
    assert len(rig.state.hold.places) == 1
    assert rig.state.hold.changed <= touched + 20
    told = [packet for packet in car.taken(Publish) if packet.topic == "$whimbrel/near/home"]
    assert len(told) == 3  # entered, left, entered: the jumps elsewhere concern no area
    assert len(rig.state.node.fences._stale) == 1
    grid = rig.state.routes.near.grid
    assert grid is not None
    assert grid._index.size_bytes < 1_000_000
    assert rig.state.memory.counted == used


def test_a_place_is_forgotten_after_a_week(rig: Rig) -> None:
    """No subscription may count it any more; without the device it would stay for ever."""
    for number in range(3):
        peer = rig.client(f"guest{number}")
        _report(peer, HERE)
        peer.drop()
    rig.settle()
    assert len(rig.state.hold.places) == 3
    rig.tick(WEEK_S - 1)
    assert len(rig.state.hold.places) == 3
    car = rig.client("car")
    _report(car, HERE)
    used = rig.state.memory.counted
    rig.tick(2)
    assert rig.state.hold.places.devices() == ["car"]
    assert used - rig.state.memory.counted == 3 * PLACE_BYTES
    rig.log.sync()
    replayed = BrokerState(NODE)
    for fact in read(rig.folder, NODE):
        replayed.apply(fact)
    assert replayed.hold.places.last("car") == rig.state.hold.places.last("car")


def test_areas_of_one_client_are_bounded(tmp_path: Path) -> None:
    """0x97 with the number that is allowed, for subscriptions with a near as for all."""
    limits = replace(QUICK.limits, subscriptions_per_session=20)
    rig = Rig(tmp_path, replace(QUICK, limits=limits))
    peer = rig.client("greedy")
    for number in range(25):
        peer.send(subscribing(f"t/{number}", near=f"52.{number},13.4,150"))
    rig.settle()
    codes = [answer.codes for answer in peer.taken(Suback)]
    assert codes == [(0,)] * 20 + [(ReasonCode.QUOTA_EXCEEDED,)] * 5


def test_properties_of_an_application_are_counted_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of publications that is matched one by one after all was read twice."""
    watcher = rig.client("watcher")
    watcher.send(subscribing("a", filter="n > 0"))
    rig.settle()
    stranger = rig.client("stranger", is_ours=False)
    monkeypatch.setattr(Routes, "at_once", 1)
    kitchen = Publish("a", b'{"n": 1}', properties=Properties(user=(("place", "Kitchen"),)))
    stranger.send(kitchen, kitchen, kitchen)
    rig.settle()
    assert len(watcher.payloads()) == 3
    assert rig.broker.counters.foreign_places == 3


def test_the_grid_tells_no_client_of_another(rig: Rig) -> None:
    """Who says near=200 hears publications around itself; a report of another's place is none."""
    spy, car = rig.client("spy"), rig.client("car")
    spy.send(subscribing("#", near="200"))
    rig.settle()
    spy.take()
    _report(spy, HERE)
    _report(car, HERE)
    car.send(Publish("hello", b"1"))
    rig.settle()
    assert spy.taken(Publish) == []
    car.send(Publish("hello", b"2", properties=Properties(user=(("place", HERE),))))
    rig.settle()
    assert spy.payloads() == [b"2"]
