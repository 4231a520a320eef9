"""What clients and the network may do to a connection, over real sockets: packets that wait, readers that lag, pauses.

Rule: a test waits on sockets only; where the passing of time is what is tested, it waits as long as its settings say.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.raw_client import Clients, Kind, P, packet, publish_packet


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield a broker for all tests that leave it as it was."""
    with BrokerProcess(tmp_path_factory.mktemp("wire")) as process:
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
