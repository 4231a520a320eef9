"""The broker's state against the naive node: what a restart knows, row by row, whatever happens and wherever it is cut.

What is compared are the rows that a store is told, because they are what a restart knows. So a change that nobody noted
is found as well as one that is wrong; the rows of the hold have tests of their own (``test_hold``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cbor2
import pytest
from naive_rows import KINDS, decoded, expected_rows
from node_traffic import DEVICES, NODE, POLICIES, SUBJECTS, NodeTraffic

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.hold.rows import KINDS as HOLD_KINDS
from whimbrel.hold.sessions import Hold
from whimbrel.hold.touched_rows import Key
from whimbrel.model.facts import Decided, Fact, PolicyChanged, Reported
from whimbrel.model.notification import Notification
from whimbrel.model.place import Place
from whimbrel.node.checkpoint import RowScope, scope_of

STEPS = 110
_GRACE_US = 4
_CUTS = 0.1
_SOMETIMES = 0.3
_RARELY = 10
_HELD = frozenset({"session", "subscription", "member", "pending", "copy", "shaped", "turn"})


class _Followed:
    """A state and the store that follows it in small steps; it is restored from that now and then."""

    def __init__(self) -> None:
        self.state = BrokerState(NODE)
        self.rows: dict[Key, bytes] = {}

    def own_rows(self) -> dict[Key, Any]:
        """Return the rows of the store that the naive node knows too."""
        _write(self.state, self.rows)
        return {key: decoded(NODE, key, value) for key, value in self.rows.items() if key[0] in KINDS}

    def restored(self) -> BrokerState:
        """Return the state of what the store has, which says of itself what the store has, of the hold too."""
        before = self.own_rows()
        state, rows = BrokerState.restore(NODE, list(self.rows.items())), dict[Key, bytes]()
        state.view.touch_all()
        _write(state, rows)
        assert {key: decoded(NODE, key, value) for key, value in rows.items() if key[0] in KINDS} == before
        held = [{key: cbor2.loads(row) for key, row in each.items() if key[0] in _HELD} for each in (self.rows, rows)]
        assert held[0] == held[1]
        return state

    def restore(self) -> None:
        """Go on with what the store has."""
        self.state = self.restored()


def _write(state: BrokerState, rows: dict[Key, bytes]) -> None:
    """Let a store follow a state."""
    put, drop = state.view.changes()
    for key in drop:
        rows.pop(key, None)
    rows.update(put)


def _check(followed: _Followed, traffic: NodeTraffic) -> None:
    """Compare the rows, and answers that no row has."""
    state, naive, now = followed.state, traffic.naive, traffic.now
    assert followed.own_rows() == expected_rows(naive)
    assert {client.id for client in state.expired_clients(now)} == set(naive.lapsed(now))
    assert {will.device for will in state.wills.due(now)} == set(naive.due(now))
    for wanted in ("x/#", "+", "#"):
        assert [each.seq for each in state.retained.matching(wanted)] == naive.retained_for(wanted)
    shape = state.decisions.shape
    for device in DEVICES:
        named = [traffic.random.choice((None, "gone", *POLICIES)) for _ in range(3)]
        asked = [None if version is None else version.name for version in shape.find_policies(device, named)]
        assert asked == naive.find_policies(device, named)
        for policy in POLICIES:
            assert shape.is_suspended(policy, device, "a") == naive.is_suspended(policy, device, "a")
    for subject in SUBJECTS:
        assert state.is_owed(state.routes.by_subject(subject)) == naive.must_survive(subject)


def _step(followed: _Followed, traffic: NodeTraffic, *, is_cut: bool = False) -> None:
    """Fold what comes next. Policies know of a fact when it is appended, and a broker may die before it is applied."""
    for fact in traffic.step():
        if is_cut and isinstance(fact, Reported | PolicyChanged | Decided):
            followed.state.note(fact)
        if is_cut and traffic.random.random() < _CUTS:
            followed.restore()
        followed.state.apply(fact)
    if traffic.random.random() < 0.1:
        traffic.naive.tick(traffic.now)
        followed.state.tick(traffic.now)
    _check(followed, traffic)


def _begun(traffic: NodeTraffic) -> _Followed:
    followed = _Followed()
    traffic.begin()
    for fact in traffic.facts:
        followed.state.apply(fact)
    return followed


@pytest.mark.parametrize("seed", range(30))
def test_the_state_is_what_the_rules_say(seed: int) -> None:
    """Folded from the first fact, with a store that follows every step."""
    traffic = NodeTraffic(seed)
    followed = _begun(traffic)
    for number in range(STEPS):
        _step(followed, traffic)
        if number % _RARELY == 0:
            followed.restored()
        confirming = {name for name, client in followed.state.clients.items() if client.confirms}
        assert confirming == {name for name, client in traffic.naive.clients.items() if client.confirms}


@pytest.mark.parametrize("seed", range(30))
def test_a_state_that_was_restored_is_what_the_rules_say(seed: int) -> None:
    """Cut anywhere: what a restart does not know makes no difference to any row that comes later."""
    traffic = NodeTraffic(seed, qos=2)  # at others a restart guesses the QoS of a copy, until the hold is asked
    followed = _begun(traffic)
    for _ in range(STEPS):
        _step(followed, traffic, is_cut=True)


@pytest.mark.parametrize("seed", range(10))
def test_wills_after_a_restart_are_as_the_table_says(seed: int) -> None:
    """When each is published, and whether a clean start withdraws it too."""
    traffic = NodeTraffic(1_000 + seed)
    followed = _begun(traffic)
    for number in range(STEPS):
        for fact in traffic.step():
            followed.state.apply(fact)
        if number % _RARELY:
            continue
        wills, begun_at = followed.restored().wills, traffic.now + 3
        wills.begin(begun_at, _GRACE_US)
        for device in traffic.naive.wills:
            found = wills.get(device)
            assert found is not None
            assert (found.due_at, found.is_excused) == traffic.naive.after_a_restart(device, begun_at, _GRACE_US)


def test_a_restored_copy_keeps_its_qos() -> None:
    """A copy that was sent at QoS 1 waits for no PUBCOMP, whatever was subscribed to since."""
    traffic = NodeTraffic(0)
    traffic.copy_at_other_qos("a", sent=1, then=2)
    followed = _Followed()
    for fact in traffic.facts[:-1]:
        followed.state.apply(fact)
    followed.restore()
    followed.state.apply(traffic.facts[-1])
    assert followed.own_rows() == expected_rows(traffic.naive)


def test_every_row_of_a_node_has_a_scope() -> None:
    """Else a shard of a batch run, or a session that moves, would leave it behind without a word."""
    seen: set[object] = set()
    for seed in range(12):
        traffic = NodeTraffic(seed)
        followed = _begun(traffic)
        for _ in range(STEPS):
            _step(followed, traffic)
        for key in followed.rows:
            scope, whose = scope_of(key)
            assert (whose is None) == (scope is RowScope.NODE)
            seen.add(key[0])
    assert seen >= {"client", "will", "retained", "source", "notification", "decision", "policy", *_HELD - {"turn"}}


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_are_written_in_small_steps_are_the_rows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer takes some rows a turn while there are many; each turn takes some, and nothing is left out."""
    monkeypatch.setattr("whimbrel.node.rows._MANY", 2)
    traffic = NodeTraffic(seed)
    followed = _begun(traffic)
    for _ in range(STEPS):
        for fact in traffic.step():
            followed.state.apply(fact)
        if traffic.random.random() < _CUTS:
            while followed.state.view.has_many_changes:
                put, drop = followed.state.view.some_changes()
                assert {*put, *drop} - {("now",), ("decided",)}, "a turn that takes nothing is taken again for ever"
                followed.rows.update(put)
                for key in drop:
                    followed.rows.pop(key, None)
    _write(followed.state, followed.rows)
    followed.restored()
    assert followed.own_rows() == expected_rows(traffic.naive)


def _take_all_in_steps(state: BrokerState, rows: dict[Key, bytes]) -> set[object]:
    """Let a store take some changes a turn, until a turn brings none; return the kinds of the rows that it took."""
    kinds = set[object]()
    while True:
        put, drop = state.view.some_changes()
        rows.update(put)
        for key in drop:
            rows.pop(key, None)
        taken = {key[0] for key in (*put, *drop)} - {"now"}  # the time is in every turn
        if not taken:
            return kinds
        kinds |= taken


def _with_area(fact: Fact) -> Fact:
    """Give what is retained for one subject an area in which devices report to be."""
    if isinstance(fact, Notification) and fact.retain and fact.subject == "y":
        return replace(fact, place=Place(0, 0), radius_m=1e7)
    return fact


def _read(rows: dict[Key, bytes]) -> dict[Key, Any]:
    return {key: decoded(NODE, key, row) if key[0] in KINDS else cbor2.loads(row) for key, row in rows.items()}


@pytest.mark.parametrize("has_fast_lane", [False, True])
def test_some_changes_until_there_are_none_are_the_changes(
    *, has_fast_lane: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every part: a row that only ``changes`` takes is lost where a broker is so busy that it never calls it."""
    monkeypatch.setattr("whimbrel.node.rows._MANY", 3)
    kinds = set[object]()
    for seed in range(12):
        traffic = NodeTraffic(seed)
        in_steps, at_once = (
            BrokerState(NODE, hold=Hold(NODE, heeds_places=True, has_fast_lane=has_fast_lane)) for _ in range(2)
        )
        rows, expected = dict[Key, bytes](), dict[Key, bytes]()
        traffic.begin()
        for _ in range(STEPS):
            for fact in map(_with_area, traffic.facts):
                in_steps.apply(fact)
                at_once.apply(fact)
            if traffic.random.random() < _SOMETIMES:
                kinds |= _take_all_in_steps(in_steps, rows)
                assert not in_steps.view.has_many_changes
                if has_fast_lane:  # what is in flight there has no rows before it lands
                    left = dict[Key, bytes]()
                    _write(in_steps, left)
                    assert {key[0] for key in left} <= {"now", "copy", "pending"}
                    rows.update(left)
                _write(at_once, expected)
                assert _read(rows) == _read(expected)
            traffic.step()
        _take_all_in_steps(in_steps, rows)
        _write(in_steps, rows)
        at_once.view.touch_all()
        everything = dict[Key, bytes]()
        _write(at_once, everything)
        assert _read(rows) == _read(everything)
    node = in_steps.node
    parts = (node.clients, node.wills, node.areas, node.links, node.held, node.policies)
    assert kinds >= HOLD_KINDS - {"now"} | {"retained", "source"} | {kind for part in parts for kind in part.kinds}
