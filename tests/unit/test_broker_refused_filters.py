"""Filters that an older version accepted and this one refuses: a start is not stopped, and they are named."""

from __future__ import annotations

import pytest

from whimbrel.broker.routes import Routes
from whimbrel.broker.state import BrokerState
from whimbrel.model.facts import InterestChanged
from whimbrel.model.subscription import InterestChange, Subscription

COSTLY = "regex(a, '(x|y)*x(x|y){1000}z')"
UNREADABLE = "regex(a, '(')"


def _fact(seq: int, name: str, text: str, change: InterestChange = InterestChange.ADDED) -> InterestChanged:
    subscription = Subscription(session="ward", subject_filter="beds/#", name=name, filter_text=text)
    return InterestChanged(node="n", seq=seq, changed_at=seq, change=change, subscription=subscription, device="d")


def _found(routes: Routes, attributes: dict[str, str]) -> list[str]:
    handles = routes.by_content(["beds/4"], [attributes])[0]
    return sorted(identity[1] for _, found in routes.everybody("beds/4", handles) for identity in found)


@pytest.fixture
def state() -> BrokerState:
    """Return the state after a log that holds a costly, an unreadable and a plain filter."""
    state = BrokerState("n")
    for seq, (name, text) in enumerate({"costly": COSTLY, "unreadable": UNREADABLE, "plain": "require(a)"}.items(), 1):
        state.replay(_fact(seq, name, text))
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
    rows, _ = state.changes()
    restored = BrokerState.restore("n", rows.items())
    assert restored.routes.refused_today == state.routes.refused_today


def test_they_are_forgotten_when_they_are_removed_or_replaced(state: BrokerState) -> None:
    """A client that sends a filter that is allowed is not named any more."""
    state.replay(_fact(4, "unreadable", UNREADABLE, InterestChange.REMOVED))
    state.replay(_fact(5, "costly", "regex(a, 'x+')", InterestChange.MODIFIED))
    assert state.routes.refused_today == {}
    assert _found(state.routes, {"a": "x"}) == ["costly", "plain"]
