"""Log frames: a table of the log for Spark, which the workers read and validate themselves.

A ``LogFrame`` has those methods of a DataFrame that our transforms need. A mapped function is called with Arrow batches
in the same worker that read them, so no row of the log passes through Java. Otherwise Spark would convert every batch
to Java rows between two maps, and back.

Rule: the driver decides once, at one moment, which rows are read. So each row is read once, even if the log grows
meanwhile (``snapshots``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from whimbrel.log.layout import parts, segments
from whimbrel.model.bounds import FIRST_TIME, LAST_TIME
from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.pipeline.files.part_rows import found_schema, judged_batches, part_batches
from whimbrel.pipeline.files.schemas import TIMES
from whimbrel.pipeline.files.snapshots import Snapshot, parts_up_to, read_undisturbed
from whimbrel.pipeline.files.visibility import PATIENT, UnseenNumbersError
from whimbrel.pipeline.spark.source import Span, read_tail
from whimbrel.pipeline.spark.spark_session import parallelism

__all__ = ["Extent", "LogFrame", "LogRows", "extents", "may_have"]

Arrow = Any
"""A ``pyarrow`` batch, table or schema; pyarrow ships no types."""
Work: TypeAlias = Callable[[Iterable[Any]], Iterator[Any]]
"""A function from Arrow batches to Arrow batches."""

_TASKS_PER_CORE = 4
_ROWS_PER_TASK = 50_000


class _Portion(NamedTuple):
    """Input of a worker: row groups of a Parquet file, or a range of seqs that was in segments when planned."""

    node: str
    first: int
    last: int
    path: str | None = None
    day: date | None = None
    groups: tuple[int, int] = (0, 0)
    rows: int = 0
    begun: bytes | None = None
    """Rows of a checkpoint, as an Arrow IPC stream; None if the portion's rows are read from the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFrame:
    """The valid rows of one table of a log, as a lazy frame that the workers read."""

    spark: SparkSession
    log: Path
    table: str
    portions: tuple[_Portion, ...]
    now: int
    columns: tuple[str, ...] | None = None
    is_judged: bool = True
    """Whether rows are validated; not needed for a caller that reads only their seqs."""

    @classmethod
    def at(
        cls,
        spark: SparkSession,
        log: Path,
        table: str,
        at: Snapshot,
        *,
        now: int,
        begun: Mapping[str, Arrow] | None = None,
    ) -> LogFrame:
        """Return *table* at the snapshot *at*, preceded by the rows in *begun*.

        *begun* has, per node, rows of the checkpoint at which a cut log starts.
        """
        portions = read_undisturbed(lambda: tuple(_portions(log, table, at)))
        portions = (*(_of_rows(table, node, rows) for node, rows in (begun or {}).items()), *portions)
        return cls(spark=spark, log=log, table=table, portions=portions, now=now)

    @property
    def sparkSession(self) -> SparkSession:  # noqa: N802 # as a DataFrame calls it
        """The Spark session."""
        return self.spark

    def select(self, *columns: str) -> LogFrame:
        """Return a frame with only these columns."""
        return replace(self, columns=columns)

    def numbers(self) -> LogFrame:
        """Return a frame of node, seq and time of every row that has them, without validation: a tenth of the cost.

        Rows with a time outside the years 1 to 9999 are left out: such a time would expire all held notifications.
        """
        return replace(self, columns=("node", "seq", TIMES[self.table]), is_judged=False)

    def of_days(self, first: date, last: date) -> LogFrame:
        """Return the frame without the Parquet files of days outside *first* to *last*; rows in segments all stay."""
        return replace(self, portions=tuple(p for p in self.portions if p.day is None or first <= p.day <= last))

    def mapInArrow(self, work: Work, schema: Any) -> DataFrame:  # noqa: N802 # as a DataFrame calls it
        """Return the result of *work*, applied to the rows in the workers, as a DataFrame."""
        return self._over(partial(_good, self.log, self.table, self.columns, self.now, self.is_judged, work), schema)

    def frame(self) -> DataFrame:
        """Return the rows as a Spark DataFrame."""
        schema = pa.schema([TABLES[self.table].schema.field(name) for name in self.columns or self._names])
        return self.mapInArrow(iter, from_arrow_schema(schema))

    def toArrow(self) -> Arrow:  # noqa: N802 # as a DataFrame calls it
        """Collect the rows as a ``pyarrow.Table``; only for frames with few rows."""
        return self.frame().toArrow()

    def may_have(self, column: str) -> bool:
        """Return whether a row may have a value in *column*, by the statistics of the files; no row is read."""
        return any(each.path is None or _has_value(each.path, column) for each in self.portions)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(TABLES[self.table].schema.names)

    def _over(self, work: Callable[[Iterable[_Portion]], Iterator[Any]], schema: Any) -> DataFrame:
        tasks = _divide(self.portions, _TASKS_PER_CORE * parallelism(self.spark))
        numbers = self.spark.range(0, max(1, len(tasks)), 1, max(1, len(tasks)))
        return numbers.mapInArrow(partial(_task, tasks, work), schema)


LogRows: TypeAlias = DataFrame | LogFrame
"""A table of the log: a user's DataFrame, or a frame that our workers read."""


# -- in the driver -----------------------------------------------------------------------------------------------------


def _portions(log: Path, table: str, at: Snapshot) -> Iterator[_Portion]:
    for node, last in at.last.items():
        settled, begin = at.settled[node], at.begins.get(node, 0)
        for part in parts_up_to(log, table, node, min(settled, last)):
            top = min(part.last, settled, last)
            if top >= begin:
                yield from _of_part(node, max(part.first, begin), top, part.path, part.date)
        bottom = max(settled + 1, begin)
        begins = sorted({bottom, *(first for first, _ in segments(log, node) if bottom < first <= last)})
        for begin, after in zip(begins, [*begins[1:], last + 1], strict=True):
            if begin < after:
                yield _Portion(node, begin, after - 1, rows=after - begin)


def _of_rows(table: str, node: str, rows: Arrow) -> _Portion:
    rows = rows.cast(found_schema(table))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return _Portion(node, 0, 0, rows=rows.num_rows, begun=bytes(sink.getvalue()))


def _of_part(node: str, first: int, last: int, path: Path, day: date) -> Iterator[_Portion]:
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    ends = _ends_of_groups(groups)
    begin = rows = 0
    for number, group in enumerate(groups):
        rows += group.num_rows
        is_last = number == len(groups) - 1
        if is_last or (ends is not None and rows >= _ROWS_PER_TASK):
            end = last if is_last or ends is None else min(ends[number], last)
            yield _Portion(node, first, end, str(path), day, (begin, number + 1), rows)
            begin, rows, first = number + 1, 0, end + 1


def _ends_of_groups(groups: Sequence[Any]) -> list[int] | None:
    """Return the last seq of each row group; None if the statistics do not prove that the groups are in order."""
    ends: list[int] = []
    for group in groups:
        columns = map(group.column, range(group.num_columns))
        told = next((each.statistics for each in columns if each.path_in_schema == "seq"), None)
        if told is None or not told.has_min_max or told.null_count or (ends and told.min <= ends[-1]):
            return None
        ends.append(told.max)
    return ends


def _divide(portions: Sequence[_Portion], most: int) -> list[list[_Portion]]:
    """Divide *portions* of the log into tasks of neighbouring portions, with about equal numbers of rows."""
    share = max(_ROWS_PER_TASK, -(-sum(each.rows for each in portions) // most))
    tasks: list[list[_Portion]] = []
    room = 0
    for each in portions:
        if room <= 0:
            tasks.append([])
            room = share
        tasks[-1].append(each)
        room -= each.rows
    return tasks


def _has_value(path: str, column: str) -> bool:
    """Return whether a Parquet file may have a value in *column*; True if the file was replaced by a merged one."""
    try:
        with pq.ParquetFile(path) as file:
            metadata = file.metadata
    except FileNotFoundError:
        return True
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for told in map(group.column, range(group.num_columns)):  # a struct has a column for each of its fields
            if told.path_in_schema.split(".")[0] == column:
                counted = told.statistics
                if counted is None or not counted.has_null_count or counted.null_count < group.num_rows:
                    return True
    return False


# -- in a worker -------------------------------------------------------------------------------------------------------


def _task(
    tasks: Sequence[Sequence[_Portion]], work: Callable[[Iterable[_Portion]], Iterator[Any]], batches: Iterable[Any]
) -> Iterator[Any]:
    numbers = [number for batch in batches for number in batch.column(0).to_pylist()]
    return work([portion for number in numbers if number < len(tasks) for portion in tasks[number]])


def _good(  # noqa: PLR0917 # ``partial`` passes them by position
    log: Path,
    table: str,
    columns: tuple[str, ...] | None,
    now: int,
    is_judged: bool,  # noqa: FBT001 # as above
    work: Work,
    portions: Iterable[_Portion],
) -> Iterator[Any]:
    def read() -> Iterator[Any]:
        for portion in portions:
            if is_judged:
                good = judged_batches(table, _read_portion(log, table, portion), node=portion.node, now=now)
            else:
                good = _rows_with_times(_read_portion(log, table, portion, columns), columns or ())
            for batch in good:
                yield batch if columns is None else batch.select(list(columns))

    return work(read())


def _read_portion(log: Path, table: str, portion: _Portion, columns: tuple[str, ...] | None = None) -> Iterator[Any]:
    """Yield the rows of a portion (a worker's part of the log), without validation."""
    if portion.begun is not None:
        rows = pa.ipc.open_stream(portion.begun).read_all()
        yield from (rows if columns is None else rows.select(list(columns))).to_batches()
        return
    if portion.path is None or portion.day is None:
        yield from read_tail(log, table, Span(portion.node, portion.first, portion.last), found_schema(table))
        return
    try:
        found = part_batches(table, Path(portion.path), range(*portion.groups), columns)
        for batch in found:
            yield _up_to(batch, portion.last, portion.first)
    except FileNotFoundError:  # it was merged with other parts meanwhile
        yield from PATIENT.wait_for(partial(read_undisturbed, partial(_again, log, table, portion)))


def _again(log: Path, table: str, portion: _Portion) -> list[Any]:
    found = [part for part in parts(log, table, portion.node) if part.date == portion.day]
    if not any(part.first <= portion.first and part.last >= portion.last for part in found):
        raise UnseenNumbersError(log, portion.node, portion.first, portion.last)
    return [
        _up_to(batch, portion.last, portion.first)
        for part in found
        if part.first <= portion.last and part.last >= portion.first
        for batch in part_batches(table, part.path)
    ]


def _up_to(batch: Any, last: int, first: int = 0) -> Any:
    seqs = batch.column("seq")
    extremes = pc.min_max(seqs).as_py()
    if extremes["max"] is None or (extremes["max"] <= last and extremes["min"] >= first):
        return batch
    return batch.filter(pc.fill_null(pc.and_(pc.less_equal(seqs, last), pc.greater_equal(seqs, first)), True))


def _rows_with_times(batches: Iterable[Any], columns: Sequence[str]) -> Iterator[Any]:
    for batch in batches:
        some = batch.select(list(columns)).drop_null()
        micros = some.column(columns[-1]).cast(TIME_TYPE).cast(pa.int64())
        yield some.filter(pc.and_(pc.greater_equal(micros, FIRST_TIME), pc.less_equal(micros, LAST_TIME)))


def may_have(rows: LogRows, column: str) -> bool:
    """Return whether a row may have a value in *column*."""
    if isinstance(rows, LogFrame):
        return rows.may_have(column)
    return not rows.where(rows[column].isNotNull()).isEmpty()


# -- how far logs go ---------------------------------------------------------------------------------------------------


class Extent(NamedTuple):
    """First and last seq of a node, and the time of its last fact in microseconds."""

    first: int
    last: int
    ends_at: int


_EXTENT = pa.schema([("node", pa.string()), ("first", pa.int64()), ("last", pa.int64()), ("ends_at", pa.int64())])


def extents(tables: Iterable[tuple[LogRows, str]]) -> dict[str, Extent]:
    """Return seqs and last time of each node over all *tables*, given as pairs (rows, name of their time column)."""
    schema = from_arrow_schema(_EXTENT)
    frames = [rows.select("node", "seq", at).mapInArrow(partial(_extents, at), schema) for rows, at in tables]
    found: dict[str, Extent] = {}
    rows = reduce(DataFrame.unionByName, frames).toArrow()
    for node, first, last, ends_at in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        before = found.get(node, Extent(first, last, ends_at))
        found[node] = Extent(min(before.first, first), max(before.last, last), max(before.ends_at, ends_at))
    return found


def _extents(at: str, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        times = batch.column(at).cast(TIME_TYPE).cast(pa.int64())
        rows = pa.table({"node": batch.column("node"), "seq": batch.column("seq"), "at": times})
        wanted = [("seq", "min"), ("seq", "max"), ("at", "max")]
        grouped = rows.group_by("node", use_threads=False).aggregate(wanted)
        columns = [grouped.column(name) for name in ("node", "seq_min", "seq_max", "at_max")]
        yield from pa.table(columns, schema=_EXTENT).combine_chunks().to_batches()
