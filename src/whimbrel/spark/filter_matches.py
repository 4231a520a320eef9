"""Many filters over a DataFrame: the rows that each filter matches, found by one packed matcher in Arrow workers.

The matcher is that of the pipeline. A worker packs it once and leaves it on its disk, where all workers of the machine
map it (``matcher_files``).
Rule: it agrees with ``filter_column``: a row is returned for the filters whose verdict is true.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from whimbrel.errors import InvalidValueError, description_of
from whimbrel.language.filters import Filter
from whimbrel.language.needs import names as names_in
from whimbrel.language.printer import print_filter
from whimbrel.model.attributes import AttributeType
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.tables import ATTRIBUTES_TYPE, attributes_to_column_value
from whimbrel.pipeline.subscriptions.matcher_files import MatcherInput, matcher_files
from whimbrel.pipeline.subscriptions.versions import VERSIONS_SCHEMA
from whimbrel.spark.attribute_sources import AttributeSources, Form, Source
from whimbrel.spark.filter_columns import Wanted, json_attributes, tree_of

__all__ = ["FilterMatcher", "attributes_column", "matches"]

_NODE = "$whimbrel.spark"
"""Stands where a node stands in the cache of matchers; it is not a valid name of a node."""
_FIELDS = {
    AttributeType.INT32: "int",
    AttributeType.INT64: "int",
    AttributeType.REAL64: "real",
    AttributeType.STRING: "text",
    AttributeType.OPAQUE: "opaque",
}


def matches(
    filters: Mapping[str, Wanted] | Iterable[Wanted],
    data: DataFrame,
    *,
    inside: str | None = None,
    json: Collection[str] = (),
    name: str = "filter",
) -> DataFrame:
    """Return the rows of *data* that the *filters* match, once for each filter, with its name in the column *name*.

    *filters* maps names to filters; without names, a filter is named by its text. *inside* and *json* are those of
    ``filter``. Conditions on a name that no column has are undefined.
    """
    wanted = _by_name(filters)
    if name in data.columns:
        raise InvalidValueError("name of the column of filters", name, f"none of {', '.join(data.columns)}")
    trees = {each: tree_of(filter_) for each, filter_ in wanted.items()}
    texts = {each: _text(wanted[each]) for each in wanted}
    needed = frozenset[str]().union(*map(names_in, trees.values()))
    sources = AttributeSources(data.schema, inside=inside, json=json)
    matcher = FilterMatcher(texts, sources.resolve(needed, allows_absent=True), name)
    return data.mapInArrow(matcher, StructType([*data.schema, StructField(name, StringType(), nullable=False)]))


def _by_name(filters: Mapping[str, Wanted] | Iterable[Wanted]) -> dict[str, Wanted]:
    if isinstance(filters, Mapping):
        return dict(filters)
    if isinstance(filters, str | Filter):
        return {_text(filters): filters}
    if isinstance(filters, Iterable):
        return {_text(each): each for each in filters}
    raise InvalidValueError("filters", description_of(filters), "filters by name, or a list of filters")


def _text(wanted: Wanted) -> str:
    if isinstance(wanted, str):
        return wanted
    return wanted.text if isinstance(wanted, Filter) else print_filter(tree_of(wanted))


@dataclass(frozen=True)
class FilterMatcher:
    """Function from Arrow batches of rows to batches of matching rows; Spark sends it to its workers."""

    texts: Mapping[str, str]
    """Text of each filter, by name."""
    sources: Mapping[str, Source]
    """Where each attribute that the filters name is."""
    column: str
    """Name of the added column."""

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the rows of *batches* that the filters match, with the name of the filter."""
        found = matcher_files().open(_NODE, MatcherInput(_as_versions(self.texts)))
        names = found.table.column("session").combine_chunks()
        for batch in batches:
            count = batch.num_rows
            if not count:
                continue
            # A seq after the begin of all versions: each filter is in force.
            published = {
                "seq": pa.array(np.ones(count, np.int64)),
                "attributes": attributes_column(batch, self.sources),
                "deliver_insecure": pa.array(np.ones(count, np.bool_)),
            }
            rows, handles = found.match(pa.RecordBatch.from_pydict(published))
            if rows.size:
                taken = batch.take(pa.array(rows))
                matched = names.take(pa.array(handles))
                yield taken.append_column(self.column, matched)


def _as_versions(texts: Mapping[str, str]) -> Any:  # a pyarrow.Table
    """Return filters as versions of subscriptions (``versions``) to all subjects that are in force for ever."""
    count = len(texts)
    columns = {
        "session": pa.array([*texts], pa.string()),
        "name": pa.array([""] * count, pa.string()),
        "interest_seq": pa.array(np.zeros(count, np.int64)),
        "ended_seq": pa.array(np.full(count, INT64_MAX, np.int64)),
        "filter_text": pa.array([*texts.values()], pa.string()),
        "accept_insecure": pa.array(np.ones(count, np.bool_)),
    }
    return pa.table(
        [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in VERSIONS_SCHEMA],
        schema=VERSIONS_SCHEMA,
    )


# -- attributes --------------------------------------------------------------------------------------------------------


def attributes_column(batch: Any, sources: Mapping[str, Source]) -> Any:
    """Return the attributes of each row of an Arrow batch, as an array of type ``ATTRIBUTES_TYPE``."""
    parts = [_Entries.of_value(batch, name, each) for name, each in sources.items() if each.form is Form.VALUE]
    inner: dict[tuple[tuple[str, ...], Form], dict[str, str]] = {}
    kinds: dict[tuple[str, ...], Source] = {}
    for name, each in sources.items():
        if each.form is not Form.VALUE:
            inner.setdefault((each.path, each.form), {})[each.key] = name
            kinds[each.path] = each
    for (path, form), names in inner.items():
        column = _column(batch, path)
        if form is Form.JSON:
            column = _parse(column, names)
        parts.append(_Entries.of_map(column, names, kinds[path] if form is Form.MAP else None))
    if not parts:
        return pa.nulls(batch.num_rows, ATTRIBUTES_TYPE)
    return _Entries.join(parts).as_map(batch.num_rows)


def _column(batch: Any, path: tuple[str, ...]) -> Any:
    column = batch.column(path[0])
    for field in path[1:]:
        column = pc.struct_field(column, field)
    return column


def _parse(column: Any, names: Collection[str]) -> Any:
    """Return the attributes *names* of JSON texts."""
    found = [
        attributes_to_column_value({n: v for n, v in (json_attributes(text) or {}).items() if n in names})
        for text in column.to_pylist()
    ]
    return pa.array(found, ATTRIBUTES_TYPE)


@dataclass(frozen=True, slots=True)
class _Entries:
    """Attributes of some rows: the number of the row, the name, and the value as a struct of the log's attributes."""

    rows: Any
    names: Any
    values: Any

    @classmethod
    def of_value(cls, batch: Any, name: str, source: Source) -> _Entries:
        """Return the values of a column whose rows have values of one type."""
        column = _column(batch, source.path)
        rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        names = pa.repeat(pa.scalar(name, pa.string()), rows.size)
        return cls(rows, names, _as_entries(column.take(pa.array(rows)), source))

    @classmethod
    def of_map(cls, column: Any, names: Mapping[str, str], source: Source | None) -> _Entries:
        """Return the values of the keys *names* of a map; without a *source*, the values are the log's entries."""
        starts = np.asarray(column.offsets).astype(np.int64)
        lengths = np.diff(starts)
        if column.null_count:
            lengths = np.where(column.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
        at = np.repeat(starts[:-1], lengths) + (
            np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        )
        keys, rows = column.keys.take(pa.array(at)).cast(pa.string()), np.repeat(np.arange(len(lengths)), lengths)
        values = column.items.take(pa.array(at))
        coded = keys.dictionary_encode()
        own = pa.array([names.get(key) for key in coded.dictionary.to_pylist()], pa.string())
        renamed = own.take(coded.indices)
        is_there = pc.and_(renamed.is_valid(), values.is_valid())
        rows = rows[is_there.to_numpy(zero_copy_only=False)]
        renamed, values = renamed.filter(is_there), values.filter(is_there)
        values = values.cast(ATTRIBUTES_TYPE.item_type) if source is None else _as_entries(values, source)
        return cls(rows, renamed, values)

    @classmethod
    def join(cls, parts: Iterable[_Entries]) -> _Entries:
        """Return all entries, ordered by row."""
        found = list(parts)
        rows = np.concatenate([each.rows for each in found])
        order = np.argsort(rows, kind="stable")
        names, values = (pa.concat_arrays([getattr(each, of) for each in found]) for of in ("names", "values"))
        return cls(rows[order], names.take(pa.array(order)), values.take(pa.array(order)))

    def as_map(self, count: int) -> Any:
        """Return the entries of *count* rows as an array of type ``ATTRIBUTES_TYPE``."""
        starts = np.searchsorted(self.rows, np.arange(count + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(starts), self.names, self.values).cast(ATTRIBUTES_TYPE)


def _as_entries(values: Any, source: Source) -> Any:
    """Return *values*, which have one type and no null, as structs of the log's attributes."""
    assert source.kind is not None
    count, entry = len(values), ATTRIBUTES_TYPE.item_type
    if source.is_flag:
        values = values.cast(pa.int8())
    filled = {
        "type": pa.array(np.full(count, int(source.kind), np.int8)),
        _FIELDS[source.kind]: values.cast(entry.field(_FIELDS[source.kind]).type),
    }
    columns = [filled[field.name] if field.name in filled else pa.nulls(count, field.type) for field in entry]
    return pa.StructArray.from_arrays(columns, fields=list(entry))
