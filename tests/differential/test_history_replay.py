"""``since`` against ``pipeline replay``: under load, with reconnects, a client gets what a replay of the log finds."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from broker_rig import NODE, Peer, Rig, publishing, subscribing
from pyspark.sql import SparkSession

from whimbrel.broker.shell.disk import history_reader
from whimbrel.broker.shell.disk.history_reader import read_chunk
from whimbrel.mqtt.packets import Puback, Publish
from whimbrel.pipeline.replay import replay
from whimbrel.pipeline.spark.reading import read_table

TOPICS = ("ward/3/pulse", "ward/3/spo2", "ward/4/pulse", "office")
WANTED: dict[str, dict[str, str]] = {
    "doctor": {"subject": "ward/+/pulse", "filter": "v > 40 || note == 'fall'"},
    "tablet": {"subject": "ward/3/#"},
    "office": {"subject": "#", "filter": "v == 7"},
}


class Subscriber:
    """Subscribes with ``since`` and asks again from the last number that it has, whenever its connection is lost."""

    def __init__(self, rig: Rig, name: str) -> None:
        self._rig, self._name = rig, name
        self._peer: Peer | None = None
        self.got: list[tuple[int, bytes]] = []

    def hear(self) -> None:
        """Take what came."""
        if self._peer is None:
            return
        for packet in self._peer.take():
            if isinstance(packet, Publish):
                if packet.qos:
                    self._peer.send(Puback(packet.packet_id))
                self.got.append((int(dict(packet.properties.user)["whimbrel.id"].split(":")[1]), packet.payload))

    def lose(self) -> None:
        """Lose the connection, in the middle of whatever is sent."""
        self.hear()
        if self._peer is not None:
            self._peer.drop()
            self._peer = None

    def ask(self, qos: int) -> None:
        """Connect, and ask for what is missing."""
        if self._peer is None:
            wanted = dict(WANTED[self._name])
            since = f"{NODE}:{self.got[-1][0]}" if self.got else "7d"
            self._peer = self._rig.client(self._name)
            packet = subscribing(wanted.pop("subject"), since=since, qos=qos, **wanted)  # type: ignore[arg-type]
            self._peer.send(packet)


def caught_up(rig: Rig) -> None:
    """Let every subscriber come to the end of the log."""
    rig.settle()
    while len(rig.broker.history):
        if not read_one(rig):
            rig.sync()
            rig.tick()
        rig.settle()


def read_one(rig: Rig) -> bool:
    """Read one piece of the log for a replay; tell whether there was any to be read."""
    question = rig.broker.history.next_question(rig.now)
    if question is None:
        return False
    rig.broker.history.on_chunk(question, read_chunk(rig.folder, NODE, question))
    rig.work()
    return True


def test_each_gets_what_a_replay_finds_once_and_in_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By topic filter and by content, through the log, the tap and live, over many connections."""
    monkeypatch.setattr(history_reader, "_MAX_RECORDS", 7)
    rng, rig = random.Random(11), Rig(tmp_path)
    rig.subscriber("keeper", "#", qos=1, expiry_s=10_000)
    nurse, readers = rig.client("nurse"), [Subscriber(rig, name) for name in WANTED]

    def publish(number: int) -> None:
        body = b'{"v": %d, "n": %d%s}' % (rng.randrange(90), number, b', "note": "fall"' if rng.random() < 0.1 else b"")
        qos = rng.randrange(2)
        nurse.send(publishing(rng.choice(TOPICS), body, qos, number % 60_000 + 1 if qos else 0))

    def some(what: Callable[[Subscriber], None], chance: float) -> None:
        for reader in readers:
            if rng.random() < chance:
                what(reader)

    for number in range(900):
        publish(number)
        some(Subscriber.lose, 0.02)
        some(lambda reader: reader.ask(rng.randrange(2)), 0.1)
        rig.work()
        if rng.random() < 0.5:
            read_one(rig)
        if rng.random() < 0.3:
            rig.sync()
        if rng.random() < 0.1:
            rig.tick(0.05)
        for reader in readers:
            reader.hear()
    for reader in readers:
        reader.ask(0)
    caught_up(rig)
    publish(900)
    rig.settle()
    rig.log.settle()
    for reader in readers:
        reader.hear()
    logged = read_table(spark, rig.folder, "publications").persist()
    for reader, wanted in zip(readers, WANTED.values(), strict=True):
        found = replay(logged, subject=wanted["subject"], filter_text=wanted.get("filter"))
        rows = sorted((row["seq"], bytes(row["body"])) for row in found.select("seq", "body").collect())
        assert reader.got == rows
        assert len(rows) > 5
    logged.unpersist()
