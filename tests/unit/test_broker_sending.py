"""Sending: how much may wait for one client, what waits its turn, and what is dropped and counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import Peer, Rig, publishing, subscribing

from whimbrel.broker.settings.config import Config, LimitSettings
from whimbrel.broker.wire.gate import has_room
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, V311, Connect, Pingreq, Pingresp, Puback, Publish, Suback
from whimbrel.mqtt.properties import Properties, Property

BOUND = 65_536
BODY = bytes(2_000)
MANY = 90
"""Three times what may wait."""


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker that lets little wait for a client."""
    return Rig(tmp_path, replace(Config(), limits=LimitSettings(send_buffer_bytes=BOUND)))


def _returning(version: int) -> bytes:
    return encode(Connect("keeper", clean_start=False, version=version), version)


def test_a_sender_fills_the_buffer_to_its_bound_and_goes_on(tmp_path: Path) -> None:
    """A client of 3.1.1 has no receive maximum: what is held for it must not all stand in memory twice."""
    rig = Rig(tmp_path, replace(Config(), limits=LimitSettings(send_buffer_bytes=BOUND)))
    keeper = rig.client("keeper", version=V311, clean=False)
    keeper.send(subscribing("a", qos=1))
    rig.settle()
    keeper.drop()
    publisher = rig.client("publisher", version=V311)
    for number in range(MANY):
        publisher.send(publishing("a", b"%06d" % number + BODY, 1, number + 1))
    rig.settle()
    back = Peer(rig, V311)
    rig.broker.receive(back.link, _returning(V311), rig.now)
    rig.broker.on_sync(rig.log.sync())
    assert BOUND <= sum(map(len, back.link.out)) < BOUND + 2 * len(BODY)
    assert not has_room(back.link)
    rig.flush()
    assert [int(packet.payload[:6]) for packet in back.taken(Publish)] == list(range(MANY))
    assert has_room(back.link)


def test_what_can_wait_waits_for_a_client_that_does_not_read(rig: Rig) -> None:
    """QoS 1 goes on when the client reads again, in order; answers are sent all the while."""
    reader, publisher = rig.subscriber("reader", "a", qos=1), rig.client("publisher")
    rig.broker.set_choked(reader.link, rig.now, is_choked=True)
    for number in range(5):
        publisher.send(publishing("a", b"%d" % number, 1, number + 1))
    assert reader.tell(Pingreq()) == [Pingresp()]
    assert len(publisher.taken(Puback)) == 5
    rig.broker.set_choked(reader.link, rig.now, is_choked=False)
    rig.flush()
    assert reader.payloads() == [b"0", b"1", b"2", b"3", b"4"]
    assert rig.broker.counters.dropped == 0


def test_qos_0_waits_up_to_the_bound_and_is_dropped_and_counted_beyond_it(rig: Rig) -> None:
    """What was not written was not sent: all that was published is either sent in order or counted."""
    reader, other = rig.subscriber("reader", "a"), rig.subscriber("other", "#")
    publisher = rig.client("publisher")
    rig.broker.set_choked(reader.link, rig.now, is_choked=True)
    for number in range(MANY):
        publisher.send(publishing("a", b"%06d" % number + BODY))
    assert reader.payloads() == []
    assert len(other.payloads()) == MANY
    dropped = rig.broker.counters.dropped
    assert 0 < dropped < MANY
    rig.broker.set_choked(reader.link, rig.now, is_choked=False)
    rig.flush()
    assert [int(payload[:6]) for payload in reader.payloads()] == list(range(MANY - dropped))
    publisher.send(publishing("a", b"again"))
    assert reader.payloads() == [b"again"]
    assert rig.broker.counters.dropped == dropped


def test_what_comes_does_not_overtake_what_waits_for_room(rig: Rig) -> None:
    """There is room for some of it at a time; QoS 0 keeps its order all the same."""
    reader, publisher = rig.subscriber("reader", "a"), rig.client("publisher")
    rig.broker.set_choked(reader.link, rig.now, is_choked=True)
    for number in range(30):
        publisher.send(publishing("a", b"%06d" % number + BODY))
    reader.link.is_choked = False
    rig.broker.on_bytes_written(reader.link, BOUND - 5 * len(BODY), rig.now)
    rig.broker.receive(publisher.link, encode(publishing("a", b"000030"), V5), rig.now)
    rig.flush()
    assert [int(payload[:6]) for payload in reader.payloads()] == list(range(31))


def test_what_one_turn_has_for_a_client_is_bounded_too(rig: Rig) -> None:
    """An alias of three bytes stands for a topic of thousands: a little that comes may be much to send."""
    reader, publisher = rig.subscriber("reader", "#"), rig.client("publisher")
    alias, count = Properties({Property.TOPIC_ALIAS: 1}), 3 * MANY
    named = encode(Publish("a" * len(BODY), properties=alias), V5)
    packets = named + encode(Publish("", properties=alias), V5) * (count - 1)
    rig.broker.receive(publisher.link, packets, rig.now)
    assert BOUND <= sum(map(len, reader.link.out)) < BOUND + 3 * len(BODY)
    dropped = rig.broker.counters.dropped
    assert dropped > 0
    rig.flush()
    assert len(reader.payloads()) == count - dropped


def test_nothing_is_sent_behind_a_disconnect(rig: Rig) -> None:
    """DISCONNECT is the last word (3.14.4); a copy behind it is neither sent nor dropped."""
    reader, publisher = rig.subscriber("reader", "a"), rig.client("publisher")
    rig.broker.drain()
    assert not has_room(reader.link)
    rig.broker._publish(publisher.link, [publishing("a", b"late")], rig.now)
    rig.flush()
    assert reader.payloads() == []
    assert rig.broker.counters.dropped == 0


# -- retained messages -------------------------------------------------------------------------------------------------


def _retain(rig: Rig, qos: int) -> None:
    publisher = rig.client("retainer", version=V311)
    for number in range(MANY):
        publisher.send(publishing(f"r/{number:06}", BODY, qos, number + 1 if qos else 0, retain=True))
    rig.settle()
    publisher.drop()


@pytest.mark.parametrize("qos", [0, 1])
def test_everything_retained_arrives_however_much_it_is(rig: Rig, qos: int) -> None:
    """It is kept, so it can wait, at QoS 0 too; and whoever subscribes to much of it is not a slow reader."""
    _retain(rig, qos)
    reader, publisher = rig.client("reader", version=V311), rig.client("publisher", version=V311)
    reader.send(subscribing("#", qos=qos))
    publisher.send(publishing("live", b"x", 1, 1))
    rig.settle()
    assert not reader.is_closed
    found = reader.taken(Publish)
    assert sorted(packet.topic for packet in found if packet.retain) == [f"r/{number:06}" for number in range(MANY)]
    assert rig.broker.counters.dropped == 0


@pytest.mark.parametrize("qos", [0, 1])
def test_who_subscribes_again_does_not_let_twice_as_much_wait(rig: Rig, qos: int) -> None:
    """Else a client that does not read could fill the memory with SUBSCRIBE alone."""
    _retain(rig, qos)
    reader = rig.client("reader", version=V311)
    rig.broker.set_choked(reader.link, rig.now, is_choked=True)
    for packet_id in range(1, 20):
        reader.send(subscribing("#", qos=qos, packet_id=packet_id))
    assert reader.link.client is not None
    assert len(reader.link.client.queue) == MANY
    assert len(reader.taken(Suback)) == 19


def test_what_waits_and_is_replaced_is_not_sent_after_what_replaced_it(rig: Rig) -> None:
    """An older value behind a newer one would be taken for the newest."""
    _retain(rig, 0)
    reader, publisher = rig.client("reader", version=V311), rig.client("publisher", version=V311)
    rig.broker.set_choked(reader.link, rig.now, is_choked=True)
    reader.send(subscribing("r/#"))
    publisher.send(publishing("r/000007", b"new", retain=True))
    rig.broker.set_choked(reader.link, rig.now, is_choked=False)
    rig.flush()
    found = reader.taken(Publish)
    assert [packet.payload for packet in found if packet.topic == "r/000007"] == [b"new"]
    assert (len(found), rig.broker.counters.dropped) == (MANY, 0)


@pytest.mark.parametrize("granted", [0, 1])
@pytest.mark.parametrize("is_waiting", [False, True], ids=["at once", "behind the disk"])
def test_what_may_expire_is_not_overtaken(rig: Rig, *, granted: int, is_waiting: bool) -> None:
    """One topic, one publisher, one QoS: in order, though a copy that may expire has a receipt [MQTT-4.6.0-6]."""
    reader, publisher = rig.subscriber("reader", "a", qos=granted), rig.client("publisher")
    if is_waiting:
        publisher.send(publishing("kept", b"first", 1, 1, retain=True))  # what comes now waits behind it
    expiring = Publish("a", b"1", properties=Properties({Property.MESSAGE_EXPIRY_INTERVAL: 60}))
    publisher.send(expiring, publishing("a", b"2"), expiring._replace(payload=b"3"), publishing("a", b"4"))
    rig.settle()
    assert reader.payloads() == [b"1", b"2", b"3", b"4"]
