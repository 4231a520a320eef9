"""What the account says of QoS 0, and what keeps its quality: each a way in which it once did not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import NODE, Peer, Rig, publishing, subscribing
from single_process import Delivery, SingleProcess

from whimbrel.broker.settings.config import Config, LimitSettings
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.log.reader import read
from whimbrel.model.facts import Outcome, Receipt
from whimbrel.model.notification import Notification
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import Disconnect, Puback, Publish, Pubrec, Unsubscribe
from whimbrel.mqtt.properties import Properties, Property
from whimbrel.node.publication import packet_id_of


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with all defaults."""
    return Rig(tmp_path)


def _held(rig: Rig, *packets: Publish) -> None:
    """Let a named session hold what is published while no device is there."""
    owner = rig.client("owner")
    assert owner.ask("create", session="ann")["ok"]
    assert owner.ask("subscribe", session="ann", topic="#", qos=1)["ok"]
    for number, packet in enumerate(packets, start=1):
        owner.send(packet._replace(packet_id=number) if packet.qos else packet)
        rig.settle()
    owner.send(Disconnect())


def _joining(rig: Rig, device: str, options: dict[Property, object] | None = None) -> Peer:
    return rig.connecting(device, options=options, user=(("session", "ann"),))


def _join(rig: Rig, device: str, options: dict[Property, object] | None = None) -> Peer:
    peer = _joining(rig, device, options)
    rig.settle()
    return peer


def _account(rig: Rig, session: str) -> list[Delivery]:
    rig.close()
    rows = SingleProcess(assume_receipts=False).run(read(rig.folder, NODE)).deliveries
    return [row for row in rows if row.session == session]


def _outcomes(rig: Rig, session: str, device: str) -> Counter[Outcome]:
    return Counter(row.outcome for row in _account(rig, session) if row.device == device)


def test_what_waits_behind_an_acknowledgement_is_not_taken(rig: Rig) -> None:
    """Five held QoS 0 notifications once were *delivered* to a device that never saw them, and gone for the other."""
    behind = [publishing("a", b"%d" % number) for number in range(5)]
    _held(rig, publishing("a", b"first", 1), publishing("a", b"second", 1), *behind)
    pda = _join(rig, "pda", {Property.RECEIVE_MAXIMUM: 1})
    assert pda.payloads() == [b"first"]
    pda.drop()
    assert _join(rig, "laptop").payloads() == [b"first", b"second", b"0", b"1", b"2", b"3", b"4"]
    assert _outcomes(rig, "ann", "pda") == {Outcome.TAKEN_ELSEWHERE: 5}  # the other two wait for the laptop


def test_what_expires_before_the_answer_to_connect_is_not_delivered(rig: Rig) -> None:
    """A join is accepted before its CONNACK is written; what expires in between nobody was given."""
    expiring = Properties({Property.MESSAGE_EXPIRY_INTERVAL: 5})
    _held(rig, Publish("a", b"stale", properties=expiring), publishing("a", b"fresh"))
    pda = _joining(rig, "pda")
    rig.tick(10)
    rig.settle()
    assert pda.payloads() == [b"fresh"]
    assert _outcomes(rig, "ann", "pda") == {Outcome.EXPIRED: 1, Outcome.DELIVERED: 1}


def test_a_packet_that_is_too_long_was_not_delivered(rig: Rig) -> None:
    """In a private session nothing is taken from others, but the account must not lie either."""
    small = rig.client("small", options={Property.MAXIMUM_PACKET_SIZE: 40})
    small.send(subscribing("a"))
    rig.client("publisher").send(publishing("a", b"short"), publishing("a", bytes(60)))
    assert small.payloads() == [b"short"]
    assert _outcomes(rig, "$mqtt/small", "small") == {Outcome.DELIVERED: 1, Outcome.DROPPED: 1}


def test_what_cannot_be_written_to_a_slow_reader_was_dropped(tmp_path: Path) -> None:
    """Its buffer is full: QoS 0 waits as long as there is room, then it is dropped, and the account says so."""
    rig = Rig(tmp_path, replace(Config(), limits=LimitSettings(send_buffer_bytes=65_536)))
    slow, publisher = rig.subscriber("slow", "a"), rig.client("publisher")
    rig.broker.set_choked(slow.link, rig.now, is_choked=True)
    for number in range(10):
        publisher.send(publishing("a", bytes([number]) * 10_000))
    rig.broker.set_choked(slow.link, rig.now, is_choked=False)
    rig.flush()
    heard = slow.payloads()
    publisher.send(publishing("a", b"after"))
    assert slow.payloads() == [b"after"]
    assert heard == [bytes([number]) * 10_000 for number in range(len(heard))]
    assert 0 < len(heard) < 10
    delivered = len(heard) + 1
    assert _outcomes(rig, "$mqtt/slow", "slow") == {Outcome.DELIVERED: delivered, Outcome.DROPPED: 11 - delivered}


def test_nothing_is_delivered_to_a_connection_that_is_being_closed(rig: Rig) -> None:
    """A client that broke the protocol is still connected for a moment; nothing more is written to it."""
    rude, publisher = rig.subscriber("rude", "a"), rig.client("publisher")
    rig.broker.receive(rude.link, b"\xf0\x00\x00", rig.now)  # and the turn of the loop is not over
    rig.broker.receive(publisher.link, b"\x30\x05\x00\x01a\x00x", rig.now)
    rig.flush()
    assert rude.payloads() == []
    assert _outcomes(rig, "$mqtt/rude", "rude") == {}


def test_retained_copies_with_a_receipt_are_in_the_account(rig: Rig) -> None:
    """A receipt in the log that no table knows of is a gap."""
    rig.client("publisher").send(publishing("a", b"kept", 1, 1, retain=True))
    rig.settle()
    late = rig.subscriber("late", "b")
    late.send(subscribing("a", qos=1))
    rig.settle()
    (kept,) = late.taken(Publish)
    late.send(Puback(kept.packet_id))
    (row,) = _account(rig, "$mqtt/late")
    assert (row.device, row.outcome, row.via, row.subject) == ("late", Outcome.DELIVERED, "retained", "a")


def test_receipts_say_what_was_held(rig: Rig) -> None:
    """Whoever reads them learns how long devices were away."""
    there = rig.subscriber("there", "a", qos=1, expiry_s=100)
    rig.client("publisher").send(publishing("a", b"live", 1, 1))
    rig.settle()
    (live,) = there.taken(Publish)
    there.send(Puback(live.packet_id))
    there.drop()
    rig.client("publisher").send(publishing("a", b"held", 1, 1))
    rig.settle()
    there = rig.client("there", clean=False, expiry_s=100)
    (held,) = there.taken(Publish)
    there.send(Puback(held.packet_id))
    rig.close()
    assert [fact.via for fact in read(rig.folder, NODE) if isinstance(fact, Receipt)] == ["live", "held"]


def test_a_restart_gathers_nothing_of_qos_0(rig: Rig) -> None:
    """A log has years of it, and a replay sends none of it: it must not wait in memory either."""
    small = rig.client("small", options={Property.MAXIMUM_PACKET_SIZE: 40})
    small.send(subscribing("a"))
    rig.client("publisher").send(*(publishing("a", b"x") for _ in range(20)))
    rig.close()
    state = type(rig.state)(NODE)
    for fact in read(rig.folder, NODE):
        state.apply(fact)
    client = state.clients["small"]
    assert (len(client.live), len(client.queue), client.queued_bytes) == (0, 0, 0)


# -- two ways, one decision --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_waiting", [False, True])
def test_what_is_held_bounds_every_way(tmp_path: Path, is_waiting: bool) -> None:  # noqa: FBT001 # pytest's parameter
    """One plain packet was accepted or refused depending on whether somebody else's CONNECT waited for the disk."""
    rig = Rig(tmp_path, replace(Config(), limits=LimitSettings(held_bytes=1_000)))
    rig.subscriber("away", "held", qos=1, expiry_s=1_000).drop()
    publisher, wanting = rig.client("publisher"), rig.subscriber("wanting", "plain", qos=1)
    publisher.send(publishing("held", bytes(2_000), 1, 1))
    rig.settle()
    publisher.take()
    if is_waiting:
        rig.connecting("newcomer", expiry_s=100)
    publisher.send(publishing("plain", b"x", 1, 2))
    rig.settle()
    assert [packet.code for packet in publisher.taken(Puback)] == [ReasonCode.QUOTA_EXCEEDED]
    assert wanting.payloads() == []


def test_what_is_unanswered_bounds_every_way(tmp_path: Path) -> None:
    """The receive maximum that CONNACK named holds for QoS 1 beside QoS 2."""
    rig = Rig(tmp_path, replace(Config(), limits=LimitSettings(receive_maximum=2)))
    publisher = rig.client("publisher")
    rig.subscriber("wanting", "a", qos=1)
    publisher.send(*(publishing("b", b"x", 2, number) for number in (1, 2)))
    rig.settle()
    publisher.take()
    publisher.send(publishing("a", b"x", 1, 3))
    (last,) = publisher.take()
    assert isinstance(last, Disconnect)
    assert last.code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_nobody_waits_for_the_disk_for_a_subscription_of_qos_0(rig: Rig) -> None:
    """Granted QoS 0, a persistent session is owed nothing after a crash: no way of a publication makes it wait."""
    rig.subscriber("persistent", "a", qos=0, expiry_s=100)
    publisher = rig.client("publisher")
    publisher.send(publishing("a", b"plain", 1, 1))
    publisher.send(Publish("a", b"expiring", 1, packet_id=2, properties=_expiry(100)))
    assert [packet.packet_id for packet in publisher.taken(Puback)] == [1, 2]


def _expiry(seconds: int) -> Properties:
    return Properties({Property.MESSAGE_EXPIRY_INTERVAL: seconds})


# -- what was begun keeps its quality ----------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_was_begun_keeps_its_quality(tmp_path: Path, qos: int, is_restarted: bool) -> None:  # noqa: FBT001 # see above
    """Sent, not acknowledged, the subscription replaced at QoS 0: it comes again as it came (MQTT 5, 4.4)."""
    rig = Rig(tmp_path / "log")
    there = rig.subscriber("there", "a", qos=qos, expiry_s=100)
    rig.client("publisher").send(publishing("a", b"x", qos, 1))
    rig.settle()
    (first,) = there.taken(Publish)
    there.send(subscribing("a", qos=0))
    rig.settle()
    there.drop()
    rig = _restarted(rig) if is_restarted else rig
    there = rig.client("there", clean=False, expiry_s=100)
    (again,) = there.taken(Publish)
    assert (again.qos, again.packet_id, again.dup, again.payload) == (qos, first.packet_id, True, b"x")
    there.send(Puback(again.packet_id) if qos == 1 else Pubrec(again.packet_id))
    rig.settle()
    there.drop()
    assert rig.client("there", clean=False, expiry_s=100).payloads() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_unsubscribing_ends_nothing_that_was_begun(rig: Rig, qos: int) -> None:
    """UNSUBSCRIBE lets what was sent be finished, over the next connection too (MQTT-3.10.4-3)."""
    there = rig.subscriber("there", "a", qos=qos, expiry_s=100)
    rig.client("publisher").send(publishing("a", b"x", qos, 1))
    rig.settle()
    (first,) = there.taken(Publish)
    there.send(Unsubscribe(2, ("a",)))
    rig.settle()
    there.drop()
    there = rig.client("there", clean=False, expiry_s=100)
    (again,) = there.taken(Publish)
    assert (again.qos, again.packet_id, again.dup) == (qos, first.packet_id, True)


def _restarted(rig: Rig) -> Rig:
    """Return a broker that has read the log of *rig*, which is gone."""
    rig.close()
    state = type(rig.state)(NODE)
    for fact in read(rig.folder, NODE):
        state.apply(fact)
    return Rig(rig.folder, state=state)


# -- devices that leave a named session --------------------------------------------------------------------------------


def _leaving_with_copies(rig: Rig, *devices: str) -> list[Peer]:
    """Return devices of one session, in which each was sent the first of two notifications, and not the second."""
    owner = rig.client("owner")
    assert owner.ask("create", session="ann")["ok"]
    assert owner.ask("subscribe", session="ann", topic="a", qos=1, ttl=60)["ok"]
    peers = [_join(rig, device, {Property.RECEIVE_MAXIMUM: 1}) for device in devices]
    owner.send(publishing("a", b"first", 1, 1), publishing("a", b"second", 1, 2))
    rig.settle()
    assert [peer.taken(Publish)[0].payload for peer in peers] == [b"first"] * len(devices)
    return peers


def _first(rig: Rig) -> int:
    """Return the packet identifier of the first of the two."""
    facts = [fact for fact in read(rig.folder, NODE) if isinstance(fact, Notification) and fact.subject == "a"]
    return packet_id_of(facts[0].seq)


def test_what_a_device_confirms_after_it_left_is_delivered(rig: Rig) -> None:
    """It had the copy; once there was no row of it, and *taken elsewhere* where another member confirmed before."""
    phone, tablet = _leaving_with_copies(rig, "phone", "tablet")
    assert phone.ask("leave", session="ann")["ok"]
    tablet.send(Puback(_first(rig)))
    phone.send(Puback(_first(rig)))
    rig.tick(120)
    rows = _account(rig, "ann")
    assert [row.outcome for row in rows if row.device == "phone"] == [Outcome.DELIVERED, Outcome.EXPIRED]
    assert {row.device for row in rows} == {"phone", "tablet"}


def test_what_a_device_left_unconfirmed_ends_as_it_does_in_the_session(rig: Rig) -> None:
    """It leaves, loses its connection and never returns: each copy that it was handed has one row."""
    (phone,) = _leaving_with_copies(rig, "phone")
    assert phone.ask("leave", session="ann")["ok"]
    phone.drop()
    rig.tick(120)
    assert _outcomes(rig, "ann", "phone") == {Outcome.EXPIRED: 2}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_device_that_returns_is_handed_what_it_did_not_confirm(rig: Rig, *, is_restarted: bool) -> None:
    """Leaving and joining again loses nothing, and nothing is counted twice; also over a restart from the view."""
    (phone,) = _leaving_with_copies(rig, "phone")
    assert phone.ask("leave", session="ann")["ok"]
    assert phone.ask("join", session="ann")["ok"]
    assert phone.payloads() == []  # the first is on its way, and its window is one
    if is_restarted:
        rig.state.view.touch_all()
        state = BrokerState.restore(NODE, rig.state.view.changes()[0].items())
        rig.log.sync()
        rig.close()
        rig = Rig(rig.folder, state=state)
        phone = _join(rig, "phone")
        assert [copy.payload for copy in phone.inbox if isinstance(copy, Publish)] == [b"first", b"second"]
        phone.send(*(Puback(copy.packet_id) for copy in phone.taken(Publish)))
    else:
        phone.send(Puback(_first(rig)))
        phone.send(*(Puback(copy.packet_id) for copy in phone.taken(Publish)))
    rig.settle()
    assert _outcomes(rig, "ann", "phone") == {Outcome.DELIVERED: 2}


@pytest.mark.parametrize("confirms", [False, True])
def test_copies_of_a_device_that_left_are_restored(rig: Rig, *, confirms: bool) -> None:
    """The view has what is on its way to it and what was taken back, so the account closes after a restart too."""
    (phone,) = _leaving_with_copies(rig, "phone")
    assert phone.ask("leave", session="ann")["ok"]
    rig.state.view.touch_all()
    rows = dict(rig.state.view.changes()[0])
    twin = BrokerState.restore(NODE, rows.items())
    twin.view.touch_all()
    assert twin.view.changes()[0] == rows
    if confirms:
        phone.send(Puback(_first(rig)))
    phone.drop()
    rig.tick(120)
    settled = _outcomes(rig, "ann", "phone")
    assert settled == ({Outcome.DELIVERED: 1, Outcome.EXPIRED: 1} if confirms else {Outcome.EXPIRED: 2})
