"""The backlog: how much may wait behind a publication that is applied in pieces."""

from __future__ import annotations

from pathlib import Path

from broker_rig import Rig, publishing

from whimbrel.broker.broker import _MAX_WAITING
from whimbrel.hold.sessions import PIECE
from whimbrel.mqtt.packets import Publish


def _has_backlog(rig: Rig) -> bool:
    return rig.broker.has_backlog


def test_a_shell_is_told_to_read_no_more_and_nothing_is_lost(tmp_path: Path) -> None:
    """A flood behind a publication for a crowd: it waits, numbered, up to a bound, and arrives in order."""
    rig = Rig(tmp_path)
    for number in range(PIECE + 50):
        rig.subscriber(f"absent-{number}", "crowd", qos=1, expiry_s=3_600).drop()
    listener = rig.subscriber("listener", "flood")
    publisher, flooder = rig.client("publisher"), rig.client("flooder")
    publisher.send(publishing("crowd", b"", 1, 1))
    rig.broker.on_sync(rig.log.sync())
    assert rig.broker.is_applying
    sent = 0
    while not _has_backlog(rig):
        flooder.send(*(publishing("flood", b"%d" % number) for number in range(sent, sent + 1_000)))
        sent += 1_000
        assert sent <= _MAX_WAITING + 1_000
    rig.settle()
    assert not _has_backlog(rig)
    assert [int(each.payload) for each in listener.taken(Publish)] == list(range(sent))
