"""Messages that policies read: decoded once for all devices, remembered within bounds, decided several in a turn."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from broker_rig import Peer, Rig, publishing, subscribing

from whimbrel.broker.deliver import read_messages
from whimbrel.broker.deliver.read_messages import ReadMessages
from whimbrel.model.attributes import NO_ATTRIBUTES, Attributes
from whimbrel.mqtt.packets import Publish
from whimbrel.node.publication import KeptNotification
from whimbrel.shape.bodies import digest_of

DEVICES = 20


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker."""
    return Rig(tmp_path)


def doctors(rig: Rig, policy: bytes = b"return m;") -> list[Peer]:
    """Return devices that have chosen one policy."""
    found = [rig.client(f"doctor-{number}") for number in range(DEVICES)]
    found[0].send(Publish("$whimbrel/policy/p", policy))
    rig.settle()
    for each in found:
        each.send(Publish("$whimbrel/policy", b"p"), subscribing("icu/#"))
    rig.settle()
    for each in found:
        each.take()
    return found


@pytest.mark.parametrize("size", [0, 100, 5_000, 5_001, 2 << 20])
def test_a_digest_is_that_of_the_body_however_long(size: int) -> None:
    """It goes into the log, and the pipeline compares it with one of its own."""
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    for _ in range(2):
        assert digest_of(body) == hashlib.sha256(body).digest()


def test_a_message_is_decoded_once_for_all_devices(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture of 100 KB in CBOR takes as long to decode as the decision about it takes."""
    decoded: list[int] = []
    decode = KeptNotification.recorded_attributes

    def counted(message: KeptNotification) -> Attributes:
        decoded.append(message.seq)
        return decode(message)

    monkeypatch.setattr(KeptNotification, "recorded_attributes", counted)
    found, monitor = doctors(rig), rig.client("monitor")
    monitor.send(publishing("icu/1", b"one"), publishing("icu/1", b"two"))
    rig.settle()
    assert [each.payloads() for each in found] == [[b"one", b"two"]] * DEVICES
    assert len(decoded) == 2


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes and in number; the last one is kept whatever its length."""
    monkeypatch.setattr(KeptNotification, "recorded_attributes", lambda _message: NO_ATTRIBUTES)
    monkeypatch.setattr(read_messages, "_MAX_BYTES", 1_000)
    monkeypatch.setattr(read_messages, "_MAX_MESSAGES", 5)

    def message(seq: int, size: int) -> KeptNotification:
        return KeptNotification(seq, None, "icu/1", bytes(size), qos=0, record=b"")

    messages = ReadMessages()
    for seq in range(1, 9):
        messages.read(message(seq, 300))
    assert len(messages) == 3
    for seq in range(10, 20):
        messages.read(message(seq, 1))
    assert len(messages) == 5
    assert messages.read(message(20, 5_000)).arrival.body_bytes == 5_000
    assert len(messages) == 1


def test_another_message_of_the_same_seq_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a policy made of a notification has its seq, too."""
    monkeypatch.setattr(KeptNotification, "recorded_attributes", lambda _message: NO_ATTRIBUTES)
    messages = ReadMessages()
    first, second = (KeptNotification(7, None, "icu/1", body, qos=0, record=b"") for body in (b"one", b"two"))
    assert [messages.read(each).body for each in (first, second, second, first)] == [b"one", b"two", b"two", b"one"]
    assert len(messages) == 1


@pytest.mark.parametrize(("policy", "least", "most"), [("return m;", 2, 4), ("x = 1; " * 1_000 + "return m;", 20, 99)])
def test_cheap_decisions_share_a_turn_and_dear_ones_do_not(rig: Rig, policy: str, least: int, most: int) -> None:
    """What a turn costs besides is shared; and yet no turn is longer than a few decisions, or one that is dear."""
    found, monitor = doctors(rig, policy.encode()), rig.client("monitor")
    monitor.send(publishing("icu/1", json.dumps({"pulse": 70}).encode()))
    turns = rig.work()
    rig.settle()
    assert least <= turns <= most
    assert all(len(each.payloads()) == 1 for each in found)
