"""What the kernel keeps for a client that reads slowly is bounded where the configuration says so."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.raw_client import RawClient

SENT = 2_000_000
BOUND = 16_384
DEADLINE_S = 120.0


def _kept_bytes(port: int) -> int:
    """Return the most bytes that the kernel keeps for a connection to *port*: not sent, or not acknowledged."""
    found = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    ours = [columns for columns in found if int(columns[1].split(":")[1], 16) == port]
    return max(int(columns[4].split(":")[0], 16) for columns in ours)


@pytest.mark.parametrize("bound", [0, BOUND])
def test_what_is_not_sent_waits_in_the_broker(tmp_path: Path, bound: int) -> None:
    """There it can be shaped by what the device says next, or dropped; in the kernel it only gets old."""
    settings = {"limits": {"kernel_unsent_bytes": bound, "packet_bytes": 4_194_304}}
    with (
        BrokerProcess(tmp_path, settings=settings) as broker,
        RawClient(broker.port, receive_bytes=8_192) as slow,
        RawClient(broker.port) as publisher,
    ):
        slow.connect("slow")
        slow.subscribe(("a", 0))
        publisher.connect("publisher")
        publisher.publish("a", bytes(SENT), 1)
        until_s, before, kept = time.monotonic() + DEADLINE_S, -1, 0
        while not kept or kept != before:  # until the client's kernel has taken what it takes
            assert time.monotonic() < until_s, kept
            before, kept = kept, _kept_bytes(broker.port)
            publisher.ping()
        assert (kept < 20 * BOUND) is bool(bound), kept
        assert slow.message().payload == bytes(SENT)
