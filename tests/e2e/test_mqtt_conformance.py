"""MQTT 5.0 from end to end: what the cases of the public conformance suite ask of a broker, in our own words.

The 27 cases are the headings; clauses of the standard stand in parentheses. The client is ``raw_client``, which knows
nothing of Whimbrel. One broker serves all tests; each has clients and topics of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.raw_client import Clients, Kind, P, Packet, Properties, RawClient, Will, packet, publish_packet, wish

FORBIDDEN = "test/nosubscribe"
RIGHTS = f"""
[[rule]]
topics = ["{FORBIDDEN}"]
deny = ["subscribe"]
"""
PACKET_BYTES = 4_096
LASTING: Properties = ((P.SESSION_EXPIRY, 3_600),)
NO_SUBSCRIBERS = 0x10
MALFORMED = 0x81
PROTOCOL_ERROR = 0x82
WITH_WILL = 0x04


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield a broker that denies one subscription and takes only short packets."""
    folder: Path = tmp_path_factory.mktemp("conformance")
    rights = folder / "rights.toml"
    rights.write_text(RIGHTS, encoding="utf-8")
    settings = {"limits": {"packet_bytes": PACKET_BYTES}, "mqtt": {"keep_alive_s": 60}}
    with BrokerProcess(folder, "--rights", str(rights), settings=settings) as process:
        yield process


@pytest.fixture
def clients(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Clients]:
    """Yield the test's clients."""
    with Clients(broker.port, request.node.name) as clients:
        yield clients


def payloads(messages: list[Packet]) -> list[bytes]:
    """Return what *messages* carry."""
    return [message.payload for message in messages]


def publish_at_every_qos(client: RawClient, topic: str, properties: Properties = ()) -> None:
    """Publish the payloads 0, 1 and 2 with that QoS."""
    for qos in range(3):
        client.publish(topic, b"%d" % qos, qos, properties=properties)


# -- basic -------------------------------------------------------------------------------------------------------------


def test_messages_of_every_qos_come_with_that_qos(clients: Clients) -> None:
    """The three ways to hand over a message are what MQTT is."""
    client = clients.connect("a")
    assert client.subscribe(clients.topic("a")).codes == (2,)
    publish_at_every_qos(client, clients.topic("a"))
    found = client.messages(3)
    assert [(message.payload, message.qos) for message in found] == [(b"0", 0), (b"1", 1), (b"2", 2)]
    assert {message.topic for message in found} == {clients.topic("a")}
    assert not any(message.retain or message.dup for message in found)
    assert client.messages_so_far() == []


def test_the_lower_qos_of_message_and_subscription_counts(clients: Clients) -> None:
    """A subscriber says what it can cope with (3.8.4)."""
    client = clients.connect("a")
    assert client.subscribe(wish(clients.topic("a"), 1)).codes == (1,)
    publish_at_every_qos(client, clients.topic("a"))
    assert [message.qos for message in client.messages(3)] == [0, 1, 1]


def test_a_publication_that_nobody_wants_says_so(clients: Clients) -> None:
    """The publisher of a lonely message may want to know (3.4.2.1)."""
    client = clients.connect("a")
    answer = client.publish(clients.topic("a"), b"x", 1)
    assert answer is not None
    assert answer.code in {0, NO_SUBSCRIBERS}


def test_a_second_connect_ends_the_connection(clients: Clients) -> None:
    """CONNECT comes once (3.1.0-2); a client that sends two is confused about who it is."""
    client = clients.connect("a")
    client.send(packet(Kind.CONNECT, b"\0\4MQTT\5\2\0\0\0\0\1a"))
    assert client.is_closed()
    assert [(each.kind, each.code) for each in client.waiting] == [(Kind.DISCONNECT, 0x82)]


def test_a_second_connect_that_breaks_a_rule_is_no_first_one(clients: Clients) -> None:
    """There is one CONNACK a connection (3.2.0-2): what is wrong later stands in DISCONNECT."""
    client = clients.connect("a")
    client.send(packet(Kind.CONNECT, b"\0\4MQTT\5\3\0\0\0\0\1a"))
    assert client.is_closed()
    assert [(each.kind, each.code) for each in client.waiting] == [(Kind.DISCONNECT, MALFORMED)]


def test_another_protocol_is_not_welcome(clients: Clients) -> None:
    """Whoever speaks something else is turned away (3.1.2-1)."""
    client = clients.open()
    client.send(packet(Kind.CONNECT, b"\0\2hj\5\2\0\0\0\0\1a"))
    assert client.is_closed()
    assert all(each.kind is Kind.CONNACK and each.code for each in client.waiting)  # in whatever version's words


def test_what_comes_before_connect_ends_the_connection(clients: Clients) -> None:
    """CONNECT comes first (3.1.0-1): nobody may publish who has not said who it is."""
    client = clients.open()
    client.send(publish_packet(clients.topic("a"), b"x"))
    assert client.is_closed()
    assert client.waiting == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"\0\4MQTT\5\2\0\0" + b"\6\x21\0\1\x21\0\1" + b"\0\1a", PROTOCOL_ERROR),  # receive maximum twice
        (b"\0\4MQTT\5\2\0\0" + b"\3\x21\0\0" + b"\0\1a", PROTOCOL_ERROR),  # receive maximum 0
        (b"\0\4MQTT\5\2\0\0" + b"\3\x16\0\0" + b"\0\1a", PROTOCOL_ERROR),  # authentication data, no method
        (b"\0\4MQTT\5\2\0\0" + b"\3\x23\0\1" + b"\0\1a", MALFORMED),  # topic alias, which PUBLISH has
        (b"\0\4MQTT\5\2\0\0" + b"\0" + b"\0\2a", MALFORMED),  # an identifier longer than the packet
        (b"\0\4MQTT\5\3\0\0" + b"\0" + b"\0\1a", MALFORMED),  # the reserved flag
    ],
)
def test_a_connect_that_breaks_a_rule_is_answered(clients: Clients, body: bytes, code: int) -> None:
    """CONNACK may say which (3.1.4-1, 4.13.1): whoever writes a client need not guess."""
    client = clients.open()
    client.send(packet(Kind.CONNECT, body))
    answer = client.receive(Kind.CONNACK)
    assert (answer.code, answer.session_present) == (code, False)
    assert answer[P.REASON_STRING]
    assert client.is_closed()
    assert client.waiting == []


def test_the_newer_of_two_connections_with_one_name_stays(clients: Clients) -> None:
    """A device that lost its connection without knowing must not be locked out by itself (3.1.4-3)."""
    old = clients.connect("a")
    new = clients.connect("a")
    assert old.is_closed()
    assert [(each.kind, each.code) for each in old.waiting] == [(Kind.DISCONNECT, 0x8E)]
    new.ping()


# -- retained message --------------------------------------------------------------------------------------------------


def test_retained_messages_come_with_qos_and_properties(clients: Clients) -> None:
    """The last word on a topic is told to whoever asks later, complete (3.3.1.3)."""
    publisher, late = clients.connect("a"), clients.connect("b")
    properties: Properties = ((P.USER, ("a", "2")), (P.USER, ("c", "3")))
    for qos in range(3):
        publisher.publish(clients.topic(f"{qos}"), b"kept", qos, retain=True, properties=properties)
    late.subscribe(clients.topic("+"))
    found = sorted(late.messages(3), key=lambda message: message.topic)
    assert [(message.topic, message.qos) for message in found] == [(clients.topic(f"{qos}"), qos) for qos in range(3)]
    assert all(message.retain and message.properties == properties for message in found)


def test_an_empty_retained_message_clears_the_topic(clients: Clients) -> None:
    """A topic must be able to become quiet again (3.3.1-6)."""
    publisher, late = clients.connect("a"), clients.connect("b")
    publisher.publish(clients.topic("a"), b"kept", retain=True)
    publisher.publish(clients.topic("a"), b"", retain=True)
    late.subscribe(clients.topic("a"))
    assert late.messages_so_far() == []


# -- will message ------------------------------------------------------------------------------------------------------


def test_the_will_of_a_lost_client_is_published(clients: Clients) -> None:
    """Others learn that a device is gone, with all that it wanted them to know (3.1.2.5)."""
    watcher = clients.connect("b")
    watcher.subscribe(clients.topic("will"))
    properties: Properties = ((P.CONTENT_TYPE, "text/plain"), (P.USER, ("why", "lost")))
    will = Will(topic=clients.topic("will"), payload=b"gone", qos=2, properties=properties)
    clients.connect("a", will=will).drop()
    found = watcher.message()
    assert (found.topic, found.payload, found.qos, found.retain) == (clients.topic("will"), b"gone", 2, False)
    assert sorted(found.properties) == sorted(properties)


def test_a_retained_will_is_retained(clients: Clients) -> None:
    """Whoever asks later learns it too (3.1.2.7)."""
    watcher = clients.connect("b")
    watcher.subscribe(wish(clients.topic("will"), retain_as_published=True))
    clients.connect("a", will=Will(topic=clients.topic("will"), retain=True)).drop()
    assert watcher.message().retain
    late = clients.connect("c")
    late.subscribe(clients.topic("will"))
    assert late.message().retain


def test_whoever_says_goodbye_has_no_will(clients: Clients) -> None:
    """DISCONNECT deletes the will (3.14.4-3), except with reason 0x04."""
    watcher = clients.connect("b")
    watcher.subscribe(clients.topic("will"))
    clients.connect("a", will=Will(topic=clients.topic("will"))).disconnect()
    assert watcher.messages_so_far() == []
    clients.connect("a", will=Will(topic=clients.topic("will"))).disconnect(WITH_WILL)
    assert watcher.message().payload == b"will"


# -- zero-length client id ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_a_client_without_a_name_is_given_one(clients: Clients, *, clean: bool) -> None:
    """A device that is in no position to invent a unique name may leave it to the broker (3.1.3-6)."""
    client = clients.open()
    connack = client.connect("", clean=clean)
    assert (connack.code, connack.session_present) == (0, False)
    assert connack[P.ASSIGNED_CLIENT_ID]


# -- assigned client id ------------------------------------------------------------------------------------------------


def test_assigned_names_differ_and_lead_back_to_the_session(clients: Clients) -> None:
    """An assigned name is as good as any other (3.2.2.3.7)."""
    first, second, again = clients.open(), clients.open(), clients.open()
    name = first.connect("", properties=LASTING)[P.ASSIGNED_CLIENT_ID]
    assert second.connect("")[P.ASSIGNED_CLIENT_ID] != name
    first.disconnect()
    assert isinstance(name, str)
    assert again.connect(name, clean=False).session_present
    assert again.connack.every(P.ASSIGNED_CLIENT_ID) == []


# -- offline message queueing ------------------------------------------------------------------------------------------


def test_what_comes_while_a_client_is_away_is_kept(clients: Clients) -> None:
    """QoS 1 and 2 are promises to the session, not to the connection (4.1); QoS 0 is none, and is not kept here."""
    client = clients.connect("a", properties=LASTING)
    client.subscribe(clients.topic("+"))
    client.disconnect()
    publish_at_every_qos(clients.connect("b"), clients.topic("a"))
    client = clients.connect("a", clean=False, properties=LASTING)
    assert client.connack.session_present
    assert [(message.payload, message.qos) for message in client.messages(2)] == [(b"1", 1), (b"2", 2)]
    assert client.messages_so_far() == []


def test_a_clean_start_begins_with_nothing(clients: Clients) -> None:
    """Whoever asks for a fresh start gets neither messages nor subscriptions of before (3.1.2-4)."""
    client, publisher = clients.connect("a", properties=LASTING), clients.connect("b")
    client.subscribe(clients.topic("a"))
    client.disconnect()
    publisher.publish(clients.topic("a"), b"missed")
    client = clients.connect("a", clean=True)
    publisher.publish(clients.topic("a"), b"not wanted any more")
    assert not client.connack.session_present
    assert client.messages_so_far() == []


# -- overlapping subscriptions -----------------------------------------------------------------------------------------


def test_overlapping_subscriptions_give_one_copy_with_the_highest_qos(clients: Clients) -> None:
    """The standard allows one copy or one each (3.3.4); we send one, which says all subscriptions."""
    client = clients.connect("a")
    client.subscribe(wish(clients.topic("#"), 2), properties=((P.SUBSCRIPTION_IDENTIFIER, 1),))
    client.subscribe(wish(clients.topic("+"), 1), properties=((P.SUBSCRIPTION_IDENTIFIER, 2),))
    client.publish(clients.topic("a"), b"x", 2)
    message = client.message()
    assert message.qos == 2
    assert {*message.every(P.SUBSCRIPTION_IDENTIFIER)} == {1, 2}
    assert client.messages_so_far() == []


# -- keepalive ---------------------------------------------------------------------------------------------------------


def test_a_silent_client_is_given_up_and_its_will_sent(clients: Clients) -> None:
    """Half-open connections are found by silence of one and a half keep alives (3.1.2-22)."""
    watcher = clients.connect("b")
    watcher.subscribe(clients.topic("will"))
    silent = clients.connect("a", keep_alive_s=1, will=Will(topic=clients.topic("will"), payload=b"silent", qos=1))
    assert watcher.message().payload == b"silent"
    assert silent.is_closed()
    assert [(each.kind, each.code) for each in silent.waiting] == [(Kind.DISCONNECT, 0x8D)]


# -- redelivery on reconnect -------------------------------------------------------------------------------------------


def test_what_was_not_acknowledged_comes_again(clients: Clients) -> None:
    """Same packet identifier, and marked: the client can tell what it has seen (4.4-1, 3.3.1-1)."""
    client = clients.connect("a", properties=LASTING)
    client.subscribe(clients.topic("#"))
    publisher = clients.connect("b")
    publisher.publish(clients.topic("a"), b"first", 1)
    publisher.publish(clients.topic("b"), b"second", 2)
    sent = [client.receive(Kind.PUBLISH) for _ in range(2)]
    client.drop()
    client = clients.connect("a", clean=False, properties=LASTING)
    again = client.messages(2)
    assert [each.dup for each in sent + again] == [False, False, True, True]
    assert [(each.packet_id, each.payload, each.qos) for each in again] == [
        (each.packet_id, each.payload, each.qos) for each in sent
    ]
    assert client.messages_so_far() == []


def test_an_interrupted_release_comes_again(clients: Clients) -> None:
    """After PUBREC the message is the client's: only PUBREL is said again (4.3.3)."""
    client = clients.connect("a", properties=LASTING)
    client.subscribe(clients.topic("a"))
    clients.connect("b").publish(clients.topic("a"), b"once", 2)
    packet_id = client.receive(Kind.PUBLISH).packet_id
    client.answer(Kind.PUBREC, packet_id)
    assert client.receive(Kind.PUBREL).packet_id == packet_id
    client.drop()
    client = clients.connect("a", clean=False, properties=LASTING)
    assert client.receive(Kind.PUBREL).packet_id == packet_id
    client.answer(Kind.PUBCOMP, packet_id)
    assert client.messages_so_far() == []


def test_a_release_is_answered_by_pubcomp_alone(clients: Clients) -> None:
    """A PUBACK for it is a protocol error (4.3.3, 4.13.1); the release goes on with the next connection."""
    client = clients.connect("a", properties=LASTING)
    client.subscribe(clients.topic("a"))
    clients.connect("b").publish(clients.topic("a"), b"once", 2)
    packet_id = client.receive(Kind.PUBLISH).packet_id
    client.answer(Kind.PUBREC, packet_id)
    client.receive(Kind.PUBREL)
    client.answer(Kind.PUBACK, packet_id)
    assert client.receive(Kind.DISCONNECT).code == PROTOCOL_ERROR
    assert client.is_closed()
    client = clients.connect("a", clean=False, properties=LASTING)
    assert client.receive(Kind.PUBREL).packet_id == packet_id
    client.answer(Kind.PUBCOMP, packet_id)
    assert client.messages_so_far() == []


def test_a_publication_that_is_sent_again_is_delivered_once(clients: Clients) -> None:
    """Exactly once holds over the publisher's reconnection as well (4.3.3)."""
    watcher = clients.connect("b")
    watcher.subscribe(clients.topic("a"))
    publisher = clients.connect("a", properties=LASTING)
    publisher.send(publish_packet(clients.topic("a"), b"once", qos=2, packet_id=7))
    publisher.receive(Kind.PUBREC)
    publisher.drop()
    publisher = clients.connect("a", clean=False, properties=LASTING)
    publisher.send(publish_packet(clients.topic("a"), b"once", qos=2, packet_id=7, dup=True))
    assert publisher.receive(Kind.PUBREC).packet_id == 7
    publisher.answer(Kind.PUBREL, 7)
    assert publisher.receive(Kind.PUBCOMP).code == 0
    assert payloads(watcher.messages_so_far()) == [b"once"]


# -- subscribe failure -------------------------------------------------------------------------------------------------


def test_a_subscription_that_is_not_allowed_is_refused_alone(clients: Clients) -> None:
    """Each filter has its own answer (3.8.4-6), and what is denied is refused; 0x80 tells nothing of why."""
    client = clients.connect("a")
    suback = client.subscribe(FORBIDDEN, clients.topic("a"))
    assert suback.codes == (0x80, 2)
    client.publish(FORBIDDEN, b"denied")
    client.publish(clients.topic("a"), b"allowed")
    assert payloads(client.messages_so_far()) == [b"allowed"]


# -- dollar topics -----------------------------------------------------------------------------------------------------


def test_a_leading_wildcard_leaves_out_dollar_topics(clients: Clients) -> None:
    """What begins with $ is not for everybody who wants everything (4.7.2-1)."""
    client = clients.connect("a")
    client.subscribe(f"+/{clients.topic('#')}")
    client.publish(f"$own/{clients.topic('a')}", b"dollar")
    client.publish(f"own/{clients.topic('a')}", b"plain")
    assert payloads(client.messages_so_far()) == [b"plain"]


def test_a_dollar_topic_comes_to_whoever_names_it(clients: Clients) -> None:
    """A filter that begins with the same level matches as any other (4.7.2)."""
    client = clients.connect("a")
    client.subscribe(f"$own/{clients.topic('#')}")
    client.publish(f"$own/{clients.topic('a')}", b"dollar")
    assert client.message().payload == b"dollar"


# -- unsubscribe -------------------------------------------------------------------------------------------------------


def test_after_unsubscribing_nothing_more_comes(clients: Clients) -> None:
    """The other subscriptions stay, and a filter that was none is said to be (3.10.4, 3.11.3)."""
    client, publisher = clients.connect("a"), clients.connect("b")
    client.subscribe(*(clients.topic(name) for name in "abc"))
    assert client.unsubscribe(clients.topic("a"), clients.topic("never")).codes == (0, 0x11)
    for name in "abc":
        publisher.publish(clients.topic(name), name.encode())
    assert payloads(client.messages_so_far()) == [b"b", b"c"]


# -- session expiry ----------------------------------------------------------------------------------------------------


def test_a_session_without_expiry_ends_with_its_connection(clients: Clients) -> None:
    """Nothing asked, nothing kept (3.1.2.11.2)."""
    clients.connect("a", properties=((P.SESSION_EXPIRY, 0),)).disconnect()
    assert not clients.connect("a", clean=False).connack.session_present
    clients.connect("b").disconnect()
    assert not clients.connect("b", clean=False).connack.session_present


def test_a_session_ends_when_its_time_is_over(clients: Clients) -> None:
    """A session lives as many seconds without a connection as were asked for (3.1.2-23)."""
    clients.connect("long", properties=LASTING).disconnect()
    clients.connect("short", properties=((P.SESSION_EXPIRY, 1),)).disconnect()
    clients.let_a_second_pass()
    assert clients.connect("long", clean=False).connack.session_present
    assert not clients.connect("short", clean=False).connack.session_present


def test_a_goodbye_may_change_how_long_the_session_lives(clients: Clients) -> None:
    """A client knows best when it leaves how long it will be away (3.14.2.2.2)."""
    clients.connect("longer", properties=((P.SESSION_EXPIRY, 1),)).disconnect(properties=LASTING)
    clients.connect("shorter", properties=LASTING).disconnect(properties=((P.SESSION_EXPIRY, 0),))
    assert not clients.connect("shorter", clean=False).connack.session_present
    clients.let_a_second_pass()
    assert clients.connect("longer", clean=False).connack.session_present


def test_a_session_that_was_to_end_cannot_be_kept_by_a_goodbye(clients: Clients) -> None:
    """From zero there is no way up (3.14.2.2.2): the broker need not have kept anything."""
    client = clients.connect("a")
    client.send(packet(Kind.DISCONNECT, b"\0\5\x11\0\0\0\x3c"))
    assert client.receive(Kind.DISCONNECT).code == 0x82
    assert client.is_closed()
    assert not clients.connect("a", clean=False).connack.session_present


# -- shared subscriptions ----------------------------------------------------------------------------------------------


def test_each_message_goes_to_one_member_of_a_group(clients: Clients) -> None:
    """Members share the work (4.8.2), and whoever subscribes for itself misses nothing."""
    members = [clients.connect(name) for name in "ab"]
    for member in members:
        member.subscribe(f"$share/group/{clients.topic('a')}")
    plain, publisher = clients.connect("plain"), clients.connect("publisher")
    plain.subscribe(clients.topic("a"))
    sent = [b"%d" % number for number in range(10)]
    for payload in sent:
        publisher.publish(clients.topic("a"), payload)
    shared = [payloads(member.messages_so_far()) for member in members]
    assert sorted(shared[0] + shared[1]) == sent
    assert all(shared)
    assert payloads(plain.messages_so_far()) == sent


def test_each_group_has_its_own_copy(clients: Clients) -> None:
    """Two kinds of workers, two copies (4.8.2); a retained message is for none of them."""
    publisher = clients.connect("publisher")
    publisher.publish(clients.topic("a"), b"retained", retain=True)
    members = [clients.connect(group) for group in ("one", "other")]
    for group, member in zip(("one", "other"), members, strict=True):
        member.subscribe(f"$share/{group}/{clients.topic('a')}")
    publisher.publish(clients.topic("a"), b"work")
    assert [payloads(member.messages_so_far()) for member in members] == [[b"work"], [b"work"]]


# -- subscribe options -------------------------------------------------------------------------------------------------


def test_no_local_leaves_out_what_the_client_sent_itself(clients: Clients) -> None:
    """Two bridges must not echo each other (3.8.3-3)."""
    sender, other = clients.connect("a"), clients.connect("b")
    for client in (sender, other):
        client.subscribe(wish(clients.topic("a"), no_local=True))
    sender.publish(clients.topic("a"), b"x")
    assert payloads(other.messages_so_far()) == [b"x"]
    assert sender.messages_so_far() == []


@pytest.mark.parametrize("retain_as_published", [True, False])
def test_retain_as_published_passes_the_flag_on(clients: Clients, *, retain_as_published: bool) -> None:
    """A bridge has to know what to retain; others see only what was retained before (3.3.1-12, 3.3.1-13)."""
    client = clients.connect("a")
    client.subscribe(wish(clients.topic("a"), retain_as_published=retain_as_published))
    client.publish(clients.topic("a"), b"passing")
    client.publish(clients.topic("a"), b"kept", retain=True)
    assert [message.retain for message in client.messages(2)] == [False, retain_as_published]


@pytest.mark.parametrize(("retain_handling", "first", "second"), [(0, 3, 3), (1, 3, 0), (2, 0, 0)])
def test_retain_handling_says_when_retained_messages_come(
    clients: Clients, retain_handling: int, first: int, second: int
) -> None:
    """Always, with a new subscription, or never (3.3.1-9 to 3.3.1-11)."""
    client = clients.connect("a")
    for name in "abc":
        client.publish(clients.topic(name), b"kept", retain=True)
    client.subscribe(wish(clients.topic("+"), retain_handling=retain_handling))
    assert len(client.messages_so_far()) == first
    client.subscribe(wish(clients.topic("+"), retain_handling=retain_handling))
    assert len(client.messages_so_far()) == second


# -- subscription identifiers ------------------------------------------------------------------------------------------


def test_messages_say_which_subscriptions_they_come_from(clients: Clients) -> None:
    """A client finds its handler without matching topics itself (3.3.4-3)."""
    one, two = clients.connect("a"), clients.connect("b")
    one.subscribe(clients.topic("a"), properties=((P.SUBSCRIPTION_IDENTIFIER, 268_435_455),))
    two.subscribe(clients.topic("a"), properties=((P.SUBSCRIPTION_IDENTIFIER, 2),))
    two.subscribe(clients.topic("a", "#"), properties=((P.SUBSCRIPTION_IDENTIFIER, 300),))
    two.publish(clients.topic("a"), b"x")
    assert one.message().every(P.SUBSCRIPTION_IDENTIFIER) == [268_435_455]
    assert {*two.message().every(P.SUBSCRIPTION_IDENTIFIER)} == {2, 300}


def test_a_subscription_made_again_has_its_new_identifier(clients: Clients) -> None:
    """The last SUBSCRIBE counts (3.8.4-3), also one that leaves the identifier out."""
    client = clients.connect("a")
    client.subscribe(clients.topic("a"), properties=((P.SUBSCRIPTION_IDENTIFIER, 1),))
    client.subscribe(clients.topic("a"), properties=((P.SUBSCRIPTION_IDENTIFIER, 2),))
    client.publish(clients.topic("a"), b"x")
    client.subscribe(clients.topic("a"))
    client.publish(clients.topic("a"), b"y")
    assert [message.every(P.SUBSCRIPTION_IDENTIFIER) for message in client.messages_so_far()] == [[2], []]


# -- request and response ----------------------------------------------------------------------------------------------


def test_a_request_carries_what_its_answer_needs(clients: Clients) -> None:
    """Where to answer, and to what, is passed on as it is (3.3.2-15, 3.3.2-16)."""
    asking, answering = clients.connect("a"), clients.connect("b")
    asking.subscribe(clients.topic("answers"))
    answering.subscribe(clients.topic("requests"))
    properties: Properties = ((P.RESPONSE_TOPIC, clients.topic("answers")), (P.CORRELATION_DATA, b"\x00\xff334"))
    asking.publish(clients.topic("requests"), b"request", properties=properties)
    request = answering.message()
    assert sorted(request.properties) == sorted(properties)
    answering.publish(str(request[P.RESPONSE_TOPIC]), b"answer", properties=((P.CORRELATION_DATA, b"\x00\xff334"),))
    answer = asking.message()
    assert (answer.payload, answer[P.CORRELATION_DATA]) == (b"answer", b"\x00\xff334")


# -- server topic alias ------------------------------------------------------------------------------------------------


def test_the_broker_names_a_topic_once_and_then_its_alias(clients: Clients) -> None:
    """A long topic need not be sent again and again (3.3.2.3.4)."""
    client = clients.connect("a", properties=((P.TOPIC_ALIAS_MAXIMUM, 1),))
    client.subscribe(clients.topic("a"))
    publish_at_every_qos(client, clients.topic("a"))
    found = client.messages(3)
    assert [message.every(P.TOPIC_ALIAS) for message in found] == [[1], [1], [1]]
    assert [message.topic for message in found] == [clients.topic("a"), "", ""]


def test_the_broker_keeps_to_the_aliases_that_a_client_allows(clients: Clients) -> None:
    """An alias above the maximum would be an error of the broker's (3.1.2-26)."""
    client = clients.connect("a", properties=((P.TOPIC_ALIAS_MAXIMUM, 2),))
    client.subscribe(clients.topic("+"))
    for name in "abcabc":
        client.publish(clients.topic(name), name.encode())
    known: dict[object, str] = {}
    for message in client.messages(6):
        if message.topic and message.every(P.TOPIC_ALIAS):
            known[message[P.TOPIC_ALIAS]] = message.topic
        assert (message.topic or known[message[P.TOPIC_ALIAS]]) == clients.topic(message.payload.decode())
    assert set(known) <= {1, 2}


@pytest.mark.parametrize("properties", [(), ((P.TOPIC_ALIAS_MAXIMUM, 0),)])
def test_a_client_that_allows_no_alias_gets_none(clients: Clients, properties: Properties) -> None:
    """Without a word aliases are not allowed (3.1.2-27)."""
    client = clients.connect("a", properties=properties)
    client.subscribe(clients.topic("a"))
    publish_at_every_qos(client, clients.topic("a"))
    for message in client.messages(3):
        assert message.every(P.TOPIC_ALIAS) == []
        assert message.topic == clients.topic("a")


# -- client topic alias ------------------------------------------------------------------------------------------------


def test_an_alias_stands_for_the_topic_it_was_last_given_with(clients: Clients) -> None:
    """The client may shorten its topics, and use an alias for another topic later (3.3.2.3.4)."""
    client = clients.connect("a")
    client.subscribe(clients.topic("+"))
    for topic in (clients.topic("a"), "", clients.topic("b"), ""):
        client.publish(topic, b"x", properties=((P.TOPIC_ALIAS, 1),))
    found = client.messages(4)
    assert [message.topic for message in found] == [clients.topic(name) for name in "aabb"]
    assert all(message.every(P.TOPIC_ALIAS) == [] for message in found)


def test_an_alias_that_is_not_allowed_ends_the_connection(clients: Clients) -> None:
    """Zero is none, and the broker said how many it takes (3.3.2-8, 3.3.2-9)."""
    most = clients.connect("most").connack[P.TOPIC_ALIAS_MAXIMUM]
    assert isinstance(most, int)
    for alias in (0, most + 1):
        client = clients.connect("a")
        client.send(publish_packet(clients.topic("a"), properties=((P.TOPIC_ALIAS, alias),)))
        assert client.receive(Kind.DISCONNECT).code == 0x94
        assert client.is_closed()


def test_an_alias_ends_with_its_connection(clients: Clients) -> None:
    """Aliases are not part of the session (3.3.2-7)."""
    client = clients.connect("a", properties=LASTING)
    client.publish(clients.topic("a"), b"x", properties=((P.TOPIC_ALIAS, 1),))
    client.disconnect()
    client = clients.connect("a", clean=False, properties=LASTING)
    client.send(publish_packet("", b"x", properties=((P.TOPIC_ALIAS, 1),)))
    assert client.receive(Kind.DISCONNECT).code in {0x82, 0x94}  # clause and table of the standard differ
    assert client.is_closed()


# -- maximum packet size -----------------------------------------------------------------------------------------------


def test_a_packet_longer_than_the_client_takes_is_not_sent(clients: Clients) -> None:
    """The broker acts as if it had been delivered (3.1.2-24, 3.1.2-25)."""
    client = clients.connect("a", properties=((P.MAXIMUM_PACKET_SIZE, 128),))
    client.subscribe(clients.topic("a"))
    for qos in range(3):
        client.publish(clients.topic("a"), bytes(128), qos)
        client.publish(clients.topic("a"), b"short", qos)
    assert payloads(client.messages(3)) == [b"short"] * 3
    assert client.messages_so_far() == []


def test_a_packet_longer_than_the_broker_takes_ends_the_connection(clients: Clients) -> None:
    """The broker says its bound and means it (3.2.2-15)."""
    client = clients.connect("a")
    assert client.connack[P.MAXIMUM_PACKET_SIZE] == PACKET_BYTES
    just_right = publish_packet(clients.topic("a"), qos=1, packet_id=1)
    padding = PACKET_BYTES - len(just_right) - 1  # its length takes one byte more then
    client.send(publish_packet(clients.topic("a"), bytes(padding), qos=1, packet_id=1))
    client.receive(Kind.PUBACK)
    client.send(publish_packet(clients.topic("a"), bytes(padding + 1), qos=1, packet_id=2))
    assert client.receive(Kind.DISCONNECT).code == 0x95
    assert client.is_closed()


# -- server keep alive -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "told"), [(120, [60]), (61, [60]), (60, []), (10, [])])
def test_the_broker_shortens_a_long_keep_alive(clients: Clients, asked: int, told: list[int]) -> None:
    """How long a dead connection may stay is for the broker to say (3.1.2-21, 3.2.2-22)."""
    assert clients.connect("a", keep_alive_s=asked).connack.every(P.SERVER_KEEP_ALIVE) == told


# -- flow control, to the client ---------------------------------------------------------------------------------------


def test_no_more_is_sent_than_a_client_can_take_at_a_time(clients: Clients) -> None:
    """A client's receive maximum bounds what is not acknowledged (3.3.4-9); an acknowledgement makes room for one."""
    client, publisher = clients.connect("a", properties=((P.RECEIVE_MAXIMUM, 2),)), clients.connect("b")
    client.subscribe(clients.topic("a"))
    for number in range(4):
        publisher.publish(clients.topic("a"), b"%d" % number)
    client.ping()
    assert payloads(client.waiting) == [b"0", b"1"]
    client.answer(Kind.PUBACK, client.waiting[0].packet_id)
    client.ping()
    assert payloads(client.waiting) == [b"0", b"1", b"2"]


def test_the_room_of_a_qos_2_message_is_free_when_it_is_complete(clients: Clients) -> None:
    """PUBREC is only half of it (4.9): PUBCOMP makes room. QoS 0 needs none."""
    client, publisher = clients.connect("a", properties=((P.RECEIVE_MAXIMUM, 1),)), clients.connect("b")
    client.subscribe(clients.topic("a"))
    for payload, qos in ((b"first", 2), (b"second", 2), (b"free", 0)):
        publisher.publish(clients.topic("a"), payload, qos)
    packet_id = client.receive(Kind.PUBLISH).packet_id
    assert client.message().payload == b"free"
    client.answer(Kind.PUBREC, packet_id)
    client.receive(Kind.PUBREL)
    assert client.messages_so_far() == []
    client.answer(Kind.PUBCOMP, packet_id)
    assert client.message().payload == b"second"


# -- flow control, from the client -------------------------------------------------------------------------------------


def test_a_client_that_sends_too_much_at_a_time_is_sent_away(clients: Clients) -> None:
    """The broker's receive maximum is a promise of the client's (3.3.4-7, 0x93)."""
    client = clients.connect("a")
    most = client.connack[P.RECEIVE_MAXIMUM]
    assert isinstance(most, int)
    for number in range(1, most + 2):
        client.send(publish_packet(clients.topic("a"), qos=2, packet_id=number))
    assert client.receive(Kind.DISCONNECT).code == 0x93
    assert client.is_closed()


def test_a_client_may_send_as_much_at_a_time_as_it_was_told(clients: Clients) -> None:
    """The bound itself is allowed, again and again (4.9)."""
    client = clients.connect("a")
    most = client.connack[P.RECEIVE_MAXIMUM]
    assert isinstance(most, int)
    for _ in range(2):
        for number in range(1, most + 1):
            client.send(publish_packet(clients.topic("a"), qos=2, packet_id=number))
        for number in range(1, most + 1):
            assert client.receive(Kind.PUBREC).packet_id == number
            client.answer(Kind.PUBREL, number)
            assert client.receive(Kind.PUBCOMP).packet_id == number
    client.ping()


# -- will delay --------------------------------------------------------------------------------------------------------


def delayed(clients: Clients, delay_s: int) -> Will:
    """Return a will that waits."""
    return Will(topic=clients.topic("will"), payload=b"will", qos=1, properties=((P.WILL_DELAY, delay_s),))


def test_a_delayed_will_waits(clients: Clients) -> None:
    """A short loss need not worry anybody (3.1.3.2.2); the delay is not part of what is published."""
    watcher = clients.connect("b")
    watcher.subscribe(clients.topic("will"))
    clients.connect("a", will=delayed(clients, 1), properties=LASTING).disconnect(WITH_WILL)
    watcher.publish(clients.topic("will"), b"meanwhile")
    found = watcher.messages(2)
    assert payloads(found) == [b"meanwhile", b"will"]
    assert found[1].properties == ()


def test_a_client_that_comes_back_in_time_cancels_its_will(clients: Clients) -> None:
    """Nobody was lost (3.1.3-9)."""
    watcher = clients.connect("b")
    watcher.subscribe(clients.topic("will"))
    clients.connect("a", will=delayed(clients, 1), properties=LASTING).disconnect(WITH_WILL)
    assert clients.connect("a", clean=False, properties=LASTING).connack.session_present
    clients.let_a_second_pass()
    assert watcher.messages_so_far() == []


def test_the_end_of_the_session_does_not_wait_for_the_delay(clients: Clients) -> None:
    """With the session the will comes, whatever its delay (3.1.2-8): at once, by its expiry, or by a clean start."""
    watcher = clients.connect("b")
    watcher.subscribe(clients.topic("will"))
    for expiry_s in (0, 1):
        clients.connect(
            "a", will=delayed(clients, 3_600), properties=((P.SESSION_EXPIRY, expiry_s),)
        ).disconnect(WITH_WILL)  # fmt: skip
        assert watcher.message().payload == b"will"
    clients.connect("a", will=delayed(clients, 3_600), properties=LASTING).drop()
    clients.connect("a", clean=True)
    assert watcher.message().payload == b"will"


# -- user properties ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_user_properties_are_passed_on_as_they_are(clients: Clients, qos: int) -> None:
    """In order, with duplicates, and whatever they say (3.3.2-17, 3.3.2-18)."""
    client = clients.connect("a")
    client.subscribe(clients.topic("a"))
    pairs = [("a", "2"), ("c", "3"), ("a", "1"), ("a", "2"), ("", "é🐦")]
    client.publish(clients.topic("a"), b"x", qos, properties=tuple((P.USER, pair) for pair in pairs))
    message = client.message()
    assert message.qos == qos
    assert message.every(P.USER) == pairs


# -- payload format and content type -----------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_payload_format_and_content_type_are_passed_on(clients: Clients, qos: int) -> None:
    """The receiver learns what it has to do with a payload (3.3.2-4, 3.3.2-20)."""
    client = clients.connect("a")
    client.subscribe(clients.topic("a"))
    properties: Properties = ((P.PAYLOAD_FORMAT, 1), (P.CONTENT_TYPE, "My name"))
    client.publish(clients.topic("a"), b"text", qos, properties=properties)
    assert sorted(client.message().properties) == sorted(properties)


# -- publication expiry ------------------------------------------------------------------------------------------------


def test_a_message_that_is_too_old_is_never_delivered(clients: Clients) -> None:
    """Old news is no news (3.3.2-5); what is not yet old says how long it has left (3.3.2-6)."""
    client, publisher = clients.connect("a", properties=LASTING), clients.connect("b")
    client.subscribe(clients.topic("a"))
    client.disconnect()
    for qos in (1, 2):
        publisher.publish(clients.topic("a"), b"old", qos, properties=((P.MESSAGE_EXPIRY, 1),))
        publisher.publish(clients.topic("a"), b"fresh", qos, properties=((P.MESSAGE_EXPIRY, 3_600),))
    clients.let_a_second_pass()
    client = clients.connect("a", clean=False, properties=LASTING)
    found = client.messages(2)
    assert payloads(found) == [b"fresh", b"fresh"]
    assert all(1 <= int(str(message[P.MESSAGE_EXPIRY])) < 3_600 for message in found)
    assert client.messages_so_far() == []


def test_a_retained_message_that_is_too_old_is_gone(clients: Clients) -> None:
    """Whoever comes later asks in vain (3.3.1.3)."""
    publisher = clients.connect("a")
    publisher.publish(clients.topic("old"), b"old", retain=True, properties=((P.MESSAGE_EXPIRY, 1),))
    publisher.publish(clients.topic("fresh"), b"fresh", retain=True, properties=((P.MESSAGE_EXPIRY, 3_600),))
    clients.let_a_second_pass()
    late = clients.connect("b")
    late.subscribe(clients.topic("+"))
    assert payloads(late.messages_so_far()) == [b"fresh"]
