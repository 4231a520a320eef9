"""A broker that serves clients against the naive node on its log: the live path leaves the state that the facts say.

The property tests fold facts as a restart does. Here the same rules are asked of the other path: packets, the direct
path and lanes, which change the state without building a fact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broker_rig import NODE, Rig, publishing, subscribing
from broker_traffic import Traffic
from naive_node import NaiveNode
from naive_rows import KINDS, decoded, expected_rows
from policy_traffic import PolicyTraffic

from whimbrel.hold.touched_rows import Key
from whimbrel.log.reader import read
from whimbrel.mqtt.packets import Puback, Publish

STEPS = 300
_RELEASING = 4
"""Which value of a client's row has its copies of QoS 2 that wait for PUBCOMP."""


def _rows(rig: Rig) -> dict[Key, Any]:
    rig.state.view.touch_all()
    rows, _ = rig.state.view.changes()
    return {key: decoded(NODE, key, value) for key, value in rows.items() if key[0] in KINDS}


def _naive(rig: Rig) -> NaiveNode:
    """Return the naive node after the log, at the time that the broker has reached."""
    rig.log.sync()
    naive = NaiveNode(NODE)
    for fact in read(rig.folder, NODE):
        naive.apply(fact)
    naive.tick(rig.now)
    return naive


def _check(traffic: Traffic, *, has_plans: bool) -> None:
    traffic.settle()
    traffic.rig.tick()
    found, expected = _rows(traffic.rig), expected_rows(_naive(traffic.rig))
    if has_plans:  # what is on its way to a session that ends with its connection is not held: nobody will ask
        expected = {key: row for key, row in expected.items() if key[0] != "notification" or key in found}
    for key, row in found.items():
        if key[0] == "client":
            # A log does not say at which QoS a retained message was sent: a restart may send a PUBREL too many.
            assert set(row[_RELEASING]) <= set(expected[key][_RELEASING])
            expected[key][_RELEASING] = row[_RELEASING]
    assert found == expected


@pytest.mark.parametrize("seed", range(12))
def test_a_live_broker_has_what_its_log_says(seed: int, tmp_path: Path) -> None:
    """Sessions, wills, retained messages and all qualities of service."""
    has_plans = seed % 2 == 0
    traffic = Traffic(Rig(tmp_path, has_plans=has_plans), seed, has_content=seed % 4 > 1)
    traffic.run(STEPS)
    _check(traffic, has_plans=has_plans)


@pytest.mark.parametrize("seed", range(12))
def test_a_live_broker_has_what_its_log_says_of_policies(seed: int, tmp_path: Path) -> None:
    """Choices, variables, failures and decisions that wait for their receipts."""
    has_plans = seed % 2 == 0
    traffic = PolicyTraffic(Rig(tmp_path, has_plans=has_plans), seed)
    traffic.run(STEPS)
    _check(traffic, has_plans=has_plans)


def test_a_decision_about_a_retained_message_ends_with_its_receipt(tmp_path: Path) -> None:
    """Another session still holds the message; what was decided for the first is not decided for its next copy."""
    rig = Rig(tmp_path)
    rig.subscriber("keeper", "a", qos=1, expiry_s=60).drop()
    phone = rig.client("phone")
    phone.send(publishing("$whimbrel/policy/all", b"return m;", qos=1, packet_id=1))
    rig.settle()
    phone.send(publishing("$whimbrel/policy", b"all", qos=1, packet_id=2))
    rig.client("publisher").send(publishing("a", b"x", qos=1, packet_id=1, retain=True))
    rig.settle()
    phone.take()
    phone.send(subscribing("a", qos=1))
    rig.settle()
    (retained,) = phone.taken(Publish)
    assert any(key[0] == "decision" for key in _rows(rig))
    phone.send(Puback(retained.packet_id))
    rig.settle()
    assert not [key for key in _rows(rig) if key[0] == "decision"]
    assert _rows(rig) == expected_rows(_naive(rig))


def test_a_withheld_retained_message_ends_no_copy_of_the_session(tmp_path: Path) -> None:
    """Else a restart takes the receipt for that of a copy in flight, and never sends that copy again."""
    rig = Rig(tmp_path)
    phone = rig.subscriber("phone", "a", qos=1, expiry_s=60)
    rig.client("publisher").send(publishing("a", b"x", qos=1, packet_id=1, retain=True))
    rig.settle()
    assert len(phone.taken(Publish)) == 1  # and it is not acknowledged
    phone.send(publishing("$whimbrel/policy/none", b"return NULL;", qos=1, packet_id=2))
    rig.settle()
    phone.send(publishing("$whimbrel/policy", b"none", qos=1, packet_id=3))
    phone.send(subscribing("#", qos=0))  # what is retained comes once more, and the policy withholds it
    rig.settle()
    assert _rows(rig) == expected_rows(_naive(rig))
