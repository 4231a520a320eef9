"""The client's side of MQTT: two machines joined in memory, connections that break, and nothing given twice."""

from __future__ import annotations

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.mqtt.client import (
    Accepted,
    Arrived,
    ClientConnection,
    ClientLimits,
    ClientSession,
    Delivery,
    Event,
    OutcomeUnknown,
    PublishCompleted,
    Refused,
    ServerDisconnected,
    SubscribeAnswered,
)
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import (
    V5,
    V311,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property
from whimbrel.mqtt.server import ServerConnection, ServerLimits

VERSIONS = pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])


class Wire:
    """One connection of *session*: what the client sends is read by a server's machine, what is answered is chosen."""

    def __init__(
        self,
        session: ClientSession,
        *,
        clean: bool = False,
        keep_alive_s: int = 60,
        limits: ClientLimits | None = None,
    ) -> None:
        connect = Connect("me", clean_start=clean, keep_alive_s=keep_alive_s, version=session.version)
        self.client = ClientConnection(session, connect, limits or ClientLimits(), now=0.0)
        self.server = ServerConnection(ServerLimits())

    def said(self, now: float = 0.0) -> list[Packet]:
        """Return what the client has sent since the last time."""
        packets = self.server.receive(self.client.take(now=now))
        self.server.go_on()  # it stops behind CONNECT
        packets += self.server.receive(b"")
        assert self.server.failure is None
        return packets

    def answer(self, *packets: Packet, now: float = 0.0) -> list[Event]:
        """Let the client receive *packets*."""
        data = b"".join(encode(packet, self.server.version) for packet in packets)
        return self.client.receive(data, now=now)

    def failure_code(self) -> ReasonCode | None:
        """Return what the client has against the server."""
        return None if self.client.failure is None else self.client.failure.code

    def accepted(self, *, present: bool = False, told: Properties = NO_PROPERTIES) -> list[Packet]:
        """Accept CONNECT; return what the client says to that."""
        assert type(self.said()[0]) is Connect
        events = self.answer(Connack(present, ReasonCode.SUCCESS, told if self.server.version == V5 else NO_PROPERTIES))
        assert isinstance(events[0], Accepted)
        return self.said()


def _publish(wire: Wire, qos: int, body: bytes = b"x") -> int:
    identifier, events = wire.client.publish(Publish("t", body, qos))
    assert not events
    return identifier


def _deliveries(events: list[Event]) -> list[Delivery]:
    return [event.delivery for event in events if isinstance(event, Arrived)]


# -- connecting ------------------------------------------------------------------------------------------------------


def test_what_the_server_tells_is_what_counts() -> None:
    """A client that ignored the server's limits would be thrown out."""
    wire = Wire(ClientSession())
    told = {
        Property.RECEIVE_MAXIMUM: 3,
        Property.SERVER_KEEP_ALIVE: 7,
        Property.ASSIGNED_CLIENT_IDENTIFIER: "auto-1",
        Property.TOPIC_ALIAS_MAXIMUM: 9,
        Property.MAXIMUM_PACKET_SIZE: 100,
    }
    wire.accepted(told=Properties(told))
    terms = wire.client.terms
    assert (terms.receive_maximum, terms.keep_alive_s, terms.client_id) == (3, 7, "auto-1")
    assert (terms.topic_alias_maximum, terms.packet_bytes) == (9, 100)


def test_the_client_tells_its_own_limits() -> None:
    """Otherwise the server could send more than the client takes."""
    wire = Wire(ClientSession(), limits=ClientLimits(receive_maximum=5, packet_bytes=1_000, topic_alias_maximum=2))
    wire.accepted()
    assert (wire.server.receive_maximum, wire.server.max_packet_bytes) == (5, 1_000)
    assert wire.server.has_outbound_aliases


def test_a_refusal_is_an_event_with_its_reason() -> None:
    """Whoever connects wants to know why not."""
    wire = Wire(ClientSession())
    wire.said()
    why = Properties({Property.REASON_STRING: "no"})
    assert wire.answer(Connack(code=ReasonCode.BANNED, properties=why)) == [Refused(ReasonCode.BANNED, "no")]
    assert wire.client.is_closed


def test_a_return_code_of_the_older_version_is_kept() -> None:
    """3.1.1 has codes of its own, 1 to 5."""
    wire = Wire(ClientSession(V311))
    wire.said()
    assert wire.answer(Connack(code=5)) == [Refused(5, None)]


@pytest.mark.parametrize(
    "packets",
    [
        [Pingresp()],
        [Connack(session_present=True)],
        [Connack(), Connack()],
        [Connack(), Pingreq()],
        [Connack(), Suback(7, (0,))],
        [Connack(), Publish("", b"", properties=Properties({Property.TOPIC_ALIAS: 1}))],
        [Connack(), Publish("a", b"", properties=Properties({Property.TOPIC_ALIAS: 33}))],
    ],
)
def test_a_server_that_breaks_the_rules_is_left(packets: list[Packet]) -> None:
    """A client that guessed on would be wrong sooner or later; one failure, and nothing after it counts."""
    wire = Wire(ClientSession(), clean=True)
    wire.said()
    wire.answer(*packets)
    assert wire.client.failure is not None
    assert wire.client.is_closed
    assert wire.answer(Publish("a", b"")) == []


def test_a_dismissal_is_an_event() -> None:
    """Some codes mean: come back later; others: do not."""
    wire = Wire(ClientSession())
    wire.accepted()
    assert wire.answer(Disconnect(ReasonCode.SESSION_TAKEN_OVER)) == [
        ServerDisconnected(ReasonCode.SESSION_TAKEN_OVER, None)
    ]


def test_a_clean_end_says_so() -> None:
    """Without DISCONNECT the server would publish the will."""
    wire = Wire(ClientSession())
    wire.accepted()
    wire.client.disconnect()
    assert [type(packet) for packet in wire.said()] == [Disconnect]


# -- publishing ------------------------------------------------------------------------------------------------------


@VERSIONS
def test_qos_1_is_over_with_its_acknowledgement(version: int) -> None:
    """The usual case, in both versions."""
    session = ClientSession(version)
    wire = Wire(session)
    wire.accepted()
    identifier = _publish(wire, 1)
    assert wire.said() == [Publish("t", b"x", 1, packet_id=identifier)]
    assert wire.answer(Puback(identifier)) == [PublishCompleted(identifier, ReasonCode.SUCCESS)]
    assert session.unanswered == 0


@VERSIONS
@pytest.mark.parametrize(
    ("qos", "steps"),
    [(1, (Pubrec,)), (1, (Pubcomp,)), (2, (Puback,)), (2, (Pubcomp,)), (2, (Pubrec, Puback))],
)
def test_an_answer_of_the_wrong_kind_is_a_breach(
    version: int, qos: int, steps: tuple[type[Puback | Pubrec | Pubcomp], ...]
) -> None:
    """A server that loses count must not make a publication hang for ever, nor be over too soon (4.3)."""
    session = ClientSession(version)
    wire = Wire(session)
    wire.accepted()
    identifier = _publish(wire, qos)
    for step in steps:
        assert wire.failure_code() is None
        assert wire.answer(step(identifier)) == []
    assert wire.failure_code() == ReasonCode.PROTOCOL_ERROR
    assert session.unanswered == 1


@VERSIONS
def test_qos_2_takes_four_steps(version: int) -> None:
    """The usual case, in both versions."""
    session = ClientSession(version)
    wire = Wire(session)
    wire.accepted()
    identifier = _publish(wire, 2)
    wire.said()
    assert wire.answer(Pubrec(identifier)) == []
    assert wire.said() == [Pubrel(identifier)]
    assert wire.answer(Pubcomp(identifier)) == [PublishCompleted(identifier, ReasonCode.SUCCESS)]
    assert session.unanswered == 0


def test_a_refused_publication_is_over_with_its_reason() -> None:
    """The publisher is told what the server said, at QoS 1 and 2."""
    wire = Wire(ClientSession())
    wire.accepted()
    first, second = _publish(wire, 1), _publish(wire, 2)
    why = Properties({Property.REASON_STRING: "full"})
    events = wire.answer(
        Puback(first, ReasonCode.QUOTA_EXCEEDED, why), Pubrec(second, ReasonCode.NOT_AUTHORIZED, NO_PROPERTIES)
    )
    assert events == [
        PublishCompleted(first, ReasonCode.QUOTA_EXCEEDED, "full"),
        PublishCompleted(second, ReasonCode.NOT_AUTHORIZED, None),
    ]


@VERSIONS
def test_what_was_not_answered_is_sent_again_in_order(version: int) -> None:
    """Same identifiers, DUP, the order of old; what was released is released again (4.4)."""
    session = ClientSession(version)
    wire = Wire(session)
    wire.accepted()
    one, two, three, four = (_publish(wire, qos, body) for qos, body in ((1, b"1"), (2, b"2"), (2, b"3"), (1, b"4")))
    wire.answer(Pubrec(two), Puback(four))
    again = Wire(session)
    assert again.accepted(present=True) == [
        Pubrel(two),
        Publish("t", b"1", 1, dup=True, packet_id=one),
        Publish("t", b"3", 2, dup=True, packet_id=three),
    ]
    events = again.answer(Pubcomp(two), Puback(one), Pubrec(three), Pubcomp(three))
    assert [event.packet_id for event in events if isinstance(event, PublishCompleted)] == [two, one, three]


def test_what_was_published_without_a_connection_is_sent_with_the_next() -> None:
    """It was never sent, so it is no duplicate."""
    session = ClientSession()
    identifier = session.publish(Publish("t", b"x", 1))
    assert Wire(session).accepted() == [Publish("t", b"x", 1, packet_id=identifier)]


def test_a_lost_session_begins_anew() -> None:
    """QoS 1 is sent as new, a release is done, and of QoS 2 without an answer nobody can say what became of it."""
    session = ClientSession()
    wire = Wire(session)
    wire.accepted()
    one, two, three = (_publish(wire, qos) for qos in (1, 2, 2))
    wire.said()
    wire.answer(Pubrec(two))
    again = Wire(session)
    again.said()
    events = again.answer(Connack())[1:]
    assert events == [PublishCompleted(two, ReasonCode.SUCCESS), OutcomeUnknown(three)]
    assert again.said() == [Publish("t", b"x", 1, packet_id=one)]


def test_the_server_is_sent_no_more_than_it_takes() -> None:
    """One more than the receive maximum, and the server would close (4.9)."""
    wire = Wire(ClientSession())
    wire.accepted(told=Properties({Property.RECEIVE_MAXIMUM: 2}))
    one, two, three = (_publish(wire, qos) for qos in (1, 2, 1))
    assert [packet.packet_id for packet in wire.said() if isinstance(packet, Publish)] == [one, two]
    wire.answer(Pubrec(two))
    assert wire.said() == [Pubrel(two)]
    wire.answer(Pubcomp(two))
    assert wire.said() == [Publish("t", b"x", 1, packet_id=three)]


def test_what_the_server_cannot_take_is_not_sent() -> None:
    """It would close the connection; so the publisher is told, and the next one is sent."""
    wire = Wire(ClientSession())
    wire.accepted(told=Properties({Property.MAXIMUM_PACKET_SIZE: 50, Property.MAXIMUM_QOS: 1}))
    _, events = wire.client.publish(Publish("t", b"x" * 100, 1))
    _, others = wire.client.publish(Publish("t", b"x", 2))
    codes = [event.code for event in (*events, *others) if isinstance(event, PublishCompleted)]
    assert codes == [ReasonCode.PACKET_TOO_LARGE, ReasonCode.QOS_NOT_SUPPORTED]
    assert wire.client.publish_once(Publish("t", b"x" * 100)) is ReasonCode.PACKET_TOO_LARGE
    assert wire.said() == []


def test_identifiers_in_use_are_not_given_again() -> None:
    """Two publications under one identifier could not be told apart."""
    session = ClientSession(first_id=65_535)
    wire = Wire(session)
    wire.accepted()
    last = _publish(wire, 1)
    first = wire.client.subscribe((SubscriptionRequest("a"),))
    session.last_id = 65_534
    assert (last, first, _publish(wire, 1)) == (65_535, 1, 2)


def test_a_topic_with_wildcards_is_a_mistake_of_ours() -> None:
    """It must not reach the server, nor stay in the session."""
    session = ClientSession()
    with pytest.raises(InvalidValueError, match=r"^'a/\+' is not a topic name: \+ and # are for topic filters$"):
        session.publish(Publish("a/+", b"", 1))
    assert session.unanswered == 0


# -- receiving -------------------------------------------------------------------------------------------------------


@VERSIONS
def test_a_message_is_confirmed_when_it_is_handled(version: int) -> None:
    """An application that dies with it gets it again."""
    wire = Wire(ClientSession(version))
    wire.accepted()
    [delivery] = _deliveries(wire.answer(Publish("t", b"x", 1, packet_id=9)))
    assert wire.said() == []
    wire.client.acknowledge(delivery)
    wire.client.acknowledge(delivery)
    assert wire.said() == [Puback(9)]


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_in_hand_is_not_given_twice(version: int, qos: int) -> None:
    """The server repeats what was not confirmed; the application has it already."""
    session = ClientSession(version)
    wire = Wire(session)
    wire.accepted()
    [delivery] = _deliveries(wire.answer(Publish("t", b"x", qos, packet_id=9)))
    again = Wire(session)
    again.accepted(present=True)
    assert again.answer(Publish("t", b"x", qos, dup=True, packet_id=9)) == []
    again.client.acknowledge(delivery)
    assert again.said() == [Puback(9) if qos == 1 else Pubrec(9)]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_handled_meanwhile_is_confirmed_when_it_comes_again(qos: int) -> None:
    """An answer to what the server has not sent on this connection would only confuse it."""
    session = ClientSession()
    wire = Wire(session)
    wire.accepted()
    [delivery] = _deliveries(wire.answer(Publish("t", b"x", qos, packet_id=9)))
    again = Wire(session)
    again.accepted(present=True)
    again.client.acknowledge(delivery)
    assert again.said() == []
    assert again.answer(Publish("t", b"x", qos, dup=True, packet_id=9)) == []
    assert again.said() == [Puback(9) if qos == 1 else Pubrec(9)]


def test_nothing_is_confirmed_on_a_connection_that_is_over() -> None:
    """The server would not hear it; so the message counts as handled, and is confirmed when it comes again."""
    session = ClientSession()
    wire = Wire(session)
    wire.accepted()
    [delivery] = _deliveries(wire.answer(Publish("t", b"x", 1, packet_id=9), Disconnect(ReasonCode.SERVER_BUSY)))
    wire.client.acknowledge(delivery)
    assert wire.client.take(now=0.0) == b""
    again = Wire(session)
    again.accepted(present=True)
    assert again.answer(Publish("t", b"x", 1, dup=True, packet_id=9)) == []
    assert again.said() == [Puback(9)]


@VERSIONS
def test_qos_2_is_remembered_until_it_is_released(version: int) -> None:
    """PUBREC was lost: the server repeats the message, and must not be believed."""
    session = ClientSession(version)
    wire = Wire(session)
    wire.accepted()
    [delivery] = _deliveries(wire.answer(Publish("t", b"x", 2, packet_id=9)))
    wire.client.acknowledge(delivery)
    again = Wire(session)
    again.accepted(present=True)
    assert again.answer(Publish("t", b"x", 2, dup=True, packet_id=9)) == []
    assert again.said() == [Pubrec(9)]
    again.answer(Pubrel(9))
    assert again.said() == [Pubcomp(9)]
    assert len(_deliveries(again.answer(Publish("t", b"x", 2, packet_id=9)))) == 1


def test_a_release_that_was_answered_is_answered_again() -> None:
    """PUBCOMP was lost; without an answer the server could never forget."""
    wire = Wire(ClientSession())
    wire.accepted()
    wire.answer(Pubrel(9))
    assert wire.said() == [Pubcomp(9, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)]


def test_another_message_under_a_known_identifier_is_given() -> None:
    """The server had given up the message we know, and used its identifier again: nothing may be swallowed."""
    session = ClientSession()
    wire = Wire(session)
    wire.accepted()
    wire.answer(Publish("t", b"old 1", 1, packet_id=1), Publish("t", b"old 2", 2, packet_id=2))
    again = Wire(session)
    again.accepted(present=True)
    new = again.answer(Publish("t", b"new 1", 1, packet_id=1), Publish("t", b"new 2", 2, packet_id=2))
    assert [delivery.packet.payload for delivery in _deliveries(new)] == [b"new 1", b"new 2"]


def test_a_lost_session_forgets_what_was_received() -> None:
    """The server knows nothing of it, so the same identifier is another message."""
    session = ClientSession()
    wire = Wire(session)
    wire.accepted()
    [old] = _deliveries(wire.answer(Publish("t", b"x", 2, packet_id=9)))
    again = Wire(session)
    again.accepted()
    assert len(_deliveries(again.answer(Publish("t", b"x", 2, packet_id=9)))) == 1
    again.client.acknowledge(old)
    assert again.said() == []


def test_aliases_are_resolved_and_end_with_the_connection() -> None:
    """The application never sees an empty topic."""
    session = ClientSession()
    wire = Wire(session)
    wire.accepted()
    alias = Properties({Property.TOPIC_ALIAS: 1})
    got = _deliveries(wire.answer(Publish("a/b", b"1", properties=alias), Publish("", b"2", properties=alias)))
    assert [delivery.packet.topic for delivery in got] == ["a/b", "a/b"]
    again = Wire(session)
    again.accepted(present=True)
    again.answer(Publish("", b"3", properties=alias))
    assert again.client.failure is not None


def test_more_than_was_agreed_on_is_forgiven() -> None:
    """There are servers that send more; the caller reads no more than it can hold, so nothing is lost by it."""
    wire = Wire(ClientSession(), limits=ClientLimits(receive_maximum=1))
    wire.accepted()
    got = _deliveries(wire.answer(*(Publish("t", b"", 1, packet_id=number) for number in (1, 2, 3))))
    assert [delivery.packet.packet_id for delivery in got] == [1, 2, 3]
    assert wire.failure_code() is None


# -- subscribing -----------------------------------------------------------------------------------------------------


@VERSIONS
def test_requests_are_answered_with_their_codes(version: int) -> None:
    """Which of several was granted is known by position."""
    wire = Wire(ClientSession(version))
    wire.accepted()
    asked = wire.client.subscribe((SubscriptionRequest("a", 1), SubscriptionRequest("b", 1)))
    given_up = wire.client.unsubscribe(("a",))
    assert [type(packet) for packet in wire.said()] == [Subscribe, Unsubscribe]
    events = wire.answer(Suback(asked, (1, 0x80)), Unsuback(given_up, (0,)))
    assert events == [
        SubscribeAnswered(asked, (1, 0x80), None),
        SubscribeAnswered(given_up, (0,) if version == V5 else (), None),
    ]


def test_codes_must_be_as_many_as_topic_filters() -> None:
    """Otherwise nobody knows which was granted."""
    wire = Wire(ClientSession())
    wire.accepted()
    asked = wire.client.subscribe((SubscriptionRequest("a", 1),))
    assert wire.answer(Suback(asked, (1, 1))) == []
    assert wire.client.failure is not None


# -- keep alive ------------------------------------------------------------------------------------------------------


def test_a_ping_is_due_after_silence_of_either_side() -> None:
    """The server must hear of us, and we must notice that it is gone."""
    wire = Wire(ClientSession(), keep_alive_s=10)
    wire.accepted()
    assert wire.client.ping_due_at == 10.0
    wire.client.publish_once(Publish("t", b""))
    wire.said(now=8.0)
    assert wire.client.ping_due_at == 10.0
    wire.answer(Publish("t", b""), now=9.0)
    assert wire.client.ping_due_at == 18.0


def test_a_server_that_does_not_answer_is_dead() -> None:
    """Half a keep alive after the ping; any byte from it counts as an answer."""
    wire = Wire(ClientSession(), keep_alive_s=10)
    wire.accepted()
    wire.client.timer(now=10.0)
    assert [type(packet) for packet in wire.said(now=10.0)] == [Pingreq]
    assert wire.client.dead_at == 15.0
    wire.answer(Pingresp(), now=11.0)
    wire.client.timer(now=15.0)
    assert wire.failure_code() is None
    wire.client.timer(now=21.0)
    wire.said(now=21.0)
    wire.client.timer(now=26.0)
    assert wire.failure_code() is ReasonCode.KEEP_ALIVE_TIMEOUT


def test_who_does_not_listen_draws_no_conclusions() -> None:
    """While the application is slow nothing is read; pings go on, but silence proves nothing."""
    wire = Wire(ClientSession(), keep_alive_s=10)
    wire.accepted()
    wire.client.stop_listening()
    for now in (10.0, 20.0, 30.0):
        wire.client.timer(now=now)
        assert [type(packet) for packet in wire.said(now=now)] == [Pingreq]
    wire.client.listen(now=35.0)
    assert (wire.client.dead_at, wire.client.failure) == (None, None)


def test_without_a_keep_alive_there_is_no_ping() -> None:
    """0 switches it off, unless the server wants one."""
    wire = Wire(ClientSession(), keep_alive_s=0)
    wire.accepted()
    assert wire.client.ping_due_at is None
