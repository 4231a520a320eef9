"""Reading: the tables of a log as our own jobs read them, whole or of some numbers.

Spark gives sources in Python neither column pruning nor vectorised Parquet, and takes a second to ask one. So Spark's
own reader has the parts, a short tail that is not exported yet is read here, in the driver, and the format ``whimbrel``
(``source``) is for a long one.

Rule: what is read here is bounded in rows and in bytes.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from datetime import date
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.dataset as pads
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.pandas.types import to_arrow_schema

from whimbrel.log.columns import to_arrow
from whimbrel.log.layout import check_format, date_of, segments
from whimbrel.log.reader import LogReader
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.schemas import SCHEMAS, TIMES, log_table
from whimbrel.pipeline.snapshots import Snapshot, parts_up_to, settled_seq, snapshot, undisturbed
from whimbrel.pipeline.source import Span, read_tail, register

__all__ = ["Found", "SpanRows", "Spans", "Tails", "read_spans", "read_table"]

Spans: TypeAlias = Mapping[str, tuple[int, int]]
"""By node, the first and the last number."""
_NAMELESS = pads.field("node").is_null() | pads.field("seq").is_null()
SMALL_TAIL, SMALL_BYTES = 50_000, 64 << 20
"""Tails of no more numbers than this, of all nodes, in segments that are not larger, are read in the driver."""


def read_table(
    spark: SparkSession,
    directory: Path,
    table: str,
    *,
    since: int | None = None,
    until: int | None = None,
    at: Snapshot | None = None,
) -> DataFrame:
    """Return the *table* of the log in *directory* as it was *at* a moment (now); what is not there is empty.

    *since* and *until* are times in microseconds that leave out whole days of Parquet: a cheap first cut and no filter,
    so rows of the first and the last day, and of the tail, may lie outside.
    """
    directory = directory.absolute()  # Java has a working directory of its own
    check_format(directory)
    log_table(table)
    at = snapshot(directory) if at is None else at
    days = (date_of(since) if since is not None else date.min, date_of(until) if until is not None else date.max)
    chosen = [part for node in at.last for part in parts_up_to(directory, table, node, _top(at, node))]
    chosen = [part for part in chosen if days[0] <= part.date <= days[1]]
    schema = SCHEMAS[table]
    paths = [str(part.path) for part in chosen]
    frames = [spark.read.schema(schema).parquet(*paths)] if paths else []
    for node in {part.node for part in chosen if part.last > _top(at, part.node)}:  # merged with newer ones since
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
    """Tell whether tails fit into the driver's memory, whatever stands in them."""
    if sum(last - settled for settled, last in tails.values()) > SMALL_TAIL:
        return False
    try:
        sizes = [path.stat().st_size for node in tails for _, path in segments(directory, node)]
    except FileNotFoundError:  # one was exported meanwhile; whoever reads them finds out
        return False
    return sum(sizes) <= SMALL_BYTES


def _read_here(spark: SparkSession, directory: Path, table: str, tails: Mapping[str, tuple[int, int]]) -> DataFrame:
    """Return a table's rows of small tails."""
    schema = SCHEMAS[table]
    target = to_arrow_schema(schema, timezone="UTC")
    batches = undisturbed(
        lambda: [
            batch
            for node, (settled, last) in tails.items()
            for batch in read_tail(directory, table, Span(node, settled + 1, last), target)
        ]
    )
    rows = pa.Table.from_batches(batches, target)
    return spark.createDataFrame(rows if rows.num_rows else [], schema)


def _top(at: Snapshot, node: str) -> int:
    """Return the last number of *node* that is to be read from Parquet."""
    return min(at.settled[node], at.last[node])


class _Tail(NamedTuple):
    """What was read of the ends of logs."""

    settled: dict[str, int]
    """By node, up to which number Parquet is the truth."""
    spans: dict[str, tuple[int, int]]
    """What was asked for, up to where the reading ended."""
    rows: dict[str, list[dict[str, object]]]
    """By table, those after what is settled."""


class Tails:
    """The ends of logs that are not Parquet yet, for a stream: read on from where it was before."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._readers: dict[str, LogReader] = {}

    def read(self, spans: Spans, most_bytes: int | None = None) -> _Tail:
        """Return what *spans* have after Parquet; of each node it ends with the record that makes *most_bytes* full."""
        return undisturbed(partial(self._read, spans, most_bytes))

    def _read(self, spans: Spans, most_bytes: int | None) -> _Tail:
        found = _Tail({node: settled_seq(self._directory, node) for node in spans}, dict(spans), {})
        try:
            for node, (first, last) in spans.items():
                begin = max(first, found.settled[node] + 1)
                if begin <= last:
                    end = self._read_node(node, begin, last, most_bytes, found.rows)
                    found.spans[node] = (first, end)
            if any(settled_seq(self._directory, node) != settled for node, settled in found.settled.items()):
                raise FileNotFoundError("an export went on meanwhile, and may have removed what was to be read")
        except FileNotFoundError:
            self._readers.clear()
            raise
        return found

    def _read_node(
        self, node: str, first: int, last: int, most_bytes: int | None, rows: dict[str, list[dict[str, object]]]
    ) -> int:
        """Put what there is into *rows*, and return the number that it ends with."""
        reader = self._readers.get(node)
        if reader is None or reader.next_seq != first:
            reader = self._readers[node] = LogReader(self._directory, node, first=first)
        reader.extend(last)
        until = None if most_bytes is None else reader.read_bytes + most_bytes
        for table, row in reader.rows():
            rows.setdefault(table, []).append(row)
            if until is not None and reader.read_bytes >= until:
                return reader.next_seq - 1
        return last


class SpanRows(NamedTuple):
    """What there is of a table in some spans."""

    frame: DataFrame
    number: int | None
    """How many rows; None if they could not be counted."""


class Found(NamedTuple):
    """What there is in some spans."""

    spans: Spans
    """Which numbers; fewer than were asked for, if these have too many bytes."""
    tables: dict[str, SpanRows]
    """Those that have rows."""


def read_spans(
    spark: SparkSession, directory: Path, spans: Spans, tails: Tails, *, most_bytes: int | None = None
) -> Found:
    """Return the tables of the log that have rows with the numbers of *spans*.

    What is Parquet already, Spark reads; the rest, which is what a stream has just been told of, is read here, once for
    all tables, and of no more than *most_bytes* of all nodes together, but for one record of each.
    """
    directory = directory.absolute()
    share = None if most_bytes is None else most_bytes // max(len(spans), 1)
    settled, spans, rows = tails.read(spans, share)
    found: dict[str, SpanRows] = {}
    for table in TIMES:
        schema = SCHEMAS[table]
        paths: list[str] = []
        begun: list[str] = []
        wanted: list[tuple[str, int, int]] = []
        for node, (first, last) in spans.items():
            top = min(settled[node], last)
            chosen = [part for part in parts_up_to(directory, table, node, top) if part.last >= first]
            if first <= top and chosen:
                paths += [str(part.path) for part in chosen]
                begun += [str(part.path) for part in chosen if part.first >= first]
                wanted.append((node, first, top))
        frames = [spark.read.schema(schema).parquet(*paths).where(_has_one_of(wanted))] if paths else []
        if begun:  # a row that does not say which it is belongs to the batch in which its part begins, to be told once
            nameless = F.col("node").isNull() | F.col("seq").isNull()  # as _NAMELESS
            frames.append(spark.read.schema(schema).parquet(*begun).where(nameless))
        if table in rows:
            frames.append(spark.createDataFrame(to_arrow(table, rows[table]), schema))
        if frames:
            exported = _counted(table, paths, _to_count(wanted)), _counted(table, begun, _NAMELESS)
            number = None if None in exported else sum(each or 0 for each in exported) + len(rows.get(table, ()))
            found[table] = SpanRows(reduce(DataFrame.unionByName, frames), number)
    return Found(spans, found)


def _has_one_of(spans: list[tuple[str, int, int]]) -> Column:
    """Return the condition that a row has one of some numbers, for Spark."""
    each = ((F.col("node") == node) & F.col("seq").between(first, last) for node, first, last in spans)
    return reduce(Column.__or__, each)


def _to_count(spans: list[tuple[str, int, int]]) -> Any:  # a pyarrow.dataset.Expression
    """Return the same condition for Arrow, which counts what Spark reads."""
    seq, none = pads.field("seq"), pads.scalar(False)
    each = ((pads.field("node") == node) & (seq >= first) & (seq <= last) for node, first, last in spans)
    return reduce(operator.or_, each, none)


def _counted(table: str, paths: list[str], which: Any) -> int | None:  # a pyarrow.dataset.Expression
    """Return how many rows of some parts are wanted, without Spark, which takes longer to be asked than to answer."""
    schema = pa.schema([TABLES[table].schema.field(name) for name in ("node", "seq")])
    try:
        return int(pads.dataset(paths, schema=schema, format="parquet").count_rows(filter=which)) if paths else 0
    except (OSError, pa.ArrowException):  # it was put together with others meanwhile, or others wrote it
        return None
