"""A stream that folds busy nodes in groups of sessions, against one that folds each node whole: the same rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from policy_traffic import prompt_log, undecided
from random_logs import placed_log
from stream_rig import StreamRig, forget

from whimbrel.hold.retention import Retention
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Fact
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.files.delta import read
from whimbrel.pipeline.plans import StreamPlan

pytestmark = pytest.mark.usefixtures("interpreted")

NODES, FACTS, BATCHES = ("node0", "node1"), 200, 7
PLAN = StreamPlan(
    retention=Retention(ttl_us=30, max_held=3),
    window_us=16,
    nodes=7,
    slots_per_node=3,
    lateness_us=1 << 60,  # nobody is late: the nodes' clocks are far apart
)
WHOLE = 1 << 40


def _logs(folder: Path, seed: int, *, has_receipts: bool) -> dict[str, list[Fact]]:
    random = Random(seed)
    facts = {node: placed_log(random, node, facts=FACTS, has_receipts=has_receipts) for node in NODES}
    live = prompt_log(folder, seed)
    own = live if has_receipts else [replace(fact, seq=seq) for seq, fact in enumerate(undecided(live), 1)]
    return facts | {own[0].node: [*own]}


def _write(log: Path, logs: dict[str, list[Fact]]) -> None:
    for node, facts in logs.items():
        with LogWriter(log, node) as writer:
            for fact in facts:
                writer.append(fact)


def _ends(random: Random, logs: dict[str, list[Fact]]) -> Iterator[dict[str, int]]:
    """Yield where batches end; some nodes have many facts in a batch, and some have few or none."""
    ends = {node: facts[-1].seq for node, facts in logs.items()}
    at = dict.fromkeys(logs, 0)
    for _ in range(BATCHES):
        at = {
            node: min(end, at[node] + random.choice([0, 3, random.randrange(end // 3)])) for node, end in ends.items()
        }
        yield at
    yield ends


def _rows(out: Path, table: str) -> Counter[str]:
    return Counter(repr(row | {"found_at": None}) for row in read(out, table).to_pylist())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("has_receipts", [False, True])
def test_groups_make_the_rows_of_the_whole_node(tmp_path: Path, seed: int, *, has_receipts: bool) -> None:
    """Sessions share devices and work, policies decide, places matter; nodes become busy, and cores come and go."""
    logs = _logs(tmp_path / "live", seed, has_receipts=has_receipts)
    _write(tmp_path / "log", logs)
    plan = replace(PLAN, assume_receipts=not has_receipts)
    random = Random(seed)
    whole = StreamRig(log=tmp_path / "log", out=tmp_path / "whole", plan=plan, group_facts=WHOLE)
    grouped = StreamRig(log=tmp_path / "log", out=tmp_path / "grouped", plan=plan, piece_facts=random.randint(10, 99))
    counts = set()
    for end in _ends(random, logs):
        grouped.job = replace(grouped.job, group_facts=random.choice([1, 20, 60, WHOLE]))
        grouped.workers.cores = random.choice([2, 3, 3, 8])
        whole.take(end)
        grouped.take(end)
        if random.random() < 0.4:
            forget()
        record = grouped.commits.record
        counts |= {len(each.groups) for each in record.nodes.values()} if record is not None else set()
        held = [{*stream.find_held()} for stream in (whole, grouped)]
        assert held[0] == held[1]
    for table in TABLES_MADE:
        assert _rows(tmp_path / "grouped", table) == _rows(tmp_path / "whole", table), table
    assert len(counts) > 1
