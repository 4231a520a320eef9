"""The log as a DataFrame: every row once, wherever it is, batch and stream."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from whimbrel.errors import InvalidValueError
from whimbrel.log.compaction import compact
from whimbrel.log.errors import NewerLogError, NotALogError
from whimbrel.log.export import export
from whimbrel.log.layout import part_path, parts, set_exported_seq
from whimbrel.log.parts import statistics
from whimbrel.log.writer import LogWriter
from whimbrel.model.attributes import Attributes
from whimbrel.model.facts import Fact, InterestChanged, PresenceChange, PresenceChanged
from whimbrel.model.notification import Notification
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files import snapshots
from whimbrel.pipeline.files.schemas import SCHEMAS
from whimbrel.pipeline.files.snapshots import first_number, snapshot
from whimbrel.pipeline.spark import reading
from whimbrel.pipeline.spark.reading import read_table
from whimbrel.pipeline.spark.source import register

DAY_US = 86_400_000_000
START = 1_767_571_200_000_000  # 2026-01-05
EVERY_US = 3_600_000_000
EXPORTED, LAST = 60, 90


def a_fact(seq: int) -> Fact:
    """Return the fact that every test finds under *seq*: of three an interest, a publication and a publication."""
    at = START + seq * EVERY_US
    if seq % 3 == 0:
        wanted = Subscription(session="s", subject_filter=f"t/{seq}", filter_text="a > 1", ttl_us=5)
        return InterestChanged(node="a", seq=seq, changed_at=at, change=InterestChange.ADDED, subscription=wanted)
    values: Attributes = {"a": seq, "b": 0.5, "c": "text", "d": b"opaque"}
    return Notification(node="a", seq=seq, published_at=at, subject=f"t/{seq % 5}", attributes=values, body=b"{}")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log over four days: 60 facts in Parquet, 30 only in segments, and a part that another replaced."""
    directory = tmp_path_factory.mktemp("log") / "log"
    with LogWriter(directory, "a") as writer:
        for seq in range(1, EXPORTED + 1):
            writer.append(a_fact(seq))
    export(directory, "a", closed_only=False)
    with LogWriter(directory, "a") as writer:
        for seq in range(EXPORTED + 1, LAST + 1):
            writer.append(a_fact(seq))
    first = parts(directory, "publications")[0]
    small = part_path(directory, "publications", day=first.date, node="a", first=first.first + 1, last=first.last - 1)
    shutil.copy(first.path, small)
    return directory


def seqs(frame: DataFrame) -> list[int]:
    """Return the numbers of *frame*, with those that are there twice twice."""
    return sorted(row["seq"] for row in frame.select("seq").collect())


def source(spark: SparkSession, log: Path, table: str, **options: str) -> DataFrame:
    """Read as anybody would in a session of their own."""
    register(spark)
    return spark.read.format("whimbrel").option("table", table).options(**options).load(str(log))


PUBLICATIONS = [seq for seq in range(1, LAST + 1) if seq % 3]
INTERESTS = [seq for seq in range(1, LAST + 1) if seq % 3 == 0]


def test_schemas_keep_types_nulls_and_comments() -> None:
    """DESCRIBE must say what the documents say."""
    for name, table in TABLES.items():
        for field, column in zip(table.schema, SCHEMAS[name], strict=True):
            assert (column.name, column.nullable) == (field.name, field.nullable)
            assert column.metadata["comment"] == field.metadata[b"description"].decode()
    assert SCHEMAS["publications"]["attributes"].dataType.simpleString().startswith("map<string,struct<type:tinyint,")
    assert SCHEMAS["publications"]["published_at"].dataType.simpleString() == "timestamp"


@pytest.mark.parametrize(("table", "want"), [("publications", PUBLICATIONS), ("interests", INTERESTS)])
def test_all_ways_of_reading_give_every_row_once(
    spark: SparkSession, log: Path, monkeypatch: pytest.MonkeyPatch, table: str, want: list[int]
) -> None:
    """Parquet, the tail of the segments, and neither twice."""
    assert seqs(source(spark, log, table)) == want
    assert seqs(read_table(spark, log, table)) == want
    monkeypatch.setattr(reading, "SMALL_TAIL", LAST - EXPORTED - 1)
    assert seqs(read_table(spark, log, table)) == want


def test_all_ways_agree_on_every_value(spark: SparkSession, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Java reads and what Arrow reads are the same rows, attributes of all types included."""
    ours, native = source(spark, log, "publications"), read_table(spark, log, "publications")
    monkeypatch.setattr(reading, "SMALL_TAIL", LAST - EXPORTED - 1)
    long = read_table(spark, log, "publications")
    assert ours.columns == native.columns == long.columns == TABLES["publications"].schema.names
    rows = ours.orderBy("seq").collect()
    assert rows == native.orderBy("seq").collect()
    assert rows == long.orderBy("seq").collect()


@pytest.mark.parametrize(("limit", "most"), [("SMALL_TAIL", LAST - EXPORTED), ("SMALL_BYTES", 100_000)])
def test_what_the_driver_reads_is_bounded(log: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    """In number and in bytes: bodies may be large."""
    tails = {"a": (EXPORTED, LAST)}
    monkeypatch.setattr(reading, limit, most)
    assert reading._are_small(log, tails)
    monkeypatch.setattr(reading, limit, most // 100)
    assert not reading._are_small(log, tails)


def test_since_and_until_choose_numbers(spark: SparkSession, log: Path) -> None:
    """From the one on, below the other, across the border of the export."""
    assert seqs(source(spark, log, "interests", since="57", until="66")) == [57, 60, 63]


def test_days_are_pruned_before_spark_sees_them(spark: SparkSession, log: Path) -> None:
    """A question about one day must not list a year; the tail is not filed by days and is always read."""
    frame = read_table(spark, log, "publications", since=START + DAY_US, until=START + DAY_US)
    assert [path.split("/")[-3] for path in frame.inputFiles()] == ["date=2026-01-06"]
    assert seqs(frame) == [seq for seq in PUBLICATIONS if 24 <= seq < 48 or seq > EXPORTED]


def test_an_absent_table_is_empty(spark: SparkSession, log: Path) -> None:
    """Most logs have no receipts in the beginning."""
    assert seqs(read_table(spark, log, "receipts")) == seqs(source(spark, log, "receipts")) == []
    assert read_table(spark, log, "receipts").columns == TABLES["receipts"].schema.names


def test_an_export_that_is_not_complete_is_not_looked_at(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    """Its parts are there before it is said that they count."""
    copy = tmp_path / "log"
    shutil.copytree(log, copy)
    export(copy, "a", closed_only=False)
    set_exported_seq(copy, "a", EXPORTED)  # as if it had crashed just before
    assert seqs(read_table(spark, copy, "publications")) == seqs(source(spark, copy, "publications")) == PUBLICATIONS


def collected(spark: SparkSession, log: Path, checkpoint: Path) -> list[int]:
    """Run a stream until it has read all there is; return the numbers of this run."""
    rows: list[int] = []

    def take(batch: DataFrame, _: int) -> None:
        rows.extend(seqs(batch))

    stream = spark.readStream.format("whimbrel").option("table", "publications").load(str(log))
    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination(60)
    return sorted(rows)


def test_a_stream_goes_on_where_it_was(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    """Each row once, over restarts, an export in between, and a node that appears later."""
    register(spark)
    copy = tmp_path / "log"
    shutil.copytree(log, copy)
    assert collected(spark, copy, tmp_path / "checkpoint") == PUBLICATIONS
    export(copy, "a", closed_only=False)
    with LogWriter(copy, "a") as writer:
        for seq in range(LAST + 1, LAST + 10):
            writer.append(a_fact(seq))
    with LogWriter(copy, "b") as writer:
        gone = PresenceChange.CONNECTED
        writer.append(PresenceChanged(node="b", seq=1, changed_at=0, device="d", change=gone))
        writer.append(Notification(node="b", seq=2, published_at=0))
    assert collected(spark, copy, tmp_path / "checkpoint") == [2, *(s for s in range(LAST + 1, LAST + 10) if s % 3)]
    assert collected(spark, copy, tmp_path / "checkpoint") == []


def test_a_brokers_data_folder_stands_for_its_log(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    """Nobody should have to know what lies where below ``--data``."""
    register(spark)
    (tmp_path / "log").symlink_to(log)
    found = [spark.read.format("whimbrel").load(str(path)).count() for path in (tmp_path, log)]
    assert found[0] == found[1] > 0


def test_what_is_no_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """With the reason, not with an empty table."""
    with pytest.raises(NotALogError):
        read_table(spark, tmp_path, "publications")
    (tmp_path / "whimbrel-log.json").write_text('{"format": 99}', encoding="utf-8")
    with pytest.raises(NewerLogError):
        read_table(spark, tmp_path, "publications")
    with pytest.raises(PySparkException, match="newer Whimbrel"):
        source(spark, tmp_path, "publications").collect()


def test_a_table_that_is_none_of_the_log_is_refused(spark: SparkSession, log: Path) -> None:
    """The message names those that are."""
    with pytest.raises(InvalidValueError, match="publications, interests"):
        read_table(spark, log, "matches")
    with pytest.raises(PySparkException, match="publications, interests"):
        source(spark, log, "guesses")
    with pytest.raises(PySparkException, match="there are no tables"):
        source(spark, log, "matches").collect()


@pytest.mark.parametrize("small", [0, 1_000], ids=["long", "short"])
def test_a_table_is_read_as_it_was_while_the_log_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    """An export, a merge of parts and new facts after planning: no row lost, twice, or from the future."""
    monkeypatch.setattr(reading, "SMALL_TAIL", small)
    directory = tmp_path / "log"

    def write(first: int, last: int) -> None:
        with LogWriter(directory, "a") as writer:
            for seq in range(first, last + 1):
                writer.append(a_fact(seq))

    write(1, 10)
    export(directory, "a", closed_only=False)
    write(11, 20)
    at = snapshot(directory)
    planned = read_table(spark, directory, "publications")
    write(21, 30)
    export(directory, "a", closed_only=False)
    write(31, 40)
    want = [seq for seq in range(1, 21) if seq % 3]
    assert seqs(planned) == want
    assert seqs(read_table(spark, directory, "publications", at=at)) == want
    compact(directory)
    assert seqs(read_table(spark, directory, "publications", at=at)) == want
    assert seqs(read_table(spark, directory, "publications")) == [seq for seq in range(1, 41) if seq % 3]
    assert seqs(source(spark, directory, "interests")) == [seq for seq in range(1, 41) if seq % 3 == 0]


def test_the_first_number_is_looked_for_again_if_its_part_goes_meanwhile(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention removes a part between the look at the folder and the look into it; a stream must not end for that."""
    own = tmp_path / "log"
    shutil.copytree(log, own)
    listed = [part for table in ("interests", "publications") for part in parts(own, table)]
    first_day = min(part.date for part in listed)
    folders = {part.path.parent for part in listed if part.date == first_day}
    to_go = [path for folder in folders for path in folder.iterdir()]
    assert first_number(own, "a") == 1
    looked = statistics

    def cut_meanwhile(path: Path, columns: tuple[str, ...]) -> object:
        while to_go:
            to_go.pop().unlink()
        return looked(path, columns)

    monkeypatch.setattr(snapshots, "statistics", cut_meanwhile)
    assert first_number(own, "a") == 24  # that of the second day's first hour


def test_a_part_that_stays_missing_is_an_error(log: Path, tmp_path: Path) -> None:
    """Bad luck, such as a link into a disk that is not there: it must not be looked for, for ever."""
    own = tmp_path / "log"
    shutil.copytree(log, own)
    for table in ("interests", "publications"):
        first = parts(own, table)[0].path
        first.unlink()
        first.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        first_number(own, "a")
