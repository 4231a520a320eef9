"""Client identifiers at mount points: clients of their own inside, and sessions from before that move there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import NODE, Peer, Rig, publishing, subscribing
from single_process import SingleProcess

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.client_ids import ClientRule
from whimbrel.broker.access.topic_rights import Action, Rights, Rule
from whimbrel.broker.settings.config import Config, ListenerSettings
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.wire.listener_rules import ListenerRules
from whimbrel.log.reader import read
from whimbrel.model.facts import Outcome
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, V311, Connack, Disconnect, Puback, Publish, Suback, Will
from whimbrel.mqtt.properties import Properties, Property

HOME = ListenerRules(mount="home/7/")
MOUNTED = replace(Config(), listeners=(ListenerSettings(name="home", port=0, mount="home/7/"),))
NOT_VALID = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with a mount point."""
    return Rig(tmp_path, MOUNTED)


def _come(
    rig: Rig, client_id: str, *, inside: bool = False, clean: bool = False, version: int = V5
) -> tuple[Connack, Peer]:
    """Connect with a session that stays, and return the answer and the client."""
    listener = HOME if inside else None
    peer = rig.connecting(client_id, clean=clean, expiry_s=3_600, version=version, listener=listener)
    rig.settle()
    (welcome,) = [each for each in peer.inbox if isinstance(each, Connack)]
    peer.inbox.remove(welcome)
    return welcome, peer


def _publish(rig: Rig, topic: str, payload: bytes) -> None:
    rig.client("publisher").send(publishing(topic, payload, 1, 1))
    rig.settle()


def _acknowledge(rig: Rig, peer: Peer) -> list[bytes]:
    found = peer.taken(Publish)
    peer.send(*(Puback(each.packet_id) for each in found if each.qos))
    rig.settle()
    return [each.payload for each in found]


def _next(rig: Rig) -> Rig:
    """Return a broker that is started for the first time with mounted identifiers, with the log of *rig*."""
    for peer in rig.peers:
        peer.drop()
    rig.settle()
    rig.sync()
    rig.close()
    again = Rig(rig.folder, MOUNTED, state=_replayed(rig.folder), now=rig.now + 1)
    again.broker.move_sessions(again.now, again.log.sync)
    return again


def _replayed(folder: Path) -> BrokerState:
    """Return the state that a log records."""
    state = BrokerState(NODE)
    for fact in read(folder, NODE):
        state.apply(fact)
    return state


# -- inside and outside ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V5, V311])
def test_the_same_identifier_inside_and_outside_are_two_clients(rig: Rig, version: int) -> None:
    """As it was: a client inside ended a session outside, and took what was held for it."""
    _, outside = _come(rig, "lamp", version=version)
    outside.send(subscribing("home/7/#", qos=1))
    rig.settle()
    outside.drop()
    _publish(rig, "home/7/x", b"held")
    for clean in (False, True):
        welcome, inside = _come(rig, "lamp", inside=True, clean=clean, version=version)
        assert (welcome.code, welcome.session_present) == (0, False)
        assert inside.payloads() == []
        inside.send(subscribing("x", qos=1))
        rig.settle()
        inside.take()
    welcome, outside = _come(rig, "lamp", version=version)
    assert welcome.session_present
    assert _acknowledge(rig, outside) == [b"held"]
    assert not inside.is_closed
    _publish(rig, "home/7/x", b"live")
    assert [_acknowledge(rig, each) for each in (outside, inside)] == [[b"live"], [b"live"]]
    assert {"lamp", "home/7/lamp"} <= set(rig.state.clients)


def test_no_client_of_another_listener_says_an_identifier_of_a_mount_point(tmp_path: Path) -> None:
    """Nor that of a mount point inside: the longest one counts."""
    deeper = ListenerSettings(name="deeper", port=0, mount="home/7/attic/")
    rig = Rig(tmp_path, replace(MOUNTED, listeners=(*MOUNTED.listeners, deeper)))
    assert _come(rig, "home/7/lamp")[0].code == NOT_VALID
    assert _come(rig, "attic/lamp", inside=True)[0].code == NOT_VALID
    assert _come(rig, "home/8/lamp")[0].code == 0
    assert _come(rig, "x" * 256, inside=True)[0].code == 0


def test_an_identifier_that_is_assigned_is_told_without_the_mount_point(rig: Rig) -> None:
    """The client can come back with it."""
    peer = rig.connecting("", expiry_s=60, listener=HOME)
    rig.settle()
    (welcome,) = [each for each in peer.inbox if isinstance(each, Connack)]
    assigned = welcome.properties.text(Property.ASSIGNED_CLIENT_IDENTIFIER)
    assert assigned is not None
    assert assigned.startswith("auto-")
    assert _come(rig, assigned, inside=True)[0].session_present


def test_rights_know_what_a_client_says(tmp_path: Path) -> None:
    """Rules of the rights file go on as before: an identifier in them is that of its listener."""
    rules = [
        Rule(topics=("home/7/{client}/#",), actions=frozenset({Action.SUBSCRIBE, Action.PUBLISH}), is_allowing=True),
        Rule(topics=("#",), actions=frozenset({Action.SUBSCRIBE, Action.PUBLISH}), is_allowing=False),
    ]
    rights = Rights(rules, client_ids=[ClientRule(ids=("lamp",))])
    rig = Rig(tmp_path, MOUNTED, authorizer=Authorizer(rights))
    inside = rig.client("lamp", listener=HOME)
    inside.send(subscribing("lamp/#", "other/#"))
    rig.settle()
    (answer,) = inside.taken(Suback)
    assert (answer.codes[0], answer.codes[1] >= ReasonCode.UNSPECIFIED_ERROR) == (0, True)
    assert _come(rig, "oven", inside=True)[0].code == NOT_VALID
    rig.broker.replace_rights(rights)
    rig.flush()
    assert not inside.is_closed


# -- sessions from before ----------------------------------------------------------------------------------------------


def _before(folder: Path) -> Rig:
    """Return a broker as it was before identifiers were mounted, with sessions of clients of any listener."""
    rig = Rig(folder)
    rig.subscriber("lamp", "home/7/lamp/#", "$share/g/home/7/oven", qos=1, expiry_s=3_600)
    rig.subscriber("phone", "home/7/#", "news", qos=1, expiry_s=3_600)
    rig.client("idle", expiry_s=3_600)
    rig.settle()
    return rig


def test_a_session_moves_whose_subscriptions_are_all_below_the_mount_point(tmp_path: Path) -> None:
    """At the first start; others stay outside, and so does one that subscribes to nothing."""
    rig = _next(_before(tmp_path))
    assert set(rig.state.clients) == {"home/7/lamp", "phone", "idle"}
    _publish(rig, "home/7/lamp/on", b"held")
    welcome, inside = _come(rig, "lamp", inside=True)
    assert welcome.session_present
    assert [(each.topic, each.payload) for each in inside.taken(Publish)] == [("lamp/on", b"held")]
    assert not _come(rig, "lamp")[0].session_present
    assert [_come(rig, each)[0].session_present for each in ("phone", "idle")] == [True, True]
    assert [each.client for each in rig.broker.take_notices()] == ["lamp"]
    rig.sync()
    assert dict(_rows(_replayed(rig.folder))) == dict(_rows(rig.state))  # a restart finds the same


def _rows(state: BrokerState) -> dict[object, bytes]:
    state.view.touch_all()
    put, _ = state.view.changes()
    return {key: value for key, value in put.items() if key[0] in {"client", "session", "subscription", "member"}}


def test_what_is_held_for_a_session_from_before_is_not_lost(tmp_path: Path) -> None:
    """It keeps its identifier until it holds nothing: its client inside has it, and no client outside."""
    before = _before(tmp_path)
    (lamp,) = (each for each in before.peers if each.link.client is not None and each.link.client.id == "lamp")
    lamp.drop()
    _publish(before, "home/7/lamp/on", b"held")
    rig = _next(before)
    assert "lamp" in rig.state.clients
    for clean in (False, True):
        assert _come(rig, "lamp", clean=clean)[0].code == NOT_VALID
    rig.sync()
    rig.close()
    rig = Rig(rig.folder, MOUNTED, state=_replayed(rig.folder), now=rig.now + 1)  # a later start knows it, too
    assert _come(rig, "lamp")[0].code == NOT_VALID
    welcome, inside = _come(rig, "lamp", inside=True)
    assert welcome.session_present
    assert _acknowledge(rig, inside) == [b"held"]
    _publish(rig, "home/7/lamp/on", b"live")
    assert _acknowledge(rig, inside) == [b"live"]
    inside.send(Disconnect())
    welcome, inside = _come(rig, "lamp", inside=True)
    assert welcome.session_present
    assert "home/7/lamp" in rig.state.clients
    _publish(rig, "home/7/lamp/on", b"moved")
    assert _acknowledge(rig, inside) == [b"moved"]
    welcome, _ = _come(rig, "lamp")
    assert (welcome.code, welcome.session_present) == (0, False)
    rig.sync()
    rows = SingleProcess(assume_receipts=False).run(read(rig.folder, NODE)).deliveries  # a reader of the log agrees
    taken = [(row.device, row.outcome) for row in rows if row.device in {"lamp", "home/7/lamp"}]
    delivered = Outcome.DELIVERED
    assert taken == [("lamp", delivered), ("lamp", delivered), ("home/7/lamp", delivered)]


def test_a_policy_moves_with_the_session_that_put_it(tmp_path: Path) -> None:
    """Else a client outside with the same identifier could replace what a client inside has chosen."""
    before = _before(tmp_path)
    (lamp,) = (each for each in before.peers if each.link.client is not None and each.link.client.id == "lamp")
    lamp.send(publishing("$whimbrel/policy/dim", b"return m;", 1, 1), publishing("$whimbrel/policy", b"dim", 1, 2))
    rig = _next(before)
    _, inside = _come(rig, "lamp", inside=True)
    _, outside = _come(rig, "lamp")
    codes = []
    for peer in (outside, inside):
        peer.send(publishing("$whimbrel/policy/dim", b"return NULL;", 1, 7))
        rig.settle()
        codes += [each.code for each in peer.taken(Puback)]
    assert codes == [ReasonCode.NOT_AUTHORIZED, ReasonCode.SUCCESS]
    assert rig.state.decisions.shape.chosen("home/7/lamp") == "dim"
    rig.sync()
    assert _replayed(rig.folder).decisions.shape.policies == rig.state.decisions.shape.policies


def test_a_clean_start_inside_ends_a_session_from_before(tmp_path: Path) -> None:
    """And begins under the whole identifier."""
    before = _before(tmp_path)
    for peer in list(before.peers):
        peer.drop()
    _publish(before, "home/7/lamp/on", b"held")
    rig = _next(before)
    welcome, inside = _come(rig, "lamp", inside=True, clean=True)
    assert (welcome.session_present, inside.payloads()) == (False, [])
    assert "home/7/lamp" in rig.state.clients
    assert "lamp" not in rig.state.clients


def test_a_will_and_named_sessions_go_where_they_belong(tmp_path: Path) -> None:
    """A will below the mount point is that of the client inside; a named session was joined outside."""
    before = Rig(tmp_path)
    maker = before.client("maker")
    assert maker.ask("create", session="ward")["ok"]
    lamp = before.client(
        "lamp",
        expiry_s=3_600,
        will=Will("home/7/gone", b"bye", properties=Properties({Property.WILL_DELAY_INTERVAL: 10})),
    )
    lamp.send(subscribing("home/7/x", qos=1))
    assert lamp.ask("join", session="ward")["ok"]
    assert maker.ask("subscribe", session="ward", topic="news")["ok"]
    lamp.drop()
    _publish(before, "news", b"for the ward")
    rig = _next(before)
    assert [each for each in rig.state.wills.devices() if "lamp" in each] == ["home/7/lamp"]
    _, outside = _come(rig, "lamp")
    assert outside.ask("join", session="ward")["ok"]
    rig.settle()
    assert outside.payloads() == [b"for the ward"]
    watching = rig.subscriber("watching", "home/7/gone")
    rig.tick(11)
    rig.settle()
    assert watching.payloads() == [b"bye"]
