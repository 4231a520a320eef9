"""Publishers of 3.1.1 at the memory bound: what they publish waits for room, and they go on reading and confirming."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_rig import Peer, Rig, publishing, subscribing

from whimbrel.broker.publish.stalled import MAX_STALLED_BYTES
from whimbrel.mqtt.packets import V311, Connack, Pingreq, Pingresp, Puback, Publish, Pubrec, Pubrel

_CONFIRMING = 8
"""How many messages the publisher holds itself, and has not confirmed."""
UNAVAILABLE = 3
"""The return code of a CONNECT in 3.1.1: server unavailable."""


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with all defaults."""
    return Rig(tmp_path)


def _publisher(rig: Rig) -> Peer:
    """Return a client of 3.1.1 that was sent messages which fill the memory, and has not confirmed them."""
    peer = rig.subscriber("publisher", "own", qos=1, expiry_s=0, version=V311)
    rig.subscriber("absent", "t", qos=1, expiry_s=900).drop()
    other = rig.client("other")
    for number in range(_CONFIRMING):
        other.send(publishing("own", bytes(20_000), 1, number + 1))
    rig.settle()
    other.drop()
    rig.broker.memory.most = rig.broker.memory.used * 8 // 7 - 8_000
    return peer


def _confirm(peer: Peer) -> None:
    peer.send(*(Puback(copy.packet_id) for copy in peer.taken(Publish)))


@pytest.mark.parametrize("qos", [1, 2])
def test_publications_wait_until_the_publisher_itself_makes_room(rig: Rig, qos: int) -> None:
    """It was closed, came back once a second for ever, and never got to confirm what filled the memory."""
    peer = _publisher(rig)
    peer.send(publishing("t", b"1", qos, 1), publishing("t", b"0"), publishing("t", b"2", qos, 2), Pingreq())
    rig.settle()
    assert not peer.is_closed
    assert [type(packet) for packet in peer.inbox if not isinstance(packet, Publish)] == [Pingresp]
    _confirm(peer)
    rig.settle()
    rig.tick(1)
    rig.settle()
    answers = [packet.packet_id for packet in peer.take() if isinstance(packet, Puback | Pubrec)]
    assert answers == [1, 2]
    if qos == 2:
        peer.send(Pubrel(1), Pubrel(2))
    rig.settle()
    back = rig.client("absent", clean=False, expiry_s=900)
    assert back.payloads() == [b"1", b"2"]


def test_what_comes_behind_waits_in_order(rig: Rig) -> None:
    """Also what would not need room by itself: it may not overtake."""
    peer, reader = _publisher(rig), rig.subscriber("reader", "t")
    rig.broker.memory.most = 0
    peer.send(publishing("t", b"before", 1, 9))
    rig.settle()
    rig.broker.memory.most = rig.broker.memory.used // 2
    peer.send(publishing("t", b"1", 1, 1))
    peer.send(publishing("t", b"2"))
    rig.tick(1)
    assert reader.payloads() == [b"before"]
    rig.broker.memory.most = 0
    rig.tick(1)
    rig.settle()
    assert reader.payloads() == [b"1", b"2"]


def test_what_waits_is_bounded_and_counted(rig: Rig) -> None:
    """Beyond the bound the connection is closed, and the client is told to stay away until there is room."""
    rig.subscriber("absent", "t", qos=1, expiry_s=900).drop()
    other = rig.client("other", version=V311)
    other.send(publishing("t", bytes(100_000), 1, 1))
    rig.settle()
    peer = rig.client("publisher", version=V311)
    rig.broker.memory.most = rig.broker.memory.used * 8 // 7 - 8_000
    before = rig.broker.memory.incoming
    peer.send(publishing("t", bytes(30_000), 1, 1))
    assert 30_000 < rig.broker.memory.incoming - before < 40_000
    peer.send(publishing("t", bytes(30_000), 1, 2))
    assert rig.peers[-1] is peer, "it is still connected"
    peer.send(publishing("t", bytes(MAX_STALLED_BYTES - 60_000), 1, 3))
    assert peer.is_closed
    assert rig.broker.memory.incoming == before
    for _ in range(2):
        refused = rig.connecting("publisher", version=V311)
        rig.settle()
        assert [answer.code for answer in refused.taken(Connack)] == [UNAVAILABLE]
    again = rig.connecting("other", version=V311)
    rig.settle()
    assert [answer.code for answer in again.taken(Connack)] == [0], "only who found no room stays away"
    rig.broker.memory.most = 0
    rig.client("publisher", version=V311)


def test_a_publisher_waits_while_the_disk_takes_nothing(rig: Rig) -> None:
    """What it published is accepted when the disk can be written to again."""
    peer = rig.client("publisher", version=V311)
    rig.broker.refuse()
    peer.send(publishing("t", b"1", 1, 1), Pingreq())
    assert [type(packet) for packet in peer.take()] == [Pingresp]
    rig.broker.on_sync(rig.log.sync())
    rig.tick(1)
    rig.settle()
    assert [answer.packet_id for answer in peer.taken(Puback)] == [1]


def test_what_waits_goes_with_its_connection(rig: Rig) -> None:
    """The client publishes it again when it returns; the broker keeps nothing of it."""
    peer = _publisher(rig)
    used = rig.broker.memory.used
    peer.send(publishing("t", bytes(10_000), 1, 1))
    peer.drop()
    assert rig.broker.memory.used < used
    rig.broker.memory.most = 0
    rig.tick(1)
    again = rig.client("publisher", version=V311)
    again.send(subscribing("x", qos=0))
    rig.settle()
    assert rig.broker.memory.incoming == 0
