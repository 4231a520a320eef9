"""The core of the broker, without sockets and clocks: who is told what, and when it may be told."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import SECOND_US, Peer, Rig, publishing, subscribing

from whimbrel.broker.settings.config import Config, LimitSettings, MqttSettings
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import (
    V5,
    V311,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from whimbrel.mqtt.properties import Properties, Property

NO_ONE = ReasonCode.NO_MATCHING_SUBSCRIBERS


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with all defaults."""
    return Rig(tmp_path)


def _limited(folder: Path, **limits: int) -> Rig:
    return Rig(folder, replace(Config(), limits=LimitSettings(**limits)))


def _expiring(topic: str, payload: bytes, expiry_s: int, *, qos: int = 0, packet_id: int = 0) -> Publish:
    properties = Properties({Property.MESSAGE_EXPIRY_INTERVAL: expiry_s})
    return Publish(topic, payload, qos, packet_id=packet_id, properties=properties)


def _reason(peer: Peer) -> tuple[int, str]:
    """Return code and reason of the DISCONNECT that is the last word to a client."""
    last = peer.take()[-1]
    assert isinstance(last, Disconnect), last
    return last.code, last.properties.text(Property.REASON_STRING) or ""


# -- persist before ack ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_persistent_session_is_owed_is_acknowledged_after_the_disk_has_it(rig: Rig, qos: int) -> None:
    """The publisher may forget it only when no crash can."""
    keeper, publisher = rig.subscriber("keeper", "a", qos=qos, expiry_s=60), rig.client("publisher")
    assert publisher.tell(publishing("a", b"x", qos, 7)) == []
    assert keeper.take() == []
    rig.sync()
    assert publisher.take() == [Puback(7) if qos == 1 else Pubrec(7)]
    assert keeper.payloads() == [b"x"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_nobody_is_owed_is_acknowledged_at_once(rig: Rig, qos: int) -> None:
    """A session that ends with its connection asks for nothing after a crash."""
    passing, publisher = rig.subscriber("passing", "a", qos=qos), rig.client("publisher")
    assert publisher.tell(publishing("a", b"x", qos, 7)) == [Puback(7) if qos == 1 else Pubrec(7)]
    assert passing.payloads() == [b"x"]
    assert not rig.broker.wants_sync


def test_what_is_retained_is_acknowledged_after_the_disk_has_it(rig: Rig) -> None:
    """Whoever subscribes after a crash is owed it."""
    publisher = rig.client("publisher")
    assert publisher.tell(publishing("a", b"x", 1, 7, retain=True)) == []
    rig.sync()
    assert publisher.take() == [Puback(7, NO_ONE)]


def test_an_exactly_once_publication_of_a_persistent_publisher_waits_for_the_disk(rig: Rig) -> None:
    """Its identifier is part of the session, wanted or not."""
    publisher = rig.client("publisher", expiry_s=60)
    assert publisher.tell(publishing("a", b"x", 2, 7)) == []
    rig.sync()
    assert publisher.take() == [Pubrec(7, NO_ONE)]


def test_a_persistent_session_is_welcome_after_the_disk_has_it(rig: Rig) -> None:
    """CONNACK promises a session."""
    peer = rig.connecting("keeper", expiry_s=60)
    assert peer.take() == []
    rig.sync()
    assert [type(packet) for packet in peer.take()] == [Connack]


def test_a_passing_session_is_welcome_at_once(rig: Rig) -> None:
    """Nothing is promised that would have to survive."""
    assert [type(packet) for packet in rig.connecting("passing").take()] == [Connack]


def test_subscriptions_of_a_persistent_session_are_answered_after_the_disk_has_them(rig: Rig) -> None:
    """SUBACK and UNSUBACK promise what will be held."""
    keeper = rig.client("keeper", expiry_s=60)
    assert keeper.tell(subscribing("a", qos=1)) == []
    rig.sync()
    assert keeper.take() == [Suback(1, (1,))]
    assert keeper.tell(Unsubscribe(2, ("a", "b"))) == []
    rig.sync()
    assert keeper.take() == [Unsuback(2, (0, ReasonCode.NO_SUBSCRIPTION_EXISTED))]


def test_subscriptions_of_a_passing_session_are_answered_at_once(rig: Rig) -> None:
    """They end with the connection."""
    assert rig.client("passing").tell(subscribing("a", qos=1)) == [Suback(1, (1,))]


def test_what_comes_after_something_owed_waits_behind_it(rig: Rig) -> None:
    """Facts are applied in the order of their numbers, and answers follow."""
    rig.subscriber("keeper", "a", qos=1, expiry_s=60)
    passing, publisher = rig.subscriber("passing", "b"), rig.client("publisher")
    publisher.send(publishing("a", b"owed", 1, 1), publishing("b", b"live"))
    assert passing.payloads() == []
    rig.sync()
    assert passing.payloads() == [b"live"]


def test_a_sync_accepts_only_what_was_entered_before_it(rig: Rig) -> None:
    """The disk says how far it is, and nobody is told of more."""
    rig.subscriber("keeper", "a", qos=1, expiry_s=60)
    publisher = rig.client("publisher")
    publisher.send(publishing("a", b"x", 1, 1))
    seq = rig.log.sync()
    publisher.send(publishing("a", b"y", 1, 2))
    rig.broker.on_sync(seq)
    rig.flush()
    assert publisher.take() == [Puback(1)]


# -- coming and going --------------------------------------------------------------------------------------------------


def test_the_newer_connection_takes_the_session_over(rig: Rig) -> None:
    """There is one connection a client identifier (3.1.4)."""
    old = rig.client("c", expiry_s=60)
    new = rig.connecting("c", clean=False, expiry_s=60)
    rig.settle()
    assert _reason(old)[0] == ReasonCode.SESSION_TAKEN_OVER
    assert old.is_closed
    (welcome,) = new.taken(Connack)
    assert welcome.session_present


def test_of_two_connects_that_wait_for_the_disk_the_second_wins(rig: Rig) -> None:
    """Both are answered in order, so the first is let in and then taken over."""
    first, second = (rig.connecting("c", clean=False, expiry_s=60) for _ in range(2))
    rig.settle()
    assert [type(packet) for packet in first.inbox] == [Connack, Disconnect]
    assert [packet.session_present for packet in second.taken(Connack)] == [True]
    assert second.tell(Pingreq()) == [Pingresp()]


def test_a_link_that_goes_while_its_connect_waits_leaves_its_session_away(rig: Rig) -> None:
    """The session was promised to the log; nobody is in it."""
    rig.connecting("c", expiry_s=60).drop()
    rig.settle()
    client = rig.state.clients["c"]
    assert client.link is None
    assert client.disconnected_at == rig.now
    assert rig.connecting("c", clean=False, expiry_s=60).inbox == []
    rig.settle()


def test_what_is_said_before_connack_is_heard_after_it(rig: Rig) -> None:
    """A client need not wait for its CONNACK (3.1.4)."""
    peer = rig.connecting("c", expiry_s=60)
    peer.send(subscribing("a"))
    peer.send(publishing("a", b"x"))
    rig.settle()
    assert [type(packet) for packet in peer.take()] == [Connack, Suback, Publish]


@pytest.mark.parametrize("version", [V311, V5])
def test_a_session_is_present_until_a_clean_start(rig: Rig, version: int) -> None:
    """Session present tells the client what it may rely on."""
    present = []
    for is_clean in (False, False, True):
        peer = rig.connecting("c", clean=is_clean, expiry_s=60, version=version)
        rig.settle()
        present += [packet.session_present for packet in peer.taken(Connack)]
        peer.drop()
    assert present == [False, True, False]


def test_a_clean_start_ends_what_was_subscribed_and_held(rig: Rig) -> None:
    """Nothing of the old session is in the new."""
    rig.subscriber("c", "a", qos=1, expiry_s=60).drop()
    publisher = rig.client("publisher")
    publisher.send(publishing("a", b"x", 1, 1))
    rig.settle()
    assert rig.client("c", expiry_s=60).take() == []
    publisher.take()
    assert publisher.tell(publishing("a", b"x", 1, 2)) == [Puback(2, NO_ONE)]


def test_a_session_expires_by_a_tick(rig: Rig) -> None:
    """It outlives its connection as long as was asked, and no longer."""
    rig.client("c", expiry_s=60).drop()
    rig.tick(59)
    assert "c" in rig.state.clients
    rig.tick(1)
    assert "c" not in rig.state.clients


def test_a_disconnect_may_shorten_the_session_and_not_begin_one(rig: Rig) -> None:
    """3.14.2.2.2: from none to some is a protocol error."""
    peer = rig.client("keeper", expiry_s=60)
    peer.send(Disconnect(properties=Properties({Property.SESSION_EXPIRY_INTERVAL: 0})))
    assert "keeper" not in rig.state.clients
    passing = rig.client("passing")
    passing.send(Disconnect(properties=Properties({Property.SESSION_EXPIRY_INTERVAL: 5})))
    assert _reason(passing)[0] == ReasonCode.PROTOCOL_ERROR


def test_an_empty_client_identifier_is_given_one(rig: Rig) -> None:
    """And the client is told which (3.1.3.1)."""
    (welcome,) = rig.connecting("").taken(Connack)
    assert (welcome.properties.text(Property.ASSIGNED_CLIENT_IDENTIFIER) or "").startswith("auto-")


def test_a_silent_client_is_lost_after_one_and_a_half_keep_alives(rig: Rig) -> None:
    """3.1.2.10; the broker's own keep alive bounds what a 5.0 client asks for."""
    peer = rig.connecting("c", keep_alive_s=10)
    rig.tick(15)
    assert not peer.is_closed
    rig.tick(1)
    assert _reason(peer)[0] == ReasonCode.KEEP_ALIVE_TIMEOUT


def test_a_connection_without_connect_is_closed(rig: Rig) -> None:
    """Ten seconds of silence are enough."""
    peer = Peer(rig, V5)
    rig.tick(10.5)
    assert peer.is_closed


@pytest.mark.parametrize("version", [V311, V5])
def test_a_drain_sends_everybody_away_and_nobody_in(rig: Rig, version: int) -> None:
    """5.0 is told why; 3.1.1 has no word for it."""
    peer = rig.client("c", version=version)
    rig.broker.drain()
    rig.flush()
    assert peer.is_closed
    assert [packet.code for packet in peer.taken(Disconnect)] == [ReasonCode.SERVER_SHUTTING_DOWN] * (version == V5)
    (refusal,) = rig.connecting("late", version=version).taken(Connack)
    assert refusal.code == (ReasonCode.SERVER_UNAVAILABLE if version == V5 else 3)


# -- wills -------------------------------------------------------------------------------------------------------------


def test_a_lost_client_leaves_its_will(rig: Rig) -> None:
    """That is what it is for."""
    heir = rig.subscriber("heir", "a")
    rig.client("c", will=Will("a", b"lost")).drop()
    rig.settle()
    assert heir.payloads() == [b"lost"]


def test_a_goodbye_takes_the_will_back_unless_it_says_otherwise(rig: Rig) -> None:
    """3.14.2.1: 0x04 is a goodbye with will."""
    heir = rig.subscriber("heir", "a")
    rig.client("c", will=Will("a", b"lost")).send(Disconnect())
    assert heir.payloads() == []
    rig.client("c", will=Will("a", b"lost")).send(Disconnect(ReasonCode.DISCONNECT_WITH_WILL))
    rig.settle()
    assert heir.payloads() == [b"lost"]


def _delayed(delay_s: int) -> Will:
    return Will("a", b"lost", properties=Properties({Property.WILL_DELAY_INTERVAL: delay_s}))


def test_a_delayed_will_comes_by_a_tick(rig: Rig) -> None:
    """A short break of the network is not the death of the client."""
    heir = rig.subscriber("heir", "a")
    rig.client("c", expiry_s=60, will=_delayed(10)).drop()
    rig.tick(9)
    assert heir.payloads() == []
    rig.tick(1)
    rig.settle()
    assert heir.payloads() == [b"lost"]


def test_a_client_that_comes_back_in_time_has_no_will_sent(rig: Rig) -> None:
    """3.1.3.2.2."""
    heir = rig.subscriber("heir", "a")
    rig.client("c", expiry_s=60, will=_delayed(10)).drop()
    rig.client("c", clean=False, expiry_s=60)
    rig.tick(11)
    assert heir.payloads() == []


@pytest.mark.parametrize("ending", ["clean start", "session expiry"])
def test_a_delayed_will_comes_when_the_session_ends(rig: Rig, ending: str) -> None:
    """The delay or the session's end, whichever is first (3.1.3.2.2)."""
    heir = rig.subscriber("heir", "a")
    rig.client("c", expiry_s=5, will=_delayed(30)).drop()
    if ending == "clean start":
        rig.client("c")
    else:
        rig.tick(5)
    rig.settle()
    assert heir.payloads() == [b"lost"]


# -- QoS 2 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expiry_s", [0, 60])
def test_a_duplicate_before_its_release_is_answered_and_not_passed_on(rig: Rig, expiry_s: int) -> None:
    """Exactly once, from the publisher's side (4.3.3)."""
    wanting, publisher = rig.subscriber("wanting", "a", qos=2), rig.client("publisher", expiry_s=expiry_s)
    publisher.send(publishing("a", b"x", 2, 7))
    rig.settle()
    assert publisher.tell(publishing("a", b"x", 2, 7, dup=True)) == [Pubrec(7), Pubrec(7)]
    assert wanting.payloads() == [b"x"]


def test_a_duplicate_while_the_disk_is_waited_for_is_answered_once(rig: Rig) -> None:
    """There is no second fact, and no answer before the first is accepted."""
    keeper, publisher = rig.subscriber("keeper", "a", qos=2, expiry_s=60), rig.client("publisher")
    publisher.send(publishing("a", b"x", 2, 7), publishing("a", b"x", 2, 7, dup=True))
    rig.settle()
    assert publisher.take() == [Pubrec(7)]
    assert keeper.payloads() == [b"x"]


@pytest.mark.parametrize("expiry_s", [0, 60])
def test_after_its_release_an_identifier_is_a_new_publication(rig: Rig, expiry_s: int) -> None:
    """PUBREL frees it, once that is written."""
    wanting, publisher = rig.subscriber("wanting", "a", qos=2), rig.client("publisher", expiry_s=expiry_s)
    for payload in (b"x", b"y"):
        publisher.send(publishing("a", payload, 2, 7))
        rig.settle()
        publisher.send(Pubrel(7))
        assert [type(packet) for packet in publisher.inbox] == ([Pubrec] if expiry_s else [Pubrec, Pubcomp])
        rig.settle()
        assert publisher.take() == [Pubrec(7), Pubcomp(7)]
    assert wanting.payloads() == [b"x", b"y"]


def test_a_release_of_nothing_is_said_to_be_of_nothing(rig: Rig) -> None:
    """5.0 has a code for it; 3.1.1 only completes."""
    assert rig.client("new").tell(Pubrel(9)) == [Pubcomp(9, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)]
    assert rig.client("old", version=V311).tell(Pubrel(9)) == [Pubcomp(9)]


def test_an_accepted_publication_is_known_when_its_publisher_is_back(rig: Rig) -> None:
    """PUBREC was lost with the connection: the duplicate is the same publication."""
    wanting = rig.subscriber("wanting", "a", qos=2)
    publisher = rig.client("publisher", expiry_s=60)
    publisher.send(publishing("a", b"x", 2, 7))
    rig.settle()
    publisher.drop()
    publisher = rig.client("publisher", clean=False, expiry_s=60)
    assert publisher.tell(publishing("a", b"x", 2, 7, dup=True)) == [Pubrec(7)]
    assert wanting.payloads() == [b"x"]


def _handed(rig: Rig) -> tuple[Peer, Publish]:
    """Return a persistent client, and the QoS 2 publication it was just given."""
    keeper, publisher = rig.subscriber("keeper", "a", qos=2, expiry_s=60), rig.client("publisher")
    publisher.send(publishing("a", b"x", 2, 7))
    rig.settle()
    (given,) = keeper.taken(Publish)
    return keeper, given


def test_a_hand_over_is_released_once_its_receipt_is_written(rig: Rig) -> None:
    """PUBREL lets the client forget the identifier; it must not come again under it."""
    keeper, given = _handed(rig)
    assert keeper.tell(Pubrec(given.packet_id)) == []
    rig.sync()
    assert keeper.take() == [Pubrel(given.packet_id)]
    assert keeper.tell(Pubcomp(given.packet_id)) == []
    keeper.drop()
    assert rig.client("keeper", clean=False, expiry_s=60).take() == []


def test_a_hand_over_without_pubrec_is_sent_again_as_a_duplicate(rig: Rig) -> None:
    """With the identifier it had (4.4)."""
    keeper, given = _handed(rig)
    keeper.drop()
    assert rig.client("keeper", clean=False, expiry_s=60).take() == [given._replace(dup=True)]


def test_a_hand_over_without_pubcomp_is_released_again(rig: Rig) -> None:
    """What was received is not sent again, only its release."""
    keeper, given = _handed(rig)
    keeper.send(Pubrec(given.packet_id))
    rig.settle()
    keeper.drop()
    assert rig.client("keeper", clean=False, expiry_s=60).take() == [Pubrel(given.packet_id)]


# -- flow control, aliases, sizes --------------------------------------------------------------------------------------


def test_no_more_are_in_flight_than_the_client_takes(rig: Rig) -> None:
    """Receive maximum of the client (4.9); the rest follows the answers, in order."""
    wanting = rig.client("wanting", options={Property.RECEIVE_MAXIMUM: 2})
    wanting.tell(subscribing("a", qos=1))
    rig.client("publisher").send(*(publishing("a", b"%d" % number, 1, number) for number in range(1, 5)))
    first = wanting.taken(Publish)
    assert [packet.payload for packet in first] == [b"1", b"2"]
    wanting.send(Puback(first[0].packet_id))
    assert wanting.payloads() == [b"3"]


@pytest.mark.parametrize("version", [V311, V5])
def test_a_client_that_sends_more_than_is_allowed_is_sent_away(rig: Rig, version: int) -> None:
    """Receive maximum of the broker; 3.1.1 knows none."""
    rig.subscriber("keeper", "a", qos=1, expiry_s=60)
    publisher = rig.client("publisher", version=version)
    publisher.send(*(publishing("a", b"x", 1, number) for number in range(1, 33)))
    assert not publisher.is_closed
    publisher.send(publishing("a", b"x", 1, 33))
    assert publisher.is_closed == (version == V5)
    if version == V5:
        assert _reason(publisher)[0] == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


def test_answers_make_room_for_more(rig: Rig) -> None:
    """Only what is unanswered counts, QoS 2 until its PUBCOMP."""
    publisher = rig.client("publisher")
    for number in range(1, 101):
        publisher.send(publishing("a", b"x", 1, number), publishing("a", b"x", 2, 200), Pubrel(200))
    assert not publisher.is_closed
    assert len(publisher.taken(Pubcomp)) == 100


def test_an_alias_of_a_client_stands_for_its_topic(rig: Rig) -> None:
    """3.3.2.3.4; it can be given another."""
    wanting, publisher = rig.subscriber("wanting", "#"), rig.client("publisher")
    alias = Properties({Property.TOPIC_ALIAS: 3})
    for topic in ("a", "", "b", ""):
        publisher.send(Publish(topic, b"x", properties=alias))
    assert [packet.topic for packet in wanting.taken(Publish)] == ["a", "a", "b", "b"]


@pytest.mark.parametrize(("alias", "code"), [(3, ReasonCode.PROTOCOL_ERROR), (33, ReasonCode.TOPIC_ALIAS_INVALID)])
def test_an_alias_that_stands_for_nothing_ends_the_connection(rig: Rig, alias: int, code: ReasonCode) -> None:
    """Never set, or above what CONNACK allows."""
    publisher = rig.client("publisher")
    publisher.send(Publish("", b"x", properties=Properties({Property.TOPIC_ALIAS: alias})))
    assert _reason(publisher)[0] == code


def test_topics_to_a_client_are_shortened_as_far_as_it_allows(rig: Rig) -> None:
    """The first time with the topic, then without, and others always with theirs."""
    wanting = rig.client("wanting", options={Property.TOPIC_ALIAS_MAXIMUM: 1})
    wanting.tell(subscribing("#"))
    rig.client("publisher").send(*(publishing(topic, b"x") for topic in ("a", "a", "b", "a")))
    sent = [(packet.topic, packet.properties.integer(Property.TOPIC_ALIAS)) for packet in wanting.taken(Publish)]
    assert sent == [("a", 1), ("", 1), ("b", None), ("", 1)]


def test_what_is_longer_than_a_client_takes_is_left_out(rig: Rig) -> None:
    """3.1.2.11.4: as if it had been delivered, and what comes after it is."""
    wanting = rig.client("wanting", expiry_s=60, options={Property.MAXIMUM_PACKET_SIZE: 40})
    wanting.send(subscribing("a", qos=1))
    rig.settle()
    publisher = rig.client("publisher")
    publisher.send(*(publishing("a", payload, qos, qos) for qos in (0, 1) for payload in (bytes(100), b"short")))
    rig.settle()
    live, held = wanting.taken(Publish)
    assert (live.payload, live.qos, held.payload, held.qos) == (b"short", 0, b"short", 1)
    wanting.send(Puback(held.packet_id))
    wanting.drop()
    assert rig.client("wanting", clean=False, expiry_s=60).take() == []


def test_a_packet_that_is_too_long_ends_the_connection(tmp_path: Path) -> None:
    """It is refused when its length is known."""
    rig = _limited(tmp_path, packet_bytes=1_024)
    publisher = rig.client("publisher")
    publisher.send(publishing("a", bytes(2_000)))
    assert _reason(publisher)[0] == ReasonCode.PACKET_TOO_LARGE


# -- subscriptions -----------------------------------------------------------------------------------------------------


def test_no_local_leaves_out_what_the_client_published_itself(rig: Rig) -> None:
    """3.8.3.1."""
    bridge, other = rig.client("bridge"), rig.client("other")
    bridge.tell(subscribing(SubscriptionRequest("a", 1, no_local=True)))
    bridge.send(publishing("a", b"own"))
    other.send(publishing("a", b"foreign"))
    assert bridge.payloads() == [b"foreign"]


@pytest.mark.parametrize(("handling", "expected"), [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])])
def test_retain_handling_says_when_the_retained_is_sent(rig: Rig, handling: int, expected: list[int]) -> None:
    """3.8.3.1: always, if the subscription is new, or never."""
    rig.client("publisher").send(publishing("a", b"x", retain=True))
    wanting = rig.client("wanting")
    request = SubscriptionRequest("a", retain_handling=handling)
    sent = []
    for _ in range(2):
        wanting.send(subscribing(request))
        sent.append([(packet.payload, packet.retain) for packet in wanting.taken(Publish)])
    assert sent == [[(b"x", True)] * count for count in expected]


def test_an_empty_retained_publication_clears_the_topic(rig: Rig) -> None:
    """3.3.1.3; those who are there get it like any other."""
    wanting, publisher = rig.subscriber("wanting", "a"), rig.client("publisher")
    publisher.send(publishing("a", b"x", retain=True), publishing("a", b"", retain=True))
    assert wanting.payloads() == [b"x", b""]
    assert len(rig.state.retained) == 0


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("qos", [0, 1])
def test_the_retain_flag_is_passed_on_as_published_if_asked_for(rig: Rig, qos: int, *, is_kept: bool) -> None:
    """Bridges ask for it; to others a live publication is not a retained one."""
    wanting, publisher = rig.client("wanting"), rig.client("publisher")
    wanting.tell(subscribing(SubscriptionRequest("a", qos, retain_as_published=is_kept)))
    publisher.send(publishing("a", b"x", qos, qos, retain=True))
    rig.settle()
    assert [packet.retain for packet in wanting.taken(Publish)] == [is_kept]


def test_what_is_retained_expires(rig: Rig) -> None:
    """3.3.2.3.3: and what is left of its time is told."""
    rig.client("publisher").send(_expiring("a", b"x", 10)._replace(retain=True))
    rig.tick(4)
    (sent,) = [each for each in rig.client("early").tell(subscribing("a")) if isinstance(each, Publish)]
    assert sent.properties.integer(Property.MESSAGE_EXPIRY_INTERVAL) == 6
    rig.tick(6)
    assert [type(packet) for packet in rig.client("late").tell(subscribing("a"))] == [Suback]


@pytest.mark.parametrize("qos", [0, 1])
def test_overlapping_subscriptions_give_one_copy_with_all_identifiers(rig: Rig, qos: int) -> None:
    """One session, one copy, the highest QoS, and every subscription that it is for (3.3.4)."""
    wanting = rig.client("wanting")
    for number, (wanted, granted) in enumerate((("a/b", 0), ("a/#", qos), ("+/b", 0)), start=1):
        packet = subscribing(wanted, qos=granted)
        wanting.tell(packet._replace(properties=Properties(identifiers=(number,))))
    rig.client("publisher").send(publishing("a/b", b"x", 1, 1))
    (sent,) = wanting.taken(Publish)
    assert (sent.qos, sorted(sent.properties.identifiers)) == (qos, [1, 2, 3])


def test_a_subscription_that_is_made_again_replaces_the_old(rig: Rig) -> None:
    """3.8.4: the same topic filter is the same subscription."""
    wanting, publisher = rig.subscriber("wanting", "a", qos=0), rig.client("publisher")
    wanting.tell(subscribing("a", qos=1))
    publisher.send(publishing("a", b"x", 2, 1))
    assert [packet.qos for packet in wanting.taken(Publish)] == [1]


def test_a_share_is_given_to_its_members_in_turns(rig: Rig) -> None:
    """4.8.2: each publication goes to one of them, and to those who do not share besides."""
    members = [rig.subscriber(name, "$share/g/a") for name in ("m1", "m2")]
    whole, publisher = rig.subscriber("whole", "a"), rig.client("publisher")
    publisher.send(*(publishing("a", b"%d" % number) for number in range(6)))
    shared = [member.payloads() for member in members]
    assert [len(each) for each in shared] == [3, 3]
    assert sorted(shared[0] + shared[1]) == whole.payloads() == [b"%d" % number for number in range(6)]


def test_a_share_is_sent_nothing_that_is_retained(rig: Rig) -> None:
    """4.8.2."""
    rig.client("publisher").send(publishing("a", b"x", retain=True))
    assert rig.client("member").tell(subscribing("$share/g/a")) == [Suback(1, (0,))]


def test_a_content_filter_is_a_user_property_in_5(rig: Rig) -> None:
    """And holds for what is retained too."""
    publisher, wanting = rig.client("publisher"), rig.client("wanting")
    publisher.send(publishing("a", b'{"n": 9}', retain=True), publishing("b", b'{"n": 1}', retain=True))
    wanting.send(subscribing("#", filter="n > 3"))
    publisher.send(publishing("a", b'{"n": 3}'), publishing("a", b'{"n": 4}'), publishing("a", b"{}"))
    assert wanting.payloads() == [b'{"n": 9}', b'{"n": 4}']


def test_a_content_filter_stands_in_the_topic_filter_in_3(rig: Rig) -> None:
    """It is subscribed to, answered and unsubscribed from as the one text it is."""
    text = "$filter/" + base64.urlsafe_b64encode(b"n > 3").decode().rstrip("=") + "/a/#"
    wanting, publisher = rig.client("wanting", version=V311), rig.client("publisher")
    assert wanting.tell(subscribing(text, qos=1)) == [Suback(1, (1,))]
    publisher.send(publishing("a/b", b'{"n": 3}'), publishing("a/b", b'{"n": 4}'))
    assert wanting.payloads() == [b'{"n": 4}']
    wanting.tell(Unsubscribe(2, (text,)))
    publisher.send(publishing("a/b", b'{"n": 4}'))
    assert wanting.payloads() == []


def test_a_bad_content_filter_is_refused_with_its_place(rig: Rig) -> None:
    """0x8F, and where it went wrong; the others of the packet are not concerned in 3.1.1."""
    (answer,) = rig.client("new").tell(subscribing("a", filter="n >\n > 3"))
    assert isinstance(answer, Suback)
    assert answer.codes == (ReasonCode.TOPIC_FILTER_INVALID,)
    assert "line 2, column 2" in (answer.properties.text(Property.REASON_STRING) or "")
    bad = "$filter/" + base64.urlsafe_b64encode(b"n >").decode() + "/a"
    assert rig.client("old", version=V311).tell(subscribing(bad, "b", qos=1)) == [Suback(1, (0x80, 1))]


# -- expiry ------------------------------------------------------------------------------------------------------------


def test_what_expires_while_its_client_is_away_is_not_sent(rig: Rig) -> None:
    """What is left of the time is told with the rest."""
    rig.subscriber("keeper", "a", qos=1, expiry_s=600).drop()
    publisher = rig.client("publisher")
    publisher.send(_expiring("a", b"short", 5, qos=1, packet_id=1), _expiring("a", b"long", 50, qos=1, packet_id=2))
    rig.settle()
    rig.tick(10)
    (sent,) = [each for each in rig.client("keeper", clean=False, expiry_s=600).take() if isinstance(each, Publish)]
    assert (sent.payload, sent.properties.integer(Property.MESSAGE_EXPIRY_INTERVAL)) == (b"long", 40)


@pytest.mark.parametrize("expiry_s", [0, 60])
def test_what_expires_while_it_waits_for_its_turn_is_not_sent(rig: Rig, expiry_s: int) -> None:
    """The client is there, and takes one at a time."""
    wanting = rig.client("wanting", expiry_s=expiry_s, options={Property.RECEIVE_MAXIMUM: 1})
    wanting.send(subscribing("a", qos=1))
    rig.settle()
    publisher = rig.client("publisher")
    publisher.send(*(_expiring("a", b"%d" % each, each, qos=1, packet_id=each) for each in (99, 5, 50)))
    rig.settle()
    (first,) = wanting.taken(Publish)
    rig.tick(10)
    wanting.send(Puback(first.packet_id))
    assert (first.payload, wanting.payloads()) == (b"99", [b"50"])


def test_qos_0_is_not_kept_for_whoever_is_away(rig: Rig) -> None:
    """Nor is a QoS 1 publication where QoS 0 was granted."""
    rig.subscriber("away", "a", qos=0, expiry_s=60).drop()
    rig.subscriber("gone", "a", qos=2, expiry_s=60).drop()
    publisher = rig.client("publisher")
    publisher.send(publishing("a", b"live"), publishing("a", b"held", 1, 1))
    rig.settle()
    assert rig.client("away", clean=False, expiry_s=60).payloads() == []
    assert rig.client("gone", clean=False, expiry_s=60).payloads() == [b"held"]


# -- quotas and refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V311, V5])
def test_nothing_more_is_held_than_is_allowed(tmp_path: Path, version: int) -> None:
    """5.0 is told so; 3.1.1 has no word for it, an acknowledgement would be a lie, and so it waits."""
    rig = _limited(tmp_path, held_bytes=1_000)
    rig.subscriber("keeper", "a", qos=1, expiry_s=60).drop()
    publisher = rig.client("publisher", version=version)
    publisher.send(publishing("a", bytes(2_000), 1, 1))
    rig.settle()
    assert publisher.take() == [Puback(1)]
    publisher.send(publishing("a", b"x", 1, 2))
    assert [packet.code for packet in publisher.taken(Puback)] == [ReasonCode.QUOTA_EXCEEDED] * (version == V5)
    assert not publisher.is_closed


def test_no_more_subscriptions_are_made_than_are_allowed(tmp_path: Path) -> None:
    """One that is there can still be made anew."""
    wanting = _limited(tmp_path, subscriptions_per_session=2).client("wanting")
    (answer,) = wanting.tell(subscribing("a", "b", "c", "a", qos=1))
    assert isinstance(answer, Suback)
    assert answer.codes == (1, 1, ReasonCode.QUOTA_EXCEEDED, 1)


def test_no_more_topics_are_retained_than_are_allowed(tmp_path: Path) -> None:
    """One that is there can still be replaced."""
    rig = _limited(tmp_path, retained_messages=1)
    publisher = rig.client("publisher")
    for topic in "aba":
        publisher.send(publishing(topic, b"x", 1, 1, retain=True))
        rig.settle()
    assert [packet.code for packet in publisher.taken(Puback)] == [NO_ONE, ReasonCode.QUOTA_EXCEEDED, NO_ONE]


def test_an_empty_publication_costs_no_quota(tmp_path: Path) -> None:
    """It retains nothing, so there is nothing to refuse."""
    rig = _limited(tmp_path, retained_messages=0)
    publisher = rig.client("publisher")
    publisher.send(publishing("a", b"", 1, 1, retain=True))
    rig.settle()
    assert [packet.code for packet in publisher.taken(Puback)] == [NO_ONE]


def test_what_a_client_cannot_take_is_held_for_nobody(rig: Rig) -> None:
    """A private session has one device: what that device will never be given must not fill the quota of all."""
    wanting = rig.client("wanting", expiry_s=60, options={Property.MAXIMUM_PACKET_SIZE: 40})
    wanting.send(subscribing("a", qos=1))
    rig.settle()
    rig.client("publisher").send(publishing("a", bytes(100), 1, 1))
    rig.settle()
    assert (rig.state.held.size_bytes, len(rig.state.held)) == (0, 0)


@pytest.mark.parametrize("version", [V311, V5])
def test_a_disk_that_takes_nothing_refuses_publications(rig: Rig, version: int) -> None:
    """Until it takes something again; in 3.1.1, which has no words for it, they wait."""
    publisher = rig.client("publisher", version=version)
    rig.broker.refuse()
    publisher.send(publishing("a", b"x", 1, 1))
    assert [packet.code for packet in publisher.taken(Puback)] == [ReasonCode.QUOTA_EXCEEDED] * (version == V5)
    assert not publisher.is_closed
    rig.sync()
    assert [type(packet) for packet in rig.client("other").tell(publishing("a", b"x", 1, 1))] == [Puback]


def test_a_disk_that_takes_nothing_refuses_subscriptions_and_clients(rig: Rig) -> None:
    """Neither could be promised."""
    wanting = rig.client("wanting")
    rig.broker.refuse()
    (answer,) = wanting.tell(subscribing("a"))
    assert isinstance(answer, Suback)
    assert answer.codes == (ReasonCode.QUOTA_EXCEEDED,)
    (refusal,) = rig.connecting("late").taken(Connack)
    assert refusal.code == ReasonCode.SERVER_UNAVAILABLE


def test_what_waits_for_a_refusing_disk_is_accepted_when_it_takes_it(rig: Rig) -> None:
    """Neither forgotten nor answered too early."""
    keeper, publisher = rig.subscriber("keeper", "a", qos=1, expiry_s=60), rig.client("publisher")
    publisher.send(publishing("a", b"x", 1, 1))
    rig.broker.refuse()
    assert publisher.take() == []
    rig.sync()
    assert publisher.take() == [Puback(1)]
    assert keeper.payloads() == [b"x"]


@pytest.mark.parametrize("topic", ["$SYS/x", "$share/g/a", "$filter/x/a", "$whimbrel/x"])
def test_the_brokers_own_topics_are_not_published_to(rig: Rig, topic: str) -> None:
    """Nobody speaks for the broker."""
    answers = rig.client("publisher").tell(publishing(topic, b"x", 1, 1), publishing(topic, b"x", 2, 2))
    assert [packet.code for packet in answers if isinstance(packet, (Puback, Pubrec))] == [0x87, 0x87]


def test_no_higher_qos_than_is_offered_is_granted_or_taken(tmp_path: Path) -> None:
    """CONNACK says what is offered."""
    rig = Rig(tmp_path, replace(Config(), mqtt=MqttSettings(maximum_qos=1)))
    peer = rig.connecting("c")
    assert [each.properties.integer(Property.MAXIMUM_QOS) for each in peer.taken(Connack)] == [1]
    assert peer.tell(subscribing("a", qos=2)) == [Suback(1, (1,))]
    peer.send(publishing("a", b"x", 2, 1))
    assert _reason(peer)[0] == ReasonCode.QOS_NOT_SUPPORTED


@pytest.mark.parametrize("is_wanted", [False, True])
def test_a_qos_that_is_not_offered_is_refused_wanted_or_not(tmp_path: Path, *, is_wanted: bool) -> None:
    """The short way of what only live sessions want refuses what the long way does (3.2.2.3.4)."""
    rig = Rig(tmp_path, replace(Config(), mqtt=MqttSettings(maximum_qos=0)))
    wanting, publisher = rig.subscriber("wanting", "a" if is_wanted else "b"), rig.client("publisher")
    publisher.send(publishing("a", b"x", 1, 1))
    assert _reason(publisher)[0] == ReasonCode.QOS_NOT_SUPPORTED
    assert wanting.payloads() == []


# -- the broker's own --------------------------------------------------------------------------------------------------


def test_what_the_broker_says_of_itself_is_live_and_retained(rig: Rig) -> None:
    """And no wildcard at the first level finds it (4.7.2)."""
    here, everything = rig.subscriber("here", "$SYS/#"), rig.subscriber("everything", "#")
    before = rig.log.next_seq
    rig.broker.tell_system({"$SYS/a": "1"}, rig.now)
    rig.flush()
    assert [(packet.payload, packet.retain) for packet in here.taken(Publish)] == [(b"1", False)]
    assert everything.take() == []
    assert rig.log.next_seq == before
    late = rig.client("late").tell(subscribing("$SYS/+"))
    assert [(packet.payload, packet.retain) for packet in late if isinstance(packet, Publish)] == [(b"1", True)]


# -- the protocol ------------------------------------------------------------------------------------------------------


def test_a_breach_of_the_protocol_ends_the_connection_after_what_came_before(rig: Rig) -> None:
    """What was whole and allowed was said."""
    peer = rig.client("c")
    peer.send_bytes(encode(Pingreq(), V5) + encode(Connect("c"), V5))
    assert peer.inbox[0] == Pingresp()
    assert _reason(peer)[0] == ReasonCode.PROTOCOL_ERROR
    assert rig.state.volatile.counters.protocol_errors == 1


def test_an_unknown_version_is_refused_in_words_it_may_know(rig: Rig) -> None:
    """CONNACK of 3.1.1 with return code 1."""
    peer = Peer(rig, V311)
    peer.send_bytes(bytes.fromhex("100d 0004 4d515454 63 02 003c 0001 63"))
    assert peer.take() == [Connack(session_present=False, code=1)]
    assert peer.is_closed


def test_a_clock_that_is_set_back_sends_nobody_away(rig: Rig) -> None:
    """Who spoke this moment is not silent, whatever the clock says; facts are stamped with the last time."""
    publisher = rig.client("publisher")
    publisher.send(publishing("a", b"x"))
    rig.now -= 100 * SECOND_US
    publisher.send(publishing("a", b"y"))
    rig.tick()
    rig.sync()
    assert not publisher.is_closed


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("members", [2, 3, 7])
@pytest.mark.parametrize("pace", [1, 5])
def test_every_member_of_a_share_has_its_turn(rig: Rig, qos: int, members: int, pace: int) -> None:
    """Receipts take numbers too: whoever counted by those gave everything to one worker and nothing to the other."""
    workers = [rig.subscriber(f"w{number}", "$share/g/jobs", qos=qos) for number in range(members)]
    publisher, sent = rig.client("publisher"), 20 * members
    done = [0] * members
    for begin in range(0, sent, pace):
        publisher.send(*(publishing("jobs", b"x", qos, n + 1 if qos else 0) for n in range(begin, begin + pace)))
        rig.settle()
        publisher.send(*(Pubrel(packet.packet_id) for packet in publisher.taken(Pubrec)))
        for number, worker in enumerate(workers):
            jobs = worker.taken(Publish)
            done[number] += len(jobs)
            worker.send(*(Puback(job.packet_id) for job in jobs if job.qos == 1))
            worker.send(*(Pubrec(job.packet_id) for job in jobs if job.qos == 2))
            worker.send(*(Pubcomp(packet.packet_id) for packet in worker.taken(Pubrel)))
    assert sum(done) == sent
    assert max(done) - min(done) <= 1
