"""Silence: when a client has said nothing for too long, by a clock that no one sets."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_rig import SECOND_US, Peer, Rig, quick_scrypt

from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, Connack, Disconnect, Pingreq, Will

HOUR_S = 3_600
STEPS = pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S, 0], ids=["ahead", "back", "not"])


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with all defaults."""
    return Rig(tmp_path)


@STEPS
def test_a_step_of_the_clock_neither_disconnects_nor_keeps_a_client(rig: Rig, step_s: int) -> None:
    """Keep alive is a duration: it ends after one and a half times as long, whatever the time of day is."""
    watcher = rig.subscriber("watcher", "lost")
    peer = rig.connecting("c", keep_alive_s=10, will=Will("lost", b"will"))
    rig.settle()  # a will is on disk before CONNACK
    rig.tick(14)
    rig.now += step_s * SECOND_US
    rig.tick(0.5)
    assert not peer.is_closed
    assert watcher.payloads() == []
    rig.tick(1)
    rig.settle()  # and its publication before it is passed on
    assert watcher.payloads() == [b"will"]
    assert peer.is_closed


@STEPS
def test_a_step_of_the_clock_does_not_change_how_long_a_connect_may_take(rig: Rig, step_s: int) -> None:
    """Nobody is sent away early, and nobody sits on a connection."""
    peer = Peer(rig, V5)
    rig.tick(0)
    rig.now += step_s * SECOND_US
    rig.tick(10)
    assert not peer.is_closed
    rig.tick(0.5)
    assert peer.is_closed


def test_what_is_not_read_is_not_silence(rig: Rig) -> None:
    """A client that the broker does not read from, because its disk is behind, may have said a lot."""
    peer = rig.connecting("c", keep_alive_s=10)
    peer.link.is_unread = True
    rig.tick(100)
    peer.link.is_unread = False
    rig.tick(14)
    assert not peer.is_closed
    rig.tick(2)
    assert [type(packet) for packet in peer.take()] == [Connack, Disconnect]


def test_a_client_whose_connect_waited_long_is_not_silent(rig: Rig) -> None:
    """Its keep alive begins when it is answered: before that it need not say anything."""
    peer = rig.connecting("c", keep_alive_s=10, expiry_s=60)
    rig.tick(100)
    rig.sync()
    rig.tick(14)
    assert not peer.is_closed
    rig.tick(2)
    assert peer.is_closed


def test_whoever_speaks_now_and_then_is_not_silent(rig: Rig) -> None:
    """A ping a keep alive is enough."""
    peer = rig.connecting("c", keep_alive_s=10)
    for _ in range(5):
        rig.tick(14)
        peer.send(Pingreq())
    rig.tick(14)
    assert not peer.is_closed


@STEPS
def test_a_step_of_the_clock_gives_no_wrong_password_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    """A minute is a minute: whoever guesses must wait for it, and no longer."""
    monkeypatch.setattr("whimbrel.broker.access.passwords._scrypt", quick_scrypt)
    rig = Rig(tmp_path, verify=lambda _user, password: password == b"right")

    def code(password: bytes) -> int:
        peer = rig.connecting("c", username="ann", password=password)
        rig.settle()
        return int(peer.taken(Connack)[0].code)

    for _ in range(10):
        assert code(b"wrong") == ReasonCode.BAD_USER_NAME_OR_PASSWORD
    rig.now += step_s * SECOND_US
    assert code(b"right") == ReasonCode.QUOTA_EXCEEDED
    rig.tick(7)
    assert code(b"right") == ReasonCode.SUCCESS
