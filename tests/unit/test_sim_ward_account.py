"""The account of a ward: the end of every copy by the node's own fold of the log, and what each doctor saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import NODE, Peer, Rig, publishing

from whimbrel.log.reader import read
from whimbrel.model.facts import Fact, InterestChanged, Receipt
from whimbrel.mqtt.packets import Puback, Publish
from whimbrel.mqtt.properties import Properties, Property
from whimbrel.sim.ward.overhead.copy_ends import Copies, fold_copies, judge_copies

_SHORT = Properties({Property.MESSAGE_EXPIRY_INTERVAL: 1})


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with all defaults."""
    return Rig(tmp_path)


def _doctor(rig: Rig, name: str) -> Peer:
    return rig.subscriber(name, "icu/#", qos=1, expiry_s=3_600)


def _publish(rig: Rig, number: int, *, expires: bool = False) -> None:
    rig.client("monitor").send(
        publishing(f"icu/p1/{number}", b"reading", 1, 1)._replace(properties=_SHORT if expires else Properties())
    )
    rig.settle()


def _acknowledge(rig: Rig, doctor: Peer) -> None:
    doctor.send(*(Puback(each.packet_id) for each in doctor.taken(Publish)))
    rig.settle()


def _facts(rig: Rig) -> list[Fact]:
    rig.close()
    return list(read(rig.folder, NODE))


def _judge(facts: Sequence[Fact], *, marked: int = 0, **came: int) -> tuple[Copies, list[str]]:
    """Return the copies, and what is wrong if each doctor saw reading 0 as often as told, *marked* times with DUP."""
    copies = fold_copies(facts, NODE, below="icu/")
    arrived = {name: Counter({0: count}) for name, count in came.items()}
    return copies, list(judge_copies(copies, arrived, {name: Counter({0: marked}) for name in came}))


def test_a_copy_that_expires_while_its_doctor_is_away_is_expired_without_a_receipt(rig: Rig) -> None:
    """The log ends before its expiry and has no receipt: it counted as open, and as lost."""
    _doctor(rig, "here")
    _doctor(rig, "away").drop()
    rig.settle()
    _publish(rig, 0, expires=True)
    facts = _facts(rig)
    copies, wrong = _judge(facts, here=1, away=0)
    assert [each for each in facts if isinstance(each, Receipt)] == []
    assert Counter(end.value for ends in copies.ends.values() for end in ends) == {"expired": 1}
    assert wrong == [f"{min(copies.published)} for here is open: on its way, and has expired"]  # it was sent


def test_a_copy_without_an_expiry_is_open_until_its_receipt(rig: Rig) -> None:
    """Time must not pass to the end of what is held: a copy that was lost would be an expired one."""
    doctor = _doctor(rig, "here")
    _doctor(rig, "away").drop()
    rig.settle()
    _publish(rig, 0)
    _acknowledge(rig, doctor)
    copies, wrong = _judge(_facts(rig), here=1, away=0)
    assert wrong == [f"{min(copies.published)} for away is open: held, without an expiry"]


def test_an_account_that_closes_says_nothing(rig: Rig) -> None:
    """Two doctors acknowledge, and a reading that comes again with its mark is not a second copy."""
    doctors = [_doctor(rig, name) for name in ("one", "two")]
    _publish(rig, 0)
    for doctor in doctors:
        _acknowledge(rig, doctor)
    facts = _facts(rig)
    assert _judge(facts, marked=1, one=1, two=2)[1] == []
    copies, wrong = _judge(facts, one=1, two=2)
    assert wrong == [f"{min(copies.published)} for two came 2 times without a mark"]


def test_what_a_doctor_did_not_see_is_not_delivered(rig: Rig) -> None:
    """A receipt without an arrival is a copy that was lost behind the log's back."""
    doctor = _doctor(rig, "one")
    _publish(rig, 0)
    _acknowledge(rig, doctor)
    copies, wrong = _judge(_facts(rig), one=0)
    assert wrong == [f"{min(copies.published)} for one is delivered, and never came"]


def test_a_copy_with_two_receipts_or_an_end_nobody_wanted_is_named(rig: Rig) -> None:
    """The fold takes the first receipt and skips the second; and ends nothing for those who wanted nothing."""
    doctor = _doctor(rig, "one")
    _publish(rig, 0)
    _acknowledge(rig, doctor)
    facts = _facts(rig)
    (receipt,) = (each for each in facts if isinstance(each, Receipt))
    seq = receipt.notification.seq
    again = replace(receipt, seq=facts[-1].seq + 1)
    assert _judge([*facts, again], one=1)[1] == [f"{seq} for one ended 1 times, with 2 receipts"]
    assert _judge(facts, one=1, two=0)[1] == [f"{seq} for two is open: held, without an expiry"]
    unasked = [each for each in facts if not isinstance(each, InterestChanged)]
    assert _judge(unasked, one=1)[1] == [f"{seq} for one is open: held, without an expiry"]
    assert _judge(facts)[1] == [f"{seq} ended for one"]
