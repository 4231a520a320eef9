"""Show: print an output table in a terminal, with bars where they say more than numbers.

Rule: no Spark. The tables are Parquet, and reading a few rows must not wait for the start of Java.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as pads
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from whimbrel.errors import InvalidValueError
from whimbrel.model.tables import TABLES

__all__ = ["as_json", "draw_table", "emptiness", "head", "to_paste"]

ArrowTable: TypeAlias = Any
"""A ``pyarrow.Table``; pyarrow ships no types."""

_BARS = {"popularity": "publications", "replicas": "replicas", "meetings": "contacts"}
"""Column that is drawn as a bar, per table."""
_LARGEST = {**_BARS, "latency": "p99_us"}
"""Column by which a table is sorted, largest value first."""
_NAMED_BY = {"meetings": ["device_low", "device_high"]}
"""Columns that order rows with the same value in the column of ``_LARGEST``, per table; default: the subject."""
_SPANS = {"contacts": ("began_at", "ended_at")}
"""Columns of begin and end of the time that a row is drawn for, on a time line of all rows."""
_TITLES = {
    "expired_unseen": "expired",
    "deadlines_missed": "missed",
    "notification_node": "node",
    "notification_seq": "seq",
    "network_connection": "connection",
}
"""Shorter titles of columns, because the terminal is narrow."""
_BAR_CELLS = 20
_US = "_us"
_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000))
_EXACT_BELOW = 999.5
"""Numbers below this are shown with three significant figures, others with all digits."""
_CELL_CHARACTERS = 60
_RARE = {"difference"}
"""Columns that are shown only if a row has a value in them, because the terminal is narrow."""
_HIDDEN = {
    "popularity": {"window_end"},
    "latency": {"window_end"},
    "deliveries": {"published_at", "deadline_at", "subscriptions", "body_hash", "lapses_at", "via"},
    "link_quality": {"since_at"},
    "publications": {"body", "keys", "deliver_insecure", "retain", "qos", "place", "radius_m", "deadline_at"}
    | {"properties", "packet_id", "will_seq"},
}
"""Columns that are never shown, because people rarely need them; ``--json`` prints them."""
_FIRST_TO_GO = {
    "contacts": ("closest_m",),
    "dead_letters": ("position",),
    "deliveries": ("notification_node", "decided_at", "subject"),
    "latency": ("deadlines_missed", "expired_unseen", "p90_us", "window_start"),
    "link_quality": ("node", "seq"),
    "matches": ("interest_seq", "name", "notification_node", "published_at"),
    "meetings": ("mean_contact_us", "mean_apart_us"),
    "popularity": ("rate_per_s", "window_start"),
    "publications": ("expires_at", "publisher", "node"),
    "replicas": ("memory_bytes", "share"),
}
"""Columns that a narrow terminal leaves out, in this order; ``--json`` prints them.

A column without which two rows would look the same is left out last.
"""
_IDENTITIES = {
    "contacts": ("device_low", "device_high", "began_at"),
    "deliveries": ("notification_node", "notification_seq", "session", "device"),
    "latency": ("window_start", "subject"),
    "link_quality": ("node", "seq", "device", "reported_at"),
    "matches": ("notification_node", "notification_seq", "session", "subject_filter", "name"),
    "popularity": ("window_start", "subject"),
    "publications": ("node", "seq"),
}
"""Columns that distinguish the rows of a table."""
_FLOWING = {"attributes", "content", "reason", "subscriptions"}
"""Columns whose cells may take several lines of at least ``_FLOWING_CELLS`` characters."""
_FLOWING_CELLS = 24
_EMPTY = {
    "dead_letters": "nothing failed so far",
    "deliveries": "no outcome so far; what is held has no row yet",
    "matches": "no subscription wanted any publication so far",
    "link_quality": "no device reported twice so far",
}


def head(out: Path, table: str, *, limit: int) -> ArrowTable:
    """Return *limit* rows of *table*: the largest ones of a sorted table, else the first."""
    if table not in TABLES:
        raise InvalidValueError("table", table, ", ".join(TABLES))
    from whimbrel.pipeline.files.delta import check_folder, data_files  # slow to import

    folder = out / table
    if not folder.is_dir():
        there = (
            sorted(path.name for path in out.iterdir() if path.is_dir() and path.name in TABLES) if out.is_dir() else []
        )
        if there and table == "dead_letters":
            sentence = emptiness(table)
        elif there:
            sentence = f"{out} has no table {table}; it has {', '.join(there)}"
        else:
            sentence = f"{out} has no tables; `whimbrel pipeline run --out {out}` makes them"
        raise InvalidValueError(f"table in {out}", table, ", ".join(there), sentence)
    check_folder(out, table)
    # Files of an older Whimbrel lack the newest columns; with the schema given, these are null.
    files = [str(path) for path in data_files(out, table)]
    source = pads.dataset(files, schema=TABLES[table].schema, format="parquet", partitioning=None)
    if table in _LARGEST:
        rows = source.to_table(columns=TABLES[table].schema.names)
        names = [(name, "ascending") for name in _NAMED_BY.get(table, ["subject"])]
        return rows.sort_by([(_LARGEST[table], "descending"), *names]).slice(0, limit)
    if table in _SPANS:
        return source.to_table(columns=TABLES[table].schema.names).sort_by(_SPANS[table][0]).slice(0, limit)
    return source.head(limit, columns=TABLES[table].schema.names)


def emptiness(table: str) -> str:
    """Return a sentence that explains why *table* has no rows."""
    return f"{table} is empty: {_EMPTY.get(table, 'no row so far')}"


def to_paste(out: Path, table: str) -> Iterator[str]:
    """Yield commands that read a whole table with pandas, DuckDB, Polars and Spark, through its Delta log."""
    folder = json.dumps(str(out / table), ensure_ascii=False)
    in_sql = str(out / table).replace("'", "''")
    where = json.dumps(str(out), ensure_ascii=False)
    yield f"pandas  deltalake.DeltaTable({folder}).to_pandas()"
    yield f"DuckDB  SELECT * FROM delta_scan('{in_sql}')"  # noqa: S608 # only printed, and quoted
    yield f"Polars  polars.scan_delta({folder}).collect()"
    yield f'Spark   spark.read.format("whimbrel").option("table", "{table}").load({where})'


def draw_table(table: str, rows: ArrowTable) -> RenderableType:
    """Return *rows* as a table for the terminal, with bars for some tables; it fits the terminal's width."""
    return _Page(table, rows)


class _Page:
    """A table that fits the terminal: if too wide, it drops fractions of seconds, then shortens bars, drops columns."""

    def __init__(self, table: str, rows: ArrowTable) -> None:
        self._table, self._rows = table, rows
        names = [name for name in rows.schema.names if name not in _HIDDEN.get(table, set())]
        self._names = [name for name in names if name not in _RARE or rows.column(name).null_count < rows.num_rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        going = self._going()
        steps = [(True, _BAR_CELLS, 0), (False, _BAR_CELLS, 0), (False, _BAR_CELLS // 2, 0)]
        steps += [(False, _BAR_CELLS // part, count) for count in range(1, len(going) + 1) for part in (2, 4)]
        for is_exact, bar_cells, gone in steps:
            names = [name for name in self._names if name not in going[:gone]]
            columns = self._columns(names, bar_cells, is_exact=is_exact)
            if sum(_width(*column) + 2 for column in columns) < options.max_width:
                break
        left_out = ", ".join(_title(name) for name in going[:gone])
        yield self._grid(columns, names)
        if left_out:
            yield Text(f"Too narrow for {left_out}; --json prints all columns.")

    def _going(self) -> list[str]:
        """Return the columns that a narrow terminal leaves out, in order: last those that distinguish shown rows."""
        going = [name for name in _FIRST_TO_GO.get(self._table, ()) if name in self._names]
        identity = [name for name in _IDENTITIES.get(self._table, ()) if name in self._names]
        needed: list[str] = []
        for name in [each for each in going if each in identity]:
            rest = [each for each in identity if each != name]
            if self._distinct(rest) < self._distinct(identity):
                needed.append(name)
            else:
                identity = rest
        return [*(name for name in going if name not in needed), *needed]

    def _distinct(self, names: list[str]) -> int:
        """Return the number of distinct rows if only the columns *names* are shown."""
        return len({tuple(row.values()) for row in self._rows.select(names).to_pylist()})

    def _columns(self, names: list[str], bar_cells: int, *, is_exact: bool) -> list[tuple[str, list[str]]]:
        """Return the name and the cells of each column; the column of bars has an empty name."""
        rows = self._rows.to_pylist()
        columns = [(name, _show_values(name, [row[name] for row in rows], is_exact=is_exact)) for name in names]
        bar = _BARS.get(self._table)
        if bar is not None:
            counts = [row[bar] for row in rows]
            most = max((count for count in counts if count is not None), default=0)
            drawn = ["█" * max(1, round(n / most * bar_cells)) if most and n is not None else "" for n in counts]
            columns.append(("", drawn))
        spans = _drawn_spans(self._table, self._rows, bar_cells)
        return [*columns, ("", spans)] if spans else columns

    def _grid(self, columns: list[tuple[str, list[str]]], names: list[str]) -> Table:
        title = f"{self._table}: {TABLES[self._table].description}"
        grid = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for name, _ in columns:
            kind = self._rows.schema.field(name).type if name in names else pa.null()
            is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
            grid.add_column(
                _title(name),
                justify="right" if is_number else "left",
                no_wrap=is_number or not name,
                overflow="fold",
                style="" if name else "cyan",
            )
        for cells in zip(*(cells for _, cells in columns), strict=True):
            grid.add_row(*map(Text, cells))
        return grid


def _title(name: str) -> str:
    return _TITLES.get(name, name.removesuffix(_US))


def _width(name: str, cells: list[str]) -> int:
    """Return the width that a column needs for cells of one line; columns in ``_FLOWING`` may need several lines."""
    widest = max(map(cell_len, cells), default=0)
    return max(cell_len(_title(name)), min(widest, _FLOWING_CELLS) if name in _FLOWING else widest)


def _show_values(name: str, values: list[Any], *, is_exact: bool) -> list[str]:  # any values of an Arrow column
    if name.endswith(_US):
        return list(map(_duration, values))
    times = [value for value in values if isinstance(value, datetime)]
    if times and not is_exact:
        are_minutes = not any(value.second or value.microsecond for value in times)
        form = "%Y-%m-%d %H:%M" if are_minutes else "%Y-%m-%d %H:%M:%S"
        return ["" if value is None else value.strftime(form) for value in values]
    return list(map(_cell, values))


def _drawn_spans(table: str, rows: ArrowTable, width: int) -> list[str]:
    """Return a time line for each row of a table in ``_SPANS``; a row without an end is drawn to the right edge."""
    if table not in _SPANS or not rows.num_rows:
        return []
    began, ended = (rows.column(name).cast(pa.int64()).to_pylist() for name in _SPANS[table])
    first, last = min(began), max([*began, *(at for at in ended if at is not None)])
    cell = max(1, -(-(last - first + 1) // width))
    found = []
    for since, until in zip(began, ended, strict=True):
        begin = (since - first) // cell
        end = width if until is None else max(begin + 1, -(-(until - first) // cell))
        found.append("·" * begin + "█" * (end - begin) + "·" * (width - end))
    return found


def as_json(rows: ArrowTable) -> Iterator[str]:
    """Yield each row as a line of JSON: times in ISO 8601, bytes in hexadecimal, attributes as an object."""
    for row in rows.to_pylist():
        yield json.dumps({name: _plain(value) for name, value in row.items()}, ensure_ascii=False)


def _duration(us: float | None) -> str:
    """Return a duration, given in microseconds, with the unit that suits its size."""
    if us is None:
        return ""
    unit, size = next(((unit, size) for unit, size in _UNITS if us >= size), ("µs", 1))
    amount = us / size
    return f"{amount:.3g} {unit}" if amount < _EXACT_BELOW else f"{amount:,.0f} {unit}"


def _cell(value: object) -> str:
    if isinstance(value, datetime):  # shorter than in JSON, because the terminal is narrow
        return value.strftime("%Y-%m-%d %H:%M:%S") + (f".{value.microsecond:06}" if value.microsecond else "")
    plain = _text(value) if isinstance(value, bytes) else _plain(value)
    text = "" if plain is None else plain if isinstance(plain, str) else _spell(plain)
    return text if len(text) <= _CELL_CHARACTERS else text[: _CELL_CHARACTERS - 1] + "…"


def _text(value: bytes) -> str:
    """Return bytes as text if they are printable UTF-8 (as in most dead letters), else in hexadecimal."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value.hex()
    return text if text.isprintable() else value.hex()


def _spell(value: object) -> str:
    match value:
        case float():
            return f"{value:.6g}"
        case dict():
            return ", ".join(f"{name} {_spell(each)}" for name, each in value.items())
        case list():
            return "; ".join(_spell(each) for each in value)
        case _:
            return str(value)


def _plain(value: object) -> object:
    """Return *value* as a value that JSON can hold."""
    match value:
        case datetime():
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case bytes():
            return value.hex()
        case list() if value and isinstance(value[0], tuple):  # attributes: Arrow returns a map as a list of pairs
            return {name: _scalar(entry) for name, entry in value}
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case _:
            return value


def _scalar(entry: Mapping[str, object]) -> object:
    fields = (entry[name] for name in ("int", "real", "text", "opaque"))
    return _plain(next((value for value in fields if value is not None), None))
