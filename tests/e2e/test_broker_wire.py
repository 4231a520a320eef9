"""What clients and the network may do to a connection, over real sockets: packets that wait, readers that lag, pauses.

Rule: a test waits on sockets only; where the passing of time is what is tested, it waits as long as its settings say.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess, Settings
from tests.e2e.raw_client import Clients, Kind, P, Will, packet, publish_packet


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield a broker for all tests that leave it as it was."""
    with BrokerProcess(tmp_path_factory.mktemp("wire"), "--http-port", "0") as process:
        yield process
    assert "Traceback" not in (told := "".join(process.lines)), told[-2_000:]


@pytest.fixture
def clients(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Clients]:
    """Yield a test's clients."""
    with Clients(broker.port, request.node.name.replace("[", "-").replace("]", "")) as clients:
        yield clients


# -- behind a CONNECT --------------------------------------------------------------------------------------------------


def _connect(client_id: str, expiry_s: int, session: str = "") -> bytes:
    """Return a CONNECT of version 5 with a session expiry, and a named session to join."""
    properties = bytes([P.SESSION_EXPIRY]) + expiry_s.to_bytes(4)
    if session:
        properties += b"\x26\x00\x07session" + len(session).to_bytes(2) + session.encode()
    head = b"\x00\x04MQTT\x05\x02\x00\x00" + bytes([len(properties)]) + properties
    return packet(Kind.CONNECT, head + len(client_id).to_bytes(2) + client_id.encode())


@pytest.mark.parametrize("expiry_s", [0, 60], ids=["passing", "persistent"])
def test_half_a_publish_behind_a_connect_keeps_its_payload(clients: Clients, expiry_s: int) -> None:
    """CONNECT waits for the disk; what comes behind it, whole or half, must wait in order and stay what it is."""
    topic = clients.topic("a")
    listener = clients.connect("listener")
    listener.subscribe((topic, 1))
    subscribe = packet(Kind.SUBSCRIBE, b"\x00\x07\x00" + len(topic).to_bytes(2) + topic.encode() + b"\x01", 2)
    body = bytes(range(256)) * 8
    publish = publish_packet(topic, body, qos=1, packet_id=9)
    client = clients.open()
    client.send(_connect(clients.topic("late")[:60].replace("/", "-"), expiry_s) + subscribe + publish[:1_000])
    assert client.receive(Kind.CONNACK).code == 0
    client.send(publish[1_000:])
    assert client.receive(Kind.SUBACK).packet_id == 7
    assert client.receive(Kind.PUBACK).packet_id == 9
    assert listener.message().payload == body
    assert client.message().payload == body
    client.ping()


def test_a_megabyte_behind_a_connect_arrives(clients: Clients) -> None:
    """A client need not wait for CONNACK (3.1.4): the broker stops reading, and refuses nothing that is legal."""
    topic, count = clients.topic("a"), 1_000
    listener = clients.connect("listener")
    listener.subscribe((topic, 1))
    packets = b"".join(publish_packet(topic, b"%06d" % number + bytes(3_000)) for number in range(count))
    client = clients.open()
    client.send(_connect("megabytes", 60) + packets)
    assert client.receive(Kind.CONNACK).code == 0
    numbers = [int(listener.message().payload[:6]) for _ in range(count)]
    assert numbers == list(range(count))


@pytest.mark.parametrize("count", [1_000, 30_000])
def test_a_burst_of_a_client_that_goes_at_once_arrives(clients: Clients, count: int) -> None:
    """Its packets are handled over several turns; the last of them after the connection was closed."""
    topic = clients.topic("burst")
    listener = clients.connect("listener")
    listener.subscribe((topic, 0))
    publisher = clients.connect("publisher")
    publisher.send(b"".join(publish_packet(topic, b"%06d" % number) for number in range(count)))
    publisher.drop()
    assert [int(listener.message().payload) for _ in range(count)] == list(range(count))


# -- a large backlog ---------------------------------------------------------------------------------------------------

KEEP_ALIVE_TIMEOUT = 0x8D
BACKLOG, BODY_BYTES = 10_000, 2_000


def _backlog(clients: Clients, count: int, body_bytes: int) -> None:
    """Let a subscriber of 3.1.1 subscribe and go, and much be published for it."""
    clients.version, topic = 4, clients.topic("much")
    subscriber = clients.connect("subscriber", clean=False)
    subscriber.subscribe((topic, 1))
    subscriber.disconnect()
    publisher = clients.connect("publisher")
    for first in range(0, count, 500):
        numbers = range(first, first + 500)
        publisher.send(
            b"".join(
                publish_packet(topic, b"%06d" % number + bytes(body_bytes), qos=1, packet_id=number + 1, version=4)
                for number in numbers
            )
        )
        for _ in numbers:
            publisher.receive(Kind.PUBACK)
    publisher.disconnect()


def test_a_returning_subscriber_gets_all_of_a_large_backlog(broker: BrokerProcess, clients: Clients) -> None:
    """20 MB wait for a client of 3.1.1, which sets no receive maximum: it must not be cut off for reading them."""
    _backlog(clients, BACKLOG, BODY_BYTES)
    subscriber = clients.connect("subscriber", clean=False)
    assert subscriber.connack.session_present
    numbers = [int(subscriber.message().payload[:6]) for _ in range(BACKLOG)]
    assert numbers == list(range(BACKLOG))
    subscriber.disconnect()
    assert "slow reader" not in "".join(broker.lines)


MAX_QUESTIONS = 10_000_000
LAGGING: Settings = {"limits": {"send_buffer_bytes": 1 << 16, "slow_reader_s": 1.5}}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield a broker that has little patience with slow readers."""
    with BrokerProcess(tmp_path_factory.mktemp("strict"), "--http-port", "0", settings=LAGGING) as process:
        yield process
    assert "Traceback" not in (told := "".join(process.lines)), told[-2_000:]


def _metric(broker: BrokerProcess, name: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['http']}/metrics", timeout=10) as answer:
        (line,) = (line for line in answer.read().decode().splitlines() if line.startswith(f"{name} "))
    return int(float(line.split()[1]))


def test_a_slow_reader_that_reads_is_not_cut_off(strict: BrokerProcess) -> None:
    """It takes three times as long as a client may take nothing, and the bound is a fraction of what waits for it."""
    before, count = _metric(strict, "whimbrel_slow_readers_total"), 5_000
    with Clients(strict.port, "steady") as clients:
        _backlog(clients, count, BODY_BYTES)
        subscriber, waiting = clients.open(receive_bytes=65_536), threading.Event()
        subscriber.connect("steady-subscriber", clean=False)
        numbers: list[int] = []
        for _ in range(10):
            numbers += [int(subscriber.message().payload[:6]) for _ in range(count // 10)]
            waiting.wait(0.5)
    assert numbers == list(range(count))
    assert _metric(strict, "whimbrel_slow_readers_total") == before


def test_a_reader_that_takes_nothing_is_cut_off(strict: BrokerProcess) -> None:
    """What waits for it is held on; it must not take memory for ever."""
    with Clients(strict.port, "stuck") as clients:
        _backlog(clients, 10_000, BODY_BYTES)
        assert clients.connect("subscriber", clean=False).is_reset()
        subscriber = clients.connect("subscriber", clean=False)
        numbers = {int(subscriber.message().payload[:6]) for _ in range(10_000)}
    assert numbers == set(range(10_000))


def test_who_does_not_read_answers_is_not_read_from(strict: BrokerProcess) -> None:
    """Answers cannot wait and are not dropped; so a client that takes none of them is asked for no more questions."""
    with Clients(strict.port, "deaf") as clients:
        idle, deaf = clients.connect("idle"), clients.open(receive_bytes=4_096)
        deaf.connect("deaf")
        deaf._socket.settimeout(1)
        sent = 0
        with suppress(OSError):  # a full socket, or the end of the broker's patience
            while sent < MAX_QUESTIONS:
                deaf.send(packet(Kind.PINGREQ) * 10_000)
                sent += 10_000
        assert sent < MAX_QUESTIONS
        idle.ping()


def test_qos_0_that_nobody_reads_is_dropped_and_counted(broker: BrokerProcess, clients: Clients) -> None:
    """What was not written is not sent: the two counts together are what was published."""
    count = 600
    reader, publisher = clients.connect("reader"), clients.connect("publisher")
    reader.subscribe((clients.topic("much"), 0))
    before = _metric(broker, "whimbrel_dropped_total")
    for number in range(count):
        publisher.send(publish_packet(clients.topic("much"), b"%06d" % number + bytes(60_000)))
        if not number % 20:
            publisher.ping()
    publisher.ping()
    dropped = _metric(broker, "whimbrel_dropped_total") - before
    assert 0 < dropped < count
    numbers = [int(each.payload[:6]) for each in reader.messages(count - dropped)]
    assert numbers == sorted(numbers)
    assert reader.messages_so_far() == []


# -- pauses ------------------------------------------------------------------------------------------------------------


def test_a_pause_of_the_broker_costs_no_living_client_its_connection(broker: BrokerProcess, clients: Clients) -> None:
    """The clients spoke all the while: what waits in the sockets is read before anybody is called silent."""
    waiting, topic = threading.Event(), clients.topic("lost")
    watcher = clients.connect("watcher")
    watcher.subscribe((topic, 1))
    living = [
        clients.connect(f"living-{number}", keep_alive_s=1, will=Will(topic=topic, qos=1)) for number in range(20)
    ]
    for round_ in range(16):
        if round_ == 3:
            os.kill(broker.pid, signal.SIGSTOP)
        if round_ == 13:
            os.kill(broker.pid, signal.SIGCONT)
        for client in living:
            client.send(packet(Kind.PINGREQ))
        waiting.wait(0.5)
    for client in living:
        for _ in range(16):
            client.receive(Kind.PINGRESP)
        assert client.waiting == []
    assert watcher.messages_so_far() == []


def test_who_says_nothing_is_still_sent_away_after_a_pause(broker: BrokerProcess, clients: Clients) -> None:
    """A pause takes nothing away from the rule, but its own time."""
    silent = clients.connect("silent", keep_alive_s=1)
    os.kill(broker.pid, signal.SIGSTOP)
    threading.Event().wait(2)
    os.kill(broker.pid, signal.SIGCONT)
    assert silent.is_closed()
    assert [each.code for each in silent.waiting] == [KEEP_ALIVE_TIMEOUT]


# -- log lines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "json"])
def test_control_characters_of_a_client_reach_no_log_line(tmp_path: Path, form: str) -> None:
    """A client identifier with line ends and escapes must not write lines of its own, nor move an operator's cursor."""
    name = "evil\x1b[2J\x9b31m\r\n2026-01-01 [info] all is well\x07\u202e\u2028\x7f"
    settings: Settings = {**LAGGING, "observe": {"log_format": form}}
    with BrokerProcess(tmp_path, settings=settings) as broker, Clients(broker.port, "evil") as clients:
        stuck, publisher = clients.open(receive_bytes=4_096), clients.connect("publisher")
        stuck.connect(name)
        assert stuck.connack.code == 0
        stuck.subscribe(("much", 0))
        for _ in range(200):
            publisher.send(publish_packet("much", bytes(60_000)))
        publisher.ping()
        assert stuck.is_reset()
        publisher.ping()
    (line,) = (line for line in broker.lines if "slow reader" in line)
    assert "evil" in line
    assert "all is well" in line
    assert all(line.rstrip("\n").isprintable() for line in broker.lines), broker.lines


# -- doors -------------------------------------------------------------------------------------------------------------


def test_metrics_are_on_loopback_unless_told(tmp_path: Path) -> None:
    """A broker that lets other machines in does not show everybody what it does."""
    with BrokerProcess(tmp_path / "default", "--host", "0.0.0.0", "--insecure", "--http-port", "0") as broker:  # noqa: S104
        socket.create_connection(("127.0.0.2", broker.port), timeout=10).close()
        assert _metric(broker, "whimbrel_clients_connected") == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", broker.ports["http"]), timeout=10)
    with BrokerProcess(tmp_path / "told", "--http-host", "127.0.0.2", "--http-port", "0") as broker:
        socket.create_connection(("127.0.0.2", broker.ports["http"]), timeout=10).close()


def _upgrade(port: int, host: str, origin: str | None) -> bytes:
    """Ask for a WebSocket and return the first line of the answer."""
    lines = [
        "GET /mqtt HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: mqtt",
    ]  # fmt: skip
    if origin is not None:
        lines.append(f"Origin: {origin}")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stream:
        stream.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        return stream.recv(4_096).split(b"\r\n")[0]


def _get(port: int, path: str, host: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stream:
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return stream.recv(4_096).split(b"\r\n")[0]


def test_a_name_that_was_rebound_to_loopback_is_refused(tmp_path: Path) -> None:
    """A page whose own name leads to 127.0.0.1 by now comes from the same host, by its Origin: the Host tells."""
    ports, evil, own = ("--ws-port", "0", "--http-port", "0"), "evil.example", ("localhost", "127.0.0.1", "[::1]:8080")
    with BrokerProcess(tmp_path / "default", *ports) as broker:
        ws, http = broker.ports["ws"], broker.ports["http"]
        for path in ("/metrics", "/healthz"):
            assert b" 421 " in _get(http, path, evil)
            assert [b" 200 " in _get(http, path, each) for each in own] == [True] * 3
        assert b" 421 " in _upgrade(ws, f"{evil}:{ws}", f"http://{evil}:{ws}")
        assert b" 421 " in _upgrade(ws, "127.0.0.1.evil.example", None)
        assert [b" 101 " in _upgrade(ws, each, None) for each in own] == [True] * 3
    settings: Settings = {"listen": {"web_hosts": "broker.example other.example"}}
    with BrokerProcess(tmp_path / "told", *ports, settings=settings) as broker:
        for name, code in (("broker.example", 101), ("Other.Example.:80", 101), ("localhost", 101), (evil, 421)):
            assert str(code).encode() in _upgrade(broker.ports["ws"], name, None)
    with BrokerProcess(tmp_path / "open", "--host", "0.0.0.0", "--insecure", *ports) as broker:  # noqa: S104
        assert b" 101 " in _upgrade(broker.ports["ws"], "broker.example", None)
        assert b" 421 " in _get(broker.ports["http"], "/metrics", "broker.example")


def test_a_web_page_connects_from_its_own_host_or_as_told(tmp_path: Path) -> None:
    """Any page in a browser can open a WebSocket to loopback; without Origin it is a program, which has no browser."""
    with BrokerProcess(tmp_path / "default", "--ws-port", "0") as broker:
        port, host = broker.ports["ws"], f"localhost:{broker.ports['ws']}"
        assert b" 101 " in _upgrade(port, host, None)
        assert b" 101 " in _upgrade(port, host, "http://localhost:8080")
        assert b" 403 " in _upgrade(port, host, "https://example.org")
        assert b" 403 " in _upgrade(port, host, "null")
    settings: Settings = {"listen": {"ws_origins": "https://example.org null"}}
    with BrokerProcess(tmp_path / "told", "--ws-port", "0", settings=settings) as broker:
        port, host = broker.ports["ws"], f"localhost:{broker.ports['ws']}"
        assert b" 101 " in _upgrade(port, host, None)
        assert b" 101 " in _upgrade(port, host, "https://example.org")
        assert b" 403 " in _upgrade(port, host, "http://localhost:8080")
