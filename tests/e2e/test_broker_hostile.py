"""A broker among clients that mean it harm: it sends them away, and everybody else notices nothing.

Rule: every test ends with a look at the broker: it serves the next client, and no traceback stands in what it wrote
so far. A line may be late; so all of them are looked at once more when the broker has stopped.
Rule: a client that waits for an answer waits on its socket; where time is what is tested, so does the test.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.e2e.broker_process import BrokerProcess, Settings
from tests.e2e.raw_client import Clients, Kind, P, Properties, RawClient, packet, publish_packet

PACKET_BYTES, SEND_BUFFER_BYTES, SUBSCRIPTIONS = 1 << 17, 1 << 20, 100
SETTINGS: Settings = {
    "limits": {
        "connect_timeout_s": 1,
        "packet_bytes": PACKET_BYTES,
        "send_buffer_bytes": SEND_BUFFER_BYTES,
        "slow_reader_s": 1,
        "subscriptions_per_session": SUBSCRIPTIONS,
        "filter_bytes": 65_535,
    }
}
LASTING: Properties = ((P.SESSION_EXPIRY, 3_600),)
SLACK_BYTES = 24 << 20
"""How much more memory a broker may have for whatever reason: caches, arenas, what the kernel has not taken back."""
PROTOCOL_ERROR, TOPIC_NAME_INVALID, FILTER_INVALID, TOO_LARGE, QUOTA = 0x82, 0x90, 0x8F, 0x95, 0x97


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield a broker with narrow limits; what it wrote is read to the end when it has stopped."""
    with BrokerProcess(tmp_path_factory.mktemp("hostile"), settings=SETTINGS) as process:
        yield process
    assert "Traceback" not in (told := "".join(process.lines)), told[-2_000:]


@pytest.fixture
def clients(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Clients]:
    """Yield a test's clients; afterwards the broker must serve one more as if nothing had been."""
    with Clients(broker.port, request.node.name.replace("[", "-").replace("]", "")) as clients:
        written = len(broker.lines)
        yield clients
        assert_well(broker, written)


def assert_well(broker: BrokerProcess, written: int = 0) -> None:
    """Let a client publish to itself, and look for tracebacks after the first *written* lines."""
    with RawClient(broker.port) as client:
        client.connect("witness")
        client.subscribe(("witness", 1))
        client.publish("witness", b"still here")
        assert client.message().payload == b"still here"
    assert "Traceback" not in (told := "".join(broker.lines[written:])), told[-2_000:]


def rss_bytes(broker: BrokerProcess) -> int:
    """Return how much memory the broker has."""
    pages = Path(f"/proc/{broker.pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def ended(client: RawClient) -> list[Kind]:
    """Say no more, and return what the broker answers until it closes; each answer is a whole packet."""
    with suppress(OSError):
        client._socket.shutdown(socket.SHUT_WR)
    assert client.is_closed()
    return [each.kind for each in client.waiting]


# -- bytes -------------------------------------------------------------------------------------------------------------

WHOLE = [
    publish_packet("a/b", b"body", qos=1, packet_id=5, properties=((P.MESSAGE_EXPIRY, 9), (P.USER, ("k", "v")))),
    packet(Kind.SUBSCRIBE, b"\x00\x01\x00\x00\x03a/b\x01", 2),
    packet(Kind.UNSUBSCRIBE, b"\x00\x01\x00\x00\x03a/b", 2),
    packet(Kind.PUBREL, b"\x00\x01\x00\x00", 2),
    packet(Kind.CONNECT, b"\x00\x04MQTT\x05\x02\x00\x00\x05\x11\x00\x00\x00\x09\x00\x01c"),
]
"""Packets to damage; CONNECT is one of them, and is wrong as it is where it comes second."""


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw a packet with some bytes changed: almost right is harder than random."""
    data = bytearray(draw(st.sampled_from(WHOLE)))
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


framed = st.builds(lambda first, body: bytes([first, len(body)]) + body, st.integers(0, 255), st.binary(max_size=127))
garbage = st.lists(st.one_of(st.binary(min_size=1, max_size=200), framed, damaged()), min_size=20, max_size=20)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=garbage)
def test_whatever_follows_connect_does_no_harm(broker: BrokerProcess, batch: list[bytes]) -> None:
    """Twenty clients say something senseless; each hears whole packets and an end, and a twenty-first is served."""
    before, written = rss_bytes(broker), len(broker.lines)
    with Clients(broker.port, "garbage") as clients:
        for number, data in enumerate(batch):
            clients.connect(str(number)).send(data)
        for client in clients._open:
            ended(client)
    assert_well(broker, written)
    assert rss_bytes(broker) - before < SLACK_BYTES


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=garbage)
def test_whatever_precedes_connect_does_no_harm(broker: BrokerProcess, batch: list[bytes]) -> None:
    """Who has not said CONNECT has said nothing: at most a CONNACK answers, and the connection ends."""
    written = len(broker.lines)
    with Clients(broker.port, "garbage") as clients:
        for data in batch:
            clients.open().send(data)
        for client in clients._open:
            assert set(ended(client)) <= {Kind.CONNACK, Kind.DISCONNECT}
    assert_well(broker, written)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x00\x00", id="no such packet"),
        pytest.param(b"\x36\x05\x00\x01a\x00\x01", id="QoS 3"),
        pytest.param(b"\x30\x04\x00\x02a+", id="a wildcard in a topic"),
        pytest.param(b"\x32\x06\x00\x01a\x00\x00\x00", id="packet identifier 0"),
        pytest.param(b"\x80\x07\x00\x01\x00\x00\x01a\x00", id="SUBSCRIBE with wrong flags"),
        pytest.param(b"\x82\x03\x00\x01\x00", id="SUBSCRIBE to nothing"),
        pytest.param(b"\x30\x05\x00\x02\xff\xfe\x00", id="not UTF-8"),
        pytest.param(b"\x30\xff\xff\xff\xff\x01", id="a length of five bytes"),
        pytest.param(b"\x20\x02\x00\x00", id="a broker's own packet"),
        pytest.param(WHOLE[-1], id="a second CONNECT"),
        pytest.param(WHOLE[-1].replace(b"MQTT\x05", b"MQTT\x06"), id="a second CONNECT, of another version"),
    ],
)
def test_a_malformed_packet_ends_the_connection(clients: Clients, data: bytes) -> None:
    """The broker tells why (4.13) and closes at once, without waiting for the client to."""
    client = clients.connect("malformed")
    client.send(data)
    assert client.is_closed()
    assert [each.kind for each in client.waiting] == [Kind.DISCONNECT]
    assert client.waiting[0].code >= 0x80


# -- time --------------------------------------------------------------------------------------------------------------


def test_who_says_nothing_is_sent_away(clients: Clients) -> None:
    """A connection is not free; limits.connect_timeout_s is one second here."""
    assert clients.open().is_closed()


def test_who_says_connect_byte_by_byte_is_sent_away(clients: Clients) -> None:
    """The time is for the whole CONNECT: a byte now and then must not keep a connection for ever."""
    client = clients.open()
    client._socket.settimeout(0.25)
    is_closed = False
    for byte in WHOLE[-1][:20]:  # five seconds, at this pace
        with suppress(TimeoutError):
            try:
                client.send(bytes([byte]))
                is_closed = client._socket.recv(1) == b""
            except ConnectionError:
                is_closed = True
        if is_closed:
            break
    assert is_closed


def test_a_slow_reader_takes_no_memory_and_is_sent_away(broker: BrokerProcess, clients: Clients) -> None:
    """What one client does not read must not cost the others their broker."""
    slow, publisher = clients.connect("slow"), clients.connect("publisher")
    other = clients.connect("other", properties=LASTING)  # so that what it is sent waits for the disk
    slow.subscribe((clients.topic("much"), 0))
    other.subscribe((clients.topic("little"), 1))
    before = rss_bytes(broker)
    body = bytes(60_000)
    for _ in range(20):
        for _ in range(50):
            publisher.send(publish_packet(clients.topic("much"), body))
        publisher.publish(clients.topic("little"), b"acknowledged")  # and all before it is written
        assert rss_bytes(broker) - before < SEND_BUFFER_BYTES + SLACK_BYTES
    assert len(other.messages(20)) == 20
    assert slow.is_reset()  # it took nothing for a second, and is told nothing more


def test_a_flood_is_slowed_down_to_what_the_disk_takes(broker: BrokerProcess, clients: Clients) -> None:
    """Nobody answers QoS 0, so nothing but a full socket tells a publisher that the log is behind."""
    publisher = clients.connect("publisher")
    before, body = rss_bytes(broker), bytes(60_000)
    for _ in range(40):
        for _ in range(100):
            publisher.send(publish_packet(clients.topic("flood"), body))
        assert rss_bytes(broker) - before < 4 * SLACK_BYTES
    publisher.ping()


# -- size --------------------------------------------------------------------------------------------------------------


def test_a_topic_of_64_kib_is_refused(clients: Clients) -> None:
    """A topic is a key in many tables; limits.topic_bytes bounds them."""
    publisher = clients.connect("publisher")
    answer = publisher.publish("t" * 65_535, b"", 1)
    assert answer is not None
    assert answer.code == TOPIC_NAME_INVALID


def test_a_packet_over_the_limit_ends_the_connection_before_it_is_read(broker: BrokerProcess, clients: Clients) -> None:
    """Whoever announces 256 MiB is not believed, and nothing is set aside for them."""
    before = rss_bytes(broker)
    for number, length in enumerate((b"\xff\xff\xff\x7f", b"\x81\x80\x08")):
        client = clients.connect(f"large-{number}")
        client.send(b"\x30" + length + b"\x00\x01a")
        assert client.is_closed()
        assert client.waiting[0].code == TOO_LARGE
    assert rss_bytes(broker) - before < SLACK_BYTES


def test_too_many_subscriptions_are_refused_one_by_one(clients: Clients) -> None:
    """Those within limits.subscriptions_per_session are kept, those beyond it are told so."""
    client = clients.connect("greedy")
    topics = [clients.topic(str(number)) for number in range(SUBSCRIPTIONS + 20)]
    codes = client.subscribe(*((topic, 1) for topic in topics)).codes
    assert codes == (1,) * SUBSCRIPTIONS + (QUOTA,) * 20
    assert client.subscribe((clients.topic("more"), 1)).codes == (QUOTA,)
    assert client.subscribe((topics[0], 0)).codes == (0,)  # one that it has already


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("(" * 32_000 + "a == 1" + ")" * 32_000, id="parentheses"),
        pytest.param("!" * 65_000 + "a", id="not not not"),
        pytest.param("(" * 65_000, id="never closed"),
        pytest.param("!(" * 20_000 + "a == 1" + ")" * 20_000, id="both"),
        pytest.param("a == " + "-" * 65_000 + "1", id="minus minus"),
    ],
)
def test_a_filter_bomb_is_refused_and_others_are_served(clients: Clients, text: str) -> None:
    """A content filter is a program of a stranger: however deep, it costs neither the stack nor the others' time."""
    attacker, other = clients.connect("attacker"), clients.connect("other")
    assert attacker.subscribe((clients.topic("bomb"), 1), properties=((P.USER, ("whimbrel.filter", text)),)).codes == (
        FILTER_INVALID,
    )
    attacker.ping()
    other.ping()


def test_a_wide_filter_is_answered_and_others_are_served(clients: Clients) -> None:
    """Sixty thousand bytes of alternatives may be refused or kept, but not at the others' expense."""
    attacker, other = clients.connect("attacker"), clients.connect("other")
    text = " || ".join(f"a{number} == {number}" for number in range(3_400))
    suback = attacker.subscribe((clients.topic("wide"), 1), properties=((P.USER, ("whimbrel.filter", text)),))
    assert suback.codes[0] in {1, FILTER_INVALID}
    other.ping()
    other.publish(clients.topic("wide"), b"", 1)


# -- the disk ----------------------------------------------------------------------------------------------------------


def limit_files(broker: BrokerProcess, room_bytes: int | None) -> None:
    """Let no file of *broker* grow beyond its log's present length and *room_bytes* more; ``None`` lets all grow."""
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    segments = sorted((broker.data / "log" / "segments").rglob("*.seg"))
    most = hard if room_bytes is None else segments[-1].stat().st_size + room_bytes
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (most, hard))


def away(clients: Clients) -> None:
    """Let a persistent subscriber subscribe and go."""
    subscriber = clients.connect("subscriber", clean=False, properties=LASTING)
    subscriber.subscribe((clients.topic("full"), 1))
    subscriber.disconnect()


def published_until_full(publisher: RawClient, topic: str) -> tuple[list[bytes], int]:
    """Publish until an answer stays away; return what was acknowledged, and the packet identifier without an answer."""
    publisher._socket.settimeout(2)  # the broker answers within milliseconds, or when the disk has room
    acknowledged: list[bytes] = []
    for number in range(1, 1_000):
        body = b"%d " % number + bytes(1_000)
        publisher.send(publish_packet(topic, body, qos=1, packet_id=number))
        try:
            answer = publisher.next_packet()
        except TimeoutError:
            return acknowledged, number
        assert (answer.kind, answer.packet_id, answer.code) == (Kind.PUBACK, number, 0)
        acknowledged.append(body)
    raise AssertionError("the disk is never full")


def test_a_full_disk_refuses_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """PUBACK 0x97 is honest; an acknowledgement of what cannot be kept would not be."""
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker, Clients(broker.port, "disk") as clients:
        away(clients)
        publisher = clients.connect("publisher")
        limit_files(broker, 65_536)
        acknowledged, _ = published_until_full(publisher, clients.topic("full"))
        for packet_id in (2_000, 2_001):
            publisher.send(publish_packet(clients.topic("full"), b"refused", qos=1, packet_id=packet_id))
            refused = publisher.receive(Kind.PUBACK)
            assert (refused.packet_id, refused.code) == (packet_id, QUOTA)
        publisher.ping()
        broker.kill()
        broker.start()  # without the limit
        subscriber = clients.connect("subscriber", clean=False, properties=LASTING)
        assert subscriber.connack.session_present
        assert [each.payload for each in subscriber.messages(len(acknowledged))] == acknowledged
        assert "Traceback" not in "".join(broker.lines)


def test_a_broker_goes_on_when_its_disk_has_room_again(tmp_path: Path) -> None:
    """Nobody has to restart it: what waited is acknowledged, what is new is accepted, and all of it arrives."""
    with BrokerProcess(tmp_path, settings=SETTINGS) as broker, Clients(broker.port, "disk") as clients:
        away(clients)
        publisher = clients.connect("publisher")
        limit_files(broker, 65_536)
        acknowledged, unanswered = published_until_full(publisher, clients.topic("full"))
        limit_files(broker, None)
        publisher._socket.settimeout(15)
        assert publisher.receive(Kind.PUBACK).packet_id == unanswered
        code = QUOTA  # until the broker has looked at the disk again
        while code == QUOTA:
            publisher.send(publish_packet(clients.topic("full"), b"new", qos=1, packet_id=2_000))
            code = publisher.receive(Kind.PUBACK).code
        assert code == 0
        subscriber = clients.connect("subscriber", clean=False, properties=LASTING)
        bodies = [each.payload for each in subscriber.messages(len(acknowledged) + 2)]
        assert (bodies[: len(acknowledged)], bodies[-1]) == (acknowledged, b"new")
        assert_well(broker)
