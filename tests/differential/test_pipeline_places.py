"""Where sessions are, in every engine: devices move between any two facts, reports come late, nears are modified.

One process decides pair by pair with ``model.proximity``; every other engine must find the same. The live broker is one
more engine: a function from facts to matches.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from random_logs import placed_log
from single_process import SingleProcess

from whimbrel.hold.retention import Retention
from whimbrel.hold.store.memory import MemoryStore
from whimbrel.log.writer import LogWriter
from whimbrel.match.proximity.past.past_versions import PastBounds
from whimbrel.model.facts import Fact
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files.spans import SpanReader
from whimbrel.pipeline.subscriptions import version_places
from whimbrel.pipeline.unit import matchers as matchers_module
from whimbrel.pipeline.unit.matchers import Matchers
from whimbrel.pipeline.unit.node_share import NodeShare
from whimbrel.pipeline.unit.take import take

NODE, FACTS = "n", 300
RETENTION = Retention(ttl_us=30, max_held=3)
BOUNDS = [PastBounds(), PastBounds(narrow_m=0.0), PastBounds(few=0), PastBounds(few=0, window=1), PastBounds(few=3)]
"""What decides where versions are looked for; it may decide nothing else."""
Answer = tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]
"""Matches, and deliveries."""


def _of_one_process(facts: list[Fact]) -> Answer:
    one = SingleProcess(retention=RETENTION).run(facts)
    matched = Counter((each.node, each.seq, each.session, each.interest_seq) for each in one.matches)
    return matched, Counter(
        (each.node, each.seq, each.session, each.device, each.outcome.value, each.decided_at) for each in one.deliveries
    )


def _answer(found: dict[str, Any]) -> Answer:
    """Return what Arrow tables say."""
    named = ("notification_node", "notification_seq", "session")
    matched = found["matches"].select([*named, "interest_seq"])
    delivered = found["deliveries"].select([*named, "device", "outcome", "decided_at"])
    delivered = delivered.set_column(5, "decided_at", delivered.column("decided_at").cast(pa.int64()))
    return tuple(  # type: ignore[return-value]  # two of them
        Counter(zip(*(column.to_pylist() for column in table.columns), strict=True)) for table in (matched, delivered)
    )


def _of_a_stream(folder: Path, facts: list[Fact], random: Random) -> Answer:
    """Return what the unit makes of a node's log, cut anywhere, with restarts."""
    with LogWriter(folder / "log", NODE) as log:
        for fact in facts:
            log.append(fact)
        log.sync()
    (folder / "matchers").mkdir()
    store, matchers = MemoryStore(), Matchers(folder / "matchers")
    node, first = NodeShare(NODE, store, retention=RETENTION, assume_receipts=True), 0
    found: dict[str, list[Any]] = {"matches": [], "deliveries": []}
    while first <= facts[-1].seq:
        last = random.randint(first, facts[-1].seq)
        reader = SpanReader(folder / "log", NODE, most_facts=random.randint(1, 90))
        for piece in take(reader, first, last, node, matchers, window_us=16, now=0):
            for table in found:
                found[table] += piece.rows[table]
        node.commit(last)
        first = last + 1
        if random.random() < 0.5:  # as after a restart: only what was committed is known
            node = NodeShare(NODE, store, retention=RETENTION, assume_receipts=True)
            matchers.forget()
    return _answer({name: pa.Table.from_batches(each, TABLES[name].schema) for name, each in found.items()})


@pytest.mark.parametrize("seed", range(10))
def test_a_stream_says_what_one_process_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """However the log is cut, and wherever versions are looked for."""
    monkeypatch.setattr(version_places, "BOUNDS", BOUNDS[seed % len(BOUNDS)])
    monkeypatch.setattr(matchers_module, "SMALL", seed % 3)
    random = Random(seed)
    facts = placed_log(random, NODE, facts=FACTS, has_receipts=False)
    wanted = _of_one_process(facts)
    assert _of_a_stream(tmp_path, facts, random) == wanted
    assert wanted[0]
