"""Places in the broker: who hears what is published for an area, and who hears only what is near."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from broker_rig import NODE, SECOND_US, Peer, Rig, publishing, subscribing

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.topic_rights import Action, Rights, Rule
from whimbrel.broker.shell.metrics import system_values
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.wire.placing import read_placing
from whimbrel.errors import InvalidValueError
from whimbrel.hold.private import private_session
from whimbrel.log.reader import read
from whimbrel.model.notification import Notification
from whimbrel.model.place import Place
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, V311, Puback, Publish, Suback, Will
from whimbrel.mqtt.properties import Properties
from whimbrel.node.places.placing import Placing

HERE, CLOSE, FAR = "52.52,13.405", "52.521,13.405", "52.53,13.405"  # 111 m and 1,113 m from here
LOCK = "consumer:" + hashlib.sha256(b"k").hexdigest()
"""What the private key k opens."""
OTHER_LOCK = f"consumer:{'0' * 64}"
VERSIONS = pytest.mark.parametrize("version", [V5, V311])


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with all defaults."""
    return Rig(tmp_path)


def _move(peer: Peer, place: str, qos: int = 0, packet_id: int = 0) -> None:
    peer.send(publishing("$whimbrel/report", json.dumps({"place": place}).encode(), qos, packet_id))


def _at(topic: str, payload: bytes, place: str, radius: str | None = None, *, qos: int = 0, **more: str) -> Publish:
    user = [("place", place), *([] if radius is None else [("radius", radius)]), *more.items()]
    return Publish(topic, payload, qos, packet_id=7 if qos else 0, properties=Properties(user=tuple(user)))


def _place_topic(topic: str, payload: bytes, where: str, qos: int = 0) -> Publish:
    return publishing(f"$place/{where}/{topic}", payload, qos, 7 if qos else 0)


def _near(rig: Rig, client: str, near: str, wanted: str = "hazard", version: int = V5, name: str = "") -> Peer:
    """Return a subscriber with a near, in the form of its version."""
    peer = rig.client(client, version=version)
    peer.send(subscribing(wanted, near=near, name=name) if version == V5 else subscribing(f"$near/{near}/{wanted}"))
    rig.settle()
    (answer,) = peer.taken(Suback)
    assert answer.codes == (0,)
    return peer


# -- areas -------------------------------------------------------------------------------------------------------------


@VERSIONS
def test_an_area_is_heard_by_sessions_inside(rig: Rig, version: int) -> None:
    """STEAM, 4.3: the proximity decides, not the subscription alone."""
    inside, outside, nowhere = (
        rig.subscriber(name, "hazard", version=version) for name in ("inside", "outside", "nowhere")
    )
    _move(inside, CLOSE)
    _move(outside, FAR)
    publisher = rig.client("light", version=version)
    ice = _at("hazard", b"ice", HERE, "150") if version == V5 else _place_topic("hazard", b"ice", f"{HERE},150")
    publisher.send(ice, publishing("hazard", b"for all"))
    assert inside.payloads() == [b"ice", b"for all"]
    assert outside.payloads() == nowhere.payloads() == [b"for all"]
    _move(outside, CLOSE)
    _move(inside, FAR)
    publisher.send(ice)
    assert (inside.payloads(), outside.payloads()) == ([], [b"ice"])


def test_a_place_is_forgotten_when_it_is_stale(rig: Rig) -> None:
    """A device that fell silent is nowhere, after two minutes or what the subscription says."""
    usual, patient = rig.subscriber("usual", "hazard"), rig.client("patient")
    patient.send(subscribing("hazard", stale="600"))
    _move(usual, HERE)
    _move(patient, HERE)
    publisher = rig.client("light")
    for seconds, heard in ((119, (1, 1)), (1, (0, 1)), (479, (0, 1)), (1, (0, 0))):
        rig.now += seconds * SECOND_US
        publisher.send(_at("hazard", b"ice", HERE, "150"))
        assert (len(usual.payloads()), len(patient.payloads())) == heard


@VERSIONS
def test_near_a_circle_wants_the_place_of_the_publication_inside(rig: Rig, version: int) -> None:
    """Whatever the session is, and whether it says where it is or not."""
    peer = _near(rig, "watcher", f"{HERE},150", version=version)
    publisher = rig.client("light")
    publisher.send(publishing("hazard", b"nowhere"), _at("hazard", b"close", CLOSE), _at("hazard", b"far", FAR))
    publisher.send(_at("hazard", b"area", CLOSE, "500"))
    assert peer.payloads() == [b"close"]
    _move(peer, HERE)
    publisher.send(_at("hazard", b"area", CLOSE, "500"))
    assert peer.payloads() == [b"area"]


@VERSIONS
def test_near_oneself_moves_along(rig: Rig, version: int) -> None:
    """Both may move: it is the distance that counts."""
    peer = _near(rig, "car", "200", version=version)
    publisher = rig.client("light")
    publisher.send(_at("hazard", b"0", HERE))
    _move(peer, FAR)
    publisher.send(_at("hazard", b"1", HERE), _at("hazard", b"2", "52.5305,13.405"))
    _move(peer, CLOSE)
    publisher.send(_at("hazard", b"3", HERE), _at("hazard", b"4", FAR), publishing("hazard", b"5"))
    assert peer.payloads() == [b"2", b"3"]


def test_a_polygon_is_an_area_too(rig: Rig) -> None:
    """Up to 64 corners; on the rim is inside."""
    peer = _near(rig, "watcher", "52.52,13.40;52.52,13.41;52.53,13.41;52.53,13.40")
    publisher = rig.client("light")
    publisher.send(_at("hazard", b"in", "52.525,13.405"), _at("hazard", b"rim", HERE), _at("hazard", b"out", "52.6,13"))
    assert peer.payloads() == [b"in", b"rim"]


def test_places_come_with_filter_keys_ttl_and_max(rig: Rig) -> None:
    """Subjects, content, keys and place in one subscription; of three that are held, two are kept for a minute."""
    car = rig.client("car", expiry_s=600)
    key = "consumer:private:k"
    car.send(subscribing("hazard/+", qos=1, near="200", filter="depth > 3", key=key, max="2", ttl="60"))
    _move(car, HERE)
    rig.settle()
    car.drop()
    light, deep = rig.client("light"), b'{"depth": 4, "n": %d}'
    for number, (topic, body, place, key) in enumerate(
        [
            ("hazard/ice", deep, CLOSE, LOCK),
            ("hazard/ice", deep, CLOSE, LOCK),
            ("hazard/ice", deep, FAR, LOCK),
            ("other/ice", deep, CLOSE, LOCK),
            ("hazard/ice", b'{"depth": 2, "n": %d}', CLOSE, LOCK),
            ("hazard/ice", deep, CLOSE, OTHER_LOCK),
            ("hazard/ice", deep, CLOSE, LOCK),
        ],
        start=1,
    ):
        light.send(_at(topic, body % number, place, qos=1, key=key)._replace(packet_id=number))
        rig.settle()
    rig.now += 59 * SECOND_US
    back = rig.client("car", expiry_s=600, clean=False)
    rig.settle()
    assert back.payloads() == [deep % 2, deep % 7]


def test_a_session_is_where_any_of_its_devices_is(rig: Rig) -> None:
    """The phone is inside, and the laptop reports nothing."""
    phone, laptop = rig.client("phone"), rig.client("laptop")
    assert phone.ask("create", session="ann")["ok"]
    for peer in (phone, laptop):
        assert peer.ask("join", session="ann", receipt="keep")["ok"]
    answer = laptop.ask("subscribe", session="ann", topic="hazard", near=200, stale=60)
    assert (answer["subscription"]["near"], answer["subscription"]["stale"]) == ("200.0", 60)
    publisher = rig.client("light")
    publisher.send(_at("hazard", b"0", HERE, "150"))
    _move(phone, CLOSE)
    publisher.send(_at("hazard", b"1", HERE, "150"))
    rig.settle()
    assert phone.payloads() == laptop.payloads() == [b"1"]
    assert phone.ask("leave", session="ann")["ok"]
    publisher.send(_at("hazard", b"2", HERE, "150"))
    rig.settle()
    assert laptop.payloads() == []


def test_what_is_held_stays_held(rig: Rig) -> None:
    """Places are asked once, when the publication is accepted."""
    car = rig.subscriber("car", "hazard", qos=1, expiry_s=600)
    rig.settle()
    _move(car, HERE, 1, 1)
    rig.settle()
    car.drop()
    rig.client("light").send(_at("hazard", b"ice", HERE, "150", qos=1))
    rig.settle()
    rig.now += 300 * SECOND_US  # long stale
    back = rig.client("car", expiry_s=600, clean=False)
    rig.settle()
    assert back.payloads() == [b"ice"]


def test_the_order_of_numbers_decides_while_the_disk_is_waited_for(rig: Rig) -> None:
    """A report of QoS 1 that is numbered before the publication counts, though both wait for fsync."""
    car = rig.subscriber("car", "hazard", qos=1, expiry_s=600)
    rig.settle()
    car.take()
    light = rig.client("light")
    _move(car, HERE, 1, 1)
    light.send(_at("hazard", b"after", HERE, "150", qos=1))
    _move(car, FAR, 1, 2)
    light.send(_at("hazard", b"gone", HERE, "150", qos=1)._replace(packet_id=8))
    rig.settle()
    assert car.payloads() == [b"after"]


def test_a_restart_knows_the_places_again(rig: Rig) -> None:
    """From the log alone, and from a view."""
    car = rig.subscriber("car", "hazard", qos=1, expiry_s=600)
    rig.settle()
    _move(car, HERE)
    _near(rig, "van", "200", name="n")
    rig.log.sync()
    replayed = BrokerState(NODE)
    for fact in read(rig.folder, NODE):
        replayed.apply(fact)
    rows = rig.state.view
    rows.touch_all()
    restored = BrokerState.restore(NODE, rows.changes()[0].items())
    for state in (replayed, restored):
        placing = Placing(Place.parse(CLOSE), 150.0)
        asked = {"place": placing.place, "area": placing.area, "at": rig.now}
        assert state.hold.places.heard(state.routes.by_subject("hazard"), **asked)  # type: ignore[arg-type]  # by name
        assert len(state.routes.near) == 1


def test_live_and_replay_agree(rig: Rig) -> None:
    """The log alone decides."""
    car = rig.subscriber("car", "hazard", qos=1, expiry_s=600)
    van = _near(rig, "van", "200")
    rig.settle()
    light = rig.client("light")
    for number, (one, other) in enumerate([(HERE, FAR), (FAR, HERE), (CLOSE, CLOSE)], start=1):
        _move(car, one)
        _move(van, other)
        light.send(_at("hazard", b"%d" % number, HERE, "150", qos=1)._replace(packet_id=number))
        rig.settle()
    held = sorted(seq for seq, _ in rig.state.hold.all_kept())
    rig.log.sync()
    replayed = BrokerState(NODE)
    for fact in read(rig.folder, NODE):
        replayed.apply(fact)
    assert sorted(seq for seq, _ in replayed.hold.all_kept()) == held
    assert van.payloads() == [b"2", b"3"]


def test_what_is_retained_for_an_area_comes_only_inside(rig: Rig) -> None:
    """Whoever subscribes outside would otherwise learn what is not meant for there."""
    rig.client("light").send(
        _at("hazard", b"ice", HERE, "150")._replace(retain=True), _at("fog", b"thick", FAR)._replace(retain=True)
    )
    inside, outside = rig.client("inside"), rig.client("outside")
    _move(inside, CLOSE)
    for peer in (inside, outside):
        peer.send(subscribing("#"))
        rig.work()
    assert sorted(inside.payloads()) == [b"ice", b"thick"]
    assert outside.payloads() == [b"thick"]
    far = _near(rig, "far", f"{FAR},50", "#")
    rig.work()
    assert far.payloads() == []  # they were taken with SUBACK


def test_a_will_may_have_an_area(rig: Rig) -> None:
    """A light that fails says so to those who come near it."""
    car, train = rig.subscriber("car", "gone"), rig.subscriber("train", "gone")
    _move(car, CLOSE)
    _move(train, FAR)
    will = Will("gone", b"dark", 0, False, Properties(user=(("place", HERE), ("radius", "150"))))
    rig.client("light", will=will).drop()
    rig.settle()
    assert (car.payloads(), train.payloads()) == ([b"dark"], [])


# -- columns and attributes --------------------------------------------------------------------------------------------


def _last(rig: Rig) -> Notification:
    rig.settle()
    rig.log.sync()
    *_, last = (fact for fact in read(rig.folder, NODE) if isinstance(fact, Notification))
    return last


def test_properties_become_columns_and_stay_attributes(rig: Rig) -> None:
    """And travel to subscribers as they were sent."""
    peer = rig.subscriber("watcher", "a")
    _move(peer, HERE)
    rig.client("light").send(_at("a", b"x", HERE, "150", deadline="2.5"))
    found = _last(rig)
    assert (found.place, found.radius_m) == (Place(52.52, 13.405), 150.0)
    assert found.deadline_at == found.published_at + 2_500_000
    assert found.attributes["place"] == HERE
    (copy,) = peer.taken(Publish)
    assert copy.properties.user == (("place", HERE), ("radius", "150"), ("deadline", "2.5"))


def test_a_topic_with_a_place_says_the_same(rig: Rig) -> None:
    """3.1.1 has no properties."""
    peer = rig.subscriber("watcher", "a/b")
    _move(peer, HERE)
    rig.client("light", version=V311).send(_place_topic("a/b", b"x", f"{HERE},150"), _place_topic("a/b", b"y", HERE))
    found = _last(rig)
    assert (found.subject, found.place, found.radius_m) == ("a/b", Place(52.52, 13.405), None)
    assert [(copy.topic, copy.payload) for copy in peer.taken(Publish)] == [("a/b", b"x"), ("a/b", b"y")]


def test_a_kitchen_is_the_applications(rig: Rig) -> None:
    """A client that knows nothing of Whimbrel may use any name."""
    peer = rig.subscriber("watcher", "a")
    stranger = rig.client("stranger", is_ours=False)
    stranger.send(_at("a", b"0", "Kitchen"), _at("a", b"1", "91,0", "5"), _at("a", b"2", HERE, "wide"))
    assert peer.payloads() == [b"0", b"1", b"2"]
    assert _last(rig).place is None
    assert rig.broker.counters.foreign_places == 5


@pytest.mark.parametrize(
    "user",
    [
        (("place", "Kitchen"),),
        (("place", "91,0"),),
        (("place", "nan,0"),),
        (("place", HERE), ("radius", "20037508")),
        (("place", HERE), ("radius", "-1")),
        (("radius", "5"),),
        (("deadline", "inf"),),
        (("place", HERE), ("place", HERE)),
    ],
)
@pytest.mark.parametrize("prefix", ["", "whimbrel."])
def test_the_strict_form_is_refused(rig: Rig, user: tuple[tuple[str, str], ...], prefix: str) -> None:
    """With what was found and what is allowed."""
    peer, watcher = rig.client("peer", is_ours=not prefix), rig.subscriber("watcher", "a")
    strict = tuple((prefix + name, value) for name, value in user)
    peer.send(Publish("a", b"x", 1, packet_id=1, properties=Properties(user=strict)))
    (answer,) = peer.taken(Puback)
    assert answer.code == ReasonCode.PAYLOAD_FORMAT_INVALID
    assert watcher.payloads() == []
    with pytest.raises(InvalidValueError):
        read_placing(strict, is_ours=not prefix)


@pytest.mark.parametrize("where", ["x", "1,2,x", "91,0,5", "0,0,2000000", "1,2,3/$SYS", ""])
def test_a_topic_with_a_bad_place_is_refused(rig: Rig, where: str) -> None:
    """It is strict, whoever sends it."""
    peer, watcher = rig.client("peer", is_ours=False), rig.subscriber("watcher", "#", "$place/#")
    peer.send(publishing(f"$place/{where}/a", b"x", 1, 1))
    assert [answer.code for answer in peer.taken(Puback)] == [ReasonCode.PAYLOAD_FORMAT_INVALID]
    assert watcher.payloads() == []


@pytest.mark.parametrize(
    "near",
    ["91,0,5", "nan", "-5", "2000000", "0,0;1,1;0,1;1,0", "0,0;1,1", ";".join(f"{i / 10},{i * i}" for i in range(65))],
)
def test_a_bad_near_is_refused(rig: Rig, near: str) -> None:
    """0x8F with what was found; a polygon that crosses itself is none."""
    peer = rig.client("peer")
    peer.send(subscribing("a", near=near))
    (answer,) = peer.taken(Suback)
    assert answer.codes == (ReasonCode.TOPIC_FILTER_INVALID,)


def test_near_any_is_for_those_with_the_right(tmp_path: Path) -> None:
    """A console hears areas from anywhere; nobody else does, whatever the default."""
    rule = Rule(topics=("#",), actions=frozenset({Action.ANYWHERE}), is_allowing=True, client="console")
    rig = Rig(tmp_path, authorizer=Authorizer(Rights([rule])))
    console, nosy = rig.client("console"), rig.client("nosy")
    codes: list[int] = []
    for peer in (console, nosy):
        peer.send(subscribing("hazard", near="any"))
        rig.settle()
        codes += peer.taken(Suback)[0].codes
    assert codes[0] == 0
    assert codes[1] >= 0x80
    rig.client("light").send(_at("hazard", b"ice", HERE, "150"))
    assert console.payloads() == [b"ice"]


# -- entering and leaving ----------------------------------------------------------------------------------------------


def _fence(rig: Rig, client: str, name: str = "home", version: int = V5, near: str = f"{HERE},150") -> Peer:
    return _near(rig, client, near, f"$whimbrel/near/{name}", version)


def _wait(rig: Rig, seconds: int) -> None:
    """Let time pass that the keep alive of no client counts."""
    rig.now += seconds * SECOND_US
    rig.broker.tick(rig.now)
    rig.flush()


def _changes(peer: Peer) -> list[tuple[str, str]]:
    """Return what a client was told of areas that it named."""
    rows = [(packet.topic, json.loads(packet.payload)) for packet in peer.taken(Publish)]
    assert all(topic == f"$whimbrel/near/{told['near']}" for topic, told in rows)
    assert all(set(told) == {"near", "change"} for _, told in rows)  # and not where
    return [(told["near"], told["change"]) for _, told in rows]


@VERSIONS
def test_a_client_is_told_when_it_enters_and_leaves(rig: Rig, version: int) -> None:
    """Once for each crossing, and when it falls silent."""
    car = _fence(rig, "car", version=version)
    for place in (FAR, CLOSE, HERE, FAR, FAR, CLOSE):
        _move(car, place)
    assert _changes(car) == [("home", "entered"), ("home", "left"), ("home", "entered")]
    _wait(rig, 119)
    _move(car, CLOSE)
    _wait(rig, 119)
    assert _changes(car) == []
    _wait(rig, 1)
    assert _changes(car) == [("home", "left")]


def test_who_names_an_area_inside_it_has_entered(rig: Rig) -> None:
    """Else it would have to leave first."""
    car = rig.client("car")
    _move(car, HERE)
    car.send(subscribing("$whimbrel/near/home", near=f"{HERE},150"))
    assert _changes(car) == [("home", "entered")]
    car.send(subscribing("$whimbrel/near/home", near=f"{FAR},150"))
    _move(car, FAR)
    assert _changes(car) == [("home", "entered")]


@pytest.mark.parametrize("near", [None, "200", "any"])
def test_a_named_area_is_an_area(rig: Rig, near: str | None) -> None:
    """What nothing is ever told of is refused."""
    peer = rig.client("car")
    peer.send(subscribing("$whimbrel/near/home") if near is None else subscribing("$whimbrel/near/home", near=near))
    rig.settle()
    assert peer.taken(Suback)[0].codes == (ReasonCode.TOPIC_FILTER_INVALID,)


def test_named_areas_are_bounded(rig: Rig) -> None:
    """Each report looks at all of them."""
    peer = rig.client("car")
    for number in range(65):
        peer.send(subscribing(f"$whimbrel/near/{number}", near=f"{HERE},150"))
    rig.settle()
    codes = [answer.codes for answer in peer.taken(Suback)]
    assert codes == [(0,)] * 64 + [(ReasonCode.QUOTA_EXCEEDED,)]


def test_no_client_learns_where_another_is(rig: Rig) -> None:
    """Not by wildcards, not by the area's name, not by being in a session with it, not by ``$SYS`` or history."""
    spy = rig.subscriber("spy", "#", "$whimbrel/#", "$SYS/#")
    car = _fence(rig, "car")
    named = _fence(rig, "spy2")
    assert car.ask("create", session="ann")["ok"]
    for peer in (car, named):
        assert peer.ask("join", session="ann")["ok"]
        peer.take()
    spy.take()
    _move(car, CLOSE)
    rig.broker.tell_system({"$SYS/broker/deadlines/missed": "0"}, rig.now)
    rig.flush()
    assert _changes(car) == [("home", "entered")]
    assert named.take() == []
    assert [packet.topic for packet in spy.taken(Publish)] == ["$SYS/broker/deadlines/missed"]
    spy.send(subscribing("$whimbrel/report", packet_id=3, since="1h"))
    rig.settle()
    assert not [packet for packet in spy.taken(Publish) if b"52.5" in packet.payload]


def test_what_is_retained_comes_to_who_enters_once(rig: Rig) -> None:
    """Leaving and coming back does not bring it again; another message does."""
    car = rig.subscriber("car", "hazard", qos=1)
    light = rig.client("light")
    ice = _at("hazard", b"ice", HERE, "150", qos=1)._replace(retain=True)
    light.send(ice)
    rig.settle()
    assert car.payloads() == []
    for place, heard in ((FAR, []), (CLOSE, [b"ice"]), (FAR, []), (CLOSE, [])):
        _move(car, place)
        rig.work()
        rig.settle()
        found = car.taken(Publish)
        assert [copy.payload for copy in found] == heard
        assert all(copy.retain for copy in found)
    light.send(ice._replace(payload=b"melting"))
    rig.settle()
    assert car.payloads() == [b"melting"]  # it was inside
    _move(car, FAR)
    light.send(ice._replace(payload=b"again"))
    rig.settle()
    _move(car, HERE)
    rig.work()
    assert car.payloads() == [b"again"]


def test_after_a_restart_what_came_does_not_come_again(rig: Rig) -> None:
    """The log tells who entered what, and so does a view."""
    car = rig.subscriber("car", "hazard", expiry_s=600)
    rig.client("light").send(_at("hazard", b"ice", HERE, "150")._replace(retain=True))
    rig.settle()
    _move(car, HERE)
    rig.work()
    assert car.payloads() == [b"ice"]
    rig.log.sync()
    replayed = BrokerState(NODE)
    for fact in read(rig.folder, NODE):
        replayed.apply(fact)
    rig.state.view.touch_all()
    restored = BrokerState.restore(NODE, rig.state.view.changes()[0].items())
    for state in (replayed, restored):
        assert len(state.areas) == 1
        assert list(state.areas.enter(private_session("car"), Place.parse(HERE))) == []
        assert len(list(state.areas.enter("other", Place.parse(HERE)))) == 1


def test_a_missed_deadline_is_counted_by_subject(rig: Rig) -> None:
    """It is sent all the same, and in its turn."""
    car = rig.subscriber("car", "#", qos=1, expiry_s=600)
    rig.settle()
    car.drop()
    light = rig.client("light")
    light.send(
        Publish("a", b"0", 1, packet_id=1, properties=Properties(user=(("deadline", "5"),))),
        Publish("b", b"1", 1, packet_id=2, properties=Properties(user=(("deadline", "50"),))),
        publishing("c", b"2", 1, 3),
    )
    rig.settle()
    rig.now += 5 * SECOND_US
    back = rig.client("car", expiry_s=600, clean=False)
    rig.settle()
    assert back.payloads() == [b"0", b"1", b"2"]
    assert (rig.broker.late, rig.broker.counters.missed_deadlines) == ({"a": 1}, 1)
    assert system_values(rig.broker, 0)["$SYS/broker/deadlines/missed/a"] == "1"


def test_wide_areas_that_are_retained_are_few(rig: Rig) -> None:
    """Each report looks at all of them."""
    light = rig.client("light")
    for number in range(1, 102):
        light.send(_at(f"a/{number}", b"x", HERE, "6000", qos=1)._replace(retain=True, packet_id=number))
        rig.settle()
    codes = [answer.code for answer in light.taken(Puback)]
    assert codes.count(ReasonCode.QUOTA_EXCEEDED) == 1


def test_areas_around_one_place_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report of a device there is held against all of them; elsewhere there is room."""
    monkeypatch.setattr("whimbrel.broker.publish.admission.MAX_IN_CELL", 3)
    light = rig.client("light")
    for number, place in enumerate((HERE, HERE, HERE, HERE, "10,10"), start=1):
        light.send(_at(f"a/{number}", b"x", place, "150", qos=1)._replace(retain=True, packet_id=number))
        rig.settle()
    codes = {answer.packet_id: answer.code for answer in light.taken(Puback)}
    assert [number for number, code in codes.items() if code == ReasonCode.QUOTA_EXCEEDED] == [4]


def test_a_deadline_without_a_place_waits_for_the_disk_too(rig: Rig) -> None:
    """What is owed is matched again once it is durable, whatever its publisher says of places."""
    wanting = rig.subscriber("wanting", "a", qos=1, expiry_s=60)
    due = Publish("a", b"x", 1, packet_id=1, properties=Properties(user=(("deadline", "5"),)))
    rig.client("light").send(due)
    rig.settle()
    assert wanting.payloads() == [b"x"]
