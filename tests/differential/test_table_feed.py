"""Tables of the pipeline through Spark's format ``whimbrel``: as they are; as a stream, each row once."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from whimbrel.errors import InvalidValueError
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files.delta import DeltaOutput, open_table, replace_table
from whimbrel.pipeline.files.schemas import SCHEMAS
from whimbrel.pipeline.spark.source import register
from whimbrel.pipeline.spark.table_feed import LostCommitError, ReplacedRowsError, TableStreamReader

ROWS = 3


def matched(batch: int) -> Any:
    """Return rows of ``matches`` that say of which batch they are."""
    given = {"notification_node": "n", "published_at": batch, "session": "s", "subject_filter": "a", "name": ""}
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
