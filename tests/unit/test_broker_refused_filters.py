"""Filters that an older version accepted and this one refuses: a start is not stopped, and they are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from broker_rig import NODE, Rig, publishing
from single_process import SingleProcess

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.routes import Routes
from whimbrel.hold.private import private_session
from whimbrel.log.reader import read
from whimbrel.model.facts import Fact, InterestChanged
from whimbrel.model.notification import Notification
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.mqtt.packets import Publish
from whimbrel.mqtt.properties import Properties

COSTLY = "regex(a, '(x|y)*x(x|y){1000}z')"
UNREADABLE = "regex(a, '(')"


def _fact(seq: int, name: str, text: str, change: InterestChange = InterestChange.ADDED) -> InterestChanged:
    subscription = Subscription(session="ward", subject_filter="beds/#", name=name, filter_text=text)
    return InterestChanged(node="n", seq=seq, changed_at=seq, change=change, subscription=subscription, device="d")


def _found(routes: Routes, attributes: dict[str, str]) -> list[str]:
    handles = routes.by_content(["beds/4"], [attributes])[0]
    return sorted(identity[1] for _, found in routes.subscribers("beds/4", handles) for identity in found)


@pytest.fixture
def state() -> BrokerState:
    """Return the state after a log that holds a costly, an unreadable and a plain filter."""
    state = BrokerState("n")
    for seq, (name, text) in enumerate({"costly": COSTLY, "unreadable": UNREADABLE, "plain": "require(a)"}.items(), 1):
        state.apply(_fact(seq, name, text))
    return state


def test_a_start_survives_them_and_names_them(state: BrokerState) -> None:
    """The one that RE2 can run matches within its budget; the one that cannot be read matches nothing."""
    refused = state.routes.refused_today
    assert [identity[1] for _, identity in refused] == ["costly", "unreadable"]
    assert "instructions" in refused["ward", ("beds/#", "costly")]
    assert "matches nothing" in refused["ward", ("beds/#", "unreadable")]
    assert _found(state.routes, {"a": "x" * 900}) == ["plain"]
    assert _found(state.routes, {"a": "x" * 900 + "xy" * 40 + "z"}) == ["plain"]


def test_one_within_its_budget_matches() -> None:
    """It is slow for its size, not wrong."""
    routes = Routes()
    routes.put(_fact(1, "costly", "regex(a, '(x|y){900}z')").subscription)
    assert _found(routes, {"a": "y" * 901 + "z"}) == ["costly"]
    assert _found(routes, {"a": "y" * 2_000 + "z"}) == []


def test_a_view_with_them_is_restored(state: BrokerState) -> None:
    """A start from the view puts the same subscriptions."""
    rows, _ = state.view.changes()
    restored = BrokerState.restore("n", rows.items())
    assert restored.routes.refused_today == state.routes.refused_today


def test_they_are_forgotten_when_they_are_removed_or_replaced(state: BrokerState) -> None:
    """A client that sends a filter that is allowed is not named any more."""
    state.apply(_fact(4, "unreadable", UNREADABLE, InterestChange.REMOVED))
    state.apply(_fact(5, "costly", "regex(a, 'x+')", InterestChange.MODIFIED))
    assert state.routes.refused_today == {}
    assert _found(state.routes, {"a": "x"}) == ["costly", "plain"]


def _old_log(folder: Path) -> None:
    """Write what an older version may have: a filter that it could read is replaced by one that we cannot."""
    rig = Rig(folder)
    facts: list[Fact] = [
        _on(NODE, 1, "plain", "require(a)", InterestChange.ADDED),
        _on(NODE, 2, "unreadable", "a == 'x'", InterestChange.ADDED),
        _on(NODE, 3, "unreadable", UNREADABLE, InterestChange.MODIFIED),
        _on(NODE, 4, "unreadable too", UNREADABLE, InterestChange.ADDED),
    ]
    for fact in facts:
        rig.log.append(fact)
    rig.log.sync()
    rig.close()


def _on(node: str, seq: int, name: str, text: str, change: InterestChange) -> InterestChanged:
    subscription = Subscription(session="ward", subject_filter="beds/#", name=name, filter_text=text)
    return InterestChanged(node=node, seq=seq, changed_at=seq, change=change, subscription=subscription, device="d")


def _restarted(folder: Path) -> Rig:
    state = BrokerState(NODE)
    for fact in read(folder, NODE):
        state.apply(fact)
    rig = Rig(folder, state=state)
    rig.settle()
    return rig


def test_one_that_cannot_be_read_is_ended_by_a_fact_named_once_and_counted(tmp_path: Path) -> None:
    """So whoever folds the log comes to the same, and the next start has nothing to say."""
    _old_log(tmp_path)
    rig = _restarted(tmp_path)
    notices = rig.broker.take_notices()
    assert [notice.client for notice in notices] == ["ward", "ward"]
    assert all("cannot read it" in notice.text and "is ended" in notice.text for notice in notices)
    assert rig.broker.counters.filters_ended == 2
    assert [each.name for each in rig.state.hold.subscriptions("ward")] == ["plain"]
    assert rig.state.routes.refused_today == rig.state.routes.unreadable == {}
    rig.log.sync()
    ended = [fact for fact in read(tmp_path, NODE) if isinstance(fact, InterestChanged) and fact.seq > 4]
    assert [(fact.change, fact.subscription.name, fact.device) for fact in ended] == [
        (InterestChange.REMOVED, "unreadable", None),
        (InterestChange.REMOVED, "unreadable too", None),
    ]
    rig.close()
    again = _restarted(tmp_path)
    assert again.broker.take_notices() == []
    assert again.broker.counters.filters_ended == 0


def test_the_pipeline_in_one_process_reads_on(tmp_path: Path) -> None:
    """It raised; now such a row changes nothing, as a dead letter of the tables, and its end ends what was there."""
    _old_log(tmp_path)
    rig = _restarted(tmp_path)
    rig.log.sync()
    facts = list(read(tmp_path, NODE))
    last = facts[-1].seq
    for seq, at in ((last + 1, 100), (last + 2, 101)):
        facts.append(Notification(node=NODE, seq=seq, published_at=at, subject="beds/1", attributes={"a": "x"}))
    before = Notification(node=NODE, seq=4, published_at=4, subject="beds/1", attributes={"a": "x"})
    done = SingleProcess().run([*facts[:3], before, *facts[4:]])
    assert {(match.seq, match.identity[1]) for match in done.matches} == {
        (4, "plain"),
        (4, "unreadable"),
        (last + 1, "plain"),
        (last + 2, "plain"),
    }


def test_a_costly_one_is_asked_when_its_session_enters_the_area_of_a_retained_message(tmp_path: Path) -> None:
    """It was accepted once, so it is read as what is stored: a move must not end the broker's turn with an error."""
    rig = Rig(tmp_path)
    rig.client("car", expiry_s=600).drop()
    rig.settle()
    session, seq = private_session("car"), rig.log.next_seq
    old = Subscription(session=session, subject_filter="hazard", filter_text="regex(a, '(x|y){900}z')", qos=0)
    rig.log.append(
        InterestChanged(
            node=NODE, seq=seq, changed_at=rig.now, change=InterestChange.ADDED, subscription=old, device="car"
        )
    )
    rig.log.sync()
    rig.close()
    again = _restarted(tmp_path)
    light = again.client("light")
    for number, text in enumerate(("y" * 901 + "z", "none")):
        user = (("a", text), ("place", "47.37,8.54"), ("radius", "150"))
        ice = publishing("hazard", text[-4:].encode(), qos=1, packet_id=number + 1, retain=True)
        light.send(ice._replace(properties=Properties(user=user)))
        again.settle()
        car = again.client("car", clean=False, expiry_s=600)
        for place in ("47.0,8.0", "47.37,8.54"):
            car.send(Publish("$whimbrel/report", json.dumps({"place": place}).encode()))
            again.settle()
        assert car.payloads() == ([b"yyyz"] if number == 0 else [])
        car.drop()
