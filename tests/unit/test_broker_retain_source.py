"""Retained messages whose publisher lost its rights are kept back, as Mosquitto's check_retain_source has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import NODE, QUICK, Rig, publishing
from guarded_rig import connect, received, subscribe

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.topic_rights import Action, Rights, Rule
from whimbrel.broker.settings.config import AccessSettings
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.log.reader import read
from whimbrel.mqtt.packets import Will

NOT_BOB = Rights([Rule(topics=("#",), actions=frozenset({Action.PUBLISH}), is_allowing=False, user="bob")])


def _rig(folder: Path, rights: Rights = Rights.OPEN, *, state: BrokerState | None = None, checks: bool = True) -> Rig:
    config = replace(QUICK, access=AccessSettings(users="users", check_retain_source=checks))
    return Rig(folder, config, authorizer=Authorizer(rights), verify=lambda _user, _password: True, state=state)


def _retain(rig: Rig, user: str | None, topic: str) -> None:
    peer = connect(rig, f"of-{user}", user)
    peer.send(publishing(topic, topic.encode(), qos=1, packet_id=1, retain=True))
    rig.settle()
    peer.drop()
    rig.settle()


def _found(rig: Rig, client_id: str) -> list[bytes]:
    reader = connect(rig, client_id, "ann")
    subscribe(rig, reader, "#")
    return sorted(received(rig, reader))


def test_it_comes_back_with_the_right(tmp_path: Path) -> None:
    """It is kept back, not removed; others' messages are not concerned."""
    rig = _rig(tmp_path)
    _retain(rig, "bob", "b")
    _retain(rig, "carl", "c")
    assert _found(rig, "r1") == [b"b", b"c"]
    rig.broker.replace_rights(NOT_BOB)
    assert _found(rig, "r2") == [b"c"]
    rig.broker.replace_rights(Rights.OPEN)
    assert _found(rig, "r3") == [b"b", b"c"]


def test_it_is_an_option(tmp_path: Path) -> None:
    """Without it what was published once stays published."""
    rig = _rig(tmp_path, NOT_BOB, checks=False)
    rig.broker.replace_rights(Rights.OPEN)
    _retain(rig, "bob", "b")
    rig.broker.replace_rights(NOT_BOB)
    assert _found(rig, "r") == [b"b"]


@pytest.mark.parametrize("of", ["log", "view"])
def test_a_restart_knows_who_published_it(tmp_path: Path, of: str) -> None:
    """Also of wills, and where the publisher's session has ended; one that replaces it counts from then on."""
    rig = _rig(tmp_path)
    dying = rig.client("dying", username="bob", password=b"x", will=Will("w", b"w", qos=1, retain=True))
    dying.drop()
    rig.settle()
    _retain(rig, "bob", "b")
    _retain(rig, "bob", "taken")
    _retain(rig, "carl", "taken")
    rig.settle()
    if of == "view":
        rows, _ = rig.state.view.changes()
        state = BrokerState.restore(NODE, rows.items())
    else:
        state = BrokerState(NODE)
        for fact in read(tmp_path, NODE):
            state.apply(fact)
    rig.close()
    assert state.retained.sources == {"w": "bob", "b": "bob", "taken": "carl"}
    again = _rig(tmp_path, NOT_BOB, state=state)
    assert _found(again, "r") == [b"taken"]
