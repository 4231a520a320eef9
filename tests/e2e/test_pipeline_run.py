"""``whimbrel pipeline run`` from end to end: a made-up log becomes tables, equal to the fold in one process."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from log_rows import write_facts
from pyspark.sql import SparkSession
from random_logs import random_log
from single_process import SingleProcess
from typer.testing import CliRunner

from whimbrel.cli.main import app
from whimbrel.errors import InvalidValueError
from whimbrel.log.columns import from_arrow
from whimbrel.log.errors import NewerLogError
from whimbrel.log.layout import create, parts
from whimbrel.model.facts import Fact
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.batch import jobs
from whimbrel.pipeline.batch.stages import make_files
from whimbrel.pipeline.files.delta import data_files, read
from whimbrel.pipeline.files.schemas import TIMES
from whimbrel.pipeline.spark.source import register
from whimbrel.sim.logs.generate import Recipe, generate

pytestmark = pytest.mark.usefixtures("on_hdfs")

EVENTS = 5_000
OUT = "tables, 5 % [of] {a,b} #1"  # no name that a shell, a URL or a pattern leaves alone


@pytest.fixture(scope="module")
def ward(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the log of a ward with two nodes."""
    path = tmp_path_factory.mktemp("run") / "log"
    generate(spark, Recipe(world="ward", events=EVENTS, seed=11, nodes=("a", "b"), hours=30), path)
    return path


def _facts(log: Path) -> Iterator[Fact]:
    """Yield all facts of a log, each node's in order."""
    tables = [
        sorted(
            (fact for part in parts(log, name) for fact in from_arrow(name, pq.ParquetFile(part.path).read())),
            key=lambda fact: (fact.node, fact.seq),
        )
        for name in TIMES
    ]
    yield from heapq.merge(*tables, key=lambda fact: (fact.node, fact.seq))


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read(path.parent, path.name).to_pylist()
    return rows


def test_a_log_becomes_tables(spark: SparkSession, ward: Path, tmp_path: Path) -> None:
    """Every table is written, and matches and deliveries are those of one process."""
    done = CliRunner().invoke(app, ["pipeline", "run", "--log", str(ward), "--out", str(tmp_path / OUT), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)["tables"]
    assert set(told) == set(TABLES_MADE)
    wanted = SingleProcess().run(_facts(ward))
    matches = {
        (row["notification_node"], row["notification_seq"], row["interest_seq"])
        for row in _rows(tmp_path / OUT / "matches")
    }
    assert matches == {(each.node, each.seq, each.interest_seq) for each in wanted.matches}
    assert told["matches"]["rows"] == len(wanted.matches) > 1_000
    found = {
        (
            row["notification_node"],
            row["notification_seq"],
            row["session"],
            row["device"],
            frozenset((each["subject_filter"], each["name"]) for each in row["subscriptions"]),
            row["outcome"],
            row["body_hash"],
        )
        for row in _rows(tmp_path / OUT / "deliveries")
    }
    assert found == {
        (d.node, d.seq, d.session, d.device, d.subscriptions, d.outcome.value, d.body_hash) for d in wanted.deliveries
    }
    assert told["deliveries"]["rows"] == len(wanted.deliveries) > 1_000
    assert told["popularity"]["rows"] > 0
    assert told["replicas"]["rows"] > 0
    assert told["dead_letters"]["rows"] == 0
    assert not [path for path in (tmp_path / OUT).iterdir() if path.name.startswith("_")]
    register(spark)
    source = spark.read.format("whimbrel").option("table", "popularity")
    assert source.load(str(tmp_path / OUT)).count() == told["popularity"]["rows"]
    _check_backfill(ward, tmp_path / OUT)


def _check_backfill(log: Path, out: Path) -> None:
    """Make the last six hours, of a day of their own, again: no row comes, and none goes."""
    tables = ("matches", "popularity")
    before = {name: sorted(map(repr, _rows(out / name))) for name in tables}
    published = [row["published_at"] for row in _rows(out / "matches")]
    since = max(part.date for part in parts(log, "publications"))
    command = ["pipeline", "run", "--log", str(log), "--out", str(out), "--tables", ",".join(tables)]
    done = CliRunner().invoke(app, [*command, "--since", since.isoformat(), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["tables"]["matches"]["rows"] == sum(at.date() >= since for at in published) > 100
    assert {name: sorted(map(repr, _rows(out / name))) for name in tables} == before
    for words, refused in (
        (["--since", "tomorrow"], "--since: found 'tomorrow', allowed is a time such as 24h, a date"),
        (["--until", "1h", "--available-now"], "--until: a stream writes all rows"),
    ):
        done = CliRunner().invoke(app, [*command, *words])
        assert done.exit_code != 0
        assert refused in str(done.exception)


def test_a_failure_leaves_the_old_table(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half-written is ever visible, and nothing is left behind."""
    log, out, tables = tmp_path / "log", tmp_path / OUT, ("matches", "popularity")
    write_facts(log, random_log(Random(1), "n", facts=100, has_receipts=True))

    def made() -> dict[str, list[Path]]:
        jobs.run(spark, log=log, out=out, tables=tables)
        return {name: data_files(out, name) for name in tables}

    def fail(*arguments: Any, **options: Any) -> None:
        make_files(*arguments, **options)
        raise OSError("the disk is full")

    before = made()
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "make_files", fail)
        with pytest.raises(OSError, match="disk is full"):
            made()
    assert {name: data_files(out, name) for name in tables} == before
    for name in tables:
        there = {path.parent for path in (out / name).rglob("*") if path.is_file() and "_delta_log" not in path.parts}
        assert there == {path.parent for path in before[name]}
    assert made() != before
    assert sorted(each.name for each in out.iterdir()) == sorted(tables)


def test_tables_of_an_older_whimbrel_are_not_written_over(spark: SparkSession, tmp_path: Path) -> None:
    """Who reads the Parquet files of the folder would read both; nothing is read before it is said."""
    create(tmp_path / "log")
    (tmp_path / OUT / "matches").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), tmp_path / OUT / "matches" / "part-0.parquet")
    with pytest.raises(InvalidValueError, match="older Whimbrel made these tables"):
        jobs.run(spark, log=tmp_path / "log", out=tmp_path / OUT)


def test_an_empty_log_has_empty_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody came: that is no error."""
    create(tmp_path / "log")
    own = spark.conf.get("spark.sql.shuffle.partitions")
    made = jobs.run(spark, log=tmp_path / "log", out=tmp_path / OUT)
    assert spark.conf.get("spark.sql.shuffle.partitions") == own, "the session is the caller's"
    assert {name: told["rows"] for name, told in made.items()} == dict.fromkeys(TABLES_MADE, 0)


def test_a_log_from_a_newer_version_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """What it means is not for us to guess."""
    create(tmp_path / "log")
    (tmp_path / "log" / "whimbrel-log.json").write_text('{"format": 99}')
    with pytest.raises(NewerLogError, match="99"):
        jobs.run(spark, log=tmp_path / "log", out=tmp_path / OUT)
    assert not (tmp_path / OUT).exists()


def test_unknown_tables_are_named(spark: SparkSession, tmp_path: Path) -> None:
    """A clear message names what was found and what is allowed."""
    create(tmp_path / "log")
    with pytest.raises(InvalidValueError, match=r"gossip.*matches, deliveries"):
        jobs.run(spark, log=tmp_path / "log", out=tmp_path / OUT, tables=["gossip"])
