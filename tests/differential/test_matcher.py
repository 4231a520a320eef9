"""The whole matcher against the plainest answer: ask everyone, one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import attributes, filters

from whimbrel.errors import InvalidValueError
from whimbrel.language.ast import Predicate
from whimbrel.language.backends.python import compile_filter
from whimbrel.language.printer import print_filter
from whimbrel.match.matcher import Interest, Matcher
from whimbrel.match.topics import matches
from whimbrel.model.attributes import Attributes, checked
from whimbrel.model.keys import KeyHashes, Scheme
from whimbrel.model.notification import Notification
from whimbrel.model.tables import ATTRIBUTES_TYPE, attributes_to_column_value

LEVELS = st.sampled_from(["a", "b", "", "$s"])
SUBJECTS = st.none() | st.lists(LEVELS, min_size=1, max_size=10).map("/".join).filter(bool)


TOPIC_FILTERS = (
    st.none()
    | st.builds(
        lambda head, tail: "/".join([*head, *tail]),
        st.lists(LEVELS | st.just("+"), min_size=1, max_size=9),
        st.sampled_from([[], ["#"]]),
    ).filter(bool)
    | st.just("#")
)
WANTED = st.tuples(TOPIC_FILTERS, st.none() | filters())
EVENTS = st.lists(st.tuples(SUBJECTS, attributes().map(checked)), min_size=1, max_size=5)


def _wants(topic_filter: str | None, tree: Predicate | None, subject: str | None, event: Attributes) -> bool:
    if topic_filter is not None and (subject is None or not matches(topic_filter, subject)):
        return False
    return tree is None or compile_filter(tree)(event) is True


@settings(max_examples=60)
@given(wanted=st.lists(WANTED, max_size=10), more=st.lists(WANTED, max_size=3), events=EVENTS)
def test_the_matcher_agrees_with_asking_everyone(
    tmp_path_factory: pytest.TempPathFactory,
    wanted: list[tuple[str | None, Predicate | None]],
    more: list[tuple[str | None, Predicate | None]],
    events: list[tuple[str | None, Attributes]],
) -> None:
    """Subject and content together, loaded or added, one by one, in rows and in Arrow batches, saved and mapped."""
    everyone = [*wanted, *more]
    interests = [
        (str(i), Interest(subject_filter=t, filter_text=None if tree is None else print_filter(tree)))
        for i, (t, tree) in enumerate(everyone)
    ]
    matcher = Matcher.load(interests[: len(wanted)])
    for identity, interest in interests[len(wanted) :]:
        matcher.add(identity, interest)
    expected = {
        (row, str(i))
        for row, (s, event) in enumerate(events)
        for i, (t, tree) in enumerate(everyone)
        if _wants(t, tree, s, event)
    }
    subjects, rows = [s for s, _ in events], [event for _, event in events]
    column = pa.array([attributes_to_column_value(event) for event in rows], ATTRIBUTES_TYPE)
    path = tmp_path_factory.mktemp("matcher") / "file"
    matcher.save(path, extra={"mine": np.arange(3)})
    mapped, extra = Matcher.map(path)
    assert extra["mine"].tolist() == [0, 1, 2]
    assert len(mapped) == len(matcher)
    same = {(row, mapped.id_of(h)) for row, (s, event) in enumerate(events) for h in mapped.match_parts(s, event)}
    assert same == expected
    one = {(row, matcher.id_of(h)) for row, (s, event) in enumerate(events) for h in matcher.match_parts(s, event)}
    assert one == expected
    for batch in (rows, column):
        found_rows, handles = matcher.match_batch(subjects, batch)
        found = [(row, matcher.id_of(h)) for row, h in zip(found_rows.tolist(), handles.tolist(), strict=True)]
        assert sorted(found) == sorted(expected)


def test_a_mapped_matcher_keeps_keys_and_only_matches(tmp_path: Path) -> None:
    """Workers get the keys too; nobody changes what many share."""
    keys = KeyHashes.of_private(Scheme.PRODUCER, b"secret")
    strict = Interest(filter_text="a == 1", keys=keys, accept_insecure=False)
    matcher = Matcher.load([("strict", strict), ("open", Interest(filter_text="a == 1"))])
    matcher.save(tmp_path / "file")
    mapped, _ = Matcher.map(tmp_path / "file")
    plain = Notification(node="n", seq=1, published_at=1, attributes={"a": 1})
    signed = replace(plain, keys=keys)
    assert [[mapped.id_of(h) for h in mapped.match(each)] for each in (plain, signed)] == [["open"], ["strict", "open"]]
    with pytest.raises(InvalidValueError, match="only matches"):
        mapped.add("another", Interest())
