"""A filter as one Column over any DataFrame, for ``where``, ``select`` and SQL expressions around it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from typing import TypeAlias, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows
from pyspark.sql.types import StructType

from whimbrel.errors import InvalidValueError, description_of
from whimbrel.language.ast import Predicate
from whimbrel.language.backends.spark import AttributeColumns, attribute_of_map, to_column
from whimbrel.language.filters import Filter, parse
from whimbrel.language.needs import names as names_in
from whimbrel.model.attributes import Attributes, AttributeType
from whimbrel.model.codecs import attributes_of
from whimbrel.model.tables import ATTRIBUTES_TYPE, attributes_to_column_value
from whimbrel.pipeline.files.schemas import SCHEMAS
from whimbrel.spark.attribute_sources import AttributeSources, Form, Source

__all__ = ["Wanted", "columns_of", "filter_column", "json_attributes", "schema_of", "tree_of"]

Wanted: TypeAlias = str | Filter | Predicate
"""A filter: its text, the checked text, or its syntax tree."""

_JSON = "application/json"


def filter_column(
    wanted: Wanted,
    data: DataFrame | StructType,
    *,
    inside: str | None = None,
    json: Collection[str] = (),
    allows_absent: bool = False,
) -> Column:
    """Return the verdict of a filter on each row of *data*: true, false, or NULL where it is undefined.

    *data* is a DataFrame or its schema. Each column is an attribute; a field of a struct, a key of a map and a member
    of a JSON text are named by their path, such as ``vitals.pulse``. *json* names the columns with JSON texts. With
    *inside*, the attributes are what is inside of this column alone: a struct, a map or a JSON text. A DataFrame of the
    log's publications needs none of them: its attributes are inside of ``attributes``.

    A name that no column has is refused, unless *allows_absent*; then conditions on it are undefined.
    """
    tree = tree_of(wanted)
    sources = AttributeSources(schema_of(data), inside=inside, json=json)
    found = sources.resolve(names_in(tree), allows_absent=allows_absent)
    return to_column(tree, columns_of(found).get)


def tree_of(wanted: Wanted) -> Predicate:
    """Return the syntax tree of a filter; raise ``FilterError`` for a text that is not a filter."""
    if isinstance(wanted, str):
        return parse(wanted)
    if isinstance(wanted, Filter):
        return wanted.tree
    if isinstance(wanted, Predicate):
        return wanted
    raise InvalidValueError("filter", description_of(wanted), "a text, a Filter, or a tree that `parse` returned")


def schema_of(data: DataFrame | StructType) -> StructType:
    """Return the schema of *data*."""
    if isinstance(data, StructType):
        return data
    if hasattr(data, "schema"):  # of Spark Connect, too, whose class is another one
        return data.schema
    raise InvalidValueError("data", description_of(data), "a DataFrame, or its schema")


def columns_of(sources: Mapping[str, Source]) -> Mapping[str, AttributeColumns]:
    """Return the columns of each attribute."""
    keys: dict[tuple[str, ...], frozenset[str]] = {}
    for source in sources.values():
        if source.form is Form.JSON:
            keys[source.path] = keys.get(source.path, frozenset()) | {source.key}
    parsed = {path: _parse_json(_column(path), needed) for path, needed in keys.items()}
    return {name: _columns(source, parsed) for name, source in sources.items()}


def _columns(source: Source, parsed: Mapping[tuple[str, ...], Column]) -> AttributeColumns:
    match source.form:
        case Form.JSON:
            return attribute_of_map(parsed[source.path], source.key)
        case Form.ATTRIBUTES:
            return attribute_of_map(_column(source.path), source.key)
        case Form.MAP:
            return _of_type(source, _column(source.path)[F.lit(source.key)])
        case Form.VALUE:
            return _of_type(source, _column(source.path))


def _of_type(source: Source, value: Column) -> AttributeColumns:
    """Return the columns of an attribute whose values have one type."""
    assert source.kind is not None
    kind = F.when(value.isNotNull(), F.lit(int(source.kind)))
    match source.kind:
        case AttributeType.INT32 | AttributeType.INT64:
            return AttributeColumns(kind=kind, integer=value.cast("bigint"))
        case AttributeType.REAL64:
            return AttributeColumns(kind=kind, real=value.cast("double"))
        case AttributeType.STRING:
            return AttributeColumns(kind=kind, text=value)
        case AttributeType.OPAQUE:
            return AttributeColumns(kind=kind, opaque=value)


def _column(path: tuple[str, ...]) -> Column:
    quoted = F.col(f"`{path[0].replace('`', '``')}`")
    return reduce(lambda column, field: column.getField(field), path[1:], quoted)


# -- JSON --------------------------------------------------------------------------------------------------------------


def _parse_json(column: Column, needed: frozenset[str]) -> Column:
    """Return the attributes *needed* of JSON texts, parsed by the function that the broker uses."""

    def parse_all(texts: pa.Array) -> pa.Array:
        found = (json_attributes(text) for text in texts.to_pylist())
        entries = [
            None if each is None else attributes_to_column_value({n: v for n, v in each.items() if n in needed})
            for each in found
        ]
        return pa.array(entries, ATTRIBUTES_TYPE)

    returned = SCHEMAS["publications"]["attributes"].dataType.simpleString()
    wrapped = F.arrow_udf(parse_all, returned)  # type: ignore[attr-defined]  # pyspark's stubs of F lack it
    return cast("Column", wrapped(column))


def json_attributes(text: str | bytes | None) -> Attributes | None:
    """Return the attributes of a publication with the JSON body *text*; None for None."""
    if text is None:
        return None
    return attributes_of(text.encode() if isinstance(text, str) else text, content_type=_JSON)
