"""Tables of the pipeline through Spark's format ``whimbrel``: as they are; as a stream, each row once."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from whimbrel.errors import InvalidValueError
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files.delta import DeltaOutput, data_files, open_table, replace_table
from whimbrel.pipeline.files.delta_files.commit_log import CommitLog
from whimbrel.pipeline.files.schemas import SCHEMAS
from whimbrel.pipeline.files.upkeep import compact_tables, vacuum_tables
from whimbrel.pipeline.spark.source import register
from whimbrel.pipeline.spark.table_feed import LostCommitError, ReplacedRowsError, TableStreamReader

ROWS = 3
FOLLOWED = 3
"""Batches that the follower of a test has read when something happens to the table."""


def matched(batch: int) -> Any:
    """Return rows of ``matches`` that say of which batch they are."""
    given = {"notification_node": "n", "published_at": batch, "session": f"s{batch}", "subject_filter": "a", "name": ""}
    rows = [given | {"notification_seq": batch, "interest_seq": each} for each in range(ROWS)]
    return pa.Table.from_pylist(rows, schema=TABLES["matches"].schema)


def test_each_row_comes_once_through_compaction_and_removal_of_old_ones(spark: SparkSession, tmp_path: Path) -> None:
    """Who acts on rows must not act twice; a restart goes on where the checkpoint says."""
    register(spark)
    output, seen = DeltaOutput(tmp_path / "out", "matches"), Counter[tuple[int, int]]()

    def note(rows: DataFrame, _batch: int) -> None:
        seen.update((row["notification_seq"], row["interest_seq"]) for row in rows.collect())

    def follow() -> None:
        frame = spark.readStream.format("whimbrel").option("table", "matches").load(str(tmp_path / "out"))
        query = frame.writeStream.foreachBatch(note).option("checkpointLocation", (tmp_path / "checkpoint").as_uri())
        query.trigger(availableNow=True).start().awaitTermination()

    for batch in range(4):
        output.add(batch, matched(batch))
    output.compact()
    follow()
    output.add(4, matched(4))
    output.compact()
    output.expire(2)
    output.add(5, matched(5))
    pq.write_table(matched(9), tmp_path / "out" / "matches" / "of-no-commit.parquet")
    follow()
    assert seen == Counter({(batch, each): 1 for batch in range(6) for each in range(ROWS)})
    found = spark.read.format("whimbrel").option("table", "matches").load((tmp_path / "out").as_uri())
    assert sorted({row["notification_seq"] for row in found.collect()}) == [2, 3, 4, 5]
    assert found.schema == SCHEMAS["matches"]
    replaced(tmp_path / "out", 6)  # as a batch run does
    with pytest.raises(Exception, match=r"version [0-9]+ replaced rows"):
        follow()
    assert max(seen.values()) == 1


@pytest.mark.parametrize("is_interval", [False, True], ids=["run", "run --since"])
def test_replaced_rows_are_refused_by_name(tmp_path: Path, *, is_interval: bool) -> None:
    """A follower that took them for additions would act twice on each row that stayed."""
    output = DeltaOutput(tmp_path, "matches")
    reader = TableStreamReader(tmp_path, "matches", SCHEMAS["matches"])
    replaced(tmp_path, 1, is_interval=is_interval)  # of nothing: these rows are new
    begun = reader.latestOffset()
    assert len(reader.partitions(reader.initialOffset(), begun)) == 1
    output.add(0, matched(5))
    added = reader.latestOffset()
    assert len(reader.partitions(begun, added)) == 1
    replaced(tmp_path, 2, is_interval=is_interval)
    with pytest.raises(ReplacedRowsError, match=r"version 3 replaced rows.*begin anew, with another checkpoint"):
        reader.partitions(added, reader.latestOffset())
    assert reader.partitions(reader.initialOffset(), reader.latestOffset())


@pytest.mark.parametrize("batches", [1, 3, 5], ids=["fewer versions", "as many", "more"])
def test_a_table_that_was_made_anew_is_not_gone_on_with(tmp_path: Path, batches: int) -> None:
    """Its first rows have the versions that were read of the other table: they were skipped, without a word."""
    output = DeltaOutput(tmp_path, "matches")
    for batch in range(3):
        output.add(batch, matched(batch))
    reader = TableStreamReader(tmp_path, "matches", SCHEMAS["matches"])
    end = reader.latestOffset()
    shutil.rmtree(tmp_path / "matches")
    output = DeltaOutput(tmp_path, "matches")
    for batch in range(batches):
        output.add(batch, matched(7 + batch))
    assert reader.latestOffset() != end
    for start in (end, reader.initialOffset()):
        with pytest.raises(LostCommitError, match="version 3 is not there any more; begin anew"):
            reader.partitions(start, reader.latestOffset() if start is end else end)
    older = {"version": end["version"]}
    if batches < 3:
        with pytest.raises(LostCommitError):
            reader.partitions(older, reader.latestOffset())
    else:
        assert len(reader.partitions(older, reader.latestOffset())) == batches - 3


def test_what_an_operation_of_others_did_is_not_passed_over(tmp_path: Path) -> None:
    """An older state of the table that was restored has rows that come again; merged ones may be new."""
    output = DeltaOutput(tmp_path, "matches")
    for batch in range(2):
        output.add(batch, matched(batch))
    reader = TableStreamReader(tmp_path, "matches", SCHEMAS["matches"])
    end = reader.latestOffset()
    DeltaTable(str(tmp_path / "matches")).restore(1)
    with pytest.raises(ReplacedRowsError, match="version 3 replaced rows"):
        reader.partitions(end, reader.latestOffset())


def replaced(out: Path, batch: int, *, is_interval: bool = False) -> None:
    """Replace rows of ``matches`` as a batch run does: all of them, or those of an interval."""
    path = out / "matches" / f"part-run-{batch}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    open_table(out, "matches")
    pq.write_table(matched(batch), path)
    if is_interval:
        DeltaOutput(out, "matches").replace_between([path], None, 1_000)
    else:
        replace_table(out, "matches", [path])


def test_a_commit_that_was_cleaned_up_is_said(tmp_path: Path) -> None:
    """Rows would be missing, and nobody could tell which."""
    output = DeltaOutput(tmp_path, "matches")
    for batch in range(3):
        output.add(batch, matched(batch))
    reader = TableStreamReader(tmp_path, "matches", SCHEMAS["matches"])
    end = reader.latestOffset()
    assert len(reader.partitions(reader.initialOffset(), end)) == 3
    assert len(reader.partitions({"version": 1}, end)) == 2
    (tmp_path / "matches" / "_delta_log" / f"{2:020}.json").unlink()
    with pytest.raises(LostCommitError, match="version 2 is not there any more; begin anew"):
        reader.partitions({"version": 1}, end)


@pytest.mark.parametrize("table", ["popularity", "latency", "replicas"])
def test_rows_that_change_are_not_followed(tmp_path: Path, table: str) -> None:
    """Each would come with every change, and what was replaced would stay with the reader."""
    with pytest.raises(InvalidValueError, match="allowed is matches, deliveries"):
        TableStreamReader(tmp_path, table, SCHEMAS[table])


@pytest.mark.parametrize("path", ["s3://bucket/tables", "hdfs:/tables", "", None])
def test_a_path_of_elsewhere_is_refused(spark: SparkSession, path: str | None) -> None:
    """It would be made a folder called ``s3:``, here."""
    register(spark)
    frame = spark.read.format("whimbrel").option("table", "matches")
    with pytest.raises(Exception, match="allowed is the folder that has the table matches"):
        (frame.load() if path is None else frame.load(path)).count()


# -- what happens to a table that is followed ------------------------------------------------------------------------


def _backfill_beside(out: Path) -> None:
    path = out / "matches" / "part-run.parquet"
    pq.write_table(matched(FOLLOWED), path)
    DeltaOutput(out, "matches").replace_between([path], FOLLOWED, FOLLOWED + 1)


def _compact_and_expire(out: Path) -> None:
    output = DeltaOutput(out, "matches")
    output.add(FOLLOWED, matched(FOLLOWED))
    output.compact()
    output.expire(2)


def _keep_up(out: Path) -> None:
    DeltaOutput(out, "matches").add(FOLLOWED, matched(FOLLOWED))
    compact_tables(out)
    vacuum_tables(out)


def _lose_commits(out: Path) -> None:
    output = DeltaOutput(out, "matches")
    output.add(FOLLOWED, matched(FOLLOWED))
    output.compact()
    output.tidy_log()
    CommitLog(out / "matches").remove_old(older_than_s=-1.0)


@pytest.mark.parametrize(
    ("happens", "error"),
    [
        (_backfill_beside, None),
        (lambda out: replaced(out, 1, is_interval=True), ReplacedRowsError),
        (lambda out: replaced(out, 1), ReplacedRowsError),
        (_compact_and_expire, None),
        (_keep_up, None),
        (_lose_commits, LostCommitError),
    ],
    ids=["backfill of a new day", "backfill of a day that was read", "whole rerun", "expiry", "upkeep", "lost commits"],
)
def test_a_follower_has_each_row_once_or_is_told_by_name(
    tmp_path: Path, happens: Callable[[Path], None], error: type[Exception] | None
) -> None:
    """And a batch that Spark asks for again after a crash has the rows that it had, or its commits are gone by name."""
    output = DeltaOutput(tmp_path, "matches")
    for batch in range(FOLLOWED):
        output.add(batch, matched(batch))
    reader = TableStreamReader(tmp_path, "matches", SCHEMAS["matches"])
    begin, middle = reader.initialOffset(), reader.latestOffset()
    before = rows_between(reader, begin, middle)
    happens(tmp_path)
    end = reader.latestOffset()
    if error is not None:
        with pytest.raises(error, match="begin anew, with another checkpoint"):
            reader.partitions(middle, end)
    else:
        after = rows_between(reader, middle, end)
        assert before + after == Counter((batch, each) for batch in range(FOLLOWED + 1) for each in range(ROWS))
    if error is LostCommitError:
        with pytest.raises(LostCommitError):
            reader.partitions(begin, middle)
    else:
        assert rows_between(reader, begin, middle) == before


def rows_between(reader: TableStreamReader, start: Any, end: Any) -> Counter[tuple[int, int]]:
    """Return the rows of a batch of a stream, each with its number."""
    found: Counter[tuple[int, int]] = Counter()
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            seqs = (batch.column(name).to_pylist() for name in ("notification_seq", "interest_seq"))
            found.update(zip(*seqs, strict=True))
    return found


# -- the format, as anybody's session has it -------------------------------------------------------------------------


@pytest.fixture
def unregistered(spark: SparkSession, tmp_path: Path) -> SparkSession:
    """Make a table of three files; return a session in which nobody has called ``register``."""
    for batch in range(3):
        DeltaOutput(tmp_path, "matches").add(batch, matched(batch))
    return spark.newSession()


def test_spark_finds_the_format_and_reads_the_columns_that_are_named(
    unregistered: SparkSession, tmp_path: Path
) -> None:
    """Nothing is to be called first; columns that are not named are not read from the file."""
    reader = unregistered.read.format("whimbrel").option("table", "matches")
    found = reader.option("columns", "session, notification_seq").load(str(tmp_path))
    assert found.columns == ["notification_seq", "session"]
    assert sorted(map(tuple, found.distinct().collect())) == [(batch, f"s{batch}") for batch in range(3)]
    with pytest.raises(Exception, match=r"option columns.*allowed is some of notification_node"):
        reader.option("columns", "session,sesion").load(str(tmp_path)).collect()


def test_a_file_of_other_sessions_is_not_opened(unregistered: SparkSession, tmp_path: Path) -> None:
    """Where pushing filters is switched on; else each file is a task, and all rows reach Java."""
    frame = unregistered.read.format("whimbrel").option("table", "matches").load(str(tmp_path))
    wanted = frame.where("session = 's1' AND notification_seq < 5")
    assert wanted.rdd.getNumPartitions() == 3
    unregistered.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    pushed = frame.where("session = 's1' AND notification_seq < 5 AND interest_seq % 2 = 0")
    for path in data_files(tmp_path, "matches"):
        if pq.read_table(path).column("session")[0].as_py() != "s1":
            path.unlink()
    assert pushed.rdd.getNumPartitions() == 1
    assert sorted(row["interest_seq"] for row in pushed.collect()) == [0, 2]
