"""Filters over any DataFrame against the reference: whatever the columns are, one tree has one verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from strategies import NAMES, attributes, filters, trees

from whimbrel.errors import FilterError, InvalidValueError
from whimbrel.language.backends.python import compile_filter
from whimbrel.language.filters import Filter, parse
from whimbrel.language.needs import names as names_in
from whimbrel.language.printer import print_filter
from whimbrel.model.attributes import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, Attributes, Int64, Scalar
from whimbrel.model.codecs import from_json, to_json
from whimbrel.model.tables import ATTRIBUTES_TYPE, TABLES, attributes_from_column_value, attributes_to_column_value
from whimbrel.spark import filter as filter_of
from whimbrel.spark import matches
from whimbrel.spark.attribute_sources import AttributeSources
from whimbrel.spark.filter_matches import FilterMatcher, attributes_column

INT32, INT64 = st.integers(INT32_MIN, INT32_MAX), st.integers(INT64_MIN, INT64_MAX)
FEW = st.integers(-4, 4)
TEXTS = st.sampled_from(["", "a", "ab", "ABC", "foobar", "7", "-7", "1e3", "x\ny", "ß"]) | st.text(
    st.characters(codec="utf-8"), max_size=4
)
COLUMNS: Mapping[str, tuple[Any, Any, Callable[[Any], Scalar]]] = {
    "a": (pa.int32(), FEW | INT32, int),
    "b": (pa.float64(), FEW.map(float) | st.floats(), float),
    "c": (pa.string(), TEXTS, str),
    "d": (pa.int64(), FEW | INT64, Int64),
    "user-name": (pa.bool_(), st.booleans(), int),
    "two words": (pa.binary(), st.binary(max_size=3), bytes),
    "true": (pa.int16(), st.integers(-(2**15), 2**15 - 1), int),
    "1st": (pa.float32(), FEW.map(float) | st.floats(width=32), float),
    "ünïcode": (pa.string(), TEXTS, str),
}
"""Arrow type, values, and the attribute of a value, per name that the generated trees use."""
STRUCT = pa.struct([(name, kind) for name, (kind, _, _) in COLUMNS.items()])


class Layout:
    """A way to lay out rows in columns: the columns of a row, and the attributes that these are by our rules."""

    def __init__(
        self,
        schema: Any,
        rows: st.SearchStrategy[Any],
        columns: Callable[[Any], dict[str, Any]],
        reference: Callable[[Any], Attributes],
        **options: Any,
    ) -> None:
        self.schema, self.rows, self.columns, self.reference, self.options = schema, rows, columns, reference, options

    def table(self, rows: Sequence[Any]) -> Any:
        """Return the rows as an Arrow table."""
        return pa.Table.from_pylist([self.columns(row) for row in rows], schema=self.schema)


def typed(row: Mapping[str, Any]) -> Attributes:
    """Return the attributes of a row whose columns have types."""
    return {name: COLUMNS[name][2](value) for name, value in row.items() if value is not None}


def map_of(value: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return maps from the names of the trees to values, of which some are null."""
    return st.dictionaries(st.sampled_from(NAMES), st.none() | value, max_size=len(NAMES))


def there(row: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what is not null."""
    return {name: value for name, value in (row or {}).items() if value is not None}


def is_json(row: Attributes) -> bool:
    """Tell whether JSON can say it: JSON has neither bytes nor NaN."""
    return not any(isinstance(v, bytes) or (isinstance(v, float) and not math.isfinite(v)) for v in row.values())


TYPED = st.fixed_dictionaries({name: st.none() | values for name, (_, values, _) in COLUMNS.items()})
OBJECTS = attributes().filter(is_json)
LAYOUTS = {
    "columns": Layout(pa.schema(list(STRUCT)), TYPED, dict, typed),
    "struct": Layout(
        pa.schema([("s", STRUCT), ("a", pa.string())]),
        st.none() | TYPED,
        lambda row: {"s": row, "a": "not inside"},
        lambda row: typed(row or {}),
        inside="s",
    ),
    "map of reals": Layout(
        pa.schema([("m", pa.map_(pa.string(), pa.float64()))]),
        st.none() | map_of(st.floats()),
        lambda row: {"m": None if row is None else list(row.items())},
        there,
        inside="m",
    ),
    "map of texts": Layout(
        pa.schema([("m", pa.map_(pa.string(), pa.string()))]),
        st.none() | map_of(TEXTS),
        lambda row: {"m": None if row is None else list(row.items())},
        there,
        inside="m",
    ),
    "attributes": Layout(
        pa.schema([("attributes", ATTRIBUTES_TYPE), ("a", pa.string())]),
        attributes(),
        lambda row: {"attributes": attributes_to_column_value(row), "a": "not inside"},
        lambda row: row,
    ),
    "JSON": Layout(
        pa.schema([("j", pa.string())]),
        st.none() | OBJECTS,
        lambda row: {"j": None if row is None else to_json(row)},
        lambda row: {} if row is None else from_json(to_json(row)),
        inside="j",
    ),
}


def spark_schema(layout: Layout) -> StructType:
    """Return the layout's schema as Spark has it."""
    return from_arrow_schema(layout.schema)


def batches_of(layout: Layout, rows: Sequence[Any]) -> list[Any]:
    """Return the rows as Arrow batches, the second of which does not begin with the first row of its buffers."""
    whole = layout.table(rows).combine_chunks().to_batches()
    return [part for batch in whole for part in (batch.slice(0, 3), batch.slice(3)) if part.num_rows]


# -- without Spark ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
@given(data=st.data())
def test_a_worker_reads_the_attributes_of_a_row(name: str, data: st.DataObject) -> None:
    """The matcher sees what the reference sees, of every name that a filter may use."""
    layout = LAYOUTS[name]
    rows = data.draw(st.lists(layout.rows, min_size=1, max_size=8))
    sources = AttributeSources(spark_schema(layout), **layout.options).resolve(NAMES, allows_absent=False)
    found = [row for batch in batches_of(layout, rows) for row in attributes_column(batch, sources).to_pylist()]
    read = [attributes_from_column_value(row or []) for row in found]
    assert [sorted(map(repr, row.items())) for row in read] == [
        sorted(map(repr, layout.reference(row).items())) for row in rows
    ]


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_matching_rows_are_those_of_the_reference(name: str, data: st.DataObject) -> None:
    """Each row, once for each filter whose verdict is true."""
    layout = LAYOUTS[name]
    wanted = data.draw(st.lists(filters(), min_size=1, max_size=6))
    rows = data.draw(st.lists(layout.rows, min_size=1, max_size=8))
    texts = {f"f{number}": print_filter(tree) for number, tree in enumerate(wanted)}
    needed = frozenset[str]().union(*map(names_in, wanted))
    sources = AttributeSources(spark_schema(layout), **layout.options).resolve(needed, allows_absent=True)
    numbered = layout.table(rows).append_column("number", pa.array(range(len(rows))))
    batches = numbered.combine_chunks().to_batches()
    found = [
        (row["number"], row["filter"])
        for batch in FilterMatcher(texts, sources, "filter")(batches)
        for row in batch.select(["number", "filter"]).to_pylist()
    ]
    verdicts = {f"f{number}": compile_filter(tree) for number, tree in enumerate(wanted)}
    assert sorted(found) == sorted(
        (number, each)
        for number, row in enumerate(rows)
        for each, verdict in verdicts.items()
        if verdict(layout.reference(row)) is True
    )


def refused(text: str, *fields: tuple[str, Any], **options: Any) -> str:
    """Return the sentence with which a filter over these columns is refused."""
    with pytest.raises(InvalidValueError) as error:
        filter_of(text, from_arrow_schema(pa.schema(fields)), **options)
    return str(error.value)


def test_what_cannot_be_an_attribute_is_refused_by_name() -> None:
    """A condition on it would be undefined in every row: a filter that finds nothing, and says nothing."""
    columns = [("pulse", pa.int32()), ("ward", pa.string()), ("at", pa.timestamp("us", "UTC"))]
    assert "attribute in the filter: found 'puls', allowed is one of pulse, ward" in refused("puls > 1", *columns)
    assert "type of the column at: found timestamp, allowed is boolean" in refused("at > 1", *columns)
    assert "found array<int>" in refused("a == 1", ("a", pa.list_(pa.int32())))
    assert "found decimal(9,2)" in refused("a == 1.5", ("a", pa.decimal128(9, 2)))
    assert "found map<int,string>" in refused("a == 1", ("a", pa.map_(pa.int32(), pa.string())))
    inner = pa.struct([("pulse", pa.int32())])
    assert "allowed is one of v.pulse" in refused("pulse > 1", ("v", inner))
    assert "column with attributes inside: found 'w', allowed is one of v, v.pulse" in refused(
        "pulse > 1", ("v", inner), inside="w"
    )
    assert "column with JSON: found 'w'" in refused("pulse > 1", ("v", pa.string()), json="w")
    assert "column v with JSON: found 'int', allowed is string or binary" in refused(
        "v.pulse > 1", ("v", pa.int32()), json=["v"]
    )
    twice = [("v", inner), ("v.pulse", pa.int32())]
    assert "attribute name: found 'v.pulse', allowed is each name once" in refused("v.pulse > 1", *twice)


def test_what_is_no_filter_is_refused_with_its_position() -> None:
    """Before Spark plans anything."""
    schema = from_arrow_schema(pa.schema([("pulse", pa.int32())]))
    with pytest.raises(FilterError, match="line 1, column 9"):
        filter_of("pulse > ", schema)
    with pytest.raises(InvalidValueError, match="filter: found an integer, allowed is a text"):
        filter_of(7, schema)  # type: ignore[arg-type]  # a mistake
    with pytest.raises(InvalidValueError, match="data: found an object, allowed is a DataFrame"):
        filter_of("pulse > 1", {})  # type: ignore[arg-type]  # so


# -- with Spark -------------------------------------------------------------------------------------------------------


@settings(max_examples=2, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize("name", LAYOUTS)
def test_spark_gives_the_verdict_of_the_reference(spark: SparkSession, name: str, data: st.DataObject) -> None:
    """True, false and undefined, for texts and for trees."""
    layout = LAYOUTS[name]
    batch = data.draw(st.lists(trees(), min_size=20, max_size=20))
    rows = data.draw(st.lists(layout.rows, min_size=30, max_size=30))
    frame = spark.createDataFrame(layout.table(rows))
    found = frame.select(*(filter_of(tree, frame, allows_absent=True, **layout.options) for tree in batch)).collect()
    assert [
        f"{tree} on {layout.reference(row)}: spark says {got}, the reference {want}"
        for row, verdicts in zip(rows, found, strict=True)
        for tree, got in zip(batch, verdicts, strict=True)
        if got is not (want := compile_filter(tree)(layout.reference(row)))
    ] == []


def test_names_are_paths_through_structs_maps_and_json(spark: SparkSession) -> None:
    """As in the body of a publication; a text, a Filter and a tree mean the same."""
    rows = [
        {"id": 1, "v": {"pulse": 130, "by": {"lead": "II"}}, "t": [("ward", "icu")], "j": '{"spo2": {"now": 91}}'},
        {"id": 2, "v": {"pulse": 70, "by": None}, "t": [("ward", "er")], "j": "no JSON"},
        {"id": 3, "v": None, "t": None, "j": None},
    ]
    by = pa.struct([("lead", pa.string())])
    kinds = [("id", pa.int64()), ("v", pa.struct([("pulse", pa.int32()), ("by", by)]))]
    kinds += [("t", pa.map_(pa.string(), pa.string())), ("j", pa.string())]
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema=pa.schema(kinds)))
    text = "v.pulse > 100 && v.by.lead == 'II' && t.ward == 'icu' && j.spo2.now < 92"
    for wanted in (text, Filter(text), parse(text)):
        assert [row[0] for row in frame.select(filter_of(wanted, frame, json="j")).collect()] == [True, False, None]
    found = matches({"crisis": text, "calm": "v.pulse < 100"}, frame, json="j")
    assert sorted((row["id"], row["filter"]) for row in found.collect()) == [(1, "crisis"), (2, "calm")]
    assert found.schema.names == ["id", "v", "t", "j", "filter"]
    assert [row["filter"] for row in matches("id == 3L", frame).collect()] == ["id == 3L"]
    with pytest.raises(InvalidValueError, match="name of the column of filters: found 'id'"):
        matches(["id == 3L"], frame, name="id")


def test_an_integer_filter_is_pushed_down_to_parquet(spark: SparkSession, tmp_path: Any) -> None:
    """Else a filter over a year of Parquet would read all of it."""
    spark.range(100).selectExpr("id", "cast(id as int) as n", "cast(id as string) as s").write.parquet(
        str(tmp_path / "p")
    )
    frame = spark.read.parquet(str(tmp_path / "p"))
    found = frame.where(filter_of("n > 90 && id < 95L && s == '93'", frame))
    plan = found._jdf.queryExecution().executedPlan().toString()
    pushed = next(line for line in plan.splitlines() if "PushedFilters" in line)
    assert all(each in pushed for each in ("GreaterThan(n,90)", "LessThan(id,95)", "EqualTo(s,93)"))
    assert [row["id"] for row in found.collect()] == [93]


def test_publications_need_no_option(spark: SparkSession) -> None:
    """Their attributes are inside of one column, which is known."""
    schema = TABLES["publications"].schema
    row: dict[str, Any] = dict.fromkeys(schema.names)
    row |= {"node": "n", "seq": 1, "published_at": 0, "subject": "s", "publisher": "p", "body": b""}
    row |= {"qos": 0, "retain": False, "expires_at": 1, "deliver_insecure": True}
    row["attributes"] = attributes_to_column_value({"pulse": 130})
    frame = spark.createDataFrame(
        pa.Table.from_pylist([row], schema=pa.schema([f.with_nullable(True) for f in schema]))
    )
    assert frame.where(filter_of("pulse > 120", frame)).count() == 1
    assert [row["filter"] for row in matches({"high": "pulse > 120"}, frame).select("filter").collect()] == ["high"]
