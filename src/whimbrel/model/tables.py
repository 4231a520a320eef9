"""Tables: the Arrow schemas of the log and of the pipeline's tables, generated from ``columns``.

Rule: times are stored as ``timestamp[us, tz=UTC]``.
Rule: the only module of the model that imports pyarrow; Spark's schemas are derived from these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from whimbrel.errors import InvalidValueError
from whimbrel.model.attributes import (
    DEFAULT_LIMITS,
    INT32_MAX,
    INT32_MIN,
    Attributes,
    AttributeType,
    Int64,
    Limits,
    Scalar,
    checked,
    type_of,
)
from whimbrel.model.bounds import whole
from whimbrel.model.columns import SPECS, Kind, TableSpec

__all__ = [
    "ATTRIBUTES_TYPE",
    "KEYS_TYPE",
    "PLACE_TYPE",
    "SUBSCRIPTIONS_TYPE",
    "TABLES",
    "TIME_TYPE",
    "Table",
    "as_markdown",
    "attributes_from_column_value",
    "attributes_to_column_value",
]

Field: TypeAlias = Any
"""A ``pyarrow.Field``; pyarrow ships no types."""

TIME_TYPE = pa.timestamp("us", tz="UTC")
ATTRIBUTES_TYPE = pa.map_(
    pa.string(),
    pa.struct(
        [
            ("type", pa.int8()),
            ("int", pa.int64()),
            ("real", pa.float64()),
            ("text", pa.string()),
            ("opaque", pa.binary()),
        ]
    ),
)
PLACE_TYPE = pa.struct([("latitude", pa.float64()), ("longitude", pa.float64())])
AREA_TYPE = pa.struct([("latitude", pa.float64()), ("longitude", pa.float64()), ("radius_m", pa.float64())])
CORNERS_TYPE = pa.list_(PLACE_TYPE)
DISPLAY_TYPE = pa.struct([("width_px", pa.int32()), ("height_px", pa.int32())])
KEYS_TYPE = pa.list_(pa.struct([("scheme", pa.string()), ("digest", pa.binary())]))
SUBSCRIPTIONS_TYPE = pa.list_(pa.struct([("subject_filter", pa.string()), ("name", pa.string())]))


_TYPES: dict[Kind, Any] = {
    Kind.TEXT: pa.string(),
    Kind.NODE: pa.string(),
    Kind.FLAG: pa.bool_(),
    Kind.INT8: pa.int8(),
    Kind.INT32: pa.int32(),
    Kind.INT64: pa.int64(),
    Kind.REAL: pa.float64(),
    Kind.TIME: TIME_TYPE,
    Kind.BYTES: pa.binary(),
    Kind.BODY: pa.binary(),
    Kind.HASH: pa.binary(),
    Kind.PROPERTIES: pa.binary(),
    Kind.ATTRIBUTES: ATTRIBUTES_TYPE,
    Kind.KEYS: KEYS_TYPE,
    Kind.PLACE: PLACE_TYPE,
    Kind.AREA: AREA_TYPE,
    Kind.CORNERS: CORNERS_TYPE,
    Kind.DISPLAY: DISPLAY_TYPE,
    Kind.SUBSCRIPTIONS: SUBSCRIPTIONS_TYPE,
    Kind.TEXTS: pa.list_(pa.string()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: its name, the meaning of a row in one sentence, and its columns."""

    name: str
    description: str
    schema: Any  # a pyarrow.Schema; pyarrow ships no types
    is_log: bool


def _table(spec: TableSpec) -> Table:
    columns = [
        pa.field(each.name, _TYPES[each.kind], nullable=each.is_nullable, metadata={"description": each.description})
        for each in spec.columns
    ]
    schema = pa.schema(columns, metadata={"description": spec.description})
    return Table(name=spec.name, description=spec.description, schema=schema, is_log=spec.fact is not None)


TABLES: dict[str, Table] = {name: _table(spec) for name, spec in SPECS.items()}
"""All tables by name: first the log's, then the pipeline's."""

_FIELDS = {
    AttributeType.INT32: "int",
    AttributeType.INT64: "int",
    AttributeType.REAL64: "real",
    AttributeType.STRING: "text",
    AttributeType.OPAQUE: "opaque",
}


def attributes_to_column_value(attributes: Attributes) -> list[tuple[str, dict[str, object]]]:
    """Return *attributes* in the form in which pyarrow takes a value of ``ATTRIBUTES_TYPE``."""
    return [(name, _entry(type_of(value), value)) for name, value in attributes.items()]


def attributes_from_column_value(
    entries: Mapping[str, Mapping[str, Any]] | Iterable[tuple[str, Mapping[str, Any]]],
    *,
    limits: Limits = DEFAULT_LIMITS,
) -> Attributes:
    """Return the attributes of a value of ``ATTRIBUTES_TYPE``, given by pyarrow (pairs) or Spark (a dict)."""
    values: dict[str, Scalar] = {}
    for name, entry in entries.items() if isinstance(entries, Mapping) else entries:
        if name in values:
            raise InvalidValueError("attribute name", name, "each name once")
        values[name] = _scalar(name, entry)
    return checked(values, limits=limits)


def _entry(kind: AttributeType, value: Scalar) -> dict[str, object]:
    entry: dict[str, object] = dict.fromkeys(("type", "int", "real", "text", "opaque"))
    plain = int(value) if isinstance(value, int) else value
    return entry | {"type": int(kind), _FIELDS[kind]: plain}


def _scalar(name: str, entry: Mapping[str, Any] | None) -> Scalar:
    """Return the value of *entry* after a check, because the log may have been written by other software."""
    if entry is None:
        raise InvalidValueError(f"attribute {name}", entry, "a type and a value")
    kind = entry["type"]
    if kind not in _FIELDS:
        raise InvalidValueError(f"type of attribute {name}", kind, "1 to 5")
    value: Scalar | None = entry[_FIELDS[kind]]
    if value is None:
        raise InvalidValueError(f"attribute {name}", value, f"a value in the field {_FIELDS[kind]}")
    if kind == AttributeType.INT32:
        return whole(f"attribute {name}", value, INT32_MIN, INT32_MAX)
    return Int64(value) if kind == AttributeType.INT64 else value


def as_markdown() -> str:
    """Return the reference page of all tables."""
    parts = ["# Tables", "", "Times are microseconds UTC. A column that may be null says what null means.", ""]
    for table in TABLES.values():
        parts += [f"## `{table.name}`", "", f"{'In' if table.is_log else 'Out'}: {table.description}", ""]
        parts += ["| column | type | null | what |", "|---|---|---|---|"]
        parts += [_row(column) for column in table.schema]
        parts.append("")
    return "\n".join(parts)


def _row(column: Field) -> str:
    description = column.metadata[b"description"].decode()
    null = "yes" if column.nullable else "no"
    return f"| `{column.name}` | `{_sql_type(column.type)}` | {null} | {description} |"


def _sql_type(kind: Any) -> str:  # noqa: ANN401 # a pyarrow.DataType; pyarrow ships no types
    """Return the type in SQL's words, as on the architecture page."""
    if pa.types.is_map(kind):
        return f"map<{_sql_type(kind.key_type)}, {_sql_type(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{_sql_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return f"struct<{', '.join(f'{each.name} {_sql_type(each.type)}' for each in fields)}>"
    return _SPELLINGS[kind]


_SPELLINGS = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    TIME_TYPE: "timestamp",
}
