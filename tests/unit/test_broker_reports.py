"""Reports of devices: what is written down of them, what the broker adds, and how a bad one is answered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broker_rig import NODE, SECOND_US, Peer, Rig, publishing, subscribing
from broker_traffic import Traffic, Voice

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.topic_rights import Action, Rights, Rule
from whimbrel.broker.settings.config import Config, LimitSettings, MqttSettings
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.wire.clients import LiveClient
from whimbrel.log.reader import read
from whimbrel.model.device import DeviceState, Display
from whimbrel.model.facts import Reported
from whimbrel.model.place import Place
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, V311, Connack, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel, Will
from whimbrel.mqtt.properties import Properties, Property

REPORT = "$whimbrel/report"


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with all defaults."""
    return Rig(tmp_path)


def _reporting(qos: int = 0, packet_id: int = 0, *, dup: bool = False, **members: object) -> Publish:
    return publishing(REPORT, json.dumps(members).encode(), qos, packet_id, dup=dup)


def _reports(rig: Rig) -> list[DeviceState]:
    """Return what the log has, once everything is written."""
    rig.settle()
    rig.log.sync()
    return [fact.state for fact in read(rig.folder, NODE) if isinstance(fact, Reported)]


def _sent(rig: Rig) -> list[int | None]:
    return [state.sent for state in _reports(rig)]


# -- what is written down ----------------------------------------------------------------------------------------------


def test_a_report_is_a_fact_with_the_brokers_stamp(rig: Rig) -> None:
    """Who, when and how many were sent is not for the device to say."""
    device = rig.client("phone")
    device.send(
        _reporting(
            battery=0.5,
            display={"width": 320, "height": 240},
            received=7,
            place="47.05,8.3",
            sent=99,
            device="other",
            reported_at=5,
        )
    )
    assert _reports(rig) == [
        DeviceState(
            device="phone",
            reported_at=rig.now,
            battery=0.5,
            display=Display(320, 240),
            received=7,
            sent=0,
            place=Place(47.05, 8.3),
        )
    ]


def test_a_report_is_published_to_nobody(rig: Rig) -> None:
    """Battery and place are said to the broker, not to whoever subscribes widely."""
    curious = rig.subscriber("curious", "$whimbrel/#", "#", REPORT, qos=1)
    curious.send(subscribing("$whimbrel/#", packet_id=2, filter="battery > 0.1"))
    curious.take()
    rig.client("phone").send(_reporting(battery=0.5), _reporting(1, 3, battery=0.5))
    assert len(_reports(rig)) == 2
    assert curious.take() == []


def test_a_retained_report_is_not_retained(rig: Rig) -> None:
    """Else whoever comes later would be told."""
    rig.client("phone").send(publishing(REPORT, b"{}", retain=True))
    assert len(_reports(rig)) == 1
    assert len(rig.state.retained) == 0


def test_a_restart_reads_reports_like_everything_else(rig: Rig) -> None:
    """A fact that a replay stumbles over would be the last thing a broker ever did."""
    rig.subscriber("keeper", "a", qos=1, expiry_s=60).drop()
    phone = rig.client("phone", expiry_s=60)
    expiry = Properties({Property.MESSAGE_EXPIRY_INTERVAL: 3})
    phone.send(
        _reporting(1, 1, received=1), publishing("a", b"x", 1, 2), Publish("a", b"y", 1, False, False, 3, expiry)
    )
    rig.settle()
    held = len(rig.state.held)
    rig.now += 5 * SECOND_US  # a report is a moment too, at which what has expired ends
    phone.send(_reporting(1, 4, received=2))
    assert len(_reports(rig)) == 2
    again = BrokerState(NODE)
    for fact in read(rig.folder, NODE):
        again.apply(fact)
    assert sorted(seq for seq, _ in again.hold.all_kept()) == sorted(seq for seq, _ in rig.state.hold.all_kept())
    assert (held, len(again.held)) == (2, 1)
    assert set(again.clients) == {"keeper", "phone"}


# -- what was sent -----------------------------------------------------------------------------------------------------


def test_the_first_report_of_a_new_session_knows_what_was_sent(rig: Rig) -> None:
    """Section 6.2: the server counts from the first message on, so a bad link is known with the first report."""
    device = rig.subscriber("phone", "a")
    rig.client("publisher").send(*(publishing("a") for _ in range(4)))
    device.send(_reporting(received=1), _reporting(received=0))
    assert _sent(rig) == [4, 0]
    assert [report.network_connection for report in _reports(rig)] == [0.25, None]


@pytest.mark.parametrize("version", [V5, V311])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_way_of_sending_counts(rig: Rig, version: int, qos: int) -> None:
    """Lanes, the hold, and what is retained: the device gets a PUBLISH each time, and counts it."""
    publisher = rig.client("publisher")
    publisher.send(publishing("kept", b"r", retain=True))
    device = rig.subscriber("phone", "a", qos=qos, version=version, expiry_s=60 if version == V5 else 0)
    device.send(_reporting())
    publisher.send(publishing("a", b"x"), publishing("a", b"x", 2, 3))
    rig.settle()
    device.send(subscribing("kept", packet_id=9))
    rig.settle()
    assert len(device.taken(Publish)) == 3
    device.send(_reporting(received=3))
    assert _sent(rig) == [0, 3]


def test_aliases_and_identifiers_make_no_difference(rig: Rig) -> None:
    """A link for which packets are made one by one is sent as many."""
    device = rig.client("phone", options={Property.TOPIC_ALIAS_MAXIMUM: 5})
    device.send(subscribing("a"))
    device.send(_reporting())
    rig.client("publisher").send(publishing("a"), publishing("a"))
    device.send(_reporting())
    assert _sent(rig) == [0, 2]


def test_what_does_not_fit_was_not_sent(rig: Rig) -> None:
    """A packet that is longer than the device takes never leaves the broker."""
    device = rig.client("phone", options={Property.MAXIMUM_PACKET_SIZE: 50})
    device.send(subscribing("a", qos=1))
    device.send(_reporting())
    rig.client("publisher").send(publishing("a", bytes(100)), publishing("a", bytes(100), 1, 5), publishing("a", b"x"))
    device.send(_reporting())
    assert _sent(rig) == [0, 1]


def test_counters_for_all_are_the_sum_of_the_counters_for_each(rig: Rig) -> None:
    """Both are counted in one place for each way of sending, and nobody who is away is counted."""
    rig.subscriber("c0", "a", expiry_s=60).drop()  # its session stays
    for number in (1, 2, 3):
        rig.subscriber(f"c{number}", "a", version=(V5, V311)[number % 2])
    before = rig.broker.counters.sent
    rig.client("publisher").send(*(publishing("a") for _ in range(5)))
    assert rig.broker.counters.sent - before == 15
    assert [rig.state.clients[f"c{number}"].sent for number in range(4)] == [0, 5, 5, 5]


def test_counting_goes_on_over_connections_of_a_session(rig: Rig) -> None:
    """What was lost with a connection was sent all the same: that is what the ratio is about."""
    device = rig.subscriber("phone", "a", qos=1, expiry_s=60)
    publisher = rig.client("publisher")
    device.send(_reporting())
    publisher.send(publishing("a", b"x", 1, 1))
    rig.settle()
    device.drop()
    back = rig.client("phone", clean=False, expiry_s=60)
    back.send(_reporting(received=1))
    assert _sent(rig) == [0, 2]


def test_a_session_that_is_new_begins_to_count_anew(rig: Rig) -> None:
    """What the one before it was sent is forgotten with it."""
    publisher = rig.client("publisher")
    for _ in range(2):
        device = rig.subscriber("phone", "a")
        publisher.send(publishing("a"))
        device.send(_reporting(), _reporting())
    assert _sent(rig) == [1, 0, 1, 0]


def test_after_a_restart_nobody_knows_what_was_sent(tmp_path: Path) -> None:
    """The count was in the memory of the broker that is gone; the session is not new."""
    rig = Rig(tmp_path)
    rig.subscriber("phone", "a", qos=1, expiry_s=60).send(_reporting())
    rig.sync()
    rows, _ = rig.state.view.changes()
    rig.close()
    again = Rig(tmp_path, state=BrokerState.restore(NODE, rows.items()))
    again.client("phone", clean=False, expiry_s=60).send(_reporting(), _reporting())
    assert _sent(again)[-2:] == [None, 0]
    again.close()


def test_a_bad_report_does_not_reset_the_count(rig: Rig) -> None:
    """The device still counts from the report that was taken."""
    device, publisher = rig.subscriber("phone", "a"), rig.client("publisher")
    device.send(_reporting())
    publisher.send(publishing("a"))
    device.send(_reporting(battery=7))
    publisher.send(publishing("a"))
    device.send(_reporting())
    assert _sent(rig) == [0, 2]


class _Overheard(Traffic):
    """Random traffic of which nothing is lost: what comes over a connection that is being taken over counts too."""

    def __init__(self, rig: Rig, seed: int, *, has_content: bool) -> None:
        super().__init__(rig, seed, has_content=has_content)
        self._left: dict[str, list[Peer]] = {voice.name: [] for voice in self.voices}

    def connect(self, voice: Voice, **how: Any) -> None:
        """Let a client come, and go on listening where it was."""
        if voice.peer is not None:
            self._left[voice.name].append(voice.peer)
        super().connect(voice, **how)

    def heard(self, voice: Voice) -> int:
        """Return how much was published to a client by now."""
        unread = (packet for peer in self._left[voice.name] for packet in peer.inbox)
        return sum(isinstance(packet, Publish) for packet in (*voice.heard, *unread))


@pytest.mark.parametrize("has_content", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_what_was_sent_is_what_arrived_where_nothing_is_lost(
    seed: int,
    has_content: bool,  # noqa: FBT001 # pytest's parameter
    tmp_path: Path,
) -> None:
    """However copies come to be sent in random traffic, the broker counts those that the device heard, or waits for."""
    rig = Rig(tmp_path)
    traffic = _Overheard(rig, seed, has_content=has_content)
    heard: dict[str, list[tuple[int, LiveClient]]] = {voice.name: [] for voice in traffic.voices}
    for _ in range(400):
        traffic.step()
        voice = traffic.random.choice(traffic.voices)
        if voice.peer is not None and voice.is_welcome:
            client = rig.state.clients[voice.name]
            heard[voice.name].append((traffic.heard(voice) + len(client.queue) + len(client.live), client))
            voice.peer.send(_reporting())
            traffic.listen()
    reports = _reports(rig)
    known = 0
    for name, counts in heard.items():
        stamped = [state.sent for state in reports if state.device == name]
        assert len(stamped) == len(counts)
        assert None not in stamped
        for sent, (before, old), (now, client) in zip(stamped[1:], counts, counts[1:], strict=False):
            if client is old:  # a session that is new counts from its begin, which is somewhere between
                known += bool(sent)
                assert sent == now - before
    assert known > 5


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "qos"), [(V5, 1), (V5, 2), (V311, 1), (V311, 2)])
def test_a_report_is_answered_after_the_disk_has_it(rig: Rig, version: int, qos: int) -> None:
    """A device that was told so may forget its counters."""
    device = rig.client("phone", version=version)
    assert device.tell(_reporting(qos, 7, battery=1)) == []
    rig.sync()
    assert device.take() == [Puback(7) if qos == 1 else Pubrec(7)]
    if qos == 2:
        assert device.tell(Pubrel(7)) == [Pubcomp(7)]
    assert len(_reports(rig)) == 1


def test_a_report_at_qos_2_that_comes_again_is_one(rig: Rig) -> None:
    """Exactly once, as long as this broker lives; before its answer and after it."""
    device = rig.client("phone", expiry_s=60)
    device.send(_reporting(2, 7, received=1), _reporting(2, 7, dup=True, received=1))
    rig.settle()
    device.drop()
    back = rig.client("phone", clean=False, expiry_s=60)
    assert back.tell(_reporting(2, 7, dup=True, received=1)) == [Pubrec(7)]
    assert back.tell(Pubrel(7)) == [Pubcomp(7)]
    assert len(_reports(rig)) == 1


def test_as_many_reports_as_ever_may_follow(rig: Rig) -> None:
    """An answer that was not counted would end the connection after some."""
    device = rig.client("phone")
    for number in range(1, 200):
        device.send(_reporting(1 + number % 2, number))
        rig.settle()
        if number % 2:
            device.send(Pubrel(number))
    device.take()
    assert not device.is_closed


def test_a_device_that_went_before_the_answer_is_not_answered(rig: Rig) -> None:
    """Its report is a fact all the same."""
    device = rig.client("phone")
    device.send(_reporting(1, 1), _reporting(2, 2))
    device.drop()
    assert len(_reports(rig)) == 2
    assert device.link.out == []


def _refused(packet: Packet) -> tuple[int, str]:
    assert isinstance(packet, (Puback, Pubrec)), packet
    return packet.code, packet.properties.text(Property.REASON_STRING) or ""


BAD = {
    b"": "JSON body, line 1, column 1: Expecting value",
    b"\xff": "JSON body, byte 0: not UTF-8",
    b"[1]": "found an array on top, allowed is an object",
    b'{"battery": 7}': "battery: found 7, allowed is a number from 0 to 1",
    b'{"battery": 1, "battery": 0}': "found the name 'battery' twice",
    b'{"received": -1}': "received: found -1, allowed is an integer from 0 to",
    b'{"received": 1.5}': "received: found 1.5, allowed is an integer from 0 to",
    b'{"display": "wide"}': "display: found 'wide', allowed is an object of",
    b'{"place": "here"}': "place: found 'here', allowed is",
    b'{"a":' * 9 + b"1" + b"}" * 9: "nested deeper than the 8 levels allowed",
    b'{"a":"' + bytes(65_536).replace(b"\0", b"x") + b'"}': "found 65544 bytes, allowed are 65536",
}


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
def test_a_bad_report_is_answered_with_why(rig: Rig, body: bytes, qos: int) -> None:
    """What was found, what is allowed, and where; whoever writes the device's software reads it."""
    device = rig.client("phone")
    (answer,) = device.tell(publishing(REPORT, body, qos, 5))
    code, reason = _refused(answer)
    assert code == ReasonCode.PAYLOAD_FORMAT_INVALID
    assert reason.startswith("a report is an object of JSON with battery, display, received and place")
    assert BAD[body] in reason
    assert _reports(rig) == []
    assert rig.broker.counters.bad_reports == 1


@pytest.mark.parametrize(("version", "qos"), [(V5, 0), (V311, 0), (V311, 1), (V311, 2)])
def test_a_bad_report_that_cannot_be_answered_is_counted(rig: Rig, version: int, qos: int) -> None:
    """The connection lives: a report is not worth a subscription."""
    device = rig.client("phone", version=version)
    assert device.tell(publishing(REPORT, b"?", qos, 5 if qos else 0)) == [[], [Puback(5)], [Pubrec(5)]][qos]
    assert not device.is_closed
    assert _reports(rig) == []
    assert (rig.broker.counters.bad_reports, rig.broker.counters.refused, rig.broker.counters.reports) == (1, 1, 0)


def test_counters_count_reports(rig: Rig) -> None:
    """A fleet that stopped reporting is seen here first."""
    device = rig.client("phone")
    device.send(_reporting(), _reporting(1, 1))
    assert rig.broker.counters.reports == 1  # the other waits for the disk
    rig.settle()
    assert (rig.broker.counters.reports, rig.broker.counters.received) == (2, 2)


# -- rights and limits -------------------------------------------------------------------------------------------------


def _guarded(folder: Path, *, topic: str) -> Peer:
    rule = Rule(topics=(topic,), actions=frozenset({Action.PUBLISH}), is_allowing=True)
    return Rig(folder, authorizer=Authorizer(Rights([rule], allows_by_default=False))).client("phone")


def test_rights_decide_who_may_report(tmp_path: Path) -> None:
    """A rule about the topic is a rule about reports."""
    welcome, stranger = _guarded(tmp_path / "a", topic=REPORT), _guarded(tmp_path / "b", topic="a/#")
    assert welcome.tell(_reporting(1, 1)) == []  # it waits for the disk
    (answer,) = stranger.tell(_reporting(1, 1))
    assert _refused(answer) == (ReasonCode.NOT_AUTHORIZED, "this topic may not be published to")


@pytest.mark.parametrize("topic", ["$whimbrel/reports", "$whimbrel/report/", "$whimbrel/report/x", "$whimbrel/else"])
def test_other_topics_of_the_broker_stay_its_own(rig: Rig, topic: str) -> None:
    """One topic is open, and not whatever begins like it."""
    (answer,) = rig.client("phone").tell(publishing(topic, b"{}", 1, 1))
    assert _refused(answer)[0] == ReasonCode.NOT_AUTHORIZED


def test_a_will_is_no_report(rig: Rig) -> None:
    """The dead have nothing to say of their batteries."""
    peer = rig.connecting("phone", will=Will(REPORT, b"{}"))
    (answer,) = peer.taken(Connack)
    assert answer.code == ReasonCode.NOT_AUTHORIZED


def test_a_disk_that_takes_nothing_takes_no_reports(rig: Rig) -> None:
    """An acknowledgement would be a lie."""
    device = rig.client("phone")
    rig.broker.refuse()
    (answer,) = device.tell(_reporting(1, 1))
    assert _refused(answer)[0] == ReasonCode.QUOTA_EXCEEDED


def test_limits_of_publications_hold_for_reports(tmp_path: Path) -> None:
    """Reports are no way around what everybody else is held to."""
    config = replace(Config(), mqtt=MqttSettings(maximum_qos=1), limits=LimitSettings(receive_maximum=2))
    rig = Rig(tmp_path, config)
    fast = rig.client("fast")
    fast.send(*(_reporting(1, number) for number in (1, 2, 3)))  # none is answered before the disk has it
    assert fast.is_closed
    high = rig.client("high")
    high.send(_reporting(2, 1))
    assert high.is_closed
