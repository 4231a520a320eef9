"""Spark's ``matches`` and ``deliveries`` against the same log folded in one process: one job for many random logs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from log_rows import deliveries_in, matches_in, write_facts
from pyspark.sql import SparkSession
from random_logs import placed_log
from single_process import SingleProcess
from test_pipeline_shards import RETENTION, logs_of

from whimbrel.log.layout import create
from whimbrel.model.facts import Fact
from whimbrel.pipeline.batch import stages
from whimbrel.pipeline.batch.jobs import Plan, run
from whimbrel.pipeline.files.delta import read

NODES = 8


def _placed(seed: int) -> list[Fact]:
    random = Random(seed)
    return [f for log in range(NODES) for f in placed_log(random, f"node{log}", facts=100, has_receipts=False)]


@pytest.mark.parametrize("has_places", [False, True])
def test_tables_are_those_of_one_process(spark: SparkSession, tmp_path: Path, *, has_places: bool) -> None:
    """Interests that change mid-log, sessions deleted, keys, subjects, shares, content, places: each pair once.

    Where ``deliveries`` is asked for, all tables of the log are read, and else the publications only.
    """
    facts = _placed(27) if has_places else logs_of(27, has_receipts=False)
    single = SingleProcess(retention=RETENTION).run(facts)
    log, plan = tmp_path / "log", Plan(retention=RETENTION, assume_receipts=True)
    write_facts(log, facts)
    run(spark, log=log, out=tmp_path / "both", tables=["matches", "deliveries"], plan=plan)
    run(spark, log=log, out=tmp_path / "mapped", tables=["matches"], plan=plan)
    assert Counter(deliveries_in(read(tmp_path / "both", "deliveries"))) == Counter(single.deliveries)
    for out in ("both", "mapped"):
        assert Counter(matches_in(read(tmp_path / out, "matches"))) == Counter(single.matches)
    assert single.matches


def test_shards_of_a_node_are_tasks_of_their_own(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three for each, and the rows are those of one process."""
    monkeypatch.setattr(stages, "divide", lambda spans, cores: dict.fromkeys((span.node for span in spans), 3 * cores))
    facts = logs_of(3, has_receipts=True)
    write_facts(tmp_path / "log", facts)
    plan = Plan(retention=RETENTION, assume_receipts=False)
    run(spark, log=tmp_path / "log", out=tmp_path / "out", tables=["deliveries"], plan=plan)
    found = deliveries_in(read(tmp_path / "out", "deliveries"))
    assert Counter(found) == Counter(SingleProcess(retention=RETENTION, assume_receipts=False).run(facts).deliveries)


def test_an_empty_log_has_empty_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody published, nobody is there."""
    create(tmp_path / "log")
    made = run(spark, log=tmp_path / "log", out=tmp_path / "out", tables=["matches", "deliveries", "latency"])
    assert [told["rows"] for told in made.values()] == [0, 0, 0]
    assert read(tmp_path / "out", "deliveries").num_rows == 0
