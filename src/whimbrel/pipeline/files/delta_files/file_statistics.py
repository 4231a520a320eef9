"""File statistics: the range of each important column of a data file, by which readers leave out whole files.

Every engine that reads Delta tables (DuckDB, Polars, Trino, Spark with Delta's jar) uses the ranges in the commits.
Rule: the ranges are those in the file's own footer; the rows are not read.
Rule: a text that is too long is left out of the range, with its column; a range must never be too small.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from whimbrel.log.errors import CorruptLogError
from whimbrel.model.clock import format_time
from whimbrel.model.tables import TABLES, TIME_TYPE

__all__ = ["file_statistics", "files_with", "statistics_columns"]

_IDENTITIES = frozenset(
    (
        *("node", "seq", "notification_node", "notification_seq"),
        *("session", "device", "device_low", "device_high", "subject"),
    )
)
_LONGEST = 256
"""Longest text in a range, in characters."""
_ROUNDING = timedelta(milliseconds=1)
"""Some writers give times in a commit to the millisecond, rounded down."""


def statistics_columns(table: str) -> list[str]:
    """Return the columns of *table* that get a range: identities, sequence numbers and times."""
    return [field.name for field in TABLES[table].schema if field.name in _IDENTITIES or field.type == TIME_TYPE]


def file_statistics(path: Path, table: str) -> str:
    """Return the statistics of a data file as Delta's commits have them: rows, ranges and numbers of nulls, as JSON."""
    try:
        with pq.ParquetFile(path) as file:
            foot = file.metadata
    except (pa.ArrowException, ValueError) as error:
        raise CorruptLogError(path, 0, f"no readable Parquet: {error}") from None
    places = {foot.schema.column(place).path: place for place in range(foot.num_columns)}
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in statistics_columns(table):
        if name not in places:  # an older Whimbrel wrote the file
            continue
        each = [foot.row_group(group).column(places[name]).statistics for group in range(foot.num_row_groups)]
        if not each or any(one is None or not one.has_null_count for one in each):
            continue
        nulls[name] = sum(one.null_count for one in each)
        ranges = [one for one in each if one.has_min_max]
        if not ranges or len(ranges) < sum(1 for one in each if one.num_values):
            continue
        first, last = (_plain(end(map(of, ranges)), TABLES[table].schema.field(name).type) for end, of in _ENDS)
        if first is not None and last is not None:
            least[name], most[name] = first, last
    found: dict[str, Any] = {"numRecords": foot.num_rows}
    if foot.num_rows:
        found |= {"minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps(found)


def _raw(at: str) -> Callable[[Any], Any]:
    def value(one: Any) -> Any:
        found = getattr(one, f"{at}_raw")
        return found if isinstance(found, int | bytes) else getattr(one, at)

    return value


_ENDS: tuple[tuple[Callable[[Any], Any], Callable[[Any], Any]], ...] = ((min, _raw("min")), (max, _raw("max")))


def _plain(value: Any, kind: Any) -> Any:
    """Return the end of a range as a value for JSON; None if it is too long."""
    if kind == TIME_TYPE:
        return format_time(value)
    if isinstance(value, bytes):
        value = value.decode()
    return None if isinstance(value, str) and len(value) > _LONGEST else value


def files_with(delta: DeltaTable, is_wanted: Callable[[Mapping[str, Any], Mapping[str, Any]], bool]) -> list[Path]:
    """Return the local files of a table for whose range *is_wanted* is true.

    The range is the least and the greatest value of some columns, by name; a column without a range is left out.
    """
    known = pa.table(delta.get_add_actions(flatten=True))
    columns = {name: _as_python(known.column(name)) for name in known.column_names if name.startswith(("min.", "max."))}
    folder = Path(unquote(delta.table_uri.removeprefix("file://")))
    found = []
    for row, path in enumerate(known.column("path").to_pylist()):
        least, most = (
            {name[4:]: rows[row] for name, rows in columns.items() if name[:4] == end and rows[row] is not None}
            for end in ("min.", "max.")
        )
        widened = {name: value + _ROUNDING if isinstance(value, datetime) else value for name, value in most.items()}
        if is_wanted(least, widened):
            found.append(folder / unquote(path))
    return found


def _as_python(column: Any) -> list[Any]:
    values: list[Any] = (column.cast(TIME_TYPE) if pa.types.is_timestamp(column.type) else column).to_pylist()
    return values
