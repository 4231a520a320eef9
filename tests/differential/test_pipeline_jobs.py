"""Jobs: a table is the same whether what it is made of was written in the same run or not."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from random_logs import random_log

from whimbrel.errors import InvalidValueError
from whimbrel.hold.retention import Retention
from whimbrel.log.writer import LogWriter
from whimbrel.pipeline.jobs import Plan, run
from whimbrel.pipeline.single import SingleProcess

pytestmark = pytest.mark.usefixtures("interpreted")

PLAN = Plan(retention=Retention(ttl_us=30, max_held=3), window_us=50)


def _rows(path: Path) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in pq.read_table(path).to_pylist()), key=repr)


def test_latency_is_the_same_from_deliveries_written_or_not(spark: SparkSession, tmp_path: Path) -> None:
    """Whoever asks for one table only must not get another; what a node wrote a moment ago counts, Parquet or not."""
    facts = random_log(Random(2), "n", facts=150, has_receipts=False)
    with LogWriter(tmp_path / "log", "n") as log:
        for fact in facts:
            log.append(fact)
    alone = run(spark, log=tmp_path / "log", out=tmp_path / "alone", tables=["latency"], plan=PLAN)
    both = run(spark, log=tmp_path / "log", out=tmp_path / "both", tables=["latency", "deliveries"], plan=PLAN)
    assert list(alone) == ["latency"]
    assert list(both) == ["deliveries", "latency"]
    assert _rows(tmp_path / "alone" / "latency") == _rows(tmp_path / "both" / "latency")
    delivered = sum(pq.read_table(tmp_path / "alone" / "latency").column("delivered").to_pylist())
    wanted = SingleProcess(retention=PLAN.retention).run(facts).deliveries
    assert both["deliveries"]["rows"] == len(wanted) > 0
    assert delivered == sum(each.outcome.value == "delivered" and each.subject is not None for each in wanted) > 0


def test_tables_that_a_stream_keeps_are_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    """A stream goes on from what it wrote; a batch in its place would be taken for its own."""
    LogWriter(tmp_path / "log", "n").open()
    (tmp_path / "out" / "_stream").mkdir(parents=True)
    with pytest.raises(InvalidValueError, match="one where no stream keeps its tables"):
        run(spark, log=tmp_path / "log", out=tmp_path / "out")
