"""The source: the log as a DataFrame, batch or streaming, in anybody's SparkSession.

>>> register(spark)                                                                        # doctest: +SKIP
>>> spark.read.format("whimbrel").option("table", "publications").load("/var/lib/whimbrel")  # doctest: +SKIP

Options: ``table`` (``publications`` unless said otherwise), ``since`` and ``until``: of every node only the numbers
(``seq``) from the one on and below the other.

Rule: every row once. Parquet is the truth up to what the node says is exported, its segments after that; a part that
an export is still making, or that a larger one has replaced, is not looked at.
Rule: nothing that a crash could take back is read from segments.
Rule: a stream's offset is, by node, the last number read. Numbers only grow, so a restart reads each row once more at
most as Spark's checkpoint says.

Spark gives Python sources neither column pruning nor vectorised Parquet, so our own jobs use ``read_table``: Spark's
native reader for the parts, and this source only for the tail that is not exported yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from whimbrel.errors import InvalidValueError
from whimbrel.log.layout import Part, check_format, date_of, exported_seq, nodes, parts, segments
from whimbrel.log.reader import proven_seq
from whimbrel.model.bounds import INT64_MAX
from whimbrel.pipeline.schemas import SCHEMAS, log_table

__all__ = ["WhimbrelSource", "last_date", "read_table", "register"]

Batches: TypeAlias = Iterator[Any]
"""``pyarrow.RecordBatch``es; pyarrow ships no types."""

_BATCH_ROWS = 20_000
_TAIL_ROWS = 10_000


def register(spark: SparkSession) -> None:
    """Let *spark* know the format ``whimbrel``."""
    spark.dataSource.register(WhimbrelSource)


def read_table(
    spark: SparkSession, directory: Path, table: str, *, since: int | None = None, until: int | None = None
) -> DataFrame:
    """Return the *table* of the log in *directory*; what is not there is empty.

    *since* and *until* are times in microseconds that leave out whole days of Parquet: a cheap first cut and no filter,
    so rows of the first and the last day, and of the tail, may lie outside.
    """
    directory = directory.absolute()  # Java has a working directory of its own
    check_format(directory)
    log_table(table)
    days = (date_of(since) if since is not None else date.min, date_of(until) if until is not None else date.max)
    paths = [str(part.path) for part in _whole_parts(directory, table) if days[0] <= part.date <= days[1]]
    schema = SCHEMAS[table]
    frame = spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)
    if any(_tail_of(directory, node) for node in nodes(directory)):
        register(spark)
        source = spark.read.format("whimbrel").option("table", table).option("tail", "true")
        frame = frame.unionByName(source.load(str(directory)))
    return frame


def last_date(directory: Path, table: str) -> date | None:
    """Return the last day of which *table* has a part."""
    return max((part.date for part in parts(directory, table)), default=None)


class WhimbrelSource(DataSource):
    """The format ``whimbrel``."""

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` calls it."""
        return "whimbrel"

    def schema(self) -> StructType:
        """Return the schema of the table that the options name."""
        return SCHEMAS[log_table(self.options.get("table", "publications")).name]

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        return _Reader(_asked(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 # Spark's name
        """Return the reader of a stream."""
        return _StreamReader(_asked(self.options), schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The options, checked."""

    directory: Path
    table: str
    first: int
    last: int
    is_tail_only: bool


def _asked(options: Mapping[str, str]) -> _Asked:
    if "path" not in options:
        raise InvalidValueError("path", None, "the directory of a log, as in load('/var/lib/whimbrel')")
    directory = Path(options["path"].removeprefix("file://").removeprefix("file:")).absolute()
    check_format(directory)
    return _Asked(
        directory=directory,
        table=log_table(options.get("table", "publications")).name,
        first=_seq(options, "since", 0),
        last=_seq(options, "until", INT64_MAX) - 1,
        is_tail_only=options.get("tail", "false") == "true",
    )


def _seq(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) > INT64_MAX:
        raise InvalidValueError(f"option {name}", text, "a sequence number")
    return int(text)


@dataclass(frozen=True)
class _Span(InputPartition):
    """Numbers of one node, to be read from one part, or (without one) from wherever they are by then."""

    node: str
    first: int
    last: int
    path: Path | None = None


class _Reader(DataSourceReader):
    def __init__(self, asked: _Asked, schema: StructType) -> None:
        self._asked, self._schema = asked, schema

    def partitions(self) -> list[InputPartition]:
        asked = self._asked
        spans = [span for node in nodes(asked.directory) for span in _spans(asked, node, asked.first, asked.last)]
        # Spark makes of no partition one whose value is None; of an empty one, an empty read.
        return list(spans) or [_Span("", 0, -1)]

    def read(self, partition: InputPartition) -> Batches:
        assert isinstance(partition, _Span)
        return _read(self._asked, partition, self._schema)


class _StreamReader(DataSourceStreamReader):
    def __init__(self, asked: _Asked, schema: StructType) -> None:
        self._asked, self._schema = asked, schema

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's name
        return dict.fromkeys(nodes(self._asked.directory), self._asked.first - 1)

    def latestOffset(self, start: dict[str, int] | None = None, limit: object = None) -> dict[str, int]:  # noqa: N802 # Spark's name
        """Return the last number of each node; Spark before 4.2 passes nothing."""
        del limit
        asked, known = self._asked, start or {}
        latest = {node: min(_last_seq(asked, node), asked.last) for node in nodes(asked.directory)}
        return {node: max(latest.get(node, -1), known.get(node, asked.first - 1)) for node in latest | known}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        asked = self._asked
        return [
            span
            for node, last in sorted(end.items())
            for span in _spans(asked, node, start.get(node, asked.first - 1) + 1, last)
        ]

    def read(self, partition: InputPartition) -> Batches:
        assert isinstance(partition, _Span)
        return _read(self._asked, partition, self._schema)


# -- where rows are --------------------------------------------------------------------------------------------------


def _settled_seq(directory: Path, node: str) -> int:
    """Return up to which number Parquet is the truth of *node*: what came before its segments, or was exported."""
    live = segments(directory, node)
    return max(exported_seq(directory, node), live[0][0] - 1) if live else INT64_MAX


def _whole_parts(directory: Path, table: str) -> list[Part]:
    """Return the parts whose export is complete, each row once."""
    settled = {node: _settled_seq(directory, node) for node in nodes(directory)}  # before listing: exports go on
    return [part for part in parts(directory, table) if part.last <= settled.get(part.node, -1)]


def _tail_of(directory: Path, node: str) -> tuple[int, int] | None:
    """Return the first and the last number of *node* that are only in segments."""
    if not segments(directory, node):
        return None
    first, last = _settled_seq(directory, node) + 1, proven_seq(directory, node)
    return (first, last) if first <= last else None


def _last_seq(asked: _Asked, node: str) -> int:
    own = (part.last for part in _whole_parts(asked.directory, asked.table) if part.node == node)
    tail = _tail_of(asked.directory, node)
    return max(*own, -1, -1) if tail is None else tail[1]


def _spans(asked: _Asked, node: str, first: int, last: int) -> Iterator[_Span]:
    """Yield what to read of *node* for the numbers *first* to *last*."""
    tail = _tail_of(asked.directory, node)
    if not asked.is_tail_only:
        for part in _whole_parts(asked.directory, asked.table):
            if part.node == node and part.first <= last and first <= part.last:
                yield _Span(node, max(first, part.first), min(last, part.last), part.path)
    if tail is not None and tail[0] <= last and first <= tail[1]:
        yield _Span(node, max(first, tail[0]), min(last, tail[1]))


def _read(asked: _Asked, span: _Span, schema: StructType) -> Batches:
    target = to_arrow_schema(schema, timezone="UTC")
    if span.last < span.first:
        return
    if span.path is not None:
        yield from _part_batches(span.path, span, target)
        return
    # What was a tail when the read was planned may be Parquet by now, and its segments gone.
    settled = _settled_seq(asked.directory, span.node)
    for part in _whole_parts(asked.directory, asked.table):
        if part.node == span.node and part.first <= span.last and span.first <= part.last:
            yield from _part_batches(part.path, span, target)
    first = max(span.first, settled + 1)
    if first <= span.last:
        yield from _tail_batches(asked, span.node, first, span.last, target)


def _part_batches(path: Path, span: _Span, target: Any) -> Batches:  # a pyarrow.Schema
    """Read a part; its row groups carry the range of their numbers, so a narrow span is a narrow read."""
    wanted = (pc.field("seq") >= span.first) & (pc.field("seq") <= span.last)
    source = pads.dataset(path, format="parquet", partitioning=None)
    for batch in source.to_batches(columns=target.names, filter=wanted, batch_size=_BATCH_ROWS, use_threads=False):
        if batch.num_rows:
            yield _fitted(batch, target)


def _tail_batches(asked: _Asked, node: str, first: int, last: int, target: Any) -> Batches:  # a pyarrow.Schema
    from whimbrel.log.columns import to_arrow  # only tails need it
    from whimbrel.log.reader import read_rows

    rows: list[dict[str, object]] = []
    for table, row in read_rows(asked.directory, node, first=first, last=last):
        if table == asked.table:
            rows.append(row)
        if len(rows) == _TAIL_ROWS:
            yield from _batches(to_arrow(asked.table, rows), target)
            rows = []
    if rows:
        yield from _batches(to_arrow(asked.table, rows), target)


def _batches(table: Any, target: Any) -> Batches:  # a pyarrow.Table and a pyarrow.Schema
    for batch in table.to_batches():
        yield _fitted(batch, target)


def _fitted(batch: Any, target: Any) -> Any:  # pyarrow's
    """Return *batch* with the columns, types and nullability that Spark was promised; it compares them exactly."""
    arrays = (batch.column(field.name) for field in target)
    return pa.RecordBatch.from_arrays(
        [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(arrays, target, strict=True)
        ],
        schema=target,
    )
