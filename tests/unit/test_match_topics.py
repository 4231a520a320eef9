"""Topics: MQTT's rules, one by one."""

from __future__ import annotations

import numpy as np
import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.match.topics import TopicIndex, check_topic_filter, is_topic_filter, matches

ADMITTED = [  # MQTT 5.0 §4.7, its own examples first
    ("sport/tennis/player1/#", "sport/tennis/player1"),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking"),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon"),
    ("sport/#", "sport"),
    ("#", "sport"),
    ("#", "/"),
    ("sport/tennis/+", "sport/tennis/player1"),
    ("sport/+", "sport/"),
    ("+/+", "/finance"),
    ("/+", "/finance"),
    ("+", "finance"),
    ("+/tennis/#", "sport/tennis"),
    ("$SYS/#", "$SYS"),
    ("$SYS/#", "$SYS/monitor/Clients"),
    ("$SYS/monitor/+", "$SYS/monitor/Clients"),
    ("a//b", "a//b"),
    ("a/+/b", "a//b"),
    ("+/$x", "a/$x"),
    ("/#", "/$x"),
    ("ward/é", "ward/é"),
]
REFUSED = [
    ("sport/tennis/+", "sport/tennis/player1/ranking"),
    ("sport/+", "sport"),
    ("+", "/finance"),
    ("#", "$SYS"),
    ("#", "$SYS/monitor"),
    ("+", "$SYS"),
    ("+/monitor/Clients", "$SYS/monitor/Clients"),
    ("+/#", "$SYS/monitor"),
    ("sport", "Sport"),
    ("sport", "sport/"),
    ("sport/#", "sports"),
    ("a/+/b/#", "a/x"),
]


@pytest.mark.parametrize(("topic_filter", "topic"), ADMITTED)
def test_a_filter_admits_what_mqtt_says(topic_filter: str, topic: str) -> None:
    """A client that knows nothing of Whimbrel gets plain MQTT."""
    assert matches(topic_filter, topic)


@pytest.mark.parametrize(("topic_filter", "topic"), REFUSED)
def test_a_filter_refuses_what_mqtt_says(topic_filter: str, topic: str) -> None:
    """A notification too many is as wrong as one too few."""
    assert not matches(topic_filter, topic)


@pytest.mark.parametrize("topic_filter", ["a", "/", "//", "+", "#", "+/+", "a/+/#", "/#", "$SYS/#", "é" * 32_767])
def test_a_topic_filter_is_accepted(topic_filter: str) -> None:
    """Empty levels are legal, and so is a wildcard wherever it is a whole level."""
    assert check_topic_filter(topic_filter) == topic_filter
    assert is_topic_filter(topic_filter)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "found '', allowed is a string of at least one character"),
        (None, "found nothing, allowed is a string"),
        ("a\0b", "without U.0000"),
        ("\ud800", "without lone surrogates"),
        ("é" * 32_768, "at most 65535 bytes"),
        ("a/b+", r"^'a/b\+' is no topic filter: \+ and # must be whole levels, and 'b\+' is more than that$"),
        ("a#", "and 'a#' is more"),
        ("++", "must be whole levels"),
        ("a/#/b", "^'a/#/b' is no topic filter: # may only be the last level$"),
        ("#/", "# may only be the last level"),
    ],
)
def test_what_is_no_topic_filter_is_refused_with_the_reason(text: object, reason: str) -> None:
    """The sentence goes back to the client in the SUBACK."""
    with pytest.raises(InvalidValueError, match=reason):
        check_topic_filter(text)
    assert not is_topic_filter(text)


# -- the index ---------------------------------------------------------------------------------------------------------


def an_index(*topic_filters: str) -> TopicIndex:
    """Return an index of *topic_filters*; the handle is the position."""
    index = TopicIndex()
    for handle, topic_filter in enumerate(topic_filters):
        assert index.add(topic_filter, handle)
    return index


@pytest.mark.parametrize(("topic_filter", "topic"), ADMITTED)
def test_the_index_admits_what_mqtt_says(topic_filter: str, topic: str) -> None:
    """The examples of the standard are worth asking both ways."""
    assert an_index(topic_filter).match(topic) == [0]


@pytest.mark.parametrize(("topic_filter", "topic"), REFUSED)
def test_the_index_refuses_what_mqtt_says(topic_filter: str, topic: str) -> None:
    """The examples of the standard are worth asking both ways."""
    assert an_index(topic_filter).match(topic) == []


def test_several_handles_stand_under_one_filter() -> None:
    """A popular subject is one entry, not a thousand."""
    index = TopicIndex()
    for handle in (5, 3, 9, 1):
        assert index.add("a/+", handle)
        assert index.add("a/b", handle + 10)
    assert sorted(index.match("a/b")) == [1, 3, 5, 9, 11, 13, 15, 19]
    assert index.remove("a/+", 5)
    assert index.remove("a/b", 19)
    assert sorted(index.match("a/b")) == [1, 3, 9, 11, 13, 15]
    assert len(index) == 6


def test_a_handle_is_held_once_under_one_filter() -> None:
    """A log that is replayed says everything again."""
    for topic_filter in ("a", "+", "#"):
        index = an_index(topic_filter)
        assert not index.add(topic_filter, 0)
        assert index.add(topic_filter, 1)
        assert not index.add(topic_filter, 1)
        assert index.match("a") == [0, 1]
        assert len(index) == 2


def test_removing_what_is_not_there_changes_nothing() -> None:
    """UNSUBSCRIBE may name anything."""
    index = an_index("a/b", "a/+", "a/#")
    for topic_filter in ("a/b", "a/+", "a/#", "x", "x/+", "a/+/+", "+", "#", "a/b+"):
        assert not index.remove(topic_filter, 7)
    assert len(index) == 3
    assert sorted(index.match("a/b")) == [0, 1, 2]


def test_nothing_is_left_of_filters_that_went() -> None:
    """Clients come and go for years; the index must not grow with them."""
    topic_filters = ["a/b/c", "a/+/c", "a/+/c/#", "a/#", "+", "#", "//+//"]
    index = an_index(*topic_filters)
    for handle, topic_filter in enumerate(topic_filters):
        assert index.remove(topic_filter, handle)
    assert len(index) == 0
    assert index._root.is_bare
    assert not index._exact


def test_an_answer_is_forgotten_when_a_wildcard_filter_changes() -> None:
    """What was remembered of a hot topic must not outlive its reason."""
    index = an_index("a/+")
    assert index.match("a/b") == [0]
    index.add("#", 1)
    assert sorted(index.match("a/b")) == [0, 1]
    index.add("a/b", 2)
    assert sorted(index.match("a/b")) == [0, 1, 2]
    index.remove("a/+", 0)
    assert sorted(index.match("a/b")) == [1, 2]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher that never uses a topic twice must not fill the memory."""
    monkeypatch.setattr("whimbrel.match.topics._MEMO_BYTES", 2_000)
    index = an_index("+")
    index._forget()
    for number in range(100):
        assert index.match(str(number)) == [0]
        assert len(index._memo) <= 10
    assert index.match("x" * 5_000) == [0]
    assert len(index._memo) == 1


def test_a_caller_may_keep_and_change_what_it_got() -> None:
    """What is remembered is not what is handed out."""
    index = an_index("+", "a")
    index.match("a").clear()
    assert sorted(index.match("a")) == [0, 1]


@pytest.mark.parametrize("handle", [-1, 2**31, True, 1.0])
def test_a_handle_that_fits_no_column_is_refused(handle: int) -> None:
    """Batches carry handles as int32."""
    with pytest.raises(InvalidValueError, match="handle"):
        TopicIndex().add("a", handle)


def test_a_bad_filter_is_refused_before_anything_changes() -> None:
    """A level like ``b+`` would otherwise be taken for a name."""
    index = TopicIndex()
    with pytest.raises(InvalidValueError, match="whole levels"):
        index.add("a/+/b+", 0)
    assert index._root.is_bare


def test_as_many_levels_as_fit_are_walked_without_recursion() -> None:
    """A filter of 64 KiB can have 32 Ki levels; Python's stack has a thousand."""
    deep = "+/" * 32_000
    index = an_index(deep + "#")
    assert index.match("a/" * 32_000 + "a") == [0]
    assert index.remove(deep + "#", 0)
    assert index._root.is_bare


# -- batches -----------------------------------------------------------------------------------------------------------


def test_a_batch_gives_rows_and_handles_in_order() -> None:
    """Sorted pairs are a sparse matrix already."""
    index = an_index("#", "a/b", "a/+", "x")
    index.add("a/b", 7)
    found = index.match_many(["a/b", None, "$y", "x", "a/b"])
    assert found.rows.tolist() == [0, 0, 0, 0, 3, 3, 4, 4, 4, 4]
    assert found.handles.tolist() == [0, 1, 2, 7, 0, 3, 0, 1, 2, 7]
    assert found.rows.dtype == found.handles.dtype == np.int32


@pytest.mark.parametrize("topics", [[], [None], ["nobody", None]])
def test_a_batch_without_matches_is_empty(topics: list[str | None]) -> None:
    """Empty columns have a type too."""
    rows, handles = an_index("a").match_many(topics)
    assert len(rows) == len(handles) == 0
    assert rows.dtype == handles.dtype == np.int32


def test_a_batch_keeps_the_largest_handle() -> None:
    """Sorting packs row and handle into one number; none of its bits may be lost."""
    index = TopicIndex()
    index.add("+", 2**31 - 1)
    index.add("a", 0)
    assert index.match_many(["b", "a"]).handles.tolist() == [2**31 - 1, 0, 2**31 - 1]
