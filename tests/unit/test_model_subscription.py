"""Subscriptions: their identity and their bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.model.subscription import InterestChange, Subscription, SubscriptionIdentity


def a_subscription(**changes: Any) -> Subscription:  # any field, also a wrong one
    """Return a subscription with *changes*."""
    return replace(Subscription(session="ward-3", subject_filter="ward/3/#"), **changes)


def test_the_identity_is_subject_filter_and_name() -> None:
    """The same identity again replaces a subscription, whatever else it says."""
    first, second = a_subscription(filter_text="pulse > 90"), a_subscription(filter_text="pulse > 120", max_held=1)
    assert first.identity == second.identity == SubscriptionIdentity("ward/3/#", "")
    assert a_subscription(name="night").identity != first.identity


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("session", ""),
        ("subject_filter", ""),
        ("subject_filter", "é" * 32_768),
        ("name", "x" * 1_025),
        ("name", "a\0"),
        ("filter_text", "x" * (4 * 65_536 + 1)),
        ("ttl_us", -1),
        ("ttl_us", 1.0),
        ("max_held", -1),
        ("max_held", 2**31),
        ("policy", ""),
    ],
)
def test_an_invalid_field_is_refused(field: str, value: object) -> None:
    """A million of these are stored and must all be sound."""
    with pytest.raises(InvalidValueError, match=field):
        a_subscription(**{field: value})


def test_the_defaults_leave_the_choice_to_the_deployment() -> None:
    """Zero is a choice (live only); none is not."""
    assert (a_subscription().ttl_us, a_subscription().max_held) == (None, None)
    assert a_subscription(max_held=0).max_held == 0
    assert a_subscription().accept_insecure


def test_an_interest_changes_in_three_ways() -> None:
    """The words of the ``interests`` table."""
    assert [change.value for change in InterestChange] == ["added", "modified", "removed"]
