"""Reading: a table of a log as a DataFrame, for our own jobs.

Spark offers Python data sources neither column pruning nor vectorised Parquet, and needs a second to start one. So
Spark's own reader reads the Parquet parts. The tail that is not exported yet is read here in the driver if it is short,
and by the data source ``whimbrel`` (``source``) if it is long.

Rule: the driver reads a bounded number of rows and of bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from functools import reduce
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the usual alias
from pyspark.sql.pandas.types import to_arrow_schema

from whimbrel.log.layout import check_format, date_of, segments
from whimbrel.pipeline.files.schemas import SCHEMAS, log_table
from whimbrel.pipeline.files.snapshots import Snapshot, parts_up_to, read_undisturbed, snapshot
from whimbrel.pipeline.spark.paths import read_parquet
from whimbrel.pipeline.spark.source import Span, read_tail, register

__all__ = ["read_table"]

SMALL_TAIL, SMALL_BYTES = 50_000, 64 << 20
"""Most seqs, and most bytes of segments, of all nodes, for which the driver itself reads what is not in Parquet."""


def read_table(
    spark: SparkSession,
    directory: Path,
    table: str,
    *,
    since: int | None = None,
    until: int | None = None,
    at: Snapshot | None = None,
) -> DataFrame:
    """Return *table* of the log in *directory* at the snapshot *at* (default: now); empty if it has no rows.

    *since* and *until* are times in microseconds that leave out whole days of Parquet. This is a cheap pruning, not a
    filter: rows of the first and the last day, and of the tail, may lie outside.
    """
    directory = directory.absolute()  # Java has a working directory of its own
    check_format(directory)
    log_table(table)
    at = snapshot(directory) if at is None else at
    days = (date_of(since) if since is not None else date.min, date_of(until) if until is not None else date.max)
    chosen = [part for node in at.last for part in parts_up_to(directory, table, node, _top(at, node))]
    chosen = [part for part in chosen if days[0] <= part.date <= days[1]]
    schema = SCHEMAS[table]
    frames = [read_parquet(spark, schema, [part.path for part in chosen])] if chosen else []
    for node in {part.node for part in chosen if part.last > _top(at, part.node)}:  # merged since the snapshot
        frames = [frame.where((F.col("node") != node) | (F.col("seq") <= _top(at, node))) for frame in frames]
    tails = {node: (at.settled[node], last) for node, last in at.last.items() if at.settled[node] < last}
    if not _are_small(directory, tails):
        register(spark)
        source = spark.read.format("whimbrel").option("table", table).option("tails", json.dumps(tails))
        frames.append(source.load(str(directory)))
    elif tails or not frames:
        frames.append(_read_here(spark, directory, table, tails))
    return reduce(DataFrame.unionByName, frames)


def _are_small(directory: Path, tails: Mapping[str, tuple[int, int]]) -> bool:
    """Return whether the tails (seqs that are not in Parquet) fit into the driver: few seqs, in small segments."""
    if sum(last - settled for settled, last in tails.values()) > SMALL_TAIL:
        return False
    try:
        sizes = [path.stat().st_size for node in tails for _, path in segments(directory, node)]
    except FileNotFoundError:  # exported meanwhile; the data source handles that
        return False
    return sum(sizes) <= SMALL_BYTES


def _read_here(spark: SparkSession, directory: Path, table: str, tails: Mapping[str, tuple[int, int]]) -> DataFrame:
    """Return a table's rows of short tails (seqs that are not in Parquet), read in the driver."""
    schema = SCHEMAS[table]
    target = to_arrow_schema(schema, timezone="UTC")
    batches = read_undisturbed(
        lambda: [
            batch
            for node, (settled, last) in tails.items()
            for batch in read_tail(directory, table, Span(node, settled + 1, last), target)
        ]
    )
    rows = pa.Table.from_batches(batches, target)
    return spark.createDataFrame(rows if rows.num_rows else [], schema)


def _top(at: Snapshot, node: str) -> int:
    """Return the last seq of *node* to read from Parquet."""
    return min(at.settled[node], at.last[node])
