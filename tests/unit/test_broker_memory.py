"""Memory: everything that a broker keeps has one limit together, and beyond it nothing new is kept."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import NODE, Peer, Rig, publishing, subscribing

from whimbrel.broker.limits.memory import PENDING_BYTES, Memory
from whimbrel.broker.settings.config import Config, LimitSettings
from whimbrel.broker.shell.metrics import gauges
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.wire.encoded import packet_of
from whimbrel.hold.state import State
from whimbrel.log.reader import read
from whimbrel.model.subscription import Subscription
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import (
    V5,
    V311,
    Connack,
    Connect,
    Disconnect,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Unsubscribe,
    Will,
)
from whimbrel.mqtt.properties import Property
from whimbrel.node.memory import subscription_bytes
from whimbrel.node.publication import KeptNotification

FULL = ReasonCode.QUOTA_EXCEEDED
VERSIONS = pytest.mark.parametrize("version", [V5, V311])


def _limited(folder: Path, memory_bytes: int, **limits: int) -> Rig:
    return Rig(folder, replace(Config(), limits=LimitSettings(memory_bytes=memory_bytes, **limits)))


def _fill(rig: Rig) -> None:
    """Let there be no room from here on."""
    rig.broker.memory.most = max(1, rig.broker.memory.used - 1)


def _codes(packets: Sequence[object]) -> list[int]:
    return [int(each.code) for each in packets if isinstance(each, Puback | Pubrec | Connack)]


def test_a_ledger_decides_by_all_of_it() -> None:
    """The limit is one for all; without one there is always room."""
    memory = Memory(10_000)
    memory.counted = 8_000
    assert memory.has_room(2_000)
    assert not memory.has_room(2_001)
    memory.hold = State()
    memory.hold.pendings = 2
    assert memory.used == 8_000 + 2 * PENDING_BYTES
    assert memory.refusal() is not None
    memory.most = 0
    assert memory.refusal(1 << 60) is None


def test_what_waits_for_a_connection_is_known_at_every_moment() -> None:
    """Incoming and outgoing bytes are parts of the sum."""
    memory = Memory(1_000)
    memory.count_incoming(400)
    memory.set_outgoing(500)
    assert (memory.used, memory.incoming, memory.outgoing) == (900, 400, 500)
    memory.set_outgoing(0)
    memory.count_incoming(-400)
    assert memory.used == 0


def test_it_is_measured_what_waits_before_anything_is_refused() -> None:
    """Bytes that were written may have been read since."""
    memory, looks = Memory(1_000), []

    def measure() -> int:
        looks.append(1)
        return 300

    memory.measure = measure
    memory.count_outgoing(900)
    assert memory.has_room(100)
    assert looks == []
    assert memory.has_room(700)
    assert not memory.has_room(701)
    assert len(looks) == 1, "nothing was written since"


def test_everything_is_counted_and_given_back(tmp_path: Path) -> None:
    """A client, a subscription, held and retained messages and a will: when all is gone, so is what it took."""
    rig = Rig(tmp_path)
    before = rig.broker.memory.used
    sizes = [before]
    sleeper = rig.client("sleeper", expiry_s=60, will=Will("w", bytes(3_000)))
    sleeper.send(subscribing("a/#", qos=1))
    rig.settle()
    sizes.append(rig.broker.memory.used)
    publisher = rig.client("publisher")
    publisher.send(publishing("a/1", bytes(50_000), 1, 1, retain=True))
    rig.settle()
    sizes.append(rig.broker.memory.used)
    assert sizes[1] > sizes[0] + 3_000
    assert sizes[2] > sizes[1] + 100_000, "held and retained"
    assert gauges(rig.broker).memory_bytes == sizes[2]
    publisher.send(publishing("a/1", b"", 1, 2, retain=True), Unsubscribe(3, ("nothing",)))
    publisher.send(Disconnect())
    sleeper.send(Disconnect())
    again = rig.client("sleeper")  # a clean start ends the session
    again.send(Disconnect())
    rig.settle()
    assert rig.broker.memory.used == before


def test_named_sessions_and_what_they_hold_are_counted(tmp_path: Path) -> None:
    """Also what is held for several: once, and a little for each of them."""
    rig = Rig(tmp_path)
    client = rig.client("client")
    before = rig.broker.memory.used
    for name in ("one", "two"):
        assert client.ask("create", session=name)["ok"]
        assert client.ask("join", session=name)["ok"]
        assert client.ask("subscribe", session=name, topic="t", filter="a == 1")["ok"]
        assert client.ask("leave", session=name)["ok"]
    subscribed = rig.broker.memory.used
    plain = Subscription(session="one", subject_filter="t", filter_text="a == 1")
    assert subscribed > before + 2 * subscription_bytes(plain)
    client.send(publishing("t", b'{"a": 1, "b": "' + bytes(8_000).hex().encode() + b'"}', 1, 9))
    rig.settle()
    assert 16_000 + 2 * PENDING_BYTES < rig.broker.memory.used - subscribed < 30_000
    for name in ("one", "two"):
        assert client.ask("delete", session=name)["ok"]
    assert rig.broker.memory.used == before


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_publications_that_must_be_held_are_refused(tmp_path: Path, version: int, qos: int) -> None:
    """As beyond held_bytes: 5.0 is told, 3.1.1 has no words for it, and waits for an answer."""
    rig = Rig(tmp_path)
    publisher = rig.client("publisher", version=version)
    _fill(rig)
    publisher.send(publishing("t", b"x", qos, 1))
    rig.settle()
    assert _codes(publisher.take()) == ([FULL] if version == V5 else [])
    assert not publisher.is_closed
    assert rig.broker.counters.refused == (version == V5)


def test_the_fast_path_asks_the_same(tmp_path: Path) -> None:
    """A subscriber that is here and not persistent: QoS 1 would be passed on without the hold."""
    rig = Rig(tmp_path)
    subscriber, publisher = rig.subscriber("subscriber", "t", qos=1), rig.client("publisher")
    _fill(rig)
    publisher.send(publishing("t", b"x", 1, 1), publishing("t", b"y", 1, 2), publishing("t", b"z"))
    rig.settle()
    assert _codes(publisher.take()) == [FULL, FULL]
    assert subscriber.payloads() == [b"z"], "what is not kept is passed on"


def test_qos_0_is_refused_where_it_would_be_kept(tmp_path: Path) -> None:
    """For a named session, which holds it, and as a retained message; without a word, and counted."""
    rig = Rig(tmp_path)
    client, watcher = rig.client("client"), rig.subscriber("watcher", "#")
    client.ask("create", session="ward")
    client.ask("join", session="ward")
    client.ask("subscribe", session="ward", topic="held")
    client.take()
    _fill(rig)
    client.send(publishing("held", b"1"), publishing("kept", b"2", retain=True), publishing("other", b"3"))
    rig.settle()
    assert watcher.payloads() == [b"3"]
    assert rig.broker.counters.refused == 2
    assert len(rig.state.retained) == 0


def test_new_sessions_and_subscriptions_are_refused_and_old_ones_come_back(tmp_path: Path) -> None:
    """Whoever comes back lets memory go; whoever is new takes more."""
    rig = Rig(tmp_path)
    old = rig.subscriber("old", "t", qos=1, expiry_s=60)
    old.drop()
    _fill(rig)
    refused = rig.connecting("new")
    rig.settle()
    (answer,) = refused.taken(Connack)
    assert answer.code == FULL
    assert "limits.memory_bytes" in (answer.properties.text(Property.REASON_STRING) or "")
    old = rig.client("old", clean=False, expiry_s=60)
    old.send(subscribing("t", "new", qos=1))
    rig.settle()
    (suback,) = old.taken(Suback)
    assert suback.codes == (1, FULL)
    assert "limits.memory_bytes" in (suback.properties.text(Property.REASON_STRING) or "")
    answer_to = old.ask("create", session="ward")
    assert not answer_to["ok"]
    assert "limits.memory_bytes" in str(answer_to)


def test_a_will_needs_room_too(tmp_path: Path) -> None:
    """It is kept for as long as its client."""
    rig = Rig(tmp_path)
    rig.client("old", expiry_s=60).drop()
    _fill(rig)
    peer = rig.connecting("old", clean=False, expiry_s=60, will=Will("w", b"x"))
    rig.settle()
    assert _codes(peer.take()) == [FULL]


def test_a_smaller_retained_message_replaces_a_larger_one(tmp_path: Path) -> None:
    """Nothing grows by it; and an empty one makes room."""
    rig = _limited(tmp_path, 0)
    publisher = rig.client("publisher")
    publisher.send(publishing("a", bytes(5_000), retain=True), publishing("b", bytes(5_000), retain=True))
    rig.settle()
    _fill(rig)
    publisher.send(publishing("a", bytes(2_000), retain=True), publishing("b", b"", 1, 1, retain=True))
    rig.settle()
    assert [len(each.payload) for each in rig.state.retained] == [2_000]
    assert rig.broker.memory.has_room()


def test_packets_that_are_not_complete_count(tmp_path: Path) -> None:
    """Thousands of connections that each send most of a large packet would take gigabytes."""
    rig = Rig(tmp_path)
    peer = rig.client("peer")
    packet = encode(publishing("t", bytes(500_000)), V5)
    before = rig.broker.memory.used
    peer.send_bytes(packet[:100_000])
    assert rig.broker.memory.used == before + 100_000
    peer.send_bytes(packet[100_000:])
    assert (rig.broker.memory.used, rig.broker.memory.incoming) == (before, 0)
    peer.send_bytes(packet[:300_000])
    peer.drop()
    assert rig.broker.memory.incoming == 0


def test_a_large_packet_is_not_taken_in_where_there_is_no_room(tmp_path: Path) -> None:
    """So many of them that they could not even be answered: a client is told and disconnected, small ones are not."""
    rig = _limited(tmp_path, 98_000, packet_bytes=10_000)
    assert rig.broker.memory.has_room()
    small, first, second = (rig.client(name) for name in ("small", "first", "second"))
    rig.broker._limits = replace(rig.broker._limits, packet_bytes=1_000_000)
    long = [Peer(rig, V5) for _ in range(2)]
    packet = encode(Connect("c", password=bytes(60_000), username="u" * 20_000, version=V5), V5)
    del first, second
    long[0].send_bytes(packet[:66_000])
    assert not long[0].is_closed, "there was room"
    small.send_bytes(encode(publishing("t", bytes(9_000)), V5)[:8_000])
    long[1].send_bytes(packet[:66_000])
    assert (small.is_closed, long[0].is_closed, long[1].is_closed) == (False, False, True)
    assert rig.broker.memory.incoming == 74_000


def test_qos_0_does_not_wait_for_a_slow_reader_where_there_is_no_room(tmp_path: Path) -> None:
    """It is dropped, with a receipt, instead of being kept until the client reads."""
    rig = Rig(tmp_path)
    slow, publisher = rig.subscriber("slow", "t"), rig.client("publisher")
    rig.broker.set_choked(slow.link, rig.now, is_choked=True)
    publisher.send(publishing("t", b"waits"))
    assert slow.link.client is not None
    assert len(slow.link.client.live) == 1
    assert rig.broker.counters.dropped == 0
    _fill(rig)
    publisher.send(publishing("t", b"dropped"))
    assert len(slow.link.client.live) == 0
    assert rig.broker.counters.dropped == 2
    rig.broker.on_bytes_written(slow.link, 0, rig.now)
    assert slow.link.room <= 1 << 16, "it may have little until there is room"


def test_what_is_above_the_limit_is_loaded_and_nothing_new_is_accepted_until_it_falls(tmp_path: Path) -> None:
    """A restart with a lower limit loses nothing."""
    rig = Rig(tmp_path)
    sleeper = rig.subscriber("sleeper", "t", qos=1, expiry_s=600)
    sleeper.drop()
    publisher = rig.client("publisher")
    for number in range(5):
        publisher.send(publishing("t", b"%d" % number + bytes(20_000), 1, number + 1))
    rig.settle()
    publisher.drop()
    rig.sync()
    used = rig.broker.memory.used
    rows, _ = rig.state.view.changes()
    replayed = BrokerState(NODE)
    for fact in read(tmp_path, NODE):
        replayed.apply(fact)
    restored = BrokerState.restore(NODE, rows.items())
    assert restored.memory.used == used
    assert replayed.memory.used == pytest.approx(used, rel=0.01), "records may be encoded in another way"
    rig.close()
    again = Rig(tmp_path, replace(Config(), limits=LimitSettings(memory_bytes=50_000)), state=restored)
    assert again.broker.memory.used > 50_000
    assert _codes(_connected(again, "new").take()) == [FULL]
    back = again.client("sleeper", clean=False, expiry_s=600)
    received = [each.packet_id for each in back.taken(Publish)]
    assert len(received) == 5
    for packet_id in received:
        back.send(Puback(packet_id))
    again.settle()
    assert again.broker.memory.has_room()
    assert _codes(_connected(again, "new").take()) == [0]


def _connected(rig: Rig, name: str) -> Peer:
    peer = rig.connecting(name)
    rig.settle()
    return peer


@pytest.mark.parametrize("properties", [b"", b"\x03\x00\x02xx"])
def test_a_long_payload_is_kept_once(tmp_path: Path, properties: bytes) -> None:
    """600 retained messages of 1 MB took 1.28 GB: each was there as itself, and in its record."""
    rig = Rig(tmp_path)
    publisher = rig.client("publisher")
    head = b"\x00\x01t" + b"\x00\x01" + bytes([len(properties)]) + properties
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    body = head + bytes(1_000_000)
    publisher.send_bytes(b"\x33" + _varint(len(body)) + body)
    del body
    rig.settle()
    rig.state.view.changes()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 1_300_000
    (message,) = list(rig.state.retained)
    assert message.payload == bytes(1_000_000)
    assert message.size < 1_010_000
    subscriber = rig.client("subscriber")
    subscriber.send(subscribing("t"))
    rig.settle()
    assert [len(payload) for payload in subscriber.payloads()] == [1_000_000]


def _varint(number: int) -> bytes:
    out = bytearray()
    while True:
        number, low = divmod(number, 128)
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def test_of_long_messages_that_are_kept_one_has_its_encoding() -> None:
    """Else each would be there twice once it was sent."""
    messages = [_kept(bytes([number]) * 5_000) for number in range(3)]
    packets = [packet_of(message, V5, 0, 0) for message in messages]
    assert [message.encoded is not None for message in messages] == [False, False, True]
    assert [packet_of(message, V5, 0, 0) for message in messages] == packets


def _kept(payload: bytes) -> KeptNotification:
    message = KeptNotification(
        1, None, "t", payload, qos=0, retain=True, expires_at=None, properties=b"", record=b"record" + payload
    )
    message.keep()
    return message


def test_a_crowd_that_is_away_does_not_keep_others_from_being_served(tmp_path: Path) -> None:
    """What waits for absent sessions takes seven eighths; the last eighth is for clients that keep up."""
    rig = _limited(tmp_path, 400_000)
    for number in range(10):
        rig.subscriber(f"absent-{number}", "crowd", qos=1, expiry_s=1_000).drop()
    attacker, publisher = rig.client("attacker"), rig.client("publisher")
    reader = rig.subscriber("reader", "well", qos=1)
    codes: list[int] = []
    while not codes or codes[-1] == ReasonCode.SUCCESS:
        attacker.send(publishing("crowd", bytes(64), 1, 1))
        rig.settle()
        codes += [each.code for each in attacker.taken(Puback)]
    assert codes[-1] == ReasonCode.QUOTA_EXCEEDED
    assert len(codes) > 5
    publisher.send(publishing("well", b"served", 1, 1))
    rig.settle()
    assert [each.code for each in publisher.taken(Puback)] == [ReasonCode.SUCCESS]
    assert reader.payloads() == [b"served"]


def test_a_client_that_does_not_keep_up_is_not_served_from_the_last_eighth(tmp_path: Path) -> None:
    """Otherwise it would fill that as well."""
    rig = _limited(tmp_path, 400_000)
    slow = rig.client("slow", expiry_s=1_000, options={Property.RECEIVE_MAXIMUM: 1})
    slow.send(subscribing("t", qos=1))
    rig.settle()
    publisher = rig.client("publisher")
    codes: list[int] = []
    while not codes or codes[-1] == ReasonCode.SUCCESS:
        publisher.send(publishing("t", bytes(64), 1, 1))
        rig.settle()
        codes += [each.code for each in publisher.taken(Puback)]
    assert codes[-1] == ReasonCode.QUOTA_EXCEEDED
    assert rig.broker.memory.used < 400_000 * 7 // 8 + 5_000


def test_publications_that_wait_for_one_sync_do_not_find_the_room_of_one(tmp_path: Path) -> None:
    """Each is for hundreds of sessions; the last eighth stays free for clients that keep up."""
    limit = 8_000_000
    rig = _limited(tmp_path, limit)
    for number in range(400):
        rig.subscriber(f"absent-{number}", "crowd", qos=1, expiry_s=1_000).drop()
    attacker, publisher = rig.client("attacker"), rig.client("publisher")
    reader = rig.subscriber("reader", "well", qos=1)
    codes: list[int] = []
    while ReasonCode.QUOTA_EXCEEDED not in codes:
        attacker.send(*(publishing("crowd", bytes(64), 1, number) for number in range(1, 21)))
        rig.settle()
        codes += [each.code for each in attacker.taken(Puback)]
    assert rig.broker.memory.used < limit * 7 // 8 + 50_000
    publisher.send(publishing("well", b"served", 1, 1))
    rig.settle()
    assert reader.payloads() == [b"served"]
