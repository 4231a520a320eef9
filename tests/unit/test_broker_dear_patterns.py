"""A publication that many dear patterns are asked about takes several turns, and arrives as if it took one."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from broker_rig import Rig, publishing, subscribing

from whimbrel.mqtt.packets import Puback, Publish

RNG = random.Random(3)
TEXT = "".join(RNG.choices("xy", k=300))
COUNT = 12


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Return a broker that makes one dear search a turn."""
    monkeypatch.setattr("whimbrel.broker.state.routes._PIECE_S", 0)
    return Rig(tmp_path)


def body(number: int, text: str = TEXT) -> bytes:
    """Return what is published."""
    return json.dumps({"n": number, "a": text}).encode()


def subscribe(rig: Rig) -> None:
    """Let a client subscribe with dear patterns."""
    client = rig.client("subscriber")
    for number in range(COUNT):
        text = f"regex(a, '(x|y)*x(x|y){{{200 - number}}}[xy]')"
        client.send(subscribing("t", qos=1, packet_id=number + 1, name=f"n{number}", filter=text))
    rig.settle()
    client.take()


def test_its_packets_stay_in_order(rig: Rig) -> None:
    """What comes behind a publication that takes long waits for it."""
    subscribe(rig)
    publisher = rig.client("publisher")
    publisher.send(
        publishing("t", body(1), 1, 1),
        publishing("t", body(2, "short"), 1, 2),
        publishing("t", body(3), 1, 3),
        publishing("t", body(4)),
    )
    subscriber = rig.peers[0]
    assert not subscriber.take()
    assert rig.work() >= 3 * (COUNT - 1)
    assert [json.loads(each.payload)["n"] for each in subscriber.taken(Publish)] == [1, 3, 4]
    assert [each.packet_id for each in publisher.taken(Puback)] == [1, 2, 3]


def test_others_publish_meanwhile(rig: Rig) -> None:
    """Only the link that asks for it waits."""
    subscribe(rig)
    slow, quick, other = rig.client("slow"), rig.client("quick"), rig.subscriber("other", "q")
    slow.send(publishing("t", body(1), 1, 1))
    quick.send(publishing("q", b"1", 1, 1))
    assert other.payloads() == [b"1"]
    assert quick.taken(Puback)
    assert not slow.taken(Puback)
    rig.work()
    assert slow.taken(Puback)


def test_a_client_that_is_gone_before_it_is_matched_has_published_nothing(rig: Rig) -> None:
    """It was never answered."""
    subscribe(rig)
    publisher = rig.client("publisher")
    publisher.send(publishing("t", body(1), 1, 1))
    publisher.drop()
    rig.settle()
    assert not rig.peers[0].payloads()


def test_a_connection_that_takes_over_gets_no_answers_of_the_old_one(rig: Rig) -> None:
    """What the old one had not been answered it has to send again."""
    subscribe(rig)
    old = rig.client("publisher")
    old.send(publishing("t", body(1), 1, 1), publishing("t", body(2), 1, 2))
    new = rig.client("publisher")
    rig.settle()
    assert not new.taken(Puback)
    new.send(publishing("t", body(3), 1, 1))
    rig.settle()
    assert [each.packet_id for each in new.taken(Puback)] == [1]
    assert [json.loads(each)["n"] for each in rig.peers[0].payloads()] == [3]
