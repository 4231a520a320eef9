"""A broker killed while a policy decides: no policy runs twice for a hand-over, and no body differs from its first."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession
from single_process import Delivery, SingleProcess
from stream_rig import StreamRig
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.raw_client import Clients, Kind, P, Properties, RawClient, publish_packet

from whimbrel.log.reader import read
from whimbrel.model.facts import Decided, Outcome
from whimbrel.pipeline.batch.jobs import run
from whimbrel.pipeline.files.delta import read as read_table
from whimbrel.pipeline.files.snapshots import snapshot
from whimbrel.pipeline.plans import StreamPlan
from whimbrel.shape.faults import Fault
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


class Phone:
    """A device that chose the policy, over all its connections; *heard* has the bodies of each notification."""

    def __init__(self, clients: Clients, qos: int, random: Random) -> None:
        self._clients, self.qos, self._random = clients, qos, random
        self.name, self.topic = f"phone-{qos}", f"k/{qos}"
        self.heard: dict[int, list[bytes]] = {}
        self._link = self._connected()
        self._link.publish("$whimbrel/policy", b"counting")
        self._link.subscribe((self.topic, qos))

    def _connected(self) -> RawClient:
        return self._clients.connect(self.name, clean=False, properties=LASTING)

    def come_back(self) -> None:
        """Connect again."""
        self._link = self._connected()

    def hear(self, count: int) -> None:
        """Receive some, and acknowledge about half of them."""
        for _ in range(count):
            found = self._link.receive(Kind.PUBLISH)
            self._note(found.payload)
            if self._random.random() < 0.5:
                self._link.answer(Kind.PUBACK if self.qos == 1 else Kind.PUBREC, found.packet_id)

    def drain(self) -> None:
        """Receive and acknowledge all there is: of three last ones, one is withheld at most, and all come in order."""
        for number in range(3):
            self._link.publish(self.topic, json.dumps({"id": -1 - number}).encode())
        while any(each.kind is Kind.PUBREL for each in self._link.waiting):  # of what was received before the kill
            self._link.answer(Kind.PUBCOMP, self._link.receive(Kind.PUBREL).packet_id)
        while self._note(self._link.message().payload) >= 0:
            pass
        for each in self._link.messages_so_far():
            self._note(each.payload)
        self._link.disconnect()

    def _note(self, body: bytes) -> int:
        number: int = json.loads(body)["id"]
        self.heard.setdefault(number, []).append(body)
        return number


def _killed(folder: Path) -> list[Phone]:
    """Let a broker die, again and again, while it decides, sends and is acknowledged; return what was heard."""
    random = Random(1)
    with (
        BrokerProcess(folder, settings={"log": {"view_interval_s": 0.1}}) as broker,
        Clients(broker.port, "k") as all_,
    ):
        all_.connect("author").publish("$whimbrel/policy/counting", POLICY)
        phones = [Phone(all_, qos, random) for qos in (1, 2)]
        for number in range(ROUNDS):
            publisher = all_.connect(f"publisher-{number}")
            for each in range(BURST):
                body = {"id": number * BURST + each, "rest": LONG if each % 10 == 5 else ""}
                for qos in (1, 2):
                    packet_id = 2 * each + qos
                    data = json.dumps(body).encode()
                    publisher.send(publish_packet(f"k/{qos}", data, qos=qos, packet_id=packet_id, version=5))
            for phone in phones:
                phone.hear(random.randrange(3, 12))
            broker.kill()
            broker.start()
            for phone in phones:
                phone.come_back()
        for phone in phones:
            phone.drain()
    return phones


def _handed(account: list[Delivery]) -> Counter[tuple[object, ...]]:
    return Counter((e.seq, e.device, e.outcome.value, e.body_hash, e.difference) for e in account)


def _tabled(out: Path) -> Counter[tuple[object, ...]]:
    columns = ("notification_seq", "device", "outcome", "body_hash", "difference")
    return Counter(tuple(row[name] for name in columns) for row in read_table(out, "deliveries").to_pylist())


def test_kill_9_lets_no_policy_run_twice(spark: SparkSession, tmp_path: Path) -> None:
    """At QoS 1 and 2: what comes again is what was decided, and live, batch and stream have one account of it."""
    phones, log = _killed(tmp_path), tmp_path / "data" / "log"
    facts = list(read(log, "node-1"))
    account = SingleProcess(assume_receipts=False).run(facts).deliveries
    shape = ShapeState()
    for fact in facts:
        shape.apply(fact)
    for phone in phones:
        device = f"k-{phone.name}"
        decided = [fact for fact in facts if isinstance(fact, Decided) and fact.device == device]
        # On a busy machine a copy waits too long for the other process, and is withheld as if nothing had run.
        counted = [fact for fact in decided if fact.reason != Fault.TIME_OUT.value]
        _check(phone, decided, counted)
        assert shape.manual(device, "counting") == {"n": len(counted)}, "the variables are those of the log"
        own = [row for row in account if row.device == device]
        delivered = {row.body_hash for row in own if row.outcome is Outcome.DELIVERED}
        assert delivered == {fact.body_hash for fact in decided if fact.outcome is Outcome.DELIVERED}
        late = len(decided) - len(counted)
        assert sum(row.outcome is Outcome.WITHHELD for row in own) == len(counted) // 3 + late
    assert not any(row.difference for row in account), "what is evaluated again is what was decided"
    run(spark, log=log, out=tmp_path / "batch", tables=("deliveries",))
    stream = StreamRig(log=log, out=tmp_path / "stream", plan=StreamPlan(tables=("deliveries",)))
    stream.take(snapshot(log).last)
    assert _handed(account) == _tabled(tmp_path / "batch") == _tabled(tmp_path / "stream")


def _check(phone: Phone, decided: list[Decided], counted: list[Decided]) -> None:
    """Check what a phone heard against what was decided about it; the variable *n* has counted some of it."""
    about = [fact.notification.seq for fact in decided]
    assert len(about) == len(set(about)) > 5, "decided once"
    assert any(len(bodies) > 1 for bodies in phone.heard.values()), "some came again"
    assert all(len(set(bodies)) == 1 for bodies in phone.heard.values()), "and were the same"
    heard = {body for bodies in phone.heard.values() for body in bodies}
    assert {hashlib.sha256(body).digest() for body in heard} <= {fact.body_hash for fact in decided}
    numbers = [json.loads(body)["n"] for body in heard]
    assert len(numbers) == len(set(numbers)), "no run counted twice"
    assert len(decided) - len(counted) < len(counted), "most were in time"
    assert len(counted) - max(numbers) <= 1, "the broker goes on with the variables of its log"
