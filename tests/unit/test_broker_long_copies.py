"""Long copies, and many at once: they reach a client that reads, whether or not policies decide about them first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import Peer, Rig, publishing, subscribing

from whimbrel.broker.settings.config import Config, LimitSettings
from whimbrel.broker.wire.clients import LiveClient
from whimbrel.mqtt.packets import Puback, Publish, Pubrec
from whimbrel.mqtt.properties import Properties, Property

BOUND = 65_536
BODY = bytes(2_000)
MANY = 90
"""Three times what may wait."""
_SAME, _OTHER = "return m;", "m.seen = 1; return m;"
_JSON = Properties({Property.CONTENT_TYPE: "application/json"})


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker that lets little wait for a client."""
    return Rig(tmp_path, replace(Config(), limits=LimitSettings(send_buffer_bytes=BOUND)))


def _reader(rig: Rig, policy: str | None, *wanted: str, qos: int = 0, expiry_s: int = 0) -> Peer:
    """Return a subscriber for which a policy decides, unless there is none."""
    reader = rig.client("reader", clean=not expiry_s, expiry_s=expiry_s)
    if policy is not None:
        reader.send(Publish("$whimbrel/policy/p", policy.encode()), Publish("$whimbrel/policy", b"p"))
    reader.send(subscribing(*(wanted or ("a",)), qos=qos))
    rig.settle()
    reader.take()
    return reader


def _client(reader: Peer) -> LiveClient:
    client = reader.link.client
    assert client is not None
    assert client.live_bytes == sum(len(out.message.record) for out in client.live)
    return client


@pytest.mark.parametrize("policy", [None, _SAME, _OTHER])
@pytest.mark.parametrize("times", [0.9, 1.2, 3])
def test_a_copy_longer_than_the_buffer_reaches_a_client_that_reads(rig: Rig, policy: str | None, times: float) -> None:
    """It was dropped where a policy was to decide about it first, on a link on which nothing else was."""
    reader, publisher = _reader(rig, policy), rig.client("publisher")
    body = bytes(int(times * BOUND))
    for _ in range(2):
        publisher.send(publishing("a", body))
        rig.settle()
        assert reader.payloads() == [body]
    assert (rig.broker.counters.dropped, reader.is_closed) == (0, False)


@pytest.mark.parametrize("policy", [None, _SAME])
def test_what_a_body_says_does_not_count_twice_against_it(rig: Rig, policy: str | None) -> None:
    """Its record has the members of its JSON as attributes beside the body, and so is twice as long."""
    reader, publisher = _reader(rig, policy), rig.client("publisher")
    body = json.dumps({"ecg": "x" * int(0.6 * BOUND)}).encode()
    publisher.send(Publish("a", body, properties=_JSON))
    rig.settle()
    assert reader.payloads() == [body]


@pytest.mark.parametrize("policy", [None, _SAME])
def test_what_fills_the_buffer_and_what_may_wait_beside_it_are_both_sent(rig: Rig, policy: str | None) -> None:
    """What came in one turn waits for policies to decide; that a client reads slowly does not follow."""
    reader, publisher = _reader(rig, policy), rig.client("publisher")
    bodies = [b"%06d" % number + BODY for number in range(MANY // 2)]
    publisher.send(*(publishing("a", body) for body in bodies))
    rig.settle()
    assert reader.payloads() == bodies


@pytest.mark.parametrize("policy", [None, _SAME])
def test_a_backlog_at_qos_1_takes_no_room_from_qos_0(rig: Rig, policy: str | None) -> None:
    """The window is full and much is held: QoS 0 needs no acknowledgement, and the connection has room."""
    reader = _reader(rig, policy, "a", qos=1, expiry_s=600)
    reader.link.machine.receive_maximum = 1
    publisher = rig.client("publisher")
    for number in range(MANY):
        publisher.send(publishing("a", BODY, 1, number + 1))
        rig.settle()
    assert reader.payloads() == [BODY]
    assert _client(reader).queued_bytes > BOUND
    publisher.send(publishing("a", b"now"), publishing("a", b"and now"))
    rig.settle()
    assert reader.payloads() == [b"now", b"and now"]


@pytest.mark.parametrize("policy", [None, _SAME])
def test_for_a_client_that_does_not_read_no_more_waits_than_may(rig: Rig, policy: str | None) -> None:
    """The bound is that of what really waits; all else is dropped and counted, with a policy and without one."""
    reader, publisher = _reader(rig, policy), rig.client("publisher")
    rig.broker.set_choked(reader.link, rig.now, is_choked=True)
    for _ in range(MANY):
        publisher.send(publishing("a", BODY))
        rig.settle()
    assert BOUND - 2 * len(BODY) < _client(reader).queued_bytes <= BOUND
    assert _client(reader).sent + rig.broker.counters.dropped >= MANY
    publisher.send(publishing("a", bytes(2 * BOUND)))
    rig.settle()
    assert _client(reader).queued_bytes <= BOUND


def test_what_waits_for_its_decision_is_bounded(rig: Rig) -> None:
    """The buffer's room and as much again, and what is beyond that is dropped before policies are asked."""
    reader, publisher = _reader(rig, _SAME), rig.client("publisher")
    for _ in range(MANY):
        publisher.send(publishing("a", BODY))
    assert 2 * BOUND - 2 * len(BODY) < _client(reader).queued_bytes <= 2 * BOUND
    assert rig.broker.counters.dropped > 0
    rig.broker.set_choked(reader.link, rig.now, is_choked=True)  # it has no room when its turn comes
    rig.work()
    assert _client(reader).queued_bytes <= BOUND


@pytest.mark.parametrize("policy", [None, _SAME])
def test_where_memory_is_full_a_client_that_reads_has_the_next_copy(rig: Rig, policy: str | None) -> None:
    """Policies silenced a device as long as memory was full: everything for it was dropped before it was decided."""
    reader, publisher = _reader(rig, policy), rig.client("publisher")
    rig.broker.memory.counted += rig.broker.config.limits.memory_bytes
    assert not rig.broker.memory.has_room()
    for body in (b"one", b"two"):
        publisher.send(publishing("a", body))
        rig.work()
        assert reader.payloads() == [body]
    rig.broker.set_choked(reader.link, rig.now, is_choked=True)
    publisher.send(publishing("a", b"three"))
    rig.work()
    assert not _client(reader).queued_bytes


@pytest.mark.parametrize("policy", [None, _SAME])
def test_one_long_copy_at_qos_1_ends_no_connection(rig: Rig, policy: str | None) -> None:
    """A client without a lasting session was cut off: before it had the copy where a policy decides, and behind it."""
    reader, publisher = _reader(rig, policy, qos=1), rig.client("publisher")
    body = bytes(3 * BOUND)
    for number in (1, 2):
        publisher.send(publishing("a", body, 1, number))
        rig.settle()
        (copy,) = reader.taken(Publish)
        assert copy.payload == body
        reader.send(Puback(copy.packet_id))
        rig.settle()
    assert not reader.is_closed
    for number in (3, 4):  # and one that acknowledges nothing is cut off as before
        publisher.send(publishing("a", body, 1, number))
    rig.settle()
    assert reader.is_closed


def test_what_is_decided_and_waits_for_fsync_takes_room(rig: Rig) -> None:
    """At QoS 2 a decision is fsynced before its bytes leave: a slow disk gathered every copy that there was."""
    reader, publisher = _reader(rig, _SAME, qos=2, expiry_s=600), rig.client("publisher")
    body, many = bytes(8_000), 30  # as many as may be in flight at QoS 2
    for number in range(many):
        publisher.send(publishing("a", body, 2, number + 1))
    rig.sync()  # they are accepted, and handed over,
    rig.work()  # and decided about: nothing of that is fsynced
    assert not reader.payloads()
    waiting = reader.link.unsent_bytes
    assert BOUND - len(body) < waiting <= BOUND + len(body)
    seen = []
    for _ in range(many):
        rig.settle()
        found = reader.taken(Publish)
        seen += [each.payload for each in found]
        reader.send(*(Pubrec(each.packet_id) for each in found))
        if not found:
            break
    assert seen == [body] * many
    assert reader.link.unsent_bytes == 0


def test_what_a_client_takes_none_of_gives_its_room_back(rig: Rig) -> None:
    """Copies longer than the client's packets are dropped once they are fsynced; nothing is written that would tell."""
    reader = rig.client("reader", expiry_s=600, options={Property.MAXIMUM_PACKET_SIZE: 4_000})
    publisher = rig.client("publisher")
    reader.send(Publish("$whimbrel/policy/p", _SAME.encode()), Publish("$whimbrel/policy", b"p"))
    reader.send(subscribing("a", qos=2))
    rig.settle()
    reader.take()
    for number in range(20):
        publisher.send(publishing("a", bytes(8_000), 2, number + 1))
    publisher.send(publishing("a", b"short", 2, 21))
    rig.settle()
    assert reader.payloads() == [b"short"]
