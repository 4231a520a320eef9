"""One copy longer than what may wait for a client: it arrives over a socket, with a policy and without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.raw_client import RawClient

BOUND = 65_536


@pytest.mark.parametrize("policy", [None, b"return m;", b"m.seen = 1; return m;"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_copy_above_twice_the_buffer_cuts_no_clean_session(tmp_path: Path, policy: bytes | None, qos: int) -> None:
    """Where a policy decides it waits before it is sent: the broker took that for a client that does not read."""
    settings = {"limits": {"send_buffer_bytes": BOUND, "packet_bytes": 4_194_304}}
    body = bytes(3 * BOUND)
    with (
        BrokerProcess(tmp_path, settings=settings) as broker,
        RawClient(broker.port) as reader,
        RawClient(broker.port) as publisher,
    ):
        reader.connect("reader")
        if policy is not None:
            for topic, text in (("$whimbrel/policy/p", policy), ("$whimbrel/policy", b"p")):
                answer = reader.publish(topic, text)
                assert answer is not None
                assert answer.code < 0x80
        reader.subscribe(("a", qos))
        publisher.connect("publisher")
        for number in range(3):
            publisher.publish("a", body + bytes([number]), qos)
            assert reader.message().payload == body + bytes([number])
            reader.ping()  # the broker has its acknowledgement: one copy is in flight at most
