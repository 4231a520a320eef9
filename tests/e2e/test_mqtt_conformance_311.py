"""MQTT 3.1.1 from end to end: what the cases of the public conformance suite ask of a broker, in our own words.

The cases are the headings; clauses of the standard (3.1.1) stand in parentheses. The client is ``raw_client``, which
knows nothing of Whimbrel. One broker serves all tests; each has clients and topics of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.raw_client import Clients, Kind, Packet, RawClient, Will, packet, publish_packet, wish

FORBIDDEN = "test/nosubscribe"
RIGHTS = f"""
[[rule]]
topics = ["{FORBIDDEN}"]
deny = ["subscribe"]
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield a broker that denies one subscription."""
    folder: Path = tmp_path_factory.mktemp("conformance-311")
    rights = folder / "rights.toml"
    rights.write_text(RIGHTS, encoding="utf-8")
    with BrokerProcess(folder, "--rights", str(rights)) as process:
        yield process


@pytest.fixture
def clients(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Clients]:
    """Yield the test's clients."""
    with Clients(broker.port, request.node.name, version=4) as clients:
        yield clients


def payloads(messages: list[Packet]) -> list[bytes]:
    """Return what *messages* carry."""
    return [message.payload for message in messages]


def publish_at_every_qos(client: RawClient, topic: str) -> None:
    """Publish the payloads 0, 1 and 2 with that QoS."""
    for qos in range(3):
        client.publish(topic, b"%d" % qos, qos)


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


def test_a_second_connect_ends_the_connection(clients: Clients) -> None:
    """CONNECT comes once (3.1.0-2); 3.1.1 has no words for what was wrong."""
    client = clients.connect("a")
    client.send(packet(Kind.CONNECT, b"\0\4MQTT\4\2\0\0\0\1a"))
    assert client.is_closed()
    assert client.waiting == []


def test_another_protocol_is_not_welcome(clients: Clients) -> None:
    """Whoever speaks something else is turned away (3.1.2-1)."""
    client = clients.open()
    client.send(packet(Kind.CONNECT, b"\0\2hj\4\2\0\0\0\1a"))
    assert client.is_closed()
    assert all(each.kind is Kind.CONNACK and each.code for each in client.waiting)


def test_a_version_that_is_not_spoken_is_refused_with_code_1(clients: Clients) -> None:
    """An old client learns why it is not welcome (3.1.2-2)."""
    client = clients.open()
    client.send(packet(Kind.CONNECT, b"\0\4MQTT\x63\2\0\0\0\1a"))
    assert client.receive(Kind.CONNACK).code == 1
    assert client.is_closed()


@pytest.mark.parametrize("body", [b"\0\4MQTT\4\3\0\0\0\1a", b"\0\4MQTT\4\2\0\0\0\2a", b"\0\4MQTT\4\x42\0\0\0\1a\0\1b"])
def test_a_connect_that_breaks_a_rule_has_no_answer(clients: Clients, body: bytes) -> None:
    """The reserved flag, a name longer than the packet, a password without a user: no CONNACK (3.1.4-1)."""
    client = clients.open()
    client.send(packet(Kind.CONNECT, body))
    assert client.is_closed()
    assert client.waiting == []


def test_the_newer_of_two_connections_with_one_name_stays(clients: Clients) -> None:
    """A device that lost its connection without knowing must not be locked out by itself (3.1.4-2)."""
    old = clients.connect("a")
    new = clients.connect("a")
    assert old.is_closed()
    new.ping()


# -- retained message --------------------------------------------------------------------------------------------------


def test_retained_messages_come_with_their_qos(clients: Clients) -> None:
    """The last word on a topic is told to whoever asks later (3.3.1-6, 3.3.1-8)."""
    publisher, late = clients.connect("a"), clients.connect("b")
    for qos in range(3):
        publisher.publish(clients.topic(f"{qos}"), b"kept", qos, retain=True)
    late.subscribe(clients.topic("+"))
    found = sorted(late.messages(3), key=lambda message: message.topic)
    assert [(message.topic, message.qos) for message in found] == [(clients.topic(f"{qos}"), qos) for qos in range(3)]
    assert all(message.retain for message in found)


def test_an_empty_retained_message_clears_the_topic(clients: Clients) -> None:
    """A topic must be able to become quiet again (3.3.1-10)."""
    publisher, late = clients.connect("a"), clients.connect("b")
    publisher.publish(clients.topic("a"), b"kept", retain=True)
    publisher.publish(clients.topic("a"), b"", retain=True)
    late.subscribe(clients.topic("a"))
    assert late.messages_so_far() == []


# -- will message ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_will_of_a_lost_client_is_published(clients: Clients, qos: int) -> None:
    """Others learn that a device is gone, as surely as it wanted them to (3.1.2-8)."""
    watcher = clients.connect("b")
    watcher.subscribe(clients.topic("will"))
    clients.connect("a", will=Will(topic=clients.topic("will"), payload=b"gone", qos=qos)).drop()
    found = watcher.message()
    assert (found.topic, found.payload, found.qos, found.retain) == (clients.topic("will"), b"gone", qos, False)


def test_whoever_says_goodbye_has_no_will(clients: Clients) -> None:
    """DISCONNECT deletes the will (3.1.2-10)."""
    watcher = clients.connect("b")
    watcher.subscribe(clients.topic("will"))
    clients.connect("a", will=Will(topic=clients.topic("will"))).disconnect()
    assert watcher.messages_so_far() == []


# -- zero-length client id ---------------------------------------------------------------------------------------------


def test_a_client_without_a_name_is_welcome_if_nothing_is_kept(clients: Clients) -> None:
    """A name is only needed to come back to something (3.1.3-6)."""
    connack = clients.open().connect("", clean=True)
    assert (connack.code, connack.session_present) == (0, False)


def test_a_client_without_a_name_cannot_have_a_session(clients: Clients) -> None:
    """It would never learn the name it was given (3.1.3-8)."""
    client = clients.open()
    assert client.connect("", clean=False).code == 2
    assert client.is_closed()


# -- offline message queueing ------------------------------------------------------------------------------------------


def test_what_comes_while_a_client_is_away_is_kept(clients: Clients) -> None:
    """QoS 1 and 2 are promises to the session, not to the connection (3.1.2-5); QoS 0 is none, and is not kept here."""
    client = clients.connect("a", clean=False)
    assert not client.connack.session_present
    client.subscribe(clients.topic("+"))
    client.disconnect()
    publish_at_every_qos(clients.connect("b"), clients.topic("a"))
    client = clients.connect("a", clean=False)
    assert client.connack.session_present
    assert [(message.payload, message.qos) for message in client.messages(2)] == [(b"1", 1), (b"2", 2)]
    assert client.messages_so_far() == []


def test_a_clean_session_neither_finds_nor_leaves_anything(clients: Clients) -> None:
    """Clean means clean at both ends (3.1.2-6)."""
    client = clients.connect("a", clean=False)
    client.subscribe(clients.topic("a"))
    client.disconnect()
    client = clients.connect("a", clean=True)
    assert not client.connack.session_present
    client.subscribe(clients.topic("a"))
    client.disconnect()
    client = clients.connect("a", clean=False)
    client.publish(clients.topic("a"), b"x")
    assert not client.connack.session_present
    assert client.messages_so_far() == []


# -- overlapping subscriptions -----------------------------------------------------------------------------------------


def test_overlapping_subscriptions_give_one_copy_with_the_highest_qos(clients: Clients) -> None:
    """The standard allows one copy or one each (3.3.5-1); we send one."""
    client = clients.connect("a")
    client.subscribe(wish(clients.topic("#"), 2), wish(clients.topic("+"), 1))
    client.publish(clients.topic("a"), b"x", 2)
    assert client.message().qos == 2
    assert client.messages_so_far() == []


# -- keepalive ---------------------------------------------------------------------------------------------------------


def test_a_silent_client_is_given_up_and_its_will_sent(clients: Clients) -> None:
    """Half-open connections are found by silence of one and a half keep alives (3.1.2-24)."""
    watcher = clients.connect("b")
    watcher.subscribe(clients.topic("will"))
    silent = clients.connect("a", keep_alive_s=1, will=Will(topic=clients.topic("will"), payload=b"silent"))
    assert watcher.message().payload == b"silent"
    assert silent.is_closed()
    assert silent.waiting == []


# -- redelivery on reconnect -------------------------------------------------------------------------------------------


def test_what_was_not_acknowledged_comes_again(clients: Clients) -> None:
    """Same packet identifier, and marked: the client can tell what it has seen (4.4.0-1, 3.3.1-1)."""
    client = clients.connect("a", clean=False)
    client.subscribe(clients.topic("#"))
    publisher = clients.connect("b")
    publisher.publish(clients.topic("a"), b"first", 1)
    publisher.publish(clients.topic("b"), b"second", 2)
    sent = [client.receive(Kind.PUBLISH) for _ in range(2)]
    client.drop()
    client = clients.connect("a", clean=False)
    again = client.messages(2)
    assert [each.dup for each in sent + again] == [False, False, True, True]
    assert [(each.packet_id, each.payload) for each in again] == [(each.packet_id, each.payload) for each in sent]
    assert client.messages_so_far() == []


def test_an_interrupted_release_comes_again(clients: Clients) -> None:
    """After PUBREC the message is the client's: only PUBREL is said again (4.3.3-2)."""
    client = clients.connect("a", clean=False)
    client.subscribe(clients.topic("a"))
    clients.connect("b").publish(clients.topic("a"), b"once", 2)
    packet_id = client.receive(Kind.PUBLISH).packet_id
    client.answer(Kind.PUBREC, packet_id)
    assert client.receive(Kind.PUBREL).packet_id == packet_id
    client.drop()
    client = clients.connect("a", clean=False)
    assert client.receive(Kind.PUBREL).packet_id == packet_id
    client.answer(Kind.PUBCOMP, packet_id)
    assert client.messages_so_far() == []


def test_a_release_is_answered_by_pubcomp_alone(clients: Clients) -> None:
    """A PUBACK for it is a protocol error (4.3.3, 4.8.0-1); the release goes on with the next connection."""
    client = clients.connect("a", clean=False)
    client.subscribe(clients.topic("a"))
    clients.connect("b").publish(clients.topic("a"), b"once", 2)
    packet_id = client.receive(Kind.PUBLISH).packet_id
    client.answer(Kind.PUBREC, packet_id)
    client.receive(Kind.PUBREL)
    client.answer(Kind.PUBACK, packet_id)
    assert client.is_closed()
    client = clients.connect("a", clean=False)
    assert client.receive(Kind.PUBREL).packet_id == packet_id
    client.answer(Kind.PUBCOMP, packet_id)
    assert client.messages_so_far() == []


def test_a_publication_that_is_sent_again_is_delivered_once(clients: Clients) -> None:
    """Exactly once holds over the publisher's reconnection as well (4.3.3-2)."""
    watcher = clients.connect("b")
    watcher.subscribe(clients.topic("a"))
    publisher = clients.connect("a", clean=False)
    publisher.send(publish_packet(clients.topic("a"), b"once", qos=2, packet_id=7, version=4))
    publisher.receive(Kind.PUBREC)
    publisher.drop()
    publisher = clients.connect("a", clean=False)
    publisher.send(publish_packet(clients.topic("a"), b"once", qos=2, packet_id=7, dup=True, version=4))
    assert publisher.receive(Kind.PUBREC).packet_id == 7
    publisher.answer(Kind.PUBREL, 7)
    publisher.receive(Kind.PUBCOMP)
    assert payloads(watcher.messages_so_far()) == [b"once"]


# -- subscribe failure -------------------------------------------------------------------------------------------------


def test_a_subscription_that_is_not_allowed_is_refused_alone(clients: Clients) -> None:
    """Each filter has its own answer (3.8.4-5), and 0x80 is the only word for no (3.9.3-2)."""
    client = clients.connect("a")
    assert client.subscribe(FORBIDDEN, clients.topic("a")).codes == (0x80, 2)
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


# -- unsubscribe -------------------------------------------------------------------------------------------------------


def test_after_unsubscribing_nothing_more_comes(clients: Clients) -> None:
    """The other subscriptions stay (3.10.4-2), and UNSUBACK has no codes (3.11)."""
    client, publisher = clients.connect("a"), clients.connect("b")
    client.subscribe(*(clients.topic(name) for name in "abc"))
    assert client.unsubscribe(clients.topic("a"), clients.topic("never")).codes == ()
    for name in "abc":
        publisher.publish(clients.topic(name), name.encode())
    assert payloads(client.messages_so_far()) == [b"b", b"c"]


# -- both versions -----------------------------------------------------------------------------------------------------


def test_what_a_newer_client_says_comes_to_an_older_one_and_back(broker: BrokerProcess, clients: Clients) -> None:
    """Devices of two generations speak to each other; properties stay behind."""
    with Clients(broker.port, clients.space) as newer_clients:
        older, newer = clients.connect("old"), newer_clients.connect("new")
        for client in (older, newer):
            client.subscribe(clients.topic("a"))
        newer.publish(clients.topic("a"), b"new", 2)
        older.publish(clients.topic("a"), b"old", 2)
        assert payloads(older.messages_so_far()) == payloads(newer.messages_so_far()) == [b"new", b"old"]
