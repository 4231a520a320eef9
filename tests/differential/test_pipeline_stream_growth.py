"""A stream that grows: from one node to a hundred, and from one core to sixty-four, without a new start."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from random_logs import placed_log
from stream_rig import StreamRig, forget

from whimbrel.hold.retention import Retention
from whimbrel.log.writer import LogWriter
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.files.delta import read
from whimbrel.pipeline.plans import StreamPlan
from whimbrel.pipeline.stream import tasks

NODES, LAST = [f"node{number:02}" for number in range(100)], 1_000_000
# One window that never ends: what a new node says of a window that is final would come too late.
PLAN = StreamPlan(retention=Retention(ttl_us=30, max_held=3), window_us=1 << 40, nodes=7, slots_per_node=3)


def test_nodes_and_cores_may_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the first start is fixed but the plan: the tables are as if everything had been there."""
    monkeypatch.setattr(tasks, "_FACTS_A_TASK", 1)
    log = tmp_path / "log"
    facts = {node: placed_log(Random(node), node, facts=40, has_receipts=True) for node in NODES[1:]}
    facts |= {NODES[0]: placed_log(Random(1), NODES[0], facts=120, has_receipts=True)}
    stream = StreamRig(log=log, out=tmp_path / "grown", plan=PLAN)
    counts = []
    for cores, there in ((1, NODES[:1]), (4, NODES[:20]), (64, NODES)):
        stream.workers.cores = cores
        for node in there:
            own = facts[node]
            some, facts[node] = own[: len(own) // 2], own[len(own) // 2 :]
            with LogWriter(log, node) as writer:
                for fact in some:
                    writer.append(fact)
        stream.take(dict.fromkeys(NODES, LAST))
        counts.append(stream.workers.most)
        forget()
    assert counts == [1, 16, 100]
    whole = StreamRig(log=log, out=tmp_path / "whole", plan=PLAN)
    whole.take(dict.fromkeys(NODES, LAST))
    for table in TABLES_MADE:
        assert _rows(tmp_path / "grown", table) == _rows(tmp_path / "whole", table), table
    assert sum(_rows(tmp_path / "grown", "deliveries").values()) > 50


def _rows(out: Path, table: str) -> Counter[str]:
    return Counter(repr(row | {"found_at": None}) for row in read(out, table).to_pylist())
