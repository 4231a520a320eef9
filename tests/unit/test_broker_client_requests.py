"""What operators ask about clients: pages that are bounded, and nothing for those who have no right to ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from broker_rig import Peer, Rig
from guarded_rig import connect, subscribe

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.topic_rights import Action, Rights, Rule
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, Disconnect, Puback, Publish
from whimbrel.mqtt.properties import Properties, Property

OPERATE = Rights(
    [Rule(topics=("$whimbrel/clients/#",), actions=frozenset({Action.OPERATE}), is_allowing=True, user="op")]
)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker whose operator is op."""
    return Rig(tmp_path, authorizer=Authorizer(OPERATE), verify=lambda _user, _password: True)


def _ask(rig: Rig, peer: Peer, verb: str, **members: object) -> dict[str, Any]:
    properties = Properties({Property.RESPONSE_TOPIC: "answer"}) if peer.version == V5 else Properties()
    peer.send(
        Publish(
            f"$whimbrel/clients/{verb}",
            json.dumps({"id": 7, **members}).encode(),
            1,
            packet_id=9,
            properties=properties,
        )
    )
    rig.settle()
    rig.flush()
    inbox = peer.take()
    assert [type(each) for each in inbox if not isinstance(each, Publish)] == [Puback]
    (answer,) = [json.loads(each.payload) for each in inbox if isinstance(each, Publish)]
    assert (answer.pop("request"), answer.pop("id")) == (verb, 7)
    return dict(answer)


def test_pages_have_every_client_once_by_name(rig: Rig) -> None:
    """Also those that are away; a page says where the next begins."""
    operator = connect(rig, "console", "op")
    for number in range(25):
        connect(rig, f"lamp-{number:02}", "ann", expiry_s=60)
    connect(rig, "away", "bob", expiry_s=60).drop()
    found, pages = list[str](), 0
    after: str | None = ""
    while after is not None:
        answer = _ask(rig, operator, "list", after=after, most=10)
        assert answer["ok"]
        found += [each["client"] for each in answer["clients"]]
        after, pages = answer["next"], pages + 1
    assert found == sorted(["console", "away", *(f"lamp-{number:02}" for number in range(25))])
    assert pages == 3
    connected = _ask(rig, operator, "list", connected=True)["clients"]
    assert len(connected) == 26
    assert connected[1] == {
        "client": "lamp-00", "user": "ann", "connected": True, "address": "test", "subscriptions": 0, "held": 0,
    }  # fmt: skip


def test_a_page_is_bounded_in_bytes_too(rig: Rig) -> None:
    """Whatever clients call themselves."""
    operator = connect(rig, "console", "op")
    for number in range(300):
        connect(rig, f"{number:03}" + "é" * 120, "ann")
    answer = _ask(rig, operator, "list", most=1_000)
    assert len(json.dumps(answer, ensure_ascii=False).encode()) < 80_000
    assert answer["next"] == answer["clients"][-1]["client"]
    rest = _ask(rig, operator, "list", most=1_000, after=answer["next"])
    assert len(answer["clients"]) + len(rest["clients"]) == 301


def test_a_client_is_shown_with_what_it_subscribes_to(rig: Rig) -> None:
    """And no key, of which there are only hashes."""
    operator, lamp = connect(rig, "console", "op"), connect(rig, "lamp", "ann", expiry_s=60)
    subscribe(rig, lamp, "a/#", qos=1)
    shown = _ask(rig, operator, "show", client="lamp")
    assert (shown["user"], shown["connection"]["mqtt"], shown["session_expiry_s"]) == ("ann", "5", 60)
    assert [each["topic"] for each in shown["filters"]] == ["a/#"]
    lamp.drop()
    assert _ask(rig, operator, "show", client="lamp")["connection"] is None


def test_a_client_is_disconnected_and_may_come_back(rig: Rig) -> None:
    """Its session stays."""
    operator, lamp = connect(rig, "console", "op"), connect(rig, "lamp", "ann", expiry_s=60)
    assert _ask(rig, operator, "disconnect", client="lamp") == {"ok": True, "client": "lamp", "disconnected": True}
    (goodbye,) = lamp.taken(Disconnect)
    assert goodbye.code == ReasonCode.ADMINISTRATIVE_ACTION
    assert _ask(rig, operator, "disconnect", client="lamp")["disconnected"] is False
    connect(rig, "lamp", "ann", expiry_s=60)


def test_who_may_not_ask_learns_nothing(rig: Rig) -> None:
    """Neither who is there nor which requests there are; and nothing happens."""
    eve, lamp = connect(rig, "eve", "eve"), connect(rig, "lamp", "ann")
    answers = [
        _ask(rig, eve, verb, client=name) for verb in ("list", "show", "disconnect", "x") for name in ("lamp", "?")
    ]
    assert {json.dumps(each) for each in answers} == {
        json.dumps(
            {"ok": False, "code": 0x87, "reason": "this needs a user with the right operate for $whimbrel/clients/#"}
        )
    }
    assert not lamp.is_closed


@pytest.mark.parametrize(
    ("verb", "members", "named"),
    [
        ("show", {}, "client"), ("show", {"client": 7}, "client is int"), ("list", {"most": 0}, "1 to 1000"),
        ("list", {"most": True}, "most is bool"), ("list", {"password": "secret"}, "a member 'password'"),
        ("ban", {"client": "x"}, "there are list, show, disconnect"), ("show", {"client": "nobody"}, "no client has"),
        ("show", {"client": "x" * 5_000}, "4096 bytes"),
    ],
)  # fmt: skip
def test_a_request_that_is_none_is_refused_with_the_reason(
    rig: Rig, verb: str, members: dict[str, object], named: str
) -> None:
    """It names what was found and what is allowed, and no value."""
    operator = connect(rig, "console", "op")
    operator.send(
        Publish(f"$whimbrel/clients/{verb}", json.dumps(members).encode(), 1, packet_id=9,
                properties=Properties({Property.RESPONSE_TOPIC: "answer"}))
    )  # fmt: skip
    rig.settle()
    answer = next(json.loads(each.payload) for each in operator.take() if isinstance(each, Publish))
    assert answer["ok"] is False
    assert named in answer["reason"]
    assert "secret" not in answer["reason"]
