"""Columns: convert rows to an Arrow table of the log's schemas, and back.

Rule: a value that does not fit its column raises ``InvalidValueError`` with the column's name, for files of any writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.model.attributes import (
    INT32_MAX,
    INT32_MIN,
    TYPES,
    Attributes,
    AttributeType,
    Int64,
    Scalar,
    checked,
)
from whimbrel.model.bounds import whole
from whimbrel.model.facts import Fact
from whimbrel.model.rows import COLUMNS, UNBOUNDED, fact_of
from whimbrel.model.tables import ATTRIBUTES_TYPE, TABLES, TIME_TYPE

__all__ = [
    "attributes_array",
    "attributes_from",
    "columns_to_arrow",
    "complete_columns",
    "from_arrow",
    "rows_from_arrow",
    "to_arrow",
    "values_to_arrow",
]

Arrow: TypeAlias = Any
"""A ``pyarrow.Table`` or ``RecordBatch``; pyarrow ships no types."""

Array: TypeAlias = Any
"""A ``numpy`` array."""

_NOT_ARROW = (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError)

_NUMBERS = {kind: int(number) for kind, number in TYPES.items()}
_FIELD_OF = np.array([0, 1, 1, 2, 3, 4], np.int8)
"""Index of the struct field (0 is ``type``) that holds the value, per attribute type."""
_PLACES: dict[int | None, int] = {1: 0, 2: 0, 3: 1, 4: 2, 5: 3}
"""Index among the fields int, real, text and opaque that holds the value, per attribute type."""


def to_arrow(table_name: str, rows: Sequence[Mapping[str, object]]) -> Arrow:
    """Return *rows* of a table as a ``pyarrow.Table`` of the table's schema; a missing value is null."""
    names = TABLES[table_name].schema.names
    return columns_to_arrow(table_name, [[row.get(name) for row in rows] for name in names])


def values_to_arrow(table_name: str, rows: Sequence[Sequence[object]]) -> Arrow:
    """Return *rows*, values in the order of the columns, as a ``pyarrow.Table``; missing last values are null."""
    if not rows:
        return TABLES[table_name].schema.empty_table()
    return columns_to_arrow(table_name, list(zip(*_as_long(rows, len(COLUMNS[table_name])), strict=True)))


def _as_long(rows: Sequence[Sequence[object]], count: int) -> Iterator[Sequence[object]]:
    """Yield each row, filled up with None to *count* values."""
    for row in rows:
        yield row if len(row) == count else [*row, *[None] * (count - len(row))]


def columns_to_arrow(table_name: str, columns: Sequence[Sequence[object]]) -> Arrow:
    """Return *columns*, in the order of the table's schema, as a ``pyarrow.Table`` of that schema."""
    schema = TABLES[table_name].schema
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            if not field.nullable and None in values:
                raise InvalidValueError(field.name, None, "a value in every row")
            is_map = field.type == ATTRIBUTES_TYPE
            arrays.append(attributes_array(values) if is_map else pa.array(values, field.type))
        except _NOT_ARROW as error:
            raise InvalidValueError(field.name, Phrase(str(error)), f"values of {field.type}") from None
    return pa.Table.from_arrays(arrays, schema=schema)


def from_arrow(table_name: str, data: Arrow) -> Iterator[Fact]:
    """Yield the facts of *data*, a ``pyarrow.Table`` or ``RecordBatch``."""
    for row in rows_from_arrow(table_name, data):
        yield fact_of(table_name, row)


def rows_from_arrow(table_name: str, data: Arrow) -> Iterator[dict[str, object]]:
    """Yield the rows of *data* in the form of ``model.rows``; ignore columns that the table does not have."""
    if table_name not in COLUMNS:
        raise InvalidValueError("table", table_name, ", ".join(COLUMNS))
    names = COLUMNS[table_name]
    columns = [_values(data, TABLES[table_name].schema.field(name)) for name in names]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def complete_columns(table_name: str, data: Arrow) -> Arrow:
    """Return *data* as a ``pyarrow.Table``; add nullable columns that an older Whimbrel did not write, as nulls."""
    table, known = pa.table(data), TABLES.get(table_name)
    if known is None:
        return table
    for field in known.schema:
        if field.nullable and field.name not in table.schema.names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    here = table.schema.names
    ordered = [name for name in known.schema.names if name in here]
    return table.select([*ordered, *(name for name in here if name not in known.schema.names)])


def _values(data: Arrow, field: Arrow) -> list[Any]:
    if field.name not in data.schema.names:
        if field.nullable:  # an older file: columns are only ever added, and added columns are nullable
            return [None] * data.num_rows
        raise InvalidValueError(field.name, Phrase("no column of this name"), f"a column of {field.type}")
    column = data.column(field.name)
    if field.nullable and column.null_count == data.num_rows:  # true of most columns; Arrow's conversion is slow
        return [None] * data.num_rows
    try:
        if column.type != field.type:
            column = column.cast(field.type)
        if field.type == TIME_TYPE:
            column = column.cast(pa.int64())  # Python's datetime ends in the year 9999
        values: list[Any] = attributes_from(column) if field.type == ATTRIBUTES_TYPE else column.to_pylist()
    except _NOT_ARROW as error:
        raise InvalidValueError(field.name, Phrase(str(error)), f"values of {field.type}") from None
    if not field.nullable and column.null_count:
        raise InvalidValueError(field.name, None, "a value in every row")
    return values


def attributes_from(column: Arrow) -> list[Attributes | None]:
    """Return the attributes of each row, or None for null; keys and items are read as flat arrays, for speed."""
    found: list[Attributes | None] = []
    for chunk in getattr(column, "chunks", [column]):
        offsets = chunk.offsets.to_pylist()
        begin, length = offsets[0], offsets[-1] - offsets[0]
        names = chunk.keys.slice(begin, length).to_pylist()
        items = chunk.items.slice(begin, length).flatten()  # flatten: fields of a null entry become null
        kinds, *fields = (field.to_pylist() for field in items)
        for is_valid, first, last in zip(chunk.is_valid().to_pylist(), offsets, offsets[1:], strict=False):
            entries = range(first - begin, last - begin)
            values = {names[at]: _scalar(names[at], kinds[at], [field[at] for field in fields]) for at in entries}
            if len(values) != len(entries):
                raise InvalidValueError("attributes", [names[at] for at in entries], "each name once")
            found.append(checked(values, limits=UNBOUNDED) if is_valid else None)
    return found


def _scalar(name: str, kind: int | None, values: list[Any]) -> Scalar:
    place = _PLACES.get(kind)
    value: Scalar | None = None if place is None else values[place]
    if value is None:
        raise InvalidValueError(
            f"attribute {name}", Phrase(f"type {kind} and {values}"), "a type from 1 to 5 and its value"
        )
    if kind == AttributeType.INT32:
        return whole(f"attribute {name}", value, INT32_MIN, INT32_MAX)
    return Int64(value) if kind == AttributeType.INT64 else value


def attributes_array(maps: Sequence[Any]) -> Arrow:
    """Return *maps* as one Arrow map array, built from flat arrays: a dictionary per value costs ten times as much."""
    offsets, names, kinds, values = [0], list[str](), list[int](), list[Any]()
    for each in maps:
        if each:
            for name, value in each.items():
                names.append(name)
                kinds.append(_NUMBERS[type(value)])
                values.append(value)
        offsets.append(len(names))
    kind, of_kind = ATTRIBUTES_TYPE.item_type, np.array(kinds, np.int8)
    arrays = [pa.array(of_kind)]
    arrays += [_spread(values, np.flatnonzero(_FIELD_OF[of_kind] == at), kind.field(at).type) for at in range(1, 5)]
    items = pa.StructArray.from_arrays(arrays, fields=[kind.field(index) for index in range(kind.num_fields)])
    keys, starts = pa.array(names, pa.string()), pa.array(offsets, pa.int32())
    if None not in maps:
        return pa.MapArray.from_arrays(starts, keys, items, ATTRIBUTES_TYPE)
    is_null = pa.array([each is None for each in maps])
    return pa.MapArray.from_arrays(starts, keys, items, ATTRIBUTES_TYPE, mask=is_null)


def _spread(values: Sequence[Any], places: Array, kind: Arrow) -> Arrow:
    """Return an array as long as *values* that has the values at the indices *places*, and nulls elsewhere."""
    if places.size == len(values):
        return pa.array(values, kind)
    if not places.size:
        return pa.nulls(len(values), kind)
    some = np.full(len(values), -1, np.int64)
    some[places] = np.arange(places.size)
    return pa.array([values[at] for at in places.tolist()], kind).take(pa.array(some, mask=some < 0))
