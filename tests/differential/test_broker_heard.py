"""The account against the wire: what the log says was delivered, somebody heard."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from broker_rig import NODE, Rig
from broker_traffic import Traffic
from policy_traffic import PolicyTraffic
from session_traffic import SessionTraffic
from single_process import Delivery, SingleProcess
from test_broker_plans import PIECEWISE

from whimbrel.hold.private import is_private
from whimbrel.log.reader import read
from whimbrel.model.facts import Decided, Outcome
from whimbrel.mqtt.packets import Publish

SEEDS, STEPS = [range(start, start + 20) for start in (0, 20, 40)], 200


def _account(rig: Rig) -> list[Delivery]:
    """Return what one process makes of the log."""
    rig.close()
    return SingleProcess(assume_receipts=False).run(read(rig.folder, NODE)).deliveries


def _check(traffic: Traffic, *, settled_every: int = 1) -> list[Delivery]:
    """Let things happen; return the account of them.

    Nothing waits for the disk for long, or a connection that breaks meanwhile has QoS 0 in the account that was not
    sent (docs/explanation/guarantees.md): then only what has a receipt is held against what was heard.
    """
    for number in range(STEPS):
        traffic.step()
        if number % settled_every == 0:
            traffic.settle()
    traffic.settle()
    heard = {
        (voice.name, hashlib.sha256(packet.payload).digest())
        for voice in traffic.voices
        for packet in voice.heard
        if isinstance(packet, Publish)
    }
    account = _account(traffic.rig)
    for row in account:
        if row.outcome is Outcome.DELIVERED and (row.via is not None or settled_every == 1):
            assert (row.device, row.body_hash) in heard, row
    return account


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_delivered_is_only_what_a_client_was_sent(seeds: range, tmp_path: Path) -> None:
    """At no QoS: whatever a packet limit, an expiry or a closing connection kept back was not delivered."""
    rows = [row for seed in seeds for row in _check(Traffic(Rig(tmp_path / str(seed)), seed))]
    assert {row.via for row in rows if row.outcome is Outcome.DELIVERED} == {None, "live", "held", "retained"}


@pytest.mark.parametrize("seeds", [range(30)], ids=str)
def test_withheld_is_only_what_no_client_was_sent(seeds: range, tmp_path: Path) -> None:
    """Where policies decide, the account has the body that was handed over, and withheld as it happened."""
    withheld = 0
    for seed in seeds:
        traffic = PolicyTraffic(Rig(tmp_path / str(seed)), seed)
        account = _check(traffic)
        decided = [fact for fact in read(traffic.rig.folder, NODE) if isinstance(fact, Decided)]
        outcomes = {(fact.device, fact.notification.seq, fact.outcome) for fact in decided}
        assert not [row for row in account if row.difference is not None], "each is evaluated again to the same"
        for row in account:
            if row.outcome is Outcome.WITHHELD:
                assert (row.device, row.seq, Outcome.WITHHELD) in outcomes
                withheld += 1
    assert withheld > 20


@pytest.mark.parametrize("seed", range(40))
def test_what_happens_between_two_pieces_is_in_the_account_too(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients come, go, subscribe and acknowledge while a publication for several is applied in part."""
    for module in PIECEWISE:
        monkeypatch.setattr(f"{module}.PIECE", 1)
    traffic = SessionTraffic(Rig(tmp_path), seed) if seed % 2 else Traffic(Rig(tmp_path), seed)

    def do_a_piece() -> None:
        if traffic.random.random() < 0.5:
            traffic.rig.broker.go_on(traffic.rig.now)
            traffic.rig.flush()

    traffic.others.append(do_a_piece)
    _check(traffic, settled_every=7)


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_what_one_device_took_it_was_sent(seeds: range, tmp_path: Path) -> None:
    """In a named session *taken elsewhere* clears a copy for good, so somebody must have it."""
    taken = 0
    for seed in seeds:
        account = _check(SessionTraffic(Rig(tmp_path / str(seed)), seed))
        of_named = [row for row in account if not is_private(row.session)]
        had = {(row.session, row.seq) for row in of_named if row.outcome is Outcome.DELIVERED}
        gone = {(row.session, row.seq) for row in of_named if row.outcome is Outcome.TAKEN_ELSEWHERE}
        assert gone <= had
        taken += len(gone)
    assert taken > 20
