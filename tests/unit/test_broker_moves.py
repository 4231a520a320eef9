"""Reports that only move a device: the same as other reports, and quicker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from broker_rig import NODE, SECOND_US, Rig, publishing, subscribing

from whimbrel.broker.limits.memory import CONNECTION_BYTES
from whimbrel.broker.publish.moves import Moves
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.log.reader import read
from whimbrel.log.records import BODY, TABLE_NAMES
from whimbrel.model.facts import Reported
from whimbrel.mqtt.packets import Publish

REPORT = "$whimbrel/report"
WALK = [
    b'{"place": "52.52,13.405"}',
    b'{"place":"-1,2.5"}',
    b'{"place": "52.52,13.405", "battery": 0.5}',
    b' { "place" : "90,-180" } ',
    b'{"place": "91,0"}',
    b'{"place": "nan,0"}',
    b'{"place": "1e1,2"}',
    b'{"place": "4,5", "received": 3}',
    b'{"place": "5,6"}',
    b"{}",
]


def _told(rig: Rig, monkeypatch: pytest.MonkeyPatch, *, has_moves: bool) -> tuple[list[object], object, object]:
    """Return the reports of a log, the places and the variables of policies, with and without the quick way."""
    if not has_moves:
        monkeypatch.setattr(Moves, "handle", lambda *_: 0)
    phone = rig.subscriber("phone", "a")
    phone.send(*(publishing(REPORT, body) for body in WALK), publishing("a", b"x"))
    rig.now += SECOND_US
    phone.send(*(publishing(REPORT, body, 1, number) for number, body in enumerate(WALK, start=1)))
    phone.send(publishing(REPORT, WALK[0]))  # it waits behind those
    rig.settle()
    rig.log.sync()
    facts = [fact for fact in read(rig.folder, NODE) if isinstance(fact, Reported)]
    return list(facts), rig.state.hold.places.sightings("$mqtt/phone"), rig.state.decisions.shape.automatic("phone")


def test_with_and_without_the_quick_way_the_log_says_the_same(tmp_path: Path) -> None:
    """A quick way is the slow one with steps left out."""
    told = []
    for has_moves in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            told.append(_told(Rig(tmp_path / str(has_moves)), patch, has_moves=has_moves))
    assert told[0] == told[1]
    assert len(told[0][0]) == 2 * 8 + 1


def test_a_replay_knows_where_devices_are(tmp_path: Path) -> None:
    """A compact record is read as the row that a full one would be."""
    rig = Rig(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        _told(rig, patch, has_moves=True)
    again = BrokerState(NODE)
    for fact in read(rig.folder, NODE):
        again.apply(fact)
    assert again.hold.places.sightings("$mqtt/phone") == rig.state.hold.places.sightings("$mqtt/phone")
    assert again.decisions.shape.automatic("phone") == rig.state.decisions.shape.automatic("phone")
    assert again.memory.counted == rig.state.memory.counted - CONNECTION_BYTES


def test_a_publication_behind_a_move_is_heard_where_its_client_is(tmp_path: Path) -> None:
    """In one piece of bytes, too."""
    rig = Rig(tmp_path)
    car = rig.client("car")
    car.send(subscribing("a", near="100"))
    place = {"place": "1,1"}
    at = publishing("$place/1,1/a", b"x")
    car.send(at, publishing(REPORT, json.dumps(place).encode()), at, publishing(REPORT, b'{"place": "2,2"}'), at)
    rig.settle()
    assert len(car.taken(Publish)) == 1


def test_moves_are_compact_records(tmp_path: Path) -> None:
    """Else fifty thousand a second would be too many."""
    rig = Rig(tmp_path)
    numbers: list[int] = []
    append = rig.log.append_body
    phone = rig.client("phone")

    def noting(body: bytes, at: int) -> int:
        numbers.append(BODY.unpack_from(body)[1])
        return append(body, at)

    rig.broker._commits.append_body = noting
    phone.send(*[publishing(REPORT, WALK[0])] * 3)
    assert numbers == [12] * 3
    assert TABLE_NAMES[12] == "reports"
