"""Rate limits on real sockets: who floods is read from more slowly, loses nothing, and slows nobody else."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.certificates import Authority
from tests.e2e.raw_client import Kind, RawClient, packet, publish_packet

RATE, BURST_S, MESSAGES = 100, 0.2, 250


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Start a broker on every kind of port, whose clients may send a hundred messages a second."""
    folder = tmp_path_factory.mktemp("rates")
    certificate, key = Authority(folder).sign("broker", "localhost")
    ports = ("--tls-port", "0", "--ws-port", "0", "--wss-port", "0", "--http-port", "0")
    files = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    limits = {"client_messages_per_second": RATE, "rate_burst_s": BURST_S}
    with BrokerProcess(folder / "broker", *ports, *files, settings={"limits": limits}) as broker:
        yield broker


def _connection(port: int, kind: str) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", port), timeout=30)
    if kind in {"mqtts", "wss"}:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        link = context.wrap_socket(link)
    if kind in {"ws", "wss"}:
        key = base64.b64encode(os.urandom(16)).decode()
        head = ["GET / HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade"]
        head += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: mqtt", "", ""]
        link.sendall("\r\n".join(head).encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += link.recv(1)
        assert answer.startswith(b"HTTP/1.1 101")
    return link


def _framed(data: bytes, kind: str) -> bytes:
    """Return *data* as it goes over the wire: in a frame of WebSocket, masked with zeros, or as it is."""
    return b"\x82\xfe" + struct.pack(">H", len(data)) + bytes(4) + data if kind in {"ws", "wss"} else data


def _connect(name: str, keep_alive_s: int) -> bytes:
    """Return a CONNECT of version 5, with a will that tells whether the broker thought the client was lost."""
    text = name.encode()
    will = b"\x00" + struct.pack(">H", 4) + b"lost" + struct.pack(">H", len(text)) + text
    body = b"\x00\x04MQTT\x05\x06" + struct.pack(">H", keep_alive_s) + b"\x00"
    return packet(Kind.CONNECT, body + struct.pack(">H", len(text)) + text + will)


def _metric(broker: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['http']}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


@pytest.mark.parametrize("kind", ["mqtt", "mqtts", "ws", "wss"])
def test_a_flood_is_slowed_to_its_rate_and_loses_nothing(broker: BrokerProcess, kind: str) -> None:
    """Also if the client says goodbye and closes at once; keep alive is not judged while it is not read from."""
    before = _metric(broker, "whimbrel_slowed_clients_total")
    flood = [publish_packet(f"flood/{kind}", b"%d" % number, qos=0) for number in range(MESSAGES)]
    with RawClient(broker.port) as watcher, RawClient(broker.port) as calm:
        watcher.connect(f"watcher-{kind}")
        watcher.subscribe((f"flood/{kind}", 0), (f"calm/{kind}", 0), ("lost", 0))
        calm.connect(f"calm-{kind}")
        link = _connection(broker.ports[kind], kind)
        link.sendall(_framed(_connect(f"flood-{kind}", keep_alive_s=1), kind))
        assert b"\x20" in link.recv(1_024), "CONNACK"
        began = time.monotonic()
        link.sendall(_framed(b"".join(flood) + packet(Kind.DISCONNECT), kind))
        closing = threading.Thread(target=_close, args=(link,))
        closing.start()
        for number in range(10):
            assert calm.publish(f"calm/{kind}", b"%d" % number, 1) is not None
        found = watcher.messages(MESSAGES + 10)
        lasted = time.monotonic() - began
        assert [each.payload for each in found if each.topic.startswith("flood")] == [
            b"%d" % n for n in range(MESSAGES)
        ]
        calm_at = [at for at, each in enumerate(found) if each.topic.startswith("calm")]
        assert calm_at[-1] < MESSAGES, "another client's messages overtake what is held back"
        assert lasted >= (MESSAGES - RATE * BURST_S) / RATE * 0.99, "a busy machine can only make it longer"
        watcher.ping()
        assert not watcher.waiting, "no will: the broker heard the goodbye"
        closing.join()
    assert _metric(broker, "whimbrel_slowed_clients_total") == before + 1
    assert _metric(broker, "whimbrel_rate_pauses_total") > 1
    assert _metric(broker, "whimbrel_clients_slowed") == 0
    lines = [line for line in broker.lines if "limits.client_messages_per_second" in line and f"flood-{kind}" in line]
    assert len(lines) == 1, "one line, not one a pause"


def _close(link: socket.socket) -> None:
    """Say that nothing more comes, as a client does that ends; read until the broker has closed."""
    with link:
        if isinstance(link, ssl.SSLSocket):
            with suppress(ssl.SSLError):  # a close frame of WebSocket that crosses our goodbye
                link.unwrap().close()
        else:
            link.shutdown(socket.SHUT_WR)
            while link.recv(4_096):
                pass


def test_a_client_that_is_slowed_is_served(broker: BrokerProcess) -> None:
    """Acknowledgements come at its rate, one for each, and so does the answer to a ping behind them."""
    with RawClient(broker.port) as client:
        client.connect("acknowledged", keep_alive_s=1)
        for begin in range(0, 120, 30):  # no more than the receive maximum without an answer
            numbers = range(begin + 1, begin + 31)
            client.send(b"".join(publish_packet("t", b"x", qos=1, packet_id=number) for number in numbers))
            assert [client.receive(Kind.PUBACK).packet_id for _ in numbers] == list(numbers)
        client.ping()


def test_a_broker_stops_while_a_client_is_slowed(tmp_path: Path) -> None:
    """What is held of a client does not keep it from stopping."""
    settings = {"limits": {"client_bytes_per_second": 10}}
    with BrokerProcess(tmp_path, settings=settings) as broker, RawClient(broker.port) as client:
        client.connect("slow")
        client.send(publish_packet("t", bytes(1_000), qos=0) * 100)
        assert broker.stop() == 0
        assert client.is_closed()
        assert client.waiting[-1].code == 0x8B


def test_clients_of_one_user_share_its_rate_and_none_starves(tmp_path: Path) -> None:
    """One of them floods; the other's few messages come long before the flood's last, and another user's at once."""
    authority = Authority(tmp_path)
    certificate, key = authority.sign("broker", "localhost")
    options = ("--tls-port", "0", "--tls-certificate", str(certificate), "--tls-key", str(key))
    limits = {"user_messages_per_second": RATE, "rate_burst_s": BURST_S}
    with (
        BrokerProcess(
            tmp_path / "broker", *options, "--tls-client-ca", str(authority.root), settings={"limits": limits}
        ) as broker,
        ExitStack() as stack,
    ):
        watcher = stack.enter_context(RawClient(broker.port))
        watcher.connect("watcher")
        watcher.subscribe(("t/#", 0))
        links: dict[str, socket.socket] = {}
        for name, user in (("greedy", "ann"), ("modest", "ann"), ("other", "bob")):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.load_cert_chain(*authority.sign(name, user))
            plain = socket.create_connection(("127.0.0.1", broker.ports["mqtts"]), timeout=30)
            links[name] = stack.enter_context(context.wrap_socket(plain))
            links[name].sendall(_connect(name, keep_alive_s=0))
            assert links[name].recv(1_024)[:1] == b"\x20"
        links["greedy"].sendall(publish_packet("t/greedy", b"x") * MESSAGES)
        assert watcher.message().topic == "t/greedy"
        for name in ("modest", "other"):
            links[name].sendall(publish_packet(f"t/{name}", b"x") * 10)
        topics = ["t/greedy", *(watcher.message().topic for _ in range(MESSAGES + 19))]
        last = {name: len(topics) - 1 - topics[::-1].index(f"t/{name}") for name in links}
        assert last["other"] < last["modest"] < last["greedy"]
        assert last["modest"] < MESSAGES // 2, "they take turns"
        slowed = [line for line in broker.lines if "limits.user_messages_per_second" in line]
        assert len([line for line in slowed if "greedy" in line]) == 1
        assert not any("other" in line for line in slowed)
