"""Reading the pipeline's tables in Spark: ``whimbrel.spark.table`` beside plain Parquet and the format ``whimbrel``.

The table is ``deliveries``, written as a stream writes it, a commit per batch. Its rows are also in a folder of plain
Parquet that Spark wrote itself, in the order in which they were made. Each query is asked of every reader in turn, in
one session; core seconds are those of Java and of all Python processes, the least of the repetitions (the format is
asked once, at the end).
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from measure import Check, Figure, Grid, Report

__all__ = ["run"]

_START_US, _STEP_US = 1_767_225_600_000_000, 6_000
_SESSIONS, _SUBJECTS, _BATCH = 5_000, 200, 400_000
_OUTCOMES = ("delivered", "delivered", "delivered", "delivered", "expired", "withheld")
_READERS = ("plain Parquet", "whimbrel.spark.table", 'format("whimbrel")')
_QUERIES = ("by outcome", "one session and a quarter of the time", "all columns")
_TICKS = os.sysconf("SC_CLK_TCK")


def run(*, quick: bool) -> Report:
    """Measure; *quick* only proves that it runs and that the results are right."""
    rows, repetitions = (50_000, 1) if quick else (2_000_000, 9)
    report = Report("tables", packages=("whimbrel", "pyspark", "pyarrow", "deltalake"))
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        found, answers = _measure(Path(name), rows, repetitions)
    cells: tuple[tuple[str | float | None, ...], ...] = tuple(
        (query, *(found[query, reader] for reader in _READERS)) for query in _QUERIES
    )
    report.grids.append(Grid(f"core seconds, {rows:,} deliveries", ("query", *_READERS), cells))
    for query in _QUERIES:
        ratio = found[query, _READERS[1]] / max(found[query, _READERS[0]], 1e-9)
        report.figures.append(Figure(f"{query}: table over plain Parquet", ratio, "times"))
        same = {answers[query, reader] for reader in _READERS}
        report.checks.append(Check(f"{query}: every reader has the same answer", len(same) == 1))
        report.checks.append(Check(f"{query}: table takes at most 1.1 times plain Parquet", quick or ratio <= 1.1))
    return report


def _measure(
    folder: Path, rows: int, repetitions: int
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], Any]]:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

    from whimbrel.pipeline.files.delta import DeltaOutput
    from whimbrel.pipeline.files.schemas import SCHEMAS
    from whimbrel.pipeline.spark.source import register
    from whimbrel.pipeline.spark.spark_session import local_session
    from whimbrel.spark import table

    spark = local_session(master="local[2]")
    output = DeltaOutput(folder / "out", "deliveries")
    for batch, made in enumerate(_deliveries(rows)):
        output.add(batch, made)
        frame = spark.createDataFrame(made, SCHEMAS["deliveries"])
        frame.coalesce(1).write.mode("append").parquet((folder / "plain").as_uri())
    register(spark)
    readers: dict[str, Callable[[], DataFrame]] = {
        _READERS[0]: lambda: spark.read.schema(SCHEMAS["deliveries"]).parquet((folder / "plain").as_uri()),
        _READERS[1]: lambda: table(spark, folder / "out", "deliveries"),
        _READERS[2]: lambda: spark.read.format("whimbrel").option("table", "deliveries").load(str(folder / "out")),
    }
    first = _START_US + rows * _STEP_US // 2
    last = first + rows * _STEP_US // 4

    def by_outcome(frame: DataFrame) -> Any:
        return tuple(map(tuple, frame.groupBy("outcome").count().orderBy("outcome").collect()))

    def of_a_session(frame: DataFrame) -> Any:
        at = F.unix_micros("decided_at")
        wanted = frame.where(
            (F.col("session") == "session-0042") & F.col("decided_at").between(_time(first), _time(last))
        )
        return tuple(wanted.agg(F.count("*"), F.sum(at), F.max("subject")).collect()[0])

    def all_columns(frame: DataFrame) -> Any:
        return tuple(frame.agg(F.bit_xor(F.xxhash64(*frame.columns))).collect()[0])

    queries = dict(zip(_QUERIES, (by_outcome, of_a_session, all_columns), strict=True))
    found: dict[tuple[str, str], float] = {}
    answers: dict[tuple[str, str], Any] = {}
    for repetition in range(repetitions):
        for query, ask in queries.items():
            for reader, read in readers.items():
                if reader == _READERS[2] and repetition < repetitions - 1:
                    continue  # it takes many times as long, and nothing is decided by it
                before = _core_s()
                answers[query, reader] = ask(read())
                found[query, reader] = min(found.get((query, reader), float("inf")), _spent_s(before))
    spark.stop()
    return found, answers


def _time(at_us: int) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

    return F.timestamp_micros(F.lit(at_us))


def _deliveries(rows: int) -> Iterator[Any]:
    """Yield batches of ``deliveries``, in the order in which a stream would decide them."""
    from whimbrel.model.tables import TABLES

    schema, generator = TABLES["deliveries"].schema, np.random.default_rng(1)
    hashes = pa.array([hashlib.sha256(bytes([each])).digest() for each in range(250)], pa.binary())
    for begin in range(0, rows, _BATCH):
        count = min(_BATCH, rows - begin)
        seqs = begin + np.arange(count)
        times = _START_US + seqs * _STEP_US
        sessions = generator.integers(0, _SESSIONS, count)
        subjects = generator.zipf(1.3, count) % _SUBJECTS
        names = pa.array([f"session-{each:04}" for each in range(_SESSIONS)])
        devices = pa.array([f"device-{each:04}" for each in range(_SESSIONS)])
        topics = pa.array([f"ward/{each % 20}/bed/{each}" for each in range(_SUBJECTS)])
        columns = {
            "notification_node": pa.array(["node-1"]).take(pa.array(np.zeros(count, np.int64))),
            "notification_seq": pa.array(seqs),
            "published_at": pa.array(times - generator.integers(0, 5_000_000, count)).cast(
                schema.field("published_at").type
            ),
            "subject": topics.take(pa.array(subjects)),
            "session": names.take(pa.array(sessions)),
            "device": devices.take(pa.array(sessions)),
            "outcome": pa.array(_OUTCOMES).take(pa.array(generator.integers(0, len(_OUTCOMES), count))),
            "body_hash": hashes.take(pa.array(generator.integers(0, 250, count))),
            "decided_at": pa.array(times).cast(schema.field("decided_at").type),
        }
        kind = schema.field("subscriptions").type
        ones = pa.array([[{"subject_filter": "ward/#", "name": ""}]], kind)
        columns["subscriptions"] = ones.take(pa.array(np.zeros(count, np.int64)))
        yield pa.table(
            [columns.get(field.name, pa.nulls(count, field.type)) for field in schema],
            schema=pa.schema([field.with_nullable(True) for field in schema]),
        )


def _core_s() -> dict[int, float]:
    """Return the core seconds of each living process of this one's tree, by its id: this one, Java, Python workers."""
    known: dict[int, tuple[int, float]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 # a name is all that is needed
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
            except OSError:
                continue
            known[int(entry)] = int(stat[1]), (int(stat[11]) + int(stat[12])) / _TICKS
    own = {os.getpid()}
    while below := {pid for pid, (parent, _) in known.items() if parent in own} - own:
        own |= below
    return {pid: known[pid][1] for pid in own if pid in known}


def _spent_s(before: dict[int, float]) -> float:
    """Return the core seconds since *before*; a worker that has ended since is not counted."""
    return sum(now - before.get(pid, 0.0) for pid, now in _core_s().items())
