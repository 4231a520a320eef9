"""A made-up log is a log: contiguous, monotone, consistent, readable, and the same from the same seed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from whimbrel.cli.main import app
from whimbrel.errors import InvalidValueError
from whimbrel.language.filters import parse
from whimbrel.log.layout import nodes, parts
from whimbrel.log.verification import verify
from whimbrel.match.topics import check_topic_filter
from whimbrel.model.codecs import from_json
from whimbrel.model.tables import TABLES, attributes_from_column_value
from whimbrel.pipeline.files.delta import WHOLE, DeltaOutput
from whimbrel.pipeline.files.schemas import TIMES
from whimbrel.sim.logs import generate as module
from whimbrel.sim.logs.generate import Recipe, generate
from whimbrel.sim.logs.worlds import WORLDS

EVENTS = 6_000
RECIPES = {name: Recipe(world=name, events=EVENTS, seed=5, nodes=("a", "b"), hours=30) for name in WORLDS}


@pytest.fixture(scope="module")
def logs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Make a log of each world."""
    root = tmp_path_factory.mktemp("logs")
    for name, recipe in RECIPES.items():
        assert sum(generate(spark, recipe, root / name).values()) == EVENTS
    return {name: root / name for name in RECIPES}


@pytest.fixture(params=list(WORLDS))
def log(logs: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    """Return the log of one world."""
    return logs[request.param]


def rows(log: Path, table: str) -> list[dict[str, Any]]:
    """Return all rows of a table by plain reading."""
    read = [pq.read_table(part.path, partitioning=None) for part in parts(log, table)]
    return pa.concat_tables(read).to_pylist() if read else []


def facts(log: Path, node: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the facts of *node* in the order of their numbers."""
    every = ((table, row) for table in TIMES for row in rows(log, table) if row["node"] == node)
    yield from sorted(every, key=lambda fact: fact[1]["seq"])


def digest(log: Path) -> dict[str, str]:
    """Return the content of each file of the log."""
    files = (path for path in log.rglob("*") if path.is_file())
    return {str(path.relative_to(log)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_generated_log_passes_verification(log: Path) -> None:
    """Every row is a fact that a node could have accepted, and lies where it belongs."""
    found = verify(log)
    assert (found.problems, found.rows) == ([], EVENTS)


def test_numbers_have_no_gap_and_times_never_run_backwards(log: Path) -> None:
    """(node, seq) is the order of everything."""
    for node in nodes(log):
        every = list(facts(log, node))
        times = [row[TIMES[table]] for table, row in every]
        assert [row["seq"] for _, row in every] == list(range(1, EVENTS // 2 + 1))
        assert times == sorted(times)


def test_devices_join_only_while_connected_and_leave_what_they_joined(log: Path) -> None:
    """A fold over presence must never see the impossible."""
    modes: Counter[str] = Counter()
    for node in nodes(log):
        connected: dict[str, set[str]] = {}
        created: set[str] = set()
        for table, row in facts(log, node):
            device, session = row.get("device"), row.get("session")
            if table == "sessions":
                created.add(row["session"])
            elif table == "reports":
                assert device in connected
            elif table == "presence" and row["change"] == "connected":
                assert device not in connected
                connected[row["device"]] = set()
            elif table == "presence" and row["change"] == "disconnected":
                del connected[row["device"]]
            elif table == "presence" and row["change"] == "joined":
                assert session in created
                assert session not in connected[row["device"]]
                connected[row["device"]].add(row["session"])
                modes[row["receipt"]] += 1
            elif table == "presence":
                connected[row["device"]].remove(row["session"])
    assert modes["take"] > 10 < modes["keep"]


def test_interests_are_valid_and_change_only_while_there(log: Path) -> None:
    """Subscriptions that a broker would have refused teach nothing."""
    changes = Counter(row["change"] for row in rows(log, "interests"))
    assert changes["added"] > changes["modified"] > 0 < changes["removed"]
    for node in nodes(log):
        there: set[tuple[str, str | None, str]] = set()
        created: set[str] = set()
        for table, row in facts(log, node):
            created |= {row["session"]} if table == "sessions" else set()
            if table != "interests":
                continue
            identity = (row["session"], row["subject_filter"], row["name"])
            assert row["session"] in created
            assert (identity in there) is (row["change"] != "added")
            (there.discard if row["change"] == "removed" else there.add)(identity)
            if row["filter_text"] is not None:
                parse(row["filter_text"])
            if row["subject_filter"] is not None:
                check_topic_filter(row["subject_filter"])


def test_bodies_say_what_attributes_say(log: Path) -> None:
    """Whoever decodes a body himself gets what the filters saw."""
    for row in rows(log, "publications")[:: EVENTS // 300]:
        assert from_json(row["body"]) == attributes_from_column_value(row["attributes"])


def test_people_are_as_the_world_says(logs: dict[str, Path]) -> None:
    """One to four devices a session, some in two sessions, some notifications that expire, places in the city."""
    joined = [row for row in rows(logs["campus"], "presence") if row["change"] == "joined"]
    sessions = {
        device: {row["session"] for row in joined if row["device"] == device}
        for device in {r["device"] for r in joined}
    }
    homes = Counter(device.split("-", 1)[1] for device in sessions)
    assert set(homes.values()) == {1, 2, 3, 4}
    assert {len(each) for each in sessions.values()} == {1, 2}
    assert {row["expires_at"] is None for row in rows(logs["ward"], "publications")} == {True, False}
    assert all(row["place"] is not None for row in rows(logs["city"], "reports"))


def test_the_same_seed_makes_the_same_log_on_any_cluster(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, in one partition or in seven; another seed makes another."""
    monkeypatch.setattr(module, "CHUNK_ROWS", 500)
    recipe = Recipe(world="city", events=4_000, seed=9)
    generate(spark, recipe, tmp_path / "one", partitions=1)
    generate(spark, recipe, tmp_path / "seven", partitions=7)
    generate(spark, Recipe(world="city", events=4_000, seed=10), tmp_path / "other", partitions=7)
    assert len(digest(tmp_path / "one")) > 16
    assert digest(tmp_path / "one") == digest(tmp_path / "seven")
    assert digest(tmp_path / "one") != digest(tmp_path / "other")


def test_chunks_do_not_change_what_happens(
    spark: SparkSession, tmp_path: Path, logs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fact depends on its number, not on who it was made with."""
    monkeypatch.setattr(module, "CHUNK_ROWS", 700)
    generate(spark, RECIPES["ward"], tmp_path / "log")
    for table in TIMES:
        assert rows(tmp_path / "log", table) == rows(logs["ward"], table)


def test_too_many_devices_for_the_log_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The message says how many events they would need; nothing is made."""
    with pytest.raises(InvalidValueError, match=r"found 1000, allowed is at least \d+ for 900 devices"):
        generate(spark, Recipe(world="ward", events=1_000, devices=900), tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_a_log_is_never_generated_over_another(spark: SparkSession, log: Path) -> None:
    """Two truths in one directory are none."""
    with pytest.raises(InvalidValueError, match="one that holds no log yet"):
        generate(spark, RECIPES["ward"], log)


def run(*arguments: object) -> str:
    """Run the command in this process, in its session; return what it prints."""
    done = CliRunner().invoke(app, ["pipeline", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_generates_and_replays(spark: SparkSession, tmp_path: Path) -> None:
    """The first minute with the pipeline."""
    out = tmp_path / "log"
    made = json.loads(run("generate", "--world", "ward", "--events", 3_000, "--out", out, "--nodes", "x,y", "--json"))
    assert sum(made["rows"].values()) == 3_000
    wanted = ("--log", out, "--filter", "pulse > 100", "--subject", "bed/+/vitals")
    lines = run("replay", *wanted, "--limit", 2_000, "--json").splitlines()
    found = [json.loads(line) for line in lines]
    assert found
    assert all(row["attributes"]["pulse"] > 100 and row["subject"].endswith("/vitals") for row in found)
    late = [
        json.loads(line) for line in run("replay", *wanted, "--since", "6h", "--limit", 2_000, "--json").splitlines()
    ]
    assert 0 < len(late) < len(found)
    assert f"{len(late)} notifications match" in run("replay", *wanted, "--since", "6h")
    assert spark.range(1).count() == 1  # the session is still ours


def test_the_command_shows_bars(tmp_path: Path) -> None:
    """The largest first, without Spark."""
    columns = {"subject": ["few", "many"], "subscribers": [1, 4], "share": [0.1, 0.2], "replicas": [10, 20]}
    made = pa.table(columns | {"memory_bytes": [1_000, 2_000]}, schema=TABLES["replicas"].schema)
    DeltaOutput(tmp_path, "replicas").replace(0, {WHOLE: made})
    shown = ("show", "replicas", "--out", tmp_path)
    text = run(*shown)
    assert text.index("many") < text.index("few")
    assert text.count("█") == 30
    assert [json.loads(line)["subject"] for line in run(*shown, "--json").splitlines()] == ["many", "few"]
