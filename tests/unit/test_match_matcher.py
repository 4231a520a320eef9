"""The matcher: subject, content and keys at once, one by one and in batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from whimbrel.errors import FilterError, InvalidValueError
from whimbrel.language.filters import parse_without_shapes
from whimbrel.match.matcher import Interest, Matcher
from whimbrel.model.attributes import checked
from whimbrel.model.keys import KeyHash, KeyHashes, Scheme, fingerprint
from whimbrel.model.notification import Notification
from whimbrel.model.tables import ATTRIBUTES_TYPE, attributes_to_column_value

INTERESTS = {
    "everything": Interest(),
    "ward": Interest(subject_filter="ward/#"),
    "hot": Interest(filter_text="temperature > 38.5"),
    "ward-hot": Interest(filter_text="temperature > 38.5", subject_filter="ward/+/vitals"),
    "exact-hot": Interest(filter_text="temperature > 38.5", subject_filter="ward/3/vitals"),
    "deep-hot": Interest(filter_text="temperature > 38.5", subject_filter="a/b/c/d/e/f/g/h/i/+"),
    "any-subject-hot": Interest(filter_text="temperature > 38.5", subject_filter="#"),
}


def _notification(subject: str | None, **attributes: Any) -> Notification:
    return Notification(node="n", seq=1, published_at=0, subject=subject, attributes=checked(attributes))


def _ids(matcher: Matcher, notification: Notification) -> set[str]:
    one = matcher.match(notification)
    assert len(set(one)) == len(one)
    for attributes in ([notification.attributes], _column(notification)):
        rows, handles = matcher.match_batch(
            [notification.subject], attributes, keys=[notification.keys], deliver_insecure=_flags(notification)
        )
        assert set(rows.tolist()) <= {0}
        assert sorted(handles.tolist()) == sorted(one)
    return {matcher.id_of(handle) for handle in one}


def _flags(notification: Notification) -> Any:
    import numpy as np

    return np.array([notification.deliver_insecure])


def _column(notification: Notification) -> Any:
    return pa.array([attributes_to_column_value(notification.attributes)], ATTRIBUTES_TYPE)


@pytest.mark.parametrize("how", ["load", "add"])
@pytest.mark.parametrize(
    ("subject", "attributes", "wanted"),
    [
        ("ward/3/vitals", {"temperature": 39}, "everything ward hot ward-hot exact-hot any-subject-hot"),
        ("ward/4/vitals", {"temperature": 39.0}, "everything ward hot ward-hot any-subject-hot"),
        ("ward/4/vitals", {"temperature": 36}, "everything ward"),
        ("ward/4", {"temperature": 39}, "everything ward hot any-subject-hot"),
        ("ward", {}, "everything ward"),
        ("$SYS/x", {"temperature": 39}, "everything hot"),
        (None, {"temperature": 39}, "everything hot"),
        (None, {}, "everything"),
        ("a/b/c/d/e/f/g/h/i/j", {"temperature": 39}, "everything hot deep-hot any-subject-hot"),
        ("a/b/c/d/e/f/g/h/x/j", {"temperature": 39}, "everything hot any-subject-hot"),
        ("a/b/c/d/e/f/g/h/i/j/k", {"temperature": 39}, "everything hot any-subject-hot"),
    ],
)
def test_subject_and_content_decide_together(
    how: str, subject: str | None, attributes: dict[str, object], wanted: str
) -> None:
    """No filter means all; no subject means only those who ask for none."""
    matcher = Matcher.load(INTERESTS.items()) if how == "load" else Matcher()
    for identity, interest in INTERESTS.items() if how == "add" else ():
        matcher.add(identity, interest)
    assert _ids(matcher, _notification(subject, **attributes)) == set(wanted.split())


def test_a_subscription_is_replaced_under_its_id() -> None:
    """The same id again is the same subscription, changed."""
    matcher = Matcher.load(INTERESTS.items())
    matcher.add("hot", Interest(filter_text="temperature > 100"))
    assert "hot" not in _ids(matcher, _notification(None, temperature=39))
    assert len(matcher) == len(INTERESTS)


@pytest.mark.parametrize("identity", INTERESTS)
def test_a_removed_subscription_wants_nothing(identity: str) -> None:
    """Whatever kind it was."""
    matcher = Matcher.load(INTERESTS.items())
    assert matcher.remove(identity)
    assert not matcher.remove(identity)
    for subject in ("ward/3/vitals", "a/b/c/d/e/f/g/h/i/j"):
        assert identity not in _ids(matcher, _notification(subject, temperature=39))


def test_a_bad_filter_changes_nothing() -> None:
    """The subscription that was there still is."""
    matcher = Matcher.load(INTERESTS.items())
    for bad in (Interest(filter_text="temperature >"), Interest(filter_text="\\\0levels == 1")):
        with pytest.raises(FilterError):
            matcher.add("hot", bad)
    with pytest.raises(InvalidValueError):
        matcher.add("hot", Interest(filter_text="a == 1", subject_filter="a/#/b"))
    assert "hot" in _ids(matcher, _notification(None, temperature=39))


def test_an_id_twice_is_refused_when_loading() -> None:
    """A file of subscriptions must not lose one silently."""
    with pytest.raises(InvalidValueError, match="not used before"):
        Matcher.load([("a", Interest()), ("a", Interest())])


def test_a_filter_that_fits_alone_fits_with_a_subject() -> None:
    """Subject and content together may be too deep for the language; then the subject is looked at again."""
    text = "!" * 62 + "a == 1"
    matcher = Matcher.load([("x", Interest(filter_text=text, subject_filter="s/+"))])
    assert _ids(matcher, _notification("s/1", a=1)) == {"x"}
    assert _ids(matcher, _notification("t/1", a=1)) == set()


NO_FILTERS = {
    "a parenthesis closed and another opened": "a == 1) || (b == 2",
    "only closed": "a == 1)",
    "only opened": "(a == 1",
    "an operand short": "a == 1 &&",
    "a string that eats the parenthesis": "a == 'x",
    "a name that escapes the parenthesis": "a == b\\",
    "nothing": "",
    "constant alone": "1 == 1",
    "a value": "a",
}


@pytest.mark.parametrize("subject", [None, "s/1", "s/+", "a/b/c/d/e/f/g/h/i/+"])
@pytest.mark.parametrize("text", NO_FILTERS.values(), ids=NO_FILTERS)
def test_what_is_no_filter_alone_is_none_with_a_subject(subject: str | None, text: str) -> None:
    """A text must not reach out of its place into the subject's, which others may not be allowed to read."""
    with pytest.raises(FilterError) as alone:
        parse_without_shapes(text)
    interest = Interest(filter_text=text, subject_filter=subject)
    for how in (lambda: Matcher.load([("x", interest)]), lambda: Matcher().add("x", interest)):
        with pytest.raises(FilterError) as caught:
            how()
        assert caught.value.args == alone.value.args  # the text as it was given, and the place in it


def test_keys_have_the_last_word() -> None:
    """A notification for holders of a key reaches only them, unless both sides allow otherwise."""
    private = fingerprint(b"secret")
    keys = KeyHashes(frozenset(KeyHash(Scheme.CONSUMER, digest) for digest in private))
    matcher = Matcher.load(
        [
            ("keyed", Interest(filter_text="a == 1", keys=keys)),
            ("plain", Interest(filter_text="a == 1")),
            ("strict", Interest(filter_text="a == 1", accept_insecure=False)),
        ]
    )
    secret = Notification(
        node="n", seq=1, published_at=0, attributes=checked({"a": 1}), keys=keys, deliver_insecure=False
    )
    assert _ids(matcher, secret) == {"keyed"}
    assert _ids(matcher, _notification(None, a=1)) == {"keyed", "plain"}


@pytest.mark.parametrize("other", [{"subjects": ["s"]}, {"keys": []}, {"deliver_insecure": [True] * 3}])
def test_what_belongs_to_a_batch_is_as_long_as_it(other: dict[str, Any]) -> None:
    """Rows are numbers of a batch; one too few would give them to another notification."""
    matcher = Matcher.load([("x", Interest(filter_text="a == 1", subject_filter="s/+"))])
    with pytest.raises(InvalidValueError, match="one for each notification"):
        matcher.match_batch(other.pop("subjects", None), [{"a": 1}, {"a": 2}], **other)


def test_a_handle_in_use_has_an_id() -> None:
    """Answers in flight must not name a stranger."""
    matcher = Matcher()
    handle = matcher.add("a", Interest(filter_text="a == 1"))
    assert matcher.id_of(handle) == "a"
    matcher.remove("a")
    with pytest.raises(InvalidValueError):
        matcher.id_of(handle)
    assert matcher.add("b", Interest()) != handle
