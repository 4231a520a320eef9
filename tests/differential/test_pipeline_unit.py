"""The unit of work against one process: however a node's log is cut, stored and read, it becomes the same rows.

No Spark: what a worker does with a span is the same wherever the worker is.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broker_rig import NODE as BROKER
from policy_traffic import prompt_log, undecided
from random_logs import random_log
from single_process import Delivery, SingleProcess

from whimbrel.hold.retention import Retention
from whimbrel.hold.store.memory import MemoryStore
from whimbrel.log import layout
from whimbrel.log.columns import to_arrow
from whimbrel.log.export import export
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Fact
from whimbrel.model.notification import Notification
from whimbrel.model.rows import row_of
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.accounts import Account, account, memberships
from whimbrel.pipeline.files.spans import Piece, SpanReader
from whimbrel.pipeline.unit import matchers as matchers_module
from whimbrel.pipeline.unit.matchers import Matchers
from whimbrel.pipeline.unit.node_share import NodeShare
from whimbrel.pipeline.unit.take import take

NODE, FACTS, WINDOW_US = "n", 400, 16
RETENTION = Retention(ttl_us=30, max_held=3)


def written(folder: Path, facts: list[Fact], random: Random, *, exports: int) -> Path:
    """Write a log, exported so many times at any place."""
    at = sorted(random.sample(range(1, len(facts)), exports))
    with LogWriter(folder, NODE) as log:
        for number, fact in enumerate(facts):
            if number in at:
                log.settle()
                export(folder, NODE, closed_only=False)
            log.append(fact)
        log.sync()
    return folder


def state(store: MemoryStore, *, assume_receipts: bool) -> NodeShare:
    """Return what *store* has of the node."""
    return NodeShare(NODE, store, retention=RETENTION, assume_receipts=assume_receipts)


def rows_of(found: dict[str, list[Any]], table: str) -> list[dict[str, Any]]:
    """Return rows with their times as numbers."""
    rows = pa.Table.from_batches(found[table], TABLES[table].schema)
    for place, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(place, field.name, rows.column(place).cast(pa.int64()))
    listed: list[dict[str, Any]] = rows.to_pylist()
    return listed


def _ends(delivery: Delivery) -> tuple[object, ...]:
    return (delivery.decided_at, delivery.lapses_at, delivery.via)


@pytest.mark.parametrize("has_receipts", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_rows_are_those_of_one_process_however_a_log_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, *, has_receipts: bool
) -> None:
    """Pieces, spans, restarts, Parquet and segments: none of them may show in the tables."""
    monkeypatch.setattr(matchers_module, "SMALL", seed % 3)
    random = Random(seed)
    facts = random_log(random, NODE, facts=FACTS, has_receipts=has_receipts)
    _check_cut(tmp_path, facts, random, seed, has_receipts=has_receipts)


@pytest.mark.parametrize("is_decided", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_a_broker_decided_is_decided_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, *, is_decided: bool
) -> None:
    """Live, cut into spans, and in one process: the same bodies to the same devices, with decisions and without."""
    monkeypatch.setattr(sys.modules[__name__], "NODE", BROKER)
    monkeypatch.setattr(sys.modules[__name__], "RETENTION", Retention())
    live = prompt_log(tmp_path / "live", seed, steps=150)
    single = SingleProcess(assume_receipts=False).run(live).deliveries
    facts = live if is_decided else _numbered(undecided(live))
    tables = _check_cut(tmp_path, facts, Random(seed), seed, has_receipts=is_decided)
    found = rows_of(tables, "deliveries")
    handed = [(each["session"], each["device"], each["outcome"], each["body_hash"]) for each in found]
    assert Counter(handed) == Counter((e.session, e.device, e.outcome.value, e.body_hash) for e in single)
    assert {each["outcome"] for each in found} == {"delivered", "withheld"}
    assert not any(each["difference"] for each in found)
    assert _account(tables, facts).gaps == ()


def _account(found: dict[str, list[Any]], facts: list[Fact]) -> Account:
    """Return the account of what was wanted, and what became of it."""
    rows: dict[str, list[dict[str, object]]] = {"presence": [], "sessions": []}
    for fact in facts:
        table, row = row_of(fact)
        rows.get(table, []).append(row)
    members = memberships(*(to_arrow(name, rows[name]) for name in rows))
    made = (pa.Table.from_batches(found[name], TABLES[name].schema) for name in ("matches", "deliveries"))
    matches, deliveries = made
    return account(matches, deliveries, [], members=members)


def _numbered(facts: list[Fact]) -> list[Fact]:
    """Return facts without gaps in their numbers, as a log that is written has them."""
    return [replace(fact, seq=seq) for seq, fact in enumerate(facts, start=1)]


def _check_cut(
    tmp_path: Path, facts: list[Fact], random: Random, seed: int, *, has_receipts: bool
) -> dict[str, list[Any]]:
    """Check a log that is cut, stored and read in some way against one process; return the tables."""
    log = written(tmp_path / "log", facts, random, exports=seed % 4)
    store, matchers = MemoryStore(), Matchers(tmp_path / "matchers")
    found: dict[str, list[Any]] = {}
    (tmp_path / "matchers").mkdir()
    node, first = state(store, assume_receipts=not has_receipts), 0
    reader = SpanReader(log, NODE, most_facts=random.randint(1, 90), most_bytes=random.choice([1, 4_000, 1 << 20]))
    while first <= facts[-1].seq:
        last = random.randint(first, facts[-1].seq)
        for piece in take(reader, first, last, node, matchers, window_us=WINDOW_US, now=0):
            for table, batches in piece.rows.items():
                found.setdefault(table, []).extend(batches)
        node.commit(last)
        first = last + 1
        if random.random() < 0.5:  # as after a restart: only what was committed is known
            node, reader = state(store, assume_receipts=not has_receipts), SpanReader(log, NODE, most_facts=50)
            matchers.forget()
    wanted = SingleProcess(retention=RETENTION, assume_receipts=not has_receipts).run(facts)
    matched = [(row["notification_seq"], row["session"], row["interest_seq"]) for row in rows_of(found, "matches")]
    assert Counter(matched) == Counter((each.seq, each.session, each.interest_seq) for each in wanted.matches)
    decided = "notification_seq session device outcome body_hash decided_at lapses_at via difference".split()
    delivered = [tuple(row[name] for name in decided) for row in rows_of(found, "deliveries")]
    assert Counter(delivered) == Counter(
        (
            each.seq,
            each.session,
            each.device,
            each.outcome.value,
            each.body_hash,
            each.decided_at,
            each.lapses_at,
            each.via,
            each.difference,
        )
        for each in wanted.deliveries
    )
    assert rows_of(found, "dead_letters") == []
    return found


def numbers(piece: Piece) -> list[int]:
    """Return the numbers in a piece, of all tables."""
    return sorted(seq for rows in piece.tables.values() for seq in rows.column("seq").to_pylist())


@pytest.mark.parametrize("exports", [0, 1, 3])
@pytest.mark.parametrize(("most_facts", "most_bytes"), [(7, 1 << 20), (50, 1), (50, 700), (10_000, 1 << 20)])
def test_pieces_are_bounded_and_have_every_number_once(
    tmp_path: Path, exports: int, most_facts: int, most_bytes: int
) -> None:
    """A batch of any size must be worked on in the memory that there is."""
    facts = random_log(Random(1), NODE, facts=FACTS, has_receipts=True)
    log = written(tmp_path, facts, Random(exports), exports=exports)
    pieces = list(SpanReader(log, NODE, most_facts=most_facts, most_bytes=most_bytes).pieces(0, FACTS, now=0))
    assert [number for piece in pieces for number in numbers(piece)] == [fact.seq for fact in facts]
    assert all(before.last + 1 == after.first for before, after in itertools.pairwise(pieces))
    assert max(len(numbers(piece)) for piece in pieces) <= most_facts
    if most_bytes == 1:
        assert max(len(numbers(piece)) for piece in pieces) == 1


def test_a_row_group_is_read_once_however_small_pieces_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compacted part has hundreds of thousands of rows; to decode it for each piece would take for ever."""
    facts = random_log(Random(1), NODE, facts=FACTS, has_receipts=True)
    log = written(tmp_path, facts, Random(0), exports=0)
    export(log, NODE, closed_only=False)
    opened: Counter[str] = Counter()
    original = pq.ParquetFile.iter_batches

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        opened[repr(self)] += 1
        return original(self, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    reader = SpanReader(log, NODE, most_facts=3)
    for first in range(0, FACTS + 1, 40):  # also over the spans of batches
        assert list(reader.pieces(first, min(FACTS, first + 39), now=0))
    parts = sum(len(layout.parts(log, table)) for table in layout.tables_present(log))
    assert len(opened) <= parts
    assert max(opened.values()) == 1


def test_an_export_while_a_span_is_read_loses_nothing(tmp_path: Path) -> None:
    """A broker exports every few seconds, and removes the segments that a reader is in the middle of."""
    facts = random_log(Random(1), NODE, facts=FACTS, has_receipts=True)
    log = written(tmp_path, facts, Random(0), exports=1)
    reader, found = SpanReader(log, NODE, most_facts=30), []
    for number, piece in enumerate(reader.pieces(0, FACTS, now=0)):
        found += numbers(piece)
        if number == 3:
            export(log, NODE, closed_only=False)
            for _, path in layout.segments(log, NODE)[:-1]:
                path.unlink()
    assert found == [fact.seq for fact in facts]


def test_a_part_in_another_order_is_read_in_that_of_its_numbers(tmp_path: Path) -> None:
    """Others write Parquet too; the fold goes by numbers."""
    facts = random_log(Random(1), NODE, facts=60, has_receipts=True)
    log = written(tmp_path, facts, Random(0), exports=0)
    export(log, NODE, closed_only=False)
    for path in log.rglob("part-*.parquet"):
        rows = pq.read_table(path, partitioning=None)
        pq.write_table(rows.take(pa.array(range(rows.num_rows - 1, -1, -1))), path)
    pieces = list(SpanReader(log, NODE, most_facts=7).pieces(0, 60, now=0))
    assert [number for piece in pieces for number in numbers(piece)] == [fact.seq for fact in facts]
    tables = {row_of(fact)[0] for fact in facts}
    assert {table for piece in pieces for table in piece.tables} == tables


def test_a_body_that_comes_again_counts_each_time(tmp_path: Path) -> None:
    """Parquet keeps a repeated body once: a small file must not become a piece that no worker has memory for."""
    body, most_bytes = bytes(100_000), 1_000_000
    facts: list[Fact] = [Notification(node=NODE, seq=each, published_at=each, body=body) for each in range(1, 201)]
    log = written(tmp_path, facts, Random(1), exports=1)
    export(log, NODE, closed_only=False)
    assert max(part.path.stat().st_size for part in layout.parts(log, "publications", NODE)) < most_bytes
    pieces = list(SpanReader(log, NODE, most_bytes=most_bytes).pieces(1, 200, now=0))
    assert max(piece.table("publications").nbytes for piece in pieces) < 2 * most_bytes
    assert [number for piece in pieces for number in numbers(piece)] == list(range(1, 201))
