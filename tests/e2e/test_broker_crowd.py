"""More connections than are allowed: what becomes of them, on every kind of port, whatever they say or do not say."""

from __future__ import annotations

import socket
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.certificates import Authority
from tests.e2e.raw_client import RawClient

MOST, FEW_MORE = 4, 64
"""So many clients may be connected, and so many more connections be open until they are answered."""
SERVER_BUSY = 0x89
KINDS = pytest.mark.parametrize("kind", ["mqtt", "mqtts", "ws", "wss"])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Start a broker on every kind of port, that gives its clients long to say something."""
    certificate, key = Authority(tmp_path).sign("broker", "localhost")
    ports = ("--tls-port", "0", "--ws-port", "0", "--wss-port", "0", "--http-port", "0")
    files = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    settings = {"limits": {"connections": MOST, "connect_timeout_s": 60}}
    with BrokerProcess(tmp_path / "broker", *ports, *files, settings=settings) as broker:
        yield broker


def _metric(broker: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['http']}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def _is_cut(link: socket.socket) -> bool:
    """Wait until the broker has closed a connection, on which it says nothing."""
    try:
        return link.recv(1) == b""
    except ConnectionResetError:
        return True


@KINDS
def test_silent_connections_are_cut_at_once_beyond_a_few_more(broker: BrokerProcess, kind: str) -> None:
    """They neither say CONNECT nor shake hands: those beyond the bound are cut before their time is over."""
    with ExitStack() as stack, RawClient(broker.port) as client:
        client.connect("first")
        before = _metric(broker, "whimbrel_refused_connections_total")
        links = [
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.ports[kind]), timeout=30))
            for _ in range(MOST + FEW_MORE + 20)
        ]
        assert all(_is_cut(link) for link in links[MOST + FEW_MORE + 1 :])
        for link in links[:10]:
            link.setblocking(False)
            with pytest.raises(BlockingIOError):
                link.recv(1)
        assert _metric(broker, "whimbrel_refused_connections_total") >= before + 19
        client.ping()
    assert not any("Traceback" in line for line in broker.lines)


def test_a_client_beyond_the_limit_is_told(broker: BrokerProcess) -> None:
    """CONNACK 0x89; whoever is connected stays, and when one leaves there is room for another."""
    with ExitStack() as stack:
        clients = []
        for number in range(MOST + 3):
            clients.append(stack.enter_context(RawClient(broker.port)))
            code = clients[-1].connect(f"client-{number}").code
            assert code == (0 if number < MOST else SERVER_BUSY)
            assert number < MOST or clients[-1].is_closed()
        clients[0].disconnect()
        assert stack.enter_context(RawClient(broker.port)).connect("late").code == 0
        clients[1].ping()


@pytest.mark.parametrize("kind", ["mqtts", "wss"])
def test_there_is_room_again_when_silent_connections_go(broker: BrokerProcess, kind: str) -> None:
    """A handshake of TLS that was cut leaves nothing behind: the next ones succeed."""
    with ExitStack() as stack:
        links = [
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.ports["mqtt"]), timeout=30))
            for _ in range(MOST + FEW_MORE + 1)
        ]
        assert _is_cut(links[-1])
        cut = stack.enter_context(socket.create_connection(("127.0.0.1", broker.ports[kind]), timeout=30))
        assert _is_cut(cut)
        for link in links:
            link.close()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for _ in range(50):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", broker.ports[kind]), timeout=30))
            try:
                secured = stack.enter_context(context.wrap_socket(plain))
            except (ssl.SSLError, ConnectionError):
                continue  # the broker has not noticed yet that the others are gone
            break
        assert secured.version() is not None
