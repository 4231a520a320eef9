"""Connections that use up file descriptors: the log, the clients and the health check go on."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.raw_client import RawClient

from whimbrel.broker.shell.operate.asking import ask_broker

MAX_FILES = 384
"""How many files the broker may open: enough for 64 connections."""
SETTINGS = {"log": {"segment_bytes": 65_536}}


@contextmanager
def _crowd(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Yield connections that say nothing."""
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(count)]


def _healthz(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
        return int(answer.status)


@pytest.mark.parametrize("kind", ["http", "mqtt"])
def test_a_crowd_of_silent_connections_stops_neither_log_nor_clients(tmp_path: Path, kind: str) -> None:
    """As it was: 400 of them to the HTTP port, and QoS 1 was answered 0x97, and a CONNECT not at all."""
    with BrokerProcess(tmp_path, "--http-port", "0", settings=SETTINGS, most_files=MAX_FILES) as broker:
        with RawClient(broker.port) as first:
            first.connect("first")
            with _crowd(broker.ports[kind], 400):
                for _ in range(4):  # each begins a segment, which is a file to open
                    answer = first.publish("a", bytes(40_000), qos=1)
                    assert answer is not None
                    assert answer.code == 0x10
                assert _healthz(broker.ports["http"]) == 200
                if kind == "http":
                    with RawClient(broker.port) as second:
                        second.connect("second")
        told = [line for line in broker.lines if "limits.connections is 64 and not 20,000" in line]
        assert len(told) == 1
        assert "ulimit -n 22256" in told[0]
        status = ask_broker(broker.data, "status")["status"]
        assert isinstance(status, dict)
        assert any("limits.connections is 64" in each for each in status["warnings"])


def test_too_few_files_for_a_broker_are_said_at_the_start(tmp_path: Path) -> None:
    """Rather than at the first client."""
    broker = BrokerProcess(tmp_path, most_files=256)
    with pytest.raises(AssertionError, match="this process may open 256 files, and a broker needs 321 at least"):
        broker.start()
