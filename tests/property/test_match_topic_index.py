"""The reference against a regular expression, and the index against the reference."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from whimbrel.language.printer import print_operand
from whimbrel.match.subjects import subject_filter, subject_text
from whimbrel.match.topics import TopicIndex, is_topic_filter, matches

_NAMES = ["", "a", "b", "$", "$a"]


def _joined(levels: list[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(levels), min_size=1, max_size=5).map("/".join)


anything = _joined([*_NAMES, "+", "#", "a+", "##"])
topic_filters = st.one_of(_joined(_NAMES), _joined([*_NAMES, "+", "+", "#"])).filter(is_topic_filter)
topics = _joined(_NAMES)
any_topics = st.one_of(topics, anything, st.just(""))  # what no client may publish has an answer too
changes = st.lists(st.tuples(st.booleans(), topic_filters, st.integers(0, 4)), max_size=40)


def _by_regex(topic_filter: str, topic: str) -> bool:
    """Answer as somebody would who thinks in regular expressions."""
    pattern = re.escape(topic_filter).replace(r"\+", "[^/]*")
    if topic_filter == "#":
        pattern = ".*"
    elif topic_filter.endswith("/#"):
        pattern = pattern.removesuffix(r"/\#") + "(/.*)?"
    is_hidden = topic[:1] == "$" and topic_filter[0] in "+#"
    return not is_hidden and re.fullmatch(pattern, topic) is not None


@given(topic_filter=topic_filters, topic=any_topics)
def test_the_reference_agrees_with_a_regular_expression(topic_filter: str, topic: str) -> None:
    """The reference is right only if somebody who did not read it computes the same."""
    assert matches(topic_filter, topic) is _by_regex(topic_filter, topic)


@given(topic_filter=topic_filters | st.text("a/+#%'\"\\{}", min_size=1).filter(is_topic_filter))
def test_the_text_of_a_topic_filter_is_its_tree_printed(topic_filter: str) -> None:
    """An index that is loaded from texts must mean the same as one to which subscriptions are added."""
    assert subject_text(topic_filter) == " && ".join(map(print_operand, subject_filter(topic_filter)))


@given(text=st.one_of(anything, st.text("a/+#\0", max_size=6)))
def test_topic_filters_are_what_the_grammar_says(text: str) -> None:
    """The check agrees with the grammar of MQTT, written as a regular expression."""
    grammar = r"(?s)(?=.)(([^/+#\0]*|\+)/)*([^/+#\0]*|\+|#)"
    assert is_topic_filter(text) is (re.fullmatch(grammar, text) is not None)


@given(topic=topics)
def test_a_topic_is_a_filter_that_admits_itself(topic: str) -> None:
    """Most subscriptions name one subject."""
    assert is_topic_filter(topic) is (topic != "")
    assert matches(topic, topic)


@given(steps=changes, asked=st.lists(any_topics, max_size=6))
def test_the_index_agrees_with_the_reference(steps: list[tuple[bool, str, int]], asked: list[str]) -> None:
    """Whatever came and went, and whatever was asked meanwhile."""
    index = TopicIndex()
    held: set[tuple[str, int]] = set()
    for is_added, topic_filter, handle in steps:
        pair = (topic_filter, handle)
        if is_added:
            assert index.add(topic_filter, handle) is (pair not in held)
            held.add(pair)
        else:
            assert index.remove(topic_filter, handle) is (pair in held)
            held.discard(pair)
        for topic in asked:
            assert sorted(index.match(topic)) == _wanted(held, topic)
    assert len(index) == len(held)


@given(steps=changes, asked=st.lists(st.none() | topics, max_size=8))
def test_a_batch_agrees_with_the_reference(steps: list[tuple[bool, str, int]], asked: list[str | None]) -> None:
    """Rows in order, handles in order within a row, none for a row without a topic."""
    index = TopicIndex()
    held = {(topic_filter, handle) for _, topic_filter, handle in steps}
    for topic_filter, handle in held:
        index.add(topic_filter, handle)
    rows, handles = index.match_many(asked)
    wanted = [(row, handle) for row, topic in enumerate(asked) if topic is not None for handle in _wanted(held, topic)]
    assert list(zip(rows.tolist(), handles.tolist(), strict=True)) == wanted


@given(steps=changes)
def test_the_order_of_an_answer_has_no_history(steps: list[tuple[bool, str, int]]) -> None:
    """A broker that was restarted hands over in the same order as one that was not."""
    lived, rebuilt = TopicIndex(), TopicIndex()
    held: set[tuple[str, int]] = set()
    for is_added, topic_filter, handle in steps:
        (lived.add if is_added else lived.remove)(topic_filter, handle)
        (held.add if is_added else held.discard)((topic_filter, handle))
    for topic_filter, handle in sorted(held):
        rebuilt.add(topic_filter, handle)
    for topic in ("a/b", "a", "/a", "$/a", "a/b/a"):
        assert lived.match(topic) == rebuilt.match(topic)


@given(steps=changes)
def test_what_was_added_and_removed_leaves_no_trace(steps: list[tuple[bool, str, int]]) -> None:
    """The index is as large as what it holds."""
    index = TopicIndex()
    for _, topic_filter, handle in steps:
        index.add(topic_filter, handle)
    for _, topic_filter, handle in reversed(steps):
        index.remove(topic_filter, handle)
    assert len(index) == 0
    assert index._root.is_bare
    assert not index._exact


def _wanted(held: set[tuple[str, int]], topic: str) -> list[int]:
    return sorted(handle for topic_filter, handle in held if matches(topic_filter, topic))
