"""Jobs: a table is the same whether what it is made of was written in the same run or not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from random_logs import random_log
from single_process import SingleProcess

from whimbrel.errors import InvalidValueError
from whimbrel.hold.retention import Retention
from whimbrel.log.writer import LogWriter
from whimbrel.pipeline.batch.jobs import Interval, Plan, run
from whimbrel.pipeline.files.delta import TIME_COLUMNS, read

pytestmark = pytest.mark.usefixtures("interpreted")

PLAN = Plan(retention=Retention(ttl_us=30, max_held=3), window_us=50, assume_receipts=True)


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


def test_intervals_are_parts_of_the_whole_and_replace_their_own(spark: SparkSession, tmp_path: Path) -> None:
    """A backfill writes the rows that the whole run has of its time, and leaves all others as they are."""
    facts = random_log(Random(5), "n", facts=300, has_receipts=True)
    with LogWriter(tmp_path / "log", "n") as log:
        for fact in facts:
            log.append(fact)
    cut = 1_000_000 + 333  # within a window, and within what is held
    tables, plan = (
        ("matches", "deliveries", "latency", "popularity", "link_quality"),
        replace(PLAN, assume_receipts=None),
    )

    def made(folder: str, **bounds: int) -> dict[str, set[tuple[Any, ...]]]:
        interval = Interval(**bounds) if bounds else None
        told = run(spark, log=tmp_path / "log", out=tmp_path / folder, tables=tables, plan=plan, interval=interval)
        assert list(told) == list(tables)
        return {name: set(map(_hashable, read(tmp_path / folder, name).to_pylist())) for name in tables}

    whole = made("whole")
    early = made("parts", until=cut)
    for name in tables:
        before = {row for row in whole[name] if dict(row)[TIME_COLUMNS[name]] < _time(cut)}
        assert early[name] == before, name
        assert name == "link_quality" or 5 < len(before) < len(whole[name]), name
    assert made("parts", since=cut - 90) == whole  # what is there already is made again, and is no row more
    counts = {name: read(tmp_path / "parts", name).num_rows for name in tables}
    assert counts == {name: read(tmp_path / "whole", name).num_rows for name in tables}
    with pytest.raises(InvalidValueError, match="one that begins before it ends"):
        Interval(since=2, until=2)


def _hashable(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((name, repr(value) if isinstance(value, list) else value) for name, value in row.items())


def _time(micros: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


def test_tables_that_a_stream_keeps_are_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    """A stream goes on from what it wrote; a batch in its place would be taken for its own."""
    LogWriter(tmp_path / "log", "n").open()
    (tmp_path / "out" / "_stream").mkdir(parents=True)
    with pytest.raises(InvalidValueError, match="one where no stream keeps its tables"):
        run(spark, log=tmp_path / "log", out=tmp_path / "out")
