"""The limit of memory on a real process: it holds, what is there survives a restart, and room comes back."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from tests.e2e.broker_process import BrokerProcess
from tests.e2e.raw_client import RawClient, publish_packet

MEGABYTE = 1_000_000
LIMIT = 40 * MEGABYTE
QUOTA_EXCEEDED = 0x97


def _resident(broker: BrokerProcess) -> int:
    """Return how much memory the process has."""
    lines = Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith("VmRSS"))


def _metric(broker: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['http']}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def _retain(client: RawClient, number: int, payload: bytes) -> int:
    answer = client.publish(f"r/{number}", payload, 1, retain=True)
    assert answer is not None
    return answer.code


def test_large_retained_messages_are_refused_when_memory_is_full(tmp_path: Path) -> None:
    """The process grows by little more than the limit; a restart has all that was accepted, and accepts no more."""
    settings = {"limits": {"memory_bytes": LIMIT}}
    with BrokerProcess(tmp_path, "--http-port", "0", settings=settings) as broker:
        with RawClient(broker.port) as client:
            client.connect("publisher")
            before = _resident(broker)
            codes = [_retain(client, number, bytes([number]) * MEGABYTE) for number in range(80)]
            accepted = codes.count(0x10)
            assert 32 <= accepted <= 34, "an eighth is for what passes through"
            assert codes[accepted:] == [QUOTA_EXCEEDED] * (80 - accepted)
            assert _resident(broker) - before < 2 * LIMIT, "it took 2.1 MB for each of them, and had no limit"
            assert LIMIT - LIMIT // 8 - 2 * MEGABYTE < _metric(broker, "whimbrel_memory_bytes") <= LIMIT - LIMIT // 8
        broker.kill()
        broker.start()
        assert _metric(broker, "whimbrel_retained_messages") >= accepted
        with RawClient(broker.port) as client:
            client.connect("publisher")
            assert _retain(client, 80, bytes(MEGABYTE)) == QUOTA_EXCEEDED
            client.subscribe(("r/#", 0))
            payloads = [client.message().payload for _ in range(accepted)]
            assert payloads == [bytes([number]) * MEGABYTE for number in range(accepted)]
            assert _retain(client, 0, b"") < 0x80
            assert _retain(client, 80, bytes(MEGABYTE)) < 0x80, "there is room again"


def test_what_waits_in_connections_is_seen(tmp_path: Path) -> None:
    """A client that does not read takes memory, and so does one that sends half a packet; both give it back."""
    with BrokerProcess(tmp_path, "--http-port", "0") as broker, RawClient(broker.port) as publisher:
        publisher.connect("publisher")
        with RawClient(broker.port, receive_bytes=4_096) as deaf, RawClient(broker.port) as halting:
            deaf.connect("deaf")
            deaf.subscribe(("t", 0))
            halting.connect("halting")
            halting.send(publish_packet("x", bytes(900_000))[:800_000])
            for _ in range(15):
                publisher.publish("t", bytes(900_000), 1)
            while _metric(broker, "whimbrel_outgoing_bytes") < 2 * MEGABYTE:
                publisher.ping()
            while _metric(broker, "whimbrel_incoming_bytes") != 800_000:
                publisher.ping()
        while _metric(broker, "whimbrel_outgoing_bytes") or _metric(broker, "whimbrel_incoming_bytes"):
            publisher.ping()
