"""The log lines of clients: one each, with who and why, and never more than the disk can bear."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import QUICK, Rig, publishing, subscribing
from guarded_rig import connect

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.topic_rights import Action, Rights, Rule
from whimbrel.broker.settings.config import AccessSettings, LimitSettings
from whimbrel.broker.wire.clients import Link
from whimbrel.broker.wire.events import Event, EventLine, EventLines
from whimbrel.mqtt.packets import V5, V311, Disconnect
from whimbrel.mqtt.server import ServerConnection, ServerLimits

SECOND_US = 1_000_000
DENIED = Rights([Rule(topics=("no/#",), actions=frozenset({Action.PUBLISH}), is_allowing=False)])
WITH_USERS = replace(QUICK, access=AccessSettings(users="users"), limits=LimitSettings(subscriptions_per_session=1))


def _lines(rig: Rig) -> list[EventLine]:
    rig.settle()
    rig.flush()
    return rig.broker.events.take(rig.now)


def _link(address: str = "('192.0.2.7', 4711)") -> Link:
    return Link(ServerConnection(ServerLimits()), None, address, verified_user=None)


def test_a_client_that_comes_and_goes_has_two_lines(tmp_path: Path) -> None:
    """With its user and address, and why it went."""
    rig = Rig(tmp_path, WITH_USERS, verify=lambda _user, _password: True)
    ann = connect(rig, "lamp", "ann")
    (line,) = _lines(rig)
    assert line == (
        "info",
        "connected",
        {"client": "lamp", "user": "ann", "address": "test", "mqtt": "5", "resumed": False},
    )
    ann.send(Disconnect())
    (line,) = _lines(rig)
    assert (line.text, line.values["reason"]) == ("disconnected", "it said goodbye")
    connect(rig, "lamp", "ann").drop()
    assert [(each.text, each.values.get("reason")) for each in _lines(rig)] == [
        ("connected", None), ("disconnected", "the peer closed it"),
    ]  # fmt: skip


def test_a_takeover_is_one_line(tmp_path: Path) -> None:
    """It is not a disconnection besides."""
    rig = Rig(tmp_path)
    rig.client("lamp")
    rig.client("lamp")
    assert [line.text for line in _lines(rig)] == ["connected", "taken over", "connected"]


def test_a_refused_connection_says_who_claimed_to_come(tmp_path: Path) -> None:
    """And with which code and reason."""
    rig = Rig(tmp_path, WITH_USERS, verify=lambda _user, _password: False)
    rig.connecting("lamp", username="eve", password=b"guess")
    (line,) = _lines(rig)
    reason = "wrong user name or password"
    values = {"client": "lamp", "user": "eve", "address": "test", "code": "0x86", "reason": reason}
    assert line == ("warning", "connection refused", values)


@pytest.mark.parametrize("version", [V5, V311])
def test_a_bad_filter_is_named_with_its_position(tmp_path: Path, version: int) -> None:
    """An operator finds the device whose filter has a typing error, and the error."""
    rig = Rig(tmp_path)
    client = rig.client("lamp", version=version)
    if version == V5:
        client.send(subscribing("a/b", filter="x == == 1"))
    else:
        client.send(subscribing(f"$filter/{urlsafe_b64encode(b'x == == 1').decode().rstrip('=')}/a/b"))
    line = _lines(rig)[1]
    assert (line.level, line.text, line.values["client"]) == ("info", "subscription refused", "lamp")
    assert "line 1, column " in str(line.values["reason"])


def test_quotas_are_warnings_and_refusals_are_not(tmp_path: Path) -> None:
    """A client that may not publish is its own business; one that needs more than there is, is the operator's."""
    rig = Rig(tmp_path, WITH_USERS, authorizer=Authorizer(DENIED), verify=lambda _user, _password: True)
    ann = connect(rig, "lamp", "ann")
    ann.send(publishing("no/way", b"the body", qos=1, packet_id=1), subscribing("a"), subscribing("b", packet_id=2))
    refused, quota = _lines(rig)[1:]
    assert (refused.level, refused.text, refused.values["topic"]) == ("info", "publication refused", "no/way")
    assert (quota.level, quota.text, quota.values["refused"]) == ("warning", "quota exceeded", "subscription")
    assert quota.values["user"] == "ann"
    assert "the body" not in str(refused)


def test_a_flood_of_one_kind_is_bounded_and_counted() -> None:
    """An attacker cannot fill the disk, hides no other kind, and how much was left out is written."""
    lines, link = EventLines(2), _link()
    for _ in range(1_000):
        lines.note(Event.CONNECTION_REFUSED, link, 0, reason="x")
    lines.note(Event.CONNECTED, link, 0)
    found = lines.take(0)
    assert len(found) == 21
    assert found[0].values["address"] == "192.0.2.7:4711"
    assert lines
    assert lines.take(SECOND_US // 2) == [("warning", "connection refused", {"left_out": 980})]
    assert not lines
    written = 0
    for step in range(100):
        for _ in range(1_000):
            lines.note(Event.CONNECTION_REFUSED, link, SECOND_US + step * SECOND_US, reason="x")
        written += len(lines.take(SECOND_US + step * SECOND_US))
    assert written <= 2 * 101


def test_what_a_client_sends_makes_no_long_line() -> None:
    """Names of 64 KiB are cut, and addresses of IPv6 have brackets."""
    lines = EventLines()
    lines.refuse(Event.CONNECTION_REFUSED, _link("('2001:db8::1', 5, 0, 0)"), 0, 0x86, "r" * 70_000, user="u" * 70_000)
    (line,) = lines.take(0)
    assert max(len(str(value)) for value in line.values.values()) == 200
    assert line.values["address"] == "[2001:db8::1]:5"
