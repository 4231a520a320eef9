"""Lists of policies and sessions: pages in order, rows that count as work, and one short piece a turn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ANSWERS, Peer, Rig, asking, publishing, quick_scrypt

from whimbrel.broker.settings.config import Config, LimitSettings
from whimbrel.mqtt.packets import Pingreq, Pingresp, Publish
from whimbrel.mqtt.properties import Properties, Property

QUOTA_EXCEEDED, REFUSED = 0x97, 0x99
POLICY = "if (device.Battery < 0.5) { return NULL; } return m;"


@pytest.fixture(autouse=True)
def _quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let passwords cost nothing."""
    monkeypatch.setattr("whimbrel.broker.access.passwords._scrypt", quick_scrypt)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with all defaults."""
    return Rig(tmp_path)


def _request(**members: Any) -> Publish:
    properties = Properties({Property.RESPONSE_TOPIC: ANSWERS})
    return Publish("$whimbrel/policy", json.dumps(members).encode(), 0, properties=properties)


def _ask(rig: Rig, peer: Peer, **members: Any) -> dict[str, Any]:
    """Ask about policies, and return the answer."""
    peer.send(_request(**members))
    rig.settle()
    (answer,) = peer.answers()
    return answer


def _put(rig: Rig, peer: Peer, *names: str) -> None:
    for name in names:
        peer.send(publishing(f"$whimbrel/policy/{name}", POLICY.encode()))
        rig.settle()


def _names(answer: dict[str, Any]) -> list[str]:
    return [each["policy"] for each in answer["policies"]]


def test_policies_are_listed_in_pages(rig: Rig) -> None:
    """Each once, by name, and with how many devices chose it; whatever is put or removed meanwhile."""
    peer = rig.client("peer")
    _put(rig, peer, *(f"p{number}" for number in (4, 1, 3, 2, 5)))
    peer.send(Publish("$whimbrel/policy", b"p3", 0))
    first = _ask(rig, peer, list=True, most=2)
    assert (_names(first), first["next"]) == (["p1", "p2"], "p2")
    peer.send(publishing("$whimbrel/policy/p2", b""))
    _put(rig, peer, "p0", "p2b")
    second = _ask(rig, peer, list=True, most=3, after="p2")
    assert (_names(second), second["next"]) == (["p2b", "p3", "p4"], "p4")
    assert [each["devices"] for each in second["policies"]] == [0, 1, 0]
    last = _ask(rig, peer, list=True, after="p4")
    assert (_names(last), last["next"]) == (["p5"], None)
    assert _names(_ask(rig, peer, list=True)) == ["p0", "p1", "p2b", "p3", "p4", "p5"]
    peer.drop()  # its session ends, and with it what it chose
    assert _ask(rig, rig.client("other"), show="p3")["devices"] == 0


def test_a_client_may_ask_for_its_own_policies(rig: Rig) -> None:
    """Those of a thousand others need not be read for that."""
    ann, ben = rig.client("ann"), rig.client("ben")
    _put(rig, ann, "a1", "a2")
    _put(rig, ben, "b1")
    assert _names(_ask(rig, ann, list=True, own=True)) == ["a1", "a2"]
    assert _names(_ask(rig, ben, list=True, own=True, after="a")) == ["b1"]


@pytest.mark.parametrize("members", [{"most": 0}, {"most": 1_001}, {"most": "1"}, {"after": 1}, {"own": 1}])
def test_a_page_that_there_is_not_is_refused(rig: Rig, members: dict[str, Any]) -> None:
    """With what is allowed."""
    peer = rig.client("peer")
    assert _ask(rig, peer, list=True, **members)["code"] == REFUSED
    if "most" in members:
        assert peer.ask("list", **members)["code"] == REFUSED


def _flood(rig: Rig, request: Publish) -> int:
    """Send 200 requests in one write, and one PINGREQ from another client; return how many were answered first."""
    attacker, other = rig.client("attacker"), rig.client("other")
    attacker.send(*(request for _ in range(200)))
    other.send(Pingreq())
    rig.flush()
    assert other.taken(Pingresp)
    return len(attacker.answers())


def test_many_requests_for_lists_wait_for_turns(rig: Rig) -> None:
    """As it was: all of them were answered in the turn that read them, and with 1,000 policies that took a second."""
    peer = rig.client("peer")
    _put(rig, peer, *(f"p{number}" for number in range(20)))
    for number in range(20):
        peer.ask("create", session=f"s{number}")
        peer.ask("join", session=f"s{number}")
        peer.ask("leave", session=f"s{number}")
    for request in (_request(list=True), asking("list"), asking("show", session="s1")):
        rig_answers = _flood(rig, request)
        assert rig_answers <= 1
        rig.settle()


def test_rows_count_as_work(tmp_path: Path) -> None:
    """A client that asks again and again is refused; a while later it may ask again."""
    limits = replace(LimitSettings(), packet_work=1_000, session_work_per_second=100)
    rig = Rig(tmp_path, replace(Config(), limits=limits))
    peer = rig.client("peer")
    _put(rig, peer, *(f"p{number}" for number in range(20)))
    for request, others in ((_request(list=True), 100), (asking("list"), 1_100)):
        attacker = rig.client("attacker")
        attacker.send(*(request for _ in range(others)))
        rig.settle()
        last = attacker.answers()[-1]
        assert (last["code"], "work" in last["reason"]) == (QUOTA_EXCEEDED, True)
        attacker.drop()
        rig.tick(11)
    assert _ask(rig, rig.client("attacker"), list=True)["ok"]


def test_a_session_is_shown_in_pages(rig: Rig) -> None:
    """Its subscriptions may be ten thousand, and an answer has a thousand rows or 64 KiB."""
    peer = rig.client("peer")
    assert peer.ask("create", session="s")["ok"]
    assert peer.ask("join", session="s")["ok"]
    for number in range(5):
        assert peer.ask("subscribe", session="s", topic=f"t{number}")["ok"]
    first = peer.ask("show", session="s", most=3)
    assert ([each["topic"] for each in first["subscriptions"]], first["next"]) == (["t0", "t1", "t2"], 3)
    assert first["devices"]
    last = peer.ask("show", session="s", most=3, after=3)
    assert ([each["topic"] for each in last["subscriptions"]], last["next"]) == (["t3", "t4"], None)
    assert peer.ask("show", session="s", after=9)["subscriptions"] == []
    large = "x" * 16_000
    for number in range(5):
        assert peer.ask("subscribe", session="s", topic="t", name=f"{number}", filter=f"a == '{large}'")["ok"]
    assert peer.ask("show", session="s", after=5)["next"] == 9


def test_sessions_are_listed_in_pages(rig: Rig) -> None:
    """By name: those that the device is a member of, present or away, and no other."""
    peer, other = rig.client("peer"), rig.client("other")
    for name in ("c", "a", "b", "d", "e"):
        assert other.ask("create", session=name)["ok"]
        assert name == "d" or peer.ask("join", session=name)["ok"]
    peer.ask("leave", session="e")
    first = peer.ask("list", most=2)
    assert ([each["session"] for each in first["sessions"]], first["next"]) == (["a", "b"], "b")
    last = peer.ask("list", after="b")
    assert ([each["session"] for each in last["sessions"]], last["next"]) == (["c"], None)
    assert other.ask("delete", session="c")["ok"]
    peer.drop()
    again = rig.client("peer")
    listed = again.ask("list")["sessions"]
    assert [(each["session"], each["joined"]) for each in listed] == [("a", False), ("b", False)]
