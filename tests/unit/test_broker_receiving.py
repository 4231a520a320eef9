"""Rights decide every delivery, whatever was subscribed to when they were others."""

from __future__ import annotations

from pathlib import Path

import pytest
from guarded_rig import allowing, connect, denying, guarded, publish, received, subscribe

from whimbrel.mqtt.packets import Will


@pytest.mark.parametrize("qos", [0, 1])
def test_what_may_not_be_received_any_more_is_not_delivered_live(tmp_path: Path, qos: int) -> None:
    """Rights without a denial were once asked only when a client subscribed."""
    rig = guarded(tmp_path, allowing(ann="a b"))
    ann, other = connect(rig, "pda", "ann"), connect(rig, "other", "bob")
    assert subscribe(rig, ann, "a", "b", qos=qos) == (qos, qos)
    rig.broker.replace_rights(allowing(ann="b"))
    publish(rig, other, "a", b"kept back", qos)
    publish(rig, other, "b", b"allowed", qos)
    assert received(rig, ann) == [b"allowed"]


def test_what_was_held_and_may_not_be_received_any_more_is_not_delivered(tmp_path: Path) -> None:
    """Rights of the moment of delivery decide, not those of the moment it was held."""
    rig = guarded(tmp_path, allowing(ann="a b"))
    ann, other = connect(rig, "pda", "ann", expiry_s=60), connect(rig, "other", "bob")
    subscribe(rig, ann, "a", "b", qos=1)
    ann.drop()
    publish(rig, other, "a", b"kept back")
    publish(rig, other, "b", b"allowed")
    rig.broker.replace_rights(allowing(ann="b"))
    assert received(rig, connect(rig, "pda", "ann", expiry_s=60, clean=False)) == [b"allowed"]


def test_in_a_named_session_rights_keep_a_copy_from_one_device_and_from_no_other(tmp_path: Path) -> None:
    """Whoever may change the session's subscriptions does not widen the rights of the others."""
    rig = guarded(tmp_path, allowing(ann="# $whimbrel/#", bob="open $whimbrel/#"))
    ann, bob = connect(rig, "laptop", "ann"), connect(rig, "pda", "bob")
    assert ann.ask("create", session="ward", list={"owner": "ann", "users": {"bob": ["join"]}})["ok"]
    assert ann.ask("join", session="ward")["ok"]
    assert bob.ask("join", session="ward")["ok"]
    assert ann.ask("subscribe", session="ward", topic="#")["ok"]
    ann.ask("leave", session="ward")
    publisher = connect(rig, "other", "carl")
    publish(rig, publisher, "secret", b"1")
    publish(rig, publisher, "open", b"2")
    assert received(rig, bob) == [b"2"]
    assert ann.ask("join", session="ward")["ok"]
    assert received(rig, ann) == [b"1"]


def test_retained_messages_and_wills_are_deliveries(tmp_path: Path) -> None:
    """However a message comes to a subscriber, its rights decide."""
    rig = guarded(tmp_path, denying(ann="secret/#"))
    other = connect(rig, "other", "bob")
    publish(rig, other, "secret/kept", b"retained", retain=True)
    publish(rig, other, "open/kept", b"open", retain=True)
    ann = connect(rig, "pda", "ann")
    subscribe(rig, ann, "#", qos=1)
    assert received(rig, ann) == [b"open"]
    for topic in ("secret/will", "open/will"):
        leaving = rig.client("leaving", will=Will(topic, topic.encode(), 1), username="bob", password=b"x")
        leaving.drop()
        rig.settle()
    assert received(rig, ann) == [b"open/will"]


def test_what_the_broker_says_of_itself_is_a_delivery(tmp_path: Path) -> None:
    """$SYS is guarded by rights as any topic is."""
    rig = guarded(tmp_path, allowing(ann="$SYS/#"))
    ann = connect(rig, "pda", "ann")
    subscribe(rig, ann, "$SYS/#")
    rig.broker.tell_system({"$SYS/a": "1"}, rig.now)
    rig.flush()
    assert received(rig, ann) == [b"1"]
    rig.broker.replace_rights(allowing())
    rig.broker.tell_system({"$SYS/a": "2"}, rig.now)
    rig.flush()
    assert received(rig, ann) == []


def test_a_share_of_what_is_denied_in_part_is_refused(tmp_path: Path) -> None:
    """A member that may not have all of it would lose messages that the others may have."""
    rig = guarded(tmp_path, denying(ann="secret/#"))
    ann = connect(rig, "pda", "ann")
    assert subscribe(rig, ann, "$share/g/#") == (0x80,)
    assert subscribe(rig, ann, "$share/g/open/#") == (0,)


def test_rights_that_were_taken_away_end_a_share(tmp_path: Path) -> None:
    """The others of the share get everything from then on."""
    rig = guarded(tmp_path, allowing(ann="jobs", bob="jobs"))
    ann, bob, other = connect(rig, "a", "ann", expiry_s=60), connect(rig, "b", "bob"), connect(rig, "other", "carl")
    for each in (ann, bob):
        assert subscribe(rig, each, "$share/g/jobs", qos=1) == (1,)
    rig.broker.replace_rights(allowing(bob="jobs"))
    rig.settle()
    for number in range(4):
        publish(rig, other, "jobs", str(number).encode())
    assert received(rig, ann) == []
    assert received(rig, bob) == [b"0", b"1", b"2", b"3"]
