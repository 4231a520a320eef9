"""A delta that stays is packed, however small it is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count, islice, repeat

import pytest

from whimbrel.match.index.content import ContentIndex
from whimbrel.match.index.parts import Part
from whimbrel.match.index.segments import Segment, pack_parts


@pytest.fixture
def index() -> ContentIndex:
    """Return an index that packs at once where it would pack beside."""
    made = ContentIndex(run=lambda pack: pack())
    for handle in range(20):
        made.add(handle, f"level > {handle}")
    return made


def test_what_stays_is_packed(index: ContentIndex) -> None:
    """Or a thousand filters would be asked one by one for as long as nobody adds another."""
    want = index.match({"level": 5})
    index.settle()
    assert not index._state.segments  # they were added since the last call, which there was none of
    index.settle()
    assert len(index._state.segments) == 1
    assert sorted(index.match({"level": 5})) == sorted(want)


def test_segments_that_stay_are_merged(index: ContentIndex) -> None:
    """Every segment costs every event; a few that came last are of no account to whoever packs."""
    for handle in range(20, 420):
        index.add(handle, f"level > {handle}")
    index.repack()
    for handle in range(420, 450):
        index.add(handle, f"level > {handle}")
    want = index.match({"level": 440})
    for _ in range(2):
        index.settle()
    assert [segment.handles.size for segment in index._state.segments] == [420, 30]
    index.settle()
    assert [segment.handles.size for segment in index._state.segments] == [450]
    assert sorted(index.match({"level": 440})) == sorted(want)


def test_a_few_beside_very_many_are_left_alone(index: ContentIndex) -> None:
    """Merging everything for the sake of every few would be work without end."""
    index.repack()
    for handle in range(20, 1_000):
        index.add(handle, f"level > {handle}")
    index.repack(whole=True)
    for handle in range(1_000, 1_020):
        index.add(handle, f"level > {handle}")
    for _ in range(4):
        index.settle()
    assert [segment.handles.size for segment in index._state.segments] == [1_000, 20]


def test_what_is_packed_during_a_merge_is_merged_after_it() -> None:
    """Or the last ones of a flood of filters would stay in as many segments as were packed meanwhile."""
    handles = count()

    def flooded(parts: Sequence[Part]) -> Segment:
        if len(parts) > 1 and next(flood):  # a merge; and while it is under way:
            add(6_000)
        return pack_parts(parts)

    def add(more: int) -> None:
        for handle in islice(handles, more):
            index.add(handle, f"level > {handle}")

    flood = chain([True], repeat(False))
    index = ContentIndex(run=lambda pack: pack(), pack=flooded)
    add(2_048)
    assert not next(flood)
    assert len(index._state.segments) <= 4


def test_what_changes_is_not_packed(index: ContentIndex) -> None:
    """Packing every second what is added every second would be work without end."""
    for handle in range(20, 30):
        index.settle()
        index.add(handle, f"level > {handle}")
    assert not index._state.segments
