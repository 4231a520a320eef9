"""A broker killed while a policy decides: no policy runs twice for a hand-over, and no body differs from its first."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.raw_client import Clients, Kind, P, Properties, RawClient, publish_packet

from whimbrel.log.reader import read
from whimbrel.model.facts import Decided, Outcome
from whimbrel.pipeline.single import SingleProcess
from whimbrel.shape.state import ShapeState

LASTING: Properties = ((P.SESSION_EXPIRY, 3_600),)
POLICY = b"""
if (state.n == NULL) { state.n = 0; }
state.n = state.n + 1;
if (state.n % 3 == 0) { return NULL; }
m.n = state.n;
return m;
"""
ROUNDS, BURST = 2, 40
LONG = "x" * 5_000
"""So much that the body is made in a process of its own."""


def _back(clients: Clients) -> RawClient:
    return clients.connect("phone", clean=False, properties=LASTING)


def _acknowledge(phone: RawClient, packet_id: int, qos: int) -> None:
    phone.answer(Kind.PUBACK if qos == 1 else Kind.PUBREC, packet_id)


def _hear(phone: RawClient, count: int, qos: int, random: Random, heard: dict[int, set[bytes]]) -> None:
    """Receive some, and acknowledge about half of them."""
    for _ in range(count):
        found = phone.receive(Kind.PUBLISH)
        heard.setdefault(json.loads(found.payload)["id"], set()).add(found.payload)
        if random.random() < 0.5:
            _acknowledge(phone, found.packet_id, qos)


def _drain(phone: RawClient, heard: dict[int, set[bytes]]) -> None:
    """Receive and acknowledge all there is: of three last ones, one is withheld at most, and all come in order."""
    for number in range(3):
        phone.publish("k/t", json.dumps({"id": -1 - number}).encode())
    found = [phone.message()]
    while json.loads(found[-1].payload)["id"] >= 0:
        found.append(phone.message())
    for each in [*found, *phone.messages_so_far()]:
        heard.setdefault(json.loads(each.payload)["id"], set()).add(each.payload)


@pytest.mark.parametrize("qos", [1, 2])
def test_kill_9_lets_no_policy_run_twice(tmp_path: Path, qos: int) -> None:
    """Each round the broker dies while it decides, sends and is acknowledged."""
    random, heard = Random(qos), dict[int, set[bytes]]()
    with (
        BrokerProcess(tmp_path, settings={"log": {"view_interval_s": 0.1}}) as broker,
        Clients(broker.port, "k") as all_,
    ):
        phone = _back(all_)
        phone.publish("$whimbrel/policy/counting", POLICY)
        phone.publish("$whimbrel/policy", b"counting")
        phone.subscribe(("k/#", qos))
        for number in range(ROUNDS):
            publisher = all_.connect(f"publisher-{number}")
            for each in range(BURST):
                body = {"id": number * BURST + each, "rest": LONG if each % 10 == 5 else ""}
                data = publish_packet("k/t", json.dumps(body).encode(), qos=qos, packet_id=each + 1, version=5)
                publisher.send(data)
            _hear(phone, random.randrange(1, 12), qos, random, heard)
            broker.kill()
            broker.start()
            phone = _back(all_)
        _drain(phone, heard)
        phone.disconnect()
    facts = list(read(tmp_path / "data" / "log", "node-1"))
    decided = [fact for fact in facts if isinstance(fact, Decided)]
    about = [fact.notification.seq for fact in decided]
    assert len(about) == len(set(about)) > BURST // 2, "decided once"
    assert all(len(bodies) == 1 for bodies in heard.values()), "what came again was the same"
    hashes = {fact.body_hash for fact in decided}
    assert {hashlib.sha256(body).digest() for bodies in heard.values() for body in bodies} <= hashes
    numbers = [json.loads(body)["n"] for bodies in heard.values() for body in bodies]
    assert len(numbers) == len(set(numbers)), "no run counted twice"
    shape = ShapeState()
    for fact in facts:
        shape.apply(fact)
    assert shape.manual("k-phone", "counting") == {"n": len(decided)}
    account = SingleProcess(assume_receipts=False).run(facts).deliveries
    delivered = {row.body_hash for row in account if row.device == "k-phone" and row.outcome is Outcome.DELIVERED}
    assert delivered == {fact.body_hash for fact in decided if fact.outcome is Outcome.DELIVERED}
    assert sum(row.outcome is Outcome.WITHHELD for row in account) == len(decided) // 3
