"""Which numbers a batch has: bounded for all nodes together, shared fairly, and the same when it is made again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whimbrel.pipeline.stream.batch_spans import next_ends, spans

NODES = st.sampled_from(["a", "b", "c", "d"])
ENDS = st.dictionaries(NODES, st.integers(-1, 40), max_size=4)


@given(start=ENDS, more=st.dictionaries(NODES, st.integers(0, 60), max_size=4), most=st.integers(1, 50))
def test_a_batch_is_bounded_and_goes_on(start: dict[str, int], more: dict[str, int], most: int) -> None:
    """All nodes together have no more than was allowed, and whatever is new is reached in the end."""
    last = {node: start.get(node, -1) + count for node, count in more.items()}
    at, batches = start, 0
    while found := spans(at, end := next_ends(at, last, most)):
        assert 0 < sum(until - first + 1 for _, first, until, _ in found) <= most
        assert {count for *_, count in found} == {len(end)}
        at, batches = end, batches + 1
        assert batches <= sum(more.values())
    assert {node: at.get(node, -1) for node in last} == last


def test_a_busy_node_does_not_hold_up_the_others() -> None:
    """Those with little new are through at once, and what they leave is shared by those with much."""
    end = next_ends({}, {"busy": 9_999, "also": 9_999, "quiet": 1}, 100)
    assert (end["quiet"], end["also"] + 1, end["busy"] + 1) == (1, 49, 49)


def test_what_was_cut_does_not_count() -> None:
    """A log may begin with number a million: its first batch has facts, not the numbers before them."""
    end = next_ends({}, {"n": 1_000_500}, 100, lambda _: 1_000_000)
    assert end == {"n": 1_000_099}
