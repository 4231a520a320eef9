"""The source: the log as a DataFrame, batch or streaming, in anybody's SparkSession.

>>> register(spark)                                                                        # doctest: +SKIP
>>> spark.read.format("whimbrel").option("table", "publications").load("/var/lib/whimbrel")  # doctest: +SKIP

Options: ``table`` (``publications`` unless said otherwise), ``since`` and ``until``: of every node only the numbers
(``seq``) from the one on and below the other. A stream may have ``facts_per_batch``, which bounds its batches. The
table ``spans`` has no rows of the log, but says which numbers of each node there are: a stream of it is the log's
heartbeat, and whoever is given a span reads of each table what it needs (``read_span``).

Rule: every row once. Parquet is the truth up to what the node says is exported, its segments after that; a part that
an export is still making, or that a larger one has replaced, is not looked at.
Rule: nothing that a crash could take back is read from segments.
Rule: a stream's offset is, by node, the last number read. Numbers only grow, so a restart reads each row once more at
most as Spark's checkpoint says.

Spark gives Python sources neither column pruning nor vectorised Parquet, so our own jobs use ``read_table``: Spark's
native reader for the parts, and this source only for a tail that is not exported yet and long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from whimbrel.errors import InvalidValueError
from whimbrel.log.columns import to_arrow
from whimbrel.log.layout import Part, check_format, date_of, exported_seq, nodes, parts, segments
from whimbrel.log.parts import statistics
from whimbrel.log.reader import Frontier, LogReader, read_rows
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.schemas import SCHEMAS, TIMES, log_table

__all__ = [
    "SPANS",
    "Snapshot",
    "SpanRows",
    "Tails",
    "WhimbrelSource",
    "first_number",
    "last_date",
    "read_span",
    "read_table",
    "register",
    "snapshot",
]

Batches: TypeAlias = Iterator[Any]
"""``pyarrow.RecordBatch``es; pyarrow ships no types."""

T = TypeVar("T")

SPANS = "spans"
"""The table that says what there is."""
_SPANS_SCHEMA = pa.schema([("node", pa.string()), ("first", pa.int64()), ("last", pa.int64())])
_NAMELESS = pads.field("node").is_null() | pads.field("seq").is_null()
_BATCH_ROWS = 20_000
_TAIL_ROWS = 10_000
_TRIES = 100
SMALL_TAIL, _SMALL_BYTES = 50_000, 64 << 20
"""Tails of no more numbers than this, of all nodes, in segments that are not larger, are read in the driver."""


def register(spark: SparkSession) -> None:
    """Let *spark* know the format ``whimbrel``."""
    spark.dataSource.register(WhimbrelSource)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there is of a log at one moment: every table read at it ends at the same number of each node."""

    settled: dict[str, int]
    """By node, up to which number Parquet is the truth."""
    last: dict[str, int]
    """By node, the last number there is."""


def snapshot(directory: Path, frontiers: dict[str, Frontier] | None = None) -> Snapshot:
    """Return what there is now; facts that come later, and exports that move them, change nothing that reads it.

    *frontiers* is for whoever asks again and again, and wants only what is new looked at; it is kept up to date.
    """
    check_format(directory)  # a folder that is no log, or no longer there, is not a log without facts
    frontiers = {} if frontiers is None else frontiers
    settled: dict[str, int] = {}
    last: dict[str, int] = {}
    for node in nodes(directory):
        settled[node] = _settled_seq(directory, node)
        if segments(directory, node):
            last[node] = frontiers.setdefault(node, Frontier(directory, node)).seq()
        else:
            exported = (part.last for table in TIMES for part in parts(directory, table) if part.node == node)
            last[node] = max(exported, default=-1)
    return Snapshot(settled, last)


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
    chosen = [part for node in at.last for part in _parts_up_to(directory, table, node, _top(at, node))]
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
    return sum(sizes) <= _SMALL_BYTES


def _read_here(spark: SparkSession, directory: Path, table: str, tails: Mapping[str, tuple[int, int]]) -> DataFrame:
    """Return a table's rows of small tails: a source in Python takes a second to be asked, these milliseconds."""
    schema = SCHEMAS[table]
    asked = _Asked(directory=directory, table=table)
    spans = [_Span(node, settled + 1, last) for node, (settled, last) in tails.items()]
    batches = _undisturbed(lambda: [batch for span in spans for batch in _read(asked, span, schema)])
    rows = pa.Table.from_batches(batches, to_arrow_schema(schema, timezone="UTC"))
    return spark.createDataFrame(rows if rows.num_rows else [], schema)


def _undisturbed(read: Callable[[], T]) -> T:
    """Return what *read* does, again if a file goes meanwhile: an export, a merge or retention went on.

    None of them goes on for ever; what is still missing after many tries is missing.
    """
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            return read()
    return read()


class Tails:
    """The ends of logs that are not Parquet yet, for a stream: read on from where it was before."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._readers: dict[str, LogReader] = {}

    def read(self, spans: Mapping[str, tuple[int, int]]) -> tuple[dict[str, int], dict[str, list[dict[str, object]]]]:
        """Return, by node, up to which number Parquet is the truth, and by table the rows of *spans* after it."""
        return _undisturbed(partial(self._read, spans))

    def _read(self, spans: Mapping[str, tuple[int, int]]) -> tuple[dict[str, int], dict[str, list[dict[str, object]]]]:
        settled = {node: _settled_seq(self._directory, node) for node in spans}
        rows: dict[str, list[dict[str, object]]] = {}
        try:
            for node, (first, last) in spans.items():
                for table, row in self._rows(node, max(first, settled[node] + 1), last):
                    rows.setdefault(table, []).append(row)
            if any(_settled_seq(self._directory, node) != settled[node] for node in spans):
                raise FileNotFoundError("an export went on meanwhile, and may have removed what was to be read")
        except FileNotFoundError:
            self._readers.clear()
            raise
        return settled, rows

    def _rows(self, node: str, first: int, last: int) -> Iterator[tuple[str, dict[str, object]]]:
        if first > last:
            return iter(())
        reader = self._readers.get(node)
        if reader is None or reader.next_seq != first:
            reader = self._readers[node] = LogReader(self._directory, node, first=first)
        reader.extend(last)
        return reader.rows()


class SpanRows(NamedTuple):
    """What there is of a table in some spans."""

    frame: DataFrame
    number: int | None
    """How many rows; None if they could not be counted."""


def read_span(
    spark: SparkSession, directory: Path, spans: Mapping[str, tuple[int, int]], tails: Tails | None = None
) -> dict[str, SpanRows]:
    """Return the tables of the log that have rows with the numbers of *spans*, by node from the first to the last.

    What is Parquet already, Spark reads; the rest, which is what a stream has just been told of, is read here, once for
    all tables: a source in Python takes a second to be asked for each.
    """
    directory = directory.absolute()
    settled, rows = (tails or Tails(directory)).read(spans)
    found: dict[str, SpanRows] = {}
    for table in TIMES:
        schema = SCHEMAS[table]
        paths: list[str] = []
        begun: list[str] = []
        wanted, to_count = F.lit(False), pads.scalar(False)
        for node, (first, last) in spans.items():
            top = min(settled[node], last)
            chosen = [part for part in _parts_up_to(directory, table, node, top) if part.last >= first]
            if first <= top and chosen:
                paths += [str(part.path) for part in chosen]
                begun += [str(part.path) for part in chosen if part.first >= first]
                wanted |= (F.col("node") == node) & F.col("seq").between(first, top)
                seq = pads.field("seq")
                to_count |= (pads.field("node") == node) & (seq >= first) & (seq <= top)
        frames = [spark.read.schema(schema).parquet(*paths).where(wanted)] if paths else []
        if begun:  # a row that does not say which it is belongs to the batch in which its part begins, to be told once
            nameless = F.col("node").isNull() | F.col("seq").isNull()  # as _NAMELESS
            frames.append(spark.read.schema(schema).parquet(*begun).where(nameless))
        if table in rows:
            frames.append(spark.createDataFrame(to_arrow(table, rows[table]), schema))
        if frames:
            exported = _counted(table, paths, to_count), _counted(table, begun, _NAMELESS)
            number = None if None in exported else sum(each or 0 for each in exported) + len(rows.get(table, ()))
            found[table] = SpanRows(reduce(DataFrame.unionByName, frames), number)
    return found


def _counted(table: str, paths: list[str], which: Any) -> int | None:  # a pyarrow.dataset.Expression
    """Return how many rows of some parts are wanted, without Spark, which takes longer to be asked than to answer."""
    schema = pa.schema([TABLES[table].schema.field(name) for name in ("node", "seq")])
    try:
        return int(pads.dataset(paths, schema=schema, format="parquet").count_rows(filter=which)) if paths else 0
    except (OSError, pa.ArrowException):  # it was put together with others meanwhile, or others wrote it
        return None


def first_number(directory: Path, node: str) -> int:
    """Return the first number of a node's log that is there: what came before it may have been cut (``retention``)."""
    return _undisturbed(partial(_first_number, directory, node))


def _first_number(directory: Path, node: str) -> int:
    settled = _settled_seq(directory, node)
    oldest = [own[0] for table in TIMES if (own := _parts_up_to(directory, table, node, settled))]
    # A segment whose facts are exported does not count: they are read from Parquet, and that may have been cut.
    return min(map(_least_number, oldest), default=0 if settled == INT64_MAX else settled + 1)


def _least_number(part: Part) -> int:
    """Return the first number in a part; its name says that of an export, of which this may be a later day."""
    _, found = statistics(part.path, ("seq",))
    return int(found["seq"][0]) if "seq" in found else part.first


def _top(at: Snapshot, node: str) -> int:
    """Return the last number of *node* that is to be read from Parquet."""
    return min(at.settled[node], at.last[node])


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
        table = self.options.get("table", "publications")
        return from_arrow_schema(_SPANS_SCHEMA) if table == SPANS else SCHEMAS[log_table(table).name]

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
    first: int = 0
    last: int = INT64_MAX
    most: int = 0
    """How many numbers of each node a batch of a stream has at most; 0: all there are."""
    tails: Snapshot | None = None
    """If given, nothing but the tails that it has."""


def _asked(options: Mapping[str, str]) -> _Asked:
    if "path" not in options:
        raise InvalidValueError("path", None, "the directory of a log, as in load('/var/lib/whimbrel')")
    directory = Path(options["path"].removeprefix("file://").removeprefix("file:")).absolute()
    check_format(directory)
    table = options.get("table", "publications")
    return _Asked(
        directory=directory,
        table=table if table == SPANS else log_table(table).name,
        most=_seq(options, "facts_per_batch", 0),
        first=_seq(options, "since", 0),
        last=_seq(options, "until", INT64_MAX) - 1,
        tails=_tails(options.get("tails")),
    )


def _tails(text: str | None) -> Snapshot | None:
    """Return what ``read_table`` asks for: by node, what is settled and the last number."""
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
        at = asked.tails or snapshot(asked.directory)
        if asked.table == SPANS:
            return [_Span(node, asked.first, min(last, asked.last)) for node, last in sorted(at.last.items())]
        spans = [span for node in at.last for span in _spans(asked, at, node, asked.first, asked.last)]
        # Spark makes of no partition one whose value is None; of an empty one, an empty read.
        return list(spans) or [_Span("", 0, -1)]

    def read(self, partition: InputPartition) -> Batches:
        assert isinstance(partition, _Span)
        return _read(self._asked, partition, self._schema)


class _StreamReader(DataSourceStreamReader):
    def __init__(self, asked: _Asked, schema: StructType) -> None:
        self._asked, self._schema = asked, schema
        self._frontiers: dict[str, Frontier] = {}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's name
        return dict.fromkeys(nodes(self._asked.directory), self._asked.first - 1)

    def latestOffset(self, start: dict[str, int] | None = None, limit: object = None) -> dict[str, int]:  # noqa: N802 # Spark's name
        """Return the last number of each node; Spark before 4.2 passes nothing."""
        asked, known = self._asked, start or {}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else INT64_MAX
        latest = {node: min(last, asked.last) for node, last in snapshot(asked.directory, self._frontiers).last.items()}
        found: dict[str, int] = {}
        for node in latest | known:
            begun = known.get(node, asked.first - 1)
            found[node] = max(min(latest.get(node, -1), begun + most), begun)
        return found

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 # Spark's name
        return ReadMaxRows(self._asked.most) if self._asked.most else ReadAllAvailable()

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 # Spark's name
        return dict(snapshot(self._asked.directory, self._frontiers).last)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        asked = self._asked
        if asked.table == SPANS:
            begun = {node: start.get(node, asked.first - 1) + 1 for node in end}
            return [_Span(node, begun[node], last) for node, last in sorted(end.items()) if begun[node] <= last]
        at = snapshot(asked.directory, self._frontiers)
        return [
            span
            for node, last in sorted(end.items())
            if node in at.last
            for span in _spans(asked, at, node, start.get(node, asked.first - 1) + 1, last)
        ]

    def read(self, partition: InputPartition) -> Batches:
        assert isinstance(partition, _Span)
        return _read(self._asked, partition, self._schema)


# -- where rows are --------------------------------------------------------------------------------------------------


def _settled_seq(directory: Path, node: str) -> int:
    """Return up to which number Parquet is the truth of *node*: what came before its segments, or was exported."""
    live = segments(directory, node)
    return max(exported_seq(directory, node), live[0][0] - 1) if live else INT64_MAX


def _parts_up_to(directory: Path, table: str, node: str, settled: int) -> list[Part]:
    """Return the parts of *node* that hold numbers up to *settled*; what an export is still making begins after it."""
    return [part for part in parts(directory, table) if part.node == node and part.first <= settled]


def _spans(asked: _Asked, at: Snapshot, node: str, first: int, last: int) -> Iterator[_Span]:
    """Yield what to read of *node* for the numbers *first* to *last*."""
    settled = at.settled[node]
    if asked.tails is None:
        for part in _parts_up_to(asked.directory, asked.table, node, settled):
            begin, end = max(first, part.first), min(last, part.last, settled)
            if begin <= end:
                yield _Span(node, begin, end, part.path)
    begin, end = max(first, settled + 1), min(last, at.last[node])
    if begin <= end:
        yield _Span(node, begin, end)


def _read(asked: _Asked, span: _Span, schema: StructType) -> Batches:
    target = to_arrow_schema(schema, timezone="UTC")
    if span.last < span.first:
        return
    if asked.table == SPANS:
        rows = [{"node": span.node, "first": span.first, "last": span.last}]
        yield _fitted(pa.RecordBatch.from_pylist(rows, schema=_SPANS_SCHEMA), target)
        return
    if span.path is not None:
        yield from _part_batches(span.path, asked.table, span, target)
        return
    # What was a tail when the read was planned may be Parquet by now, and its segments gone.
    settled = _settled_seq(asked.directory, span.node)
    exported = _Span(span.node, span.first, min(span.last, settled))
    for part in _parts_up_to(asked.directory, asked.table, span.node, settled):
        if part.first <= exported.last and exported.first <= part.last:
            yield from _part_batches(part.path, asked.table, exported, target)
    first = max(span.first, settled + 1)
    if first <= span.last:
        yield from _tail_batches(asked, span.node, first, span.last, target)


def _part_batches(path: Path, table: str, span: _Span, target: Any) -> Batches:  # a pyarrow.Schema
    """Read a part; its row groups carry the range of their numbers, so a narrow span is a narrow read."""
    wanted = (pc.field("seq") >= span.first) & (pc.field("seq") <= span.last)
    # Parts of an older Whimbrel lack the newest columns; with a schema these are null, as they mean it.
    source = pads.dataset(path, schema=TABLES[table].schema, format="parquet", partitioning=None)
    for batch in source.to_batches(columns=target.names, filter=wanted, batch_size=_BATCH_ROWS, use_threads=False):
        if batch.num_rows:
            yield _fitted(batch, target)


def _tail_batches(asked: _Asked, node: str, first: int, last: int, target: Any) -> Batches:  # a pyarrow.Schema
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
