"""The packed index against the reference: random filters, random events, before and after every kind of change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import attributes, filters

from whimbrel.errors import FilterError
from whimbrel.language import pattern_cost, rewrites
from whimbrel.language.ast import Predicate
from whimbrel.language.backends.python import compile_filter
from whimbrel.language.filters import parse
from whimbrel.language.printer import print_filter
from whimbrel.match.events import searching
from whimbrel.match.index import content, packing, segments
from whimbrel.match.index.content import ContentIndex
from whimbrel.match.index.damage import CorruptIndexError
from whimbrel.match.index.packed import PackedIndex
from whimbrel.match.index.packer import PackingProcess, PackingProcessError
from whimbrel.match.index.parts import Part
from whimbrel.match.index.segments import Segment, pack_parts
from whimbrel.model.attributes import Attributes, checked
from whimbrel.model.tables import ATTRIBUTES_TYPE, attributes_to_column_value

TREES = st.lists(filters(), min_size=1, max_size=12)
EVENTS = st.lists(attributes().map(checked), min_size=1, max_size=6)


def _wanted(trees: dict[int, Predicate], events: Sequence[Attributes]) -> set[tuple[int, int]]:
    compiled = {handle: compile_filter(tree) for handle, tree in trees.items()}
    return {(row, h) for row, event in enumerate(events) for h, verdict in compiled.items() if verdict(event) is True}


def _found(index: ContentIndex, events: Sequence[Attributes]) -> set[tuple[int, int]]:
    """Match in all three ways; each pair must come once and all ways must agree."""
    one = [(row, handle) for row, event in enumerate(events) for handle in index.match(event)]
    assert len(set(one)) == len(one)
    rows, handles = index.match_rows(events)
    column = pa.array([attributes_to_column_value(event) for event in events], ATTRIBUTES_TYPE)
    arrow_rows, arrow_handles = index.match_arrow(column)
    assert sorted(one) == sorted(zip(rows.tolist(), handles.tolist(), strict=True))
    assert sorted(one) == sorted(zip(arrow_rows.tolist(), arrow_handles.tolist(), strict=True))
    return set(one)


def _loaded(trees: Sequence[Predicate]) -> ContentIndex:
    return ContentIndex.load((handle, print_filter(tree)) for handle, tree in enumerate(trees))


@given(trees=TREES, events=EVENTS)
def test_the_index_agrees_with_the_reference(trees: list[Predicate], events: list[Attributes]) -> None:
    """Fast and wrong is wrong."""
    assert _found(_loaded(trees), events) == _wanted(dict(enumerate(trees)), events)


@given(trees=TREES, events=EVENTS)
def test_bitmaps_and_pairs_change_nothing(trees: list[Predicate], events: list[Attributes]) -> None:
    """Long lists and hot equalities are rare in small examples, so they are made common here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_BLOCK_ABOVE", 0)
        patch.setattr(packing, "_PAIR_ABOVE", 0)
        index = _loaded(trees * 3)
    wanted = _wanted(dict(enumerate(trees * 3)), events)
    assert _found(index, events) == wanted


@given(trees=TREES, events=EVENTS, steps=st.sampled_from([20, 60, 200]))
def test_a_small_pattern_cost_is_the_same_everywhere(
    trees: list[Predicate], events: list[Attributes], steps: int
) -> None:
    """A string that is too long for a filter's patterns leaves them, and their negations, undefined in every engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pattern_cost, "MAX_STEPS", steps)
        patch.setattr(pattern_cost, "MAX_CONSTANT", 2)
        patch.setattr(rewrites, "MAX_CONSTANT", 2)
        patch.setattr(searching, "FEW", 0)
        segments.closure.cache_clear()
        texts = {handle: print_filter(tree) for handle, tree in enumerate(trees) if _passes(tree)}
        wanted = _wanted({handle: trees[handle] for handle in texts}, events)
        packed, added = ContentIndex.load(texts.items()), ContentIndex()
        for handle, text in texts.items():
            added.add(handle, text)
        assert _found(packed, events) == wanted
        assert _found(added, events) == wanted
    segments.closure.cache_clear()


def _passes(tree: Predicate) -> bool:
    """Tell whether *tree* is still a filter: with less room for constants others are constant."""
    try:
        parse(print_filter(tree))
    except FilterError:
        return False
    return True


@given(trees=TREES, events=EVENTS, data=st.data())
def test_changes_at_any_time_agree_with_the_reference(
    trees: list[Predicate], events: list[Attributes], data: st.DataObject
) -> None:
    """Adds, replacements, removals and repackings in any order leave exactly the filters that are left."""
    half = len(trees) // 2
    index = _loaded(trees[:half])
    alive = dict(enumerate(trees[:half]))
    pending = dict(enumerate(trees[half:], start=half))
    numbers = count(len(trees))
    for step in data.draw(st.lists(st.sampled_from(["add", "remove", "repack", "whole"]), max_size=12)):
        if step == "add" and pending:
            handle, tree = pending.popitem()
            index.add(handle, print_filter(tree))
            alive[handle] = tree
        elif step == "remove" and alive:
            handle = data.draw(st.sampled_from(sorted(alive)))
            assert index.remove(handle)
            assert not index.remove(handle)
            pending[next(numbers)] = alive.pop(handle)
        elif step in {"repack", "whole"}:
            index.repack(whole=step == "whole")
        assert len(index) == len(alive)
    assert _found(index, events) == _wanted(alive, events)
    assert all(index.text(handle) == print_filter(tree) for handle, tree in alive.items())


@settings(max_examples=30)
@given(trees=TREES, events=EVENTS)
def test_a_saved_index_maps_to_the_same(
    tmp_path_factory: pytest.TempPathFactory, trees: list[Predicate], events: list[Attributes]
) -> None:
    """Many workers share one file."""
    path = tmp_path_factory.mktemp("index") / "filters.index"
    index = _loaded(trees)
    index.remove(0)
    index.save(path)
    mapped = ContentIndex.map(path)
    assert _found(mapped, events) == _found(index, events)
    assert mapped.text(len(trees) - 1) == index.text(len(trees) - 1)


def test_removal_during_a_repacking_is_not_lost() -> None:
    """A subscription that was cancelled must stay cancelled."""

    def interrupted(parts: Sequence[Part]) -> Segment:
        fresh = pack_parts(parts)
        index.remove(2)
        index.remove(3)
        index.add(4, "a == 1")
        return fresh

    index = ContentIndex.load([(1, "a == 1"), (2, "a == 1")], pack=interrupted)
    index.add(3, "a == 1")
    index.repack(whole=True)
    assert sorted(index.match({"a": 1})) == [1, 4]


@pytest.mark.parametrize("cut", [0, 10, 40, -1])
def test_a_damaged_file_is_refused(tmp_path: Path, cut: int) -> None:
    """Half an index must not answer."""
    path = tmp_path / "filters.index"
    ContentIndex.load([(1, "a == 1")]).save(path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CorruptIndexError, match="build the index anew"):
        PackedIndex.map(path)


@given(st.integers(0, 10_000), st.integers(1, 255))
@settings(max_examples=300, deadline=None)
def test_a_changed_byte_is_found(tmp_path_factory: pytest.TempPathFactory, at: int, change: int) -> None:
    """The kernel trusts every number of an index: one wrong bit could read anywhere."""
    path = tmp_path_factory.mktemp("index") / "filters.index"
    ContentIndex.load([(1, "a == 1"), (2, "begins-with(b, 'x')")]).save(path)
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= change
    path.write_bytes(data)
    try:
        index = ContentIndex.map(path)
    except CorruptIndexError:
        return
    assert index.match({"a": 1, "b": "xy"}) in ([1, 2], [2, 1])  # it was a blank between header and arrays


def test_one_repacking_runs_at_a_time_and_the_next_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst of additions starts one job, not one each."""
    monkeypatch.setattr(content, "_DELTA", 3)
    jobs: list[Callable[[], None]] = []
    index = ContentIndex(run=jobs.append)
    for handle in range(10):
        index.add(handle, f"a == {handle}")
    assert len(jobs) == 1
    jobs.pop()()
    for handle in range(10, 20):
        index.add(handle, f"a == {handle}")
    assert len(jobs) == 1
    jobs.pop()()
    assert [index.match({"a": number}) for number in (0, 9, 19)] == [[0], [9], [19]]
    assert len(index) == 20


def test_a_failed_repacking_loses_nothing() -> None:
    """Bad luck while packing leaves every filter where it was, and the next repacking takes all along."""
    luck = [MemoryError()]

    def unlucky(parts: Sequence[Part]) -> Segment:
        if luck:
            raise luck.pop()
        return pack_parts(parts)

    index = ContentIndex.load([(1, "a == 1"), (2, "a == 1")], pack=unlucky)
    index.add(3, "a == 1")
    with pytest.raises(MemoryError):
        index.repack(whole=True)
    index.remove(2)
    index.add(4, "a == 1")
    assert sorted(index.match({"a": 1})) == [1, 3, 4]
    index.repack(whole=True)
    assert sorted(index.match({"a": 1})) == [1, 3, 4]


def test_a_process_packs_the_same(tmp_path: Path) -> None:
    """Packed elsewhere, a filter means what it means here; the process may die, and nothing is lost."""
    with PackingProcess() as pack:
        index = ContentIndex.load([(1, "a == 1"), (2, "a == 1"), (3, "regex(s, 'x+') || a * 2 == 4")], pack=pack)
        index.add(5, "s == 'ß'")
        index.remove(2)
        index.repack(whole=True)
        assert sorted(index.match({"a": 1, "s": "ß"})) == [1, 5]
        for process in pack._idle:
            process.kill()
        index.add(6, "a == 2")
        with pytest.raises(PackingProcessError, match="without an answer"):
            index.repack(whole=True)
        assert sorted(index.match({"a": 2, "s": "xx"})) == [3, 6]
        index.repack(whole=True)
        assert sorted(index.match({"a": 2})) == [3, 6]
        bad = Part.of([(1, "a ==")])
        with pytest.raises(PackingProcessError, match="FilterError"):
            pack([bad])
        index.save(tmp_path / "index")
    assert sorted(ContentIndex.map(tmp_path / "index").match({"a": 2})) == [3, 6]


def test_a_full_disk_leaves_the_old_file_and_no_half_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or not at all."""
    path = tmp_path / "filters.index"
    ContentIndex.load([(1, "a == 1")]).save(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("whimbrel.match.index.packed.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        ContentIndex.load([(1, "a == 2")]).save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["filters.index"]
