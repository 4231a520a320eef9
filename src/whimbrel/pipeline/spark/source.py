"""The data source ``whimbrel``: the log as a DataFrame, batch or streaming, in any SparkSession.

>>> spark.read.format("whimbrel").option("table", "publications").load("/var/lib/whimbrel")  # doctest: +SKIP

Tables that the pipeline made are read the same way, from their folder, also as a stream (``table_feed``).

Options: ``table`` (default ``publications``); ``columns``, names with commas between them, leaves out all others;
``since`` and ``until`` limit the seqs of every node to ``since`` and above, and below ``until``. For a stream,
``facts_per_batch`` limits the facts of each node in a batch. Spark prunes no columns of a Python data source, and
pushes filters down only if spark.sql.python.filterPushdown.enabled is true. ``whimbrel.spark.table`` does both.
Spark finds the format by itself (``pyspark_whimbrel``) if its Python is the one where Whimbrel is installed.

Rule: ``snapshots`` decides which rows are read, and from where: every row once, and only rows that are proven durable.
Rule: a stream's offset is the last seq that was read, per node. Seqs only grow, so after a restart only the batch that
Spark's checkpoint does not record as done is read again.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from whimbrel.errors import InvalidValueError
from whimbrel.log.columns import to_arrow
from whimbrel.log.layout import FORMAT_FILE, Part, check_format, nodes
from whimbrel.log.reader import LogReader
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.tables import TABLES
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.files.delta import check_folder
from whimbrel.pipeline.files.log_watch import LogWatch
from whimbrel.pipeline.files.part_rows import check_parts_whole
from whimbrel.pipeline.files.schemas import SCHEMAS, TIMES, log_table
from whimbrel.pipeline.files.snapshots import Snapshot, parts_up_to, settled_seq, snapshot
from whimbrel.pipeline.files.visibility import PATIENT, Patience, UnseenNumbersError
from whimbrel.pipeline.spark.pushed_filters import FilterReceiver, as_expression, may_match
from whimbrel.pipeline.spark.spark_session import is_connect, is_local
from whimbrel.pipeline.spark.table_feed import TableReader, TableStreamReader

__all__ = ["Span", "WhimbrelSource", "read_tail", "register"]

Batches: TypeAlias = Iterator[Any]
"""``pyarrow.RecordBatch``es; pyarrow ships no types."""

_BATCH_ROWS = 20_000
_TAIL_ROWS = 10_000


def register(spark: SparkSession) -> None:
    """Make the data source ``whimbrel`` known to *spark*, which finds it by itself where Whimbrel is installed.

    If no setting names the Python of the workers, local workers run the Python of this process: a notebook's Python is
    often not the first on the PATH.
    """
    if "PYSPARK_PYTHON" not in os.environ and not is_connect(spark) and is_local(spark.sparkContext.master or "local"):
        spark.sparkContext.pythonExec = sys.executable
    try:
        spark.dataSource.register(WhimbrelSource)
    except AnalysisException as error:  # Spark has found ``pyspark_whimbrel``, which nothing may replace
        if "already exists" not in str(error):
            raise


class WhimbrelSource(DataSource):
    """Spark data source of the format ``whimbrel``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "whimbrel"

    def schema(self) -> StructType:
        """Return the schema of the table that the options name."""
        name = self.options.get("table", "publications")
        whole = SCHEMAS[name if name in TABLES_MADE else log_table(name).name]
        asked = self.options.get("columns")
        if asked is None:
            return whole
        columns = [column.strip() for column in asked.split(",")]
        for column in columns:
            if column not in whole.names:
                raise InvalidValueError("option columns", column, f"some of {', '.join(whole.names)}")
        return StructType([field for field in whole if field.name in columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        made = _output_table(self.options)
        return _Reader(_parse_options(self.options), schema) if made is None else TableReader(*made, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 # Spark's name
        """Return the reader of a streaming query."""
        made = _output_table(self.options)
        return _StreamReader(_parse_options(self.options), schema) if made is None else TableStreamReader(*made, schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The checked options of a read."""

    directory: Path
    table: str
    first: int = 0
    last: int = INT64_MAX
    most: int = 0
    """Most seqs of each node in a batch of a stream; 0: no limit."""
    tails: Snapshot | None = None
    """Snapshot whose tails (seqs that are not in Parquet) are read and nothing else; None: read everything."""


def _output_table(options: Mapping[str, str]) -> tuple[Path, str] | None:
    """Return folder and name of the table if the options name an output table; None for a table of the log."""
    table = options.get("table", "publications")
    if table not in TABLES_MADE:
        return None
    out = _directory(options, f"the folder that has the table {table}, as in load('/srv/live')")
    check_folder(out, table)
    if not (out / table / "_delta_log").is_dir():
        there = ", ".join(name for name in TABLES_MADE if (out / name / "_delta_log").is_dir())
        raise InvalidValueError(f"table in {out}", table, there or "none: there are no tables")
    return out, table


def _directory(options: Mapping[str, str], allowed: str) -> Path:
    text = options.get("path", "")
    plain = text.removeprefix("file://").removeprefix("file:")
    if not plain or _URL.match(plain):
        raise InvalidValueError("path", text or None, allowed)
    return Path(plain).absolute()


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://?")


def _parse_options(options: Mapping[str, str]) -> _Asked:
    directory = _directory(options, "the directory of a log, or a broker's --data, as in load('/var/lib/whimbrel')")
    if not (directory / FORMAT_FILE).is_file() and (directory / "log" / FORMAT_FILE).is_file():
        directory /= "log"
    check_format(directory)
    return _Asked(
        directory=directory,
        table=log_table(options.get("table", "publications")).name,
        most=_seq(options, "facts_per_batch", 0),
        first=_seq(options, "since", 0),
        last=_seq(options, "until", INT64_MAX) - 1,
        tails=_tails(options.get("tails")),
    )


def _tails(text: str | None) -> Snapshot | None:
    """Parse the option ``tails`` of ``read_table``: per node, the last seq in Parquet and the last seq to read."""
    if text is None:
        return None
    found = json.loads(text)
    return Snapshot({node: pair[0] for node, pair in found.items()}, {node: pair[1] for node, pair in found.items()})


def _seq(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) > INT64_MAX:
        raise InvalidValueError(f"option {name}", text, "a sequence number")
    return int(text)


@dataclass(frozen=True)
class Span(InputPartition):
    """A range of seqs of one node, in the Parquet file *path*; without it, in segments when the read was planned."""

    node: str
    first: int
    last: int
    path: Path | None = None


class _Reader(DataSourceReader):
    def __init__(self, asked: _Asked, schema: StructType) -> None:
        self._asked, self._schema = asked, schema
        self._pushed = FilterReceiver(to_arrow_schema(schema, timezone="UTC"))
        self.pushFilters = self._pushed  # type: ignore[method-assign]  # see FilterReceiver

    def partitions(self) -> list[InputPartition]:
        asked = self._asked
        at = asked.tails or snapshot(asked.directory)
        spans = [
            span
            for node in at.last
            for span in _spans(asked, at, node, asked.first, asked.last)
            if may_match(self._pushed.conditions, {"node": node, "seq": span.first}, {"node": node, "seq": span.last})
        ]
        # Without partitions Spark would call ``read`` with None; an empty span gives an empty read.
        return list(spans) or [Span("", 0, -1)]

    def read(self, partition: InputPartition) -> Batches:
        assert isinstance(partition, Span)
        rows = _read(self._asked, partition, self._schema)
        wanted = as_expression(self._pushed.conditions, to_arrow_schema(self._schema, timezone="UTC"))
        return rows if wanted is None else _filter_rows(rows, wanted)


class _StreamReader(DataSourceStreamReader):
    def __init__(self, asked: _Asked, schema: StructType) -> None:
        self._asked, self._schema = asked, schema
        self._watch = LogWatch(self._asked.directory)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's name
        return dict.fromkeys(nodes(self._asked.directory), self._asked.first - 1)

    def latestOffset(self, start: dict[str, int] | None = None, limit: object = None) -> dict[str, int]:  # noqa: N802 # Spark's name
        """Return the last seq of each node for the next batch; Spark before 4.2 passes no arguments."""
        asked, known = self._asked, start or {}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else INT64_MAX
        latest = {node: min(last, asked.last) for node, last in snapshot(asked.directory, self._watch).last.items()}
        found: dict[str, int] = {}
        for node in latest | known:
            begun = known.get(node, asked.first - 1)
            found[node] = max(min(latest.get(node, -1), begun + most), begun)
        return found

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 # Spark's name
        return ReadMaxRows(self._asked.most) if self._asked.most else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's name
        return dict(snapshot(self._asked.directory, self._watch).last)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        asked = self._asked
        at = snapshot(asked.directory, self._watch)
        spans: list[InputPartition] = []
        for node, last in sorted(end.items()):
            first = start.get(node, asked.first - 1) + 1
            if first <= last and at.last.get(node, -1) < last:
                raise UnseenNumbersError(asked.directory, node, max(first, at.last.get(node, -1) + 1), last)
            if node in at.last:
                spans += _spans(asked, at, node, first, last)
        return spans

    def read(self, partition: InputPartition) -> Batches:
        assert isinstance(partition, Span)
        return _read(self._asked, partition, self._schema)


# -- where rows are --------------------------------------------------------------------------------------------------


def _spans(asked: _Asked, at: Snapshot, node: str, first: int, last: int) -> Iterator[Span]:
    """Yield the ranges (spans) to read for the seqs *first* to *last* of *node*: one per file, and one in segments."""
    settled = at.settled[node]
    if asked.tails is None:
        for part in parts_up_to(asked.directory, asked.table, node, settled):
            begin, end = max(first, part.first), min(last, part.last, settled)
            if begin <= end:
                yield Span(node, begin, end, part.path)
    begin, end = max(first, settled + 1), min(last, at.last[node])
    if begin <= end:
        yield Span(node, begin, end)


def _read(asked: _Asked, span: Span, schema: StructType) -> Batches:
    target = to_arrow_schema(schema, timezone="UTC")
    if span.last < span.first:
        return
    if span.path is not None:
        yield from _part_batches(span.path, asked.table, span, target)
        return
    yield from read_tail(asked.directory, asked.table, span, target)


def read_tail(
    directory: Path,
    table: str,
    span: Span,
    target: Any,  # a pyarrow.Schema
    *,
    patience: Patience = PATIENT,
) -> Batches:
    """Yield all of a table's rows of a span (range of seqs), with the schema *target*.

    The span was in segments when the read was planned. It may have been exported meanwhile, and its segments removed.
    Seqs that are not visible yet are waited for; then ``UnseenNumbersError`` is raised.
    """
    exported, parts = patience.wait_for(partial(_exported_part, directory, table, span))
    for part in parts:
        yield from _part_batches(part.path, table, exported, target)
    if exported.last < span.last:
        tail = Span(span.node, exported.last + 1, span.last)
        yield from _segment_batches(directory, table, tail, target, patience)


def _exported_part(directory: Path, table: str, span: Span) -> tuple[Span, list[Part]]:
    """Return the beginning of *span* that is in Parquet by now, and the table's Parquet files for these seqs."""
    node, settled = span.node, settled_seq(directory, span.node)
    found = Span(node, span.first, min(span.last, settled))
    if found.last < found.first:
        return Span(node, span.first, span.first - 1), []
    parts = {name: parts_up_to(directory, name, node, settled) for name in TIMES}
    check_parts_whole(directory, node, chain.from_iterable(parts.values()), found.first, found.last)
    own = [part for part in parts.get(table, ()) if part.first <= found.last and found.first <= part.last]
    return found, own


def _part_batches(path: Path, table: str, span: Span, target: Any) -> Batches:  # a pyarrow.Schema
    """Yield the rows of a Parquet file within *span*; its row groups outside *span* are not read."""
    wanted = (pc.field("seq") >= span.first) & (pc.field("seq") <= span.last)
    # Parts of an older Whimbrel lack the newest columns; with the schema given, these are null.
    source = pads.dataset(path, schema=TABLES[table].schema, format="parquet", partitioning=None)
    for batch in source.to_batches(columns=target.names, filter=wanted, batch_size=_BATCH_ROWS, use_threads=False):
        if batch.num_rows:
            yield _fit_schema(batch, target)


def _segment_batches(
    directory: Path,
    table: str,
    span: Span,
    target: Any,  # a pyarrow.Schema
    patience: Patience,
) -> Batches:
    reader = LogReader(directory, span.node, first=span.first)
    while reader.next_seq <= span.last:
        reader.extend(min(span.last, reader.next_seq + _TAIL_ROWS - 1))
        found = patience.wait_for(partial(_some_rows, reader, directory, span.last))
        rows = [row for own, row in found if own == table]
        if rows:
            yield from _batches(to_arrow(table, rows), target)


def _some_rows(reader: LogReader, directory: Path, last: int) -> list[tuple[str, dict[str, object]]]:
    """Return the next rows of *reader*, as pairs (table, row); raise ``UnseenNumbersError`` if the next seq is missing.

    Rows are of all tables; the first must have the next seq.
    """
    first = reader.next_seq
    found = list(reader.rows())
    if not found or found[0][1]["seq"] != first:
        raise UnseenNumbersError(directory, reader.node, first, last)
    return found


def _batches(table: Any, target: Any) -> Batches:  # a pyarrow.Table and a pyarrow.Schema
    for batch in table.to_batches():
        yield _fit_schema(batch, target)


def _filter_rows(batches: Batches, wanted: Any) -> Batches:  # a pyarrow expression
    for batch in batches:
        yield from pa.Table.from_batches([batch]).filter(wanted).to_batches()


def _fit_schema(batch: Any, target: Any) -> Any:  # pyarrow's
    """Return *batch* with exactly the schema *target*: Spark compares columns, types and nullability."""
    arrays = (batch.column(field.name) for field in target)
    return pa.RecordBatch.from_arrays(
        [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(arrays, target, strict=True)
        ],
        schema=target,
    )
