"""What a SUBSCRIBE asks for, as a subscription, and what is refused with which words."""

from __future__ import annotations

import base64

import pytest

from whimbrel.broker.subscribe.requested import (
    NO_OPTIONS,
    Limits,
    Options,
    identity_of,
    options_of,
    subscription_of,
)
from whimbrel.language.filters import Filter
from whimbrel.model.subscription import Subscription
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import SubscriptionRequest

LIMITS = Limits(filter_bytes=20, topic_bytes=30, topic_levels=3, maximum_qos=1, ttl_us=1_000, max_held=10)


def _in_topic(text: str, topic_filter: str) -> str:
    return f"$filter/{base64.urlsafe_b64encode(text.encode()).decode().rstrip('=')}/{topic_filter}"


def _asked(topic_filter: str, options: Options = NO_OPTIONS, *, qos: int = 0) -> Subscription:
    return subscription_of(SubscriptionRequest(topic_filter, qos), options, "s", None, LIMITS)


def test_without_options_the_limits_say_what_is_held() -> None:
    """A plain client knows nothing of ttl and max, and no more QoS is granted than is offered."""
    found = _asked("a/#", qos=2)
    assert (found.ttl_us, found.max_held, found.qos, found.filter_text, found.name) == (1_000, 10, 1, None, "")


def test_options_are_user_properties() -> None:
    """Others are of no concern: clients may have their own."""
    user = (("filter", "n > 1"), ("ttl", "5"), ("max", "7"), ("name", "x"), ("colour", "red"), ("colour", "blue"))
    options = options_of(user, LIMITS, is_ours=True)
    assert options == Options(filter=Filter("n > 1"), ttl_us=5_000_000, max_held=7, name="x")
    found = _asked("a", options)
    assert (found.filter_text, found.ttl_us, found.max_held, found.name) == ("n > 1", 5_000_000, 7, "x")


def test_nobody_holds_more_than_the_broker_allows() -> None:
    """Asked for twelve, given ten."""
    assert _asked("a", Options(max_held=12)).max_held == 10


def test_a_filter_in_the_topic_tells_two_subscriptions_apart() -> None:
    """3.1.1 has no user properties, and its clients unsubscribe with the text they subscribed with."""
    one, other = _in_topic("n > 1", "a"), _in_topic("n > 2", "a")
    found = _asked(one)
    assert (found.subject_filter, found.filter_text) == ("a", "n > 1")
    assert (found.subject_filter, found.name) == identity_of(one, NO_OPTIONS, LIMITS)
    assert identity_of(one, NO_OPTIONS, LIMITS) != identity_of(other, NO_OPTIONS, LIMITS)


def test_a_filter_in_the_topic_may_be_padded() -> None:
    """Base64 with and without its padding says the same."""
    assert _asked("$filter/" + base64.urlsafe_b64encode(b"n > 1").decode() + "/a").filter_text == "n > 1"


def test_a_filter_in_the_topic_may_be_shared() -> None:
    """What stands behind it is any topic filter."""
    assert _asked(_in_topic("n > 1", "$share/g/a")).subject_filter == "$share/g/a"


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ((("filter", "n >"),), "line 1, column"),
        ((("filter", "n > 1 && n > 22222222"),), "a filter of 21 bytes, at most 20 are allowed"),
        ((("ttl", "-1"),), "ttl='-1', allowed is a whole number from 0 to"),
        ((("ttl", "²"),), "allowed is a whole number"),
        ((("max", "99999999999"),), "max='99999999999', allowed is"),
        ((("name", "x"), ("name", "y")), "name twice"),
        ((("near", "x"),), "near: found 'x', allowed is lat,lon,radius"),
        ((("near", "91,0,5"),), "found 91.0, allowed is a number from -90 to 90"),
        ((("stale", "-1"),), "stale: found '-1'"),
    ],
)
def test_a_bad_option_is_refused_in_words(user: tuple[tuple[str, str], ...], words: str) -> None:
    """What was found and what is allowed, in the reason string of SUBACK."""
    with pytest.raises(ProtocolError) as raised:
        options_of(user, LIMITS, is_ours=True)
    assert raised.value.code is ReasonCode.TOPIC_FILTER_INVALID
    assert words in raised.value.reason


@pytest.mark.parametrize(
    "topic_filter",
    [
        "",
        "a#",
        "#/a",
        "a+/b",
        "a/b/c/d",
        "a" * 31,
        "$share/g",
        "$share//a",
        "$share/+/a",
        "$share/g/a#",
        "$filter/!/a",
        "$filter/bg/a#",
        "$filter/bg",
        "$filter/_w/a",
        _in_topic("n >", "a"),
        _in_topic("n > 1 && n > 22222222", "a"),
    ],
)
def test_a_bad_topic_filter_is_refused(topic_filter: str) -> None:
    """0x8F for each, whatever is wrong with it."""
    with pytest.raises(ProtocolError) as raised:
        _asked(topic_filter)
    assert raised.value.code is ReasonCode.TOPIC_FILTER_INVALID
