"""A stream's matchers against one process: in one layer or two, whatever changes between batches and within them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from random_logs import random_log
from single_process import SingleProcess

from whimbrel.hold.retention import DEFAULT_RETENTION
from whimbrel.hold.store.memory import MemoryStore
from whimbrel.log.columns import to_arrow
from whimbrel.model.facts import Fact
from whimbrel.model.rows import row_of
from whimbrel.pipeline.fold.events import fact_events
from whimbrel.pipeline.fold.folds import EVENT
from whimbrel.pipeline.subscriptions import versions as versions_module
from whimbrel.pipeline.subscriptions.in_force import changed_schema
from whimbrel.pipeline.subscriptions.matcher_files import Uses
from whimbrel.pipeline.subscriptions.versions import CHANGED, DELETED, PackedVersions
from whimbrel.pipeline.unit import matchers as matchers_module
from whimbrel.pipeline.unit.matchers import Matchers
from whimbrel.pipeline.unit.node_share import LogMark, NodeShare

NODE, FACTS, BATCH = "n", 400, 25
ALWAYS, SOMETIMES, NEVER = 0, 1, 10**9
"""How many times larger the layer below must be; what is never so has one layer."""


def batches(facts: list[Fact], random: Random) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the first number of each batch, and its rows as tables."""
    at = 0
    while at < len(facts):
        some = facts[at : at + random.randint(1, BATCH)]
        rows: dict[str, list[dict[str, object]]] = {"publications": [], "interests": [], "sessions": []}
        for fact in some:
            table, row = row_of(fact)
            if table in rows:
                rows[table].append(row)
        yield some[0].seq, {table: to_arrow(table, found) for table, found in rows.items()}
        at += len(some)


def node_state() -> NodeShare:
    """Return what is known of a node that has said nothing."""
    return NodeShare(NODE, MemoryStore(), retention=DEFAULT_RETENTION, assume_receipts=True)


def fold(node: NodeShare, tables: dict[str, Any]) -> None:
    """Fold how subscriptions and sessions changed, as ``take`` does."""
    changed = tables["interests"].select(CHANGED).cast(changed_schema())
    node.in_force.changing(changed, tables["sessions"].select(DELETED))
    events, facts = [], dict[int, Fact]()
    for name in ("interests", "sessions"):
        some, own = fact_events(name, tables[name])
        events.append(some)
        facts |= own
    list(node.fold(pa.Table.from_batches(events, EVENT).sort_by("seq").to_batches(), facts, None))
    node.in_force.remove_ended()


@pytest.mark.parametrize("small", [ALWAYS, SOMETIMES, NEVER])
@pytest.mark.parametrize("seed", range(6))
def test_who_wants_what_is_the_same_in_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, small: int
) -> None:
    """Subscriptions come, change and go with their sessions, over batches and within: numbers decide, not layers."""
    monkeypatch.setattr(matchers_module, "SMALL", small)
    facts = list(random_log(Random(seed), NODE, facts=FACTS, has_receipts=True))
    node, matchers = node_state(), Matchers(tmp_path)
    found: set[tuple[int, int]] = set()
    layers = set()
    for first, tables in batches(facts, Random(seed)):
        changed = tables["interests"].select(CHANGED).cast(changed_schema())
        deleted = tables["sessions"].select(DELETED)
        packed = matchers.find(node, first, changed, deleted)
        layers.add(packed.below is not None)
        for batch in tables["publications"].combine_chunks().to_batches():
            rows, handles = packed.match(batch)
            assert list(rows) == sorted(rows)
            pairs = list(zip(batch.column("seq").to_numpy()[rows], packed.begun[handles], strict=True))
            assert len(pairs) == len(set(pairs))
            found.update((int(seq), int(interest)) for seq, interest in pairs)
        fold(node, tables)
    expected = SingleProcess().run(facts).matches
    assert found == {(match.seq, match.interest_seq) for match in expected}
    assert layers == ({False} if small == NEVER else {False, True})


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_moves_finds_the_matcher_of_its_last_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each batch is taken by a worker that knows only the files and the node's state; the matches are the same."""
    monkeypatch.setattr(matchers_module, "SMALL", SOMETIMES)
    facts = list(random_log(Random(seed), NODE, facts=FACTS, has_receipts=True))
    node, found, layers = node_state(), set[tuple[int, int]](), []
    node.mark = LogMark("incarnation", "digest")
    for first, tables in batches(facts, Random(seed)):
        PackedVersions.forget(NODE)
        changed = tables["interests"].select(CHANGED).cast(changed_schema())
        packed = Matchers(tmp_path).find(node, first, changed, tables["sessions"].select(DELETED))
        layers.append(packed.below is not None)
        for batch in tables["publications"].combine_chunks().to_batches():
            rows, handles = packed.match(batch)
            found.update(
                zip(batch.column("seq").to_numpy()[rows].tolist(), packed.begun[handles].tolist(), strict=True)
            )
        fold(node, tables)
    expected = SingleProcess().run(facts).matches
    assert found == {(match.seq, match.interest_seq) for match in expected}
    assert sum(layers) > len(layers) // 2


def test_a_log_without_an_incarnation_shares_no_matcher(tmp_path: Path) -> None:
    """Another log may have the same numbers; only what is made of the same rows may be shared then."""
    node, matchers = node_state(), Matchers(tmp_path)
    nothing = changed_schema().empty_table()
    matchers.find(node, 1, nothing, to_arrow("sessions", []).select(DELETED))
    assert not [*tmp_path.glob("*.head")]


def test_a_worker_keeps_no_matcher_that_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are large, and a worker lives as long as its stream: of each node one, and the one below it."""
    monkeypatch.setattr(matchers_module, "SMALL", SOMETIMES)
    monkeypatch.setattr(versions_module, "_last", {})
    facts = list(random_log(Random(3), NODE, facts=FACTS, has_receipts=True))
    node, matchers = node_state(), Matchers(tmp_path)
    seen: list[weakref.ref[PackedVersions]] = []
    for first, tables in batches(facts, Random(3)):
        changed = tables["interests"].select(CHANGED).cast(changed_schema())
        deleted = tables["sessions"].select(DELETED)
        packed = matchers.find(node, first, changed, deleted)
        assert PackedVersions.map(packed.path, NODE) is packed  # mapped once
        seen.append(weakref.ref(packed))
        del packed
        fold(node, tables)
    gc.collect()
    assert len({id(kept) for each in seen if (kept := each()) is not None}) <= 2
    assert len(seen) > 10


def test_a_matcher_holds_until_a_subscription_changes(tmp_path: Path) -> None:
    """A session that comes changes nobody's subscriptions; to pack is dear."""
    node, matchers = node_state(), Matchers(tmp_path)
    nothing = changed_schema().empty_table()
    row = {"node": NODE, "seq": 3, "changed_at": 1, "change": "created", "session": "s"}
    created = to_arrow("sessions", [row]).select(DELETED)
    first = matchers.find(node, 1, nothing, created.slice(0, 0))
    assert matchers.find(node, 2, nothing, created) is first
    assert matchers.files.uses == Uses(found=0, packed=1)


def test_what_was_unsubscribed_is_forgotten() -> None:
    """A stream goes on for months, and devices subscribe and go every day."""
    node = node_state()
    facts = random_log(Random(5), NODE, facts=FACTS, has_receipts=True)
    for _, tables in batches(facts, Random(5)):
        fold(node, tables)
    in_force = set(node.in_force.rows().column("seq").to_pylist())
    assert in_force
    assert set(node.in_force.whose) == in_force
