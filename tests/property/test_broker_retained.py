"""Retained messages: a tree that finds what a look at every topic would find."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whimbrel.match.topics import is_topic_filter, matches
from whimbrel.node.publication import KeptNotification
from whimbrel.node.retained import Retained

LEVELS = st.sampled_from(["", "a", "b", "$c", "$"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.lists(LEVELS | st.sampled_from("+#"), min_size=1, max_size=4).map("/".join).filter(is_topic_filter)
CHANGES = st.lists(st.tuples(st.booleans(), TOPICS), max_size=40)


def _message(seq: int, topic: str) -> KeptNotification:
    return KeptNotification(seq, None, topic, b"x", qos=0, retain=True, expires_at=None, properties=b"", record=b"")


@given(changes=CHANGES, wanted=st.lists(FILTERS, min_size=1, max_size=10))
def test_the_tree_finds_what_brute_force_finds(changes: list[tuple[bool, str]], wanted: list[str]) -> None:
    """Whatever was put, replaced and removed: a filter admits what ``matches`` says, in order of seq."""
    retained, naive = Retained(), dict[str, KeptNotification]()
    for seq, (is_kept, topic) in enumerate(changes, start=1):
        if is_kept:
            naive[topic] = _message(seq, topic)
            retained.put(naive[topic])
        else:
            assert retained.remove(topic) is naive.pop(topic, None)
    for each in wanted:
        found = sorted(message.seq for topic, message in naive.items() if matches(each, topic))
        assert [message.seq for message in retained.matching(each)] == found


@given(topics=st.lists(TOPICS, max_size=40))
def test_what_is_removed_leaves_nothing_behind(topics: list[str]) -> None:
    """Topics that come and go must not fill the memory with empty levels."""
    retained = Retained()
    for seq, topic in enumerate(topics):
        retained.put(_message(seq, topic))
    assert {message.subject for message in retained} == set(topics)
    for topic in topics:
        retained.remove(topic)
        assert topic not in retained
    assert len(retained) == 0
    assert retained._root.below == {}
