"""Pushed filters leave out no row that Spark keeps, neither as rows nor as whole files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from whimbrel.pipeline.spark.pushed_filters import as_expression, conditions_of, may_match

SCHEMA = pa.schema(
    [("session", pa.string()), ("seq", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("quality", pa.float64())]
)
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "session": st.sampled_from(["", "a", "b", "ba", "é"]),
    "seq": st.integers(-3, 3),
    "at": st.integers(-3, 3).map(lambda each: EPOCH + timedelta(microseconds=each)),
    "quality": st.sampled_from([0.0, 1.0, float("nan")]),
}
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | each for name, each in VALUES.items()}), max_size=8)
COMPARED: dict[type[Filter], Any] = {
    EqualTo: lambda found, value: found == value,
    GreaterThan: lambda found, value: found > value,
    GreaterThanOrEqual: lambda found, value: found >= value,
    LessThan: lambda found, value: found < value,
    LessThanOrEqual: lambda found, value: found <= value,
    In: lambda found, value: found in value,
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    """Draw a filter on one of the columns."""
    name = draw(st.sampled_from(sorted(VALUES)))
    kind = draw(st.sampled_from(sorted(COMPARED, key=lambda each: each.__name__)))
    value = VALUES[name]
    return kind((name,), draw(st.lists(value, max_size=3).map(tuple) if kind is In else value))  # type: ignore[call-arg]


def keeps(row: dict[str, Any], wanted: Filter) -> bool:
    """Return whether Spark keeps a row: its plain reference, without NaN."""
    found = row[wanted.attribute[0]]  # type: ignore[attr-defined]
    return found is not None and bool(COMPARED[type(wanted)](found, wanted.value))  # type: ignore[attr-defined]


@given(rows=ROWS, wanted=st.lists(filters(), max_size=3))
def test_no_row_that_matches_is_left_out(rows: list[dict[str, Any]], wanted: list[Filter]) -> None:
    """Spark checks all rows that it gets; it cannot check those that it does not get."""
    conditions = conditions_of(wanted, SCHEMA)
    assert len(conditions) == sum(each.attribute[0] != "quality" for each in wanted)  # type: ignore[attr-defined]
    expression, table = as_expression(conditions, SCHEMA), pa.Table.from_pylist(rows, schema=SCHEMA)
    found = (table if expression is None else table.filter(expression)).to_pylist()
    used = [each for each in wanted if each.attribute[0] != "quality"]  # type: ignore[attr-defined]
    matching = [row for row in rows if all(keeps(row, each) for each in used)]
    assert repr(found) == repr(pa.Table.from_pylist(matching, schema=SCHEMA).to_pylist())  # NaN is unlike itself
    known = {name: [row[name] for row in rows if row[name] is not None] for name in ("session", "seq", "at")}
    least, most = ({name: end(each) for name, each in known.items() if each} for end in (min, max))
    assert may_match(conditions, least, most) or not matching


@pytest.mark.parametrize(
    "wanted",
    [
        EqualTo(("session", "part"), "a"),
        EqualTo(("other",), "a"),
        EqualTo(("quality",), 1.0),
        EqualTo(("seq",), 2**70),
        EqualTo(("seq",), None),
        In(("seq",), (1, None)),
        GreaterThan(("at",), datetime(2026, 1, 1)),  # noqa: DTZ001 # a time without a zone is what is tested
        IsNotNull(("seq",)),
        Not(EqualTo(("seq",), 1)),
    ],
    ids=str,
)
def test_a_filter_of_doubtful_meaning_is_ignored(wanted: Filter) -> None:
    """Of a struct's field, a real, a NULL, a local time, or a number that no row can have: Spark decides."""
    assert conditions_of([wanted], SCHEMA) == ()


def test_a_file_of_another_range_is_left_out() -> None:
    """That is what a range is for; a column without a range says nothing."""
    conditions = conditions_of([EqualTo(("session",), "b"), LessThan(("seq",), 5)], SCHEMA)
    assert may_match(conditions, {"session": "a", "seq": 4}, {"session": "c", "seq": 9})
    assert not may_match(conditions, {"session": "c", "seq": 4}, {"session": "d", "seq": 9})
    assert not may_match(conditions, {"session": "a", "seq": 5}, {"session": "c", "seq": 9})
    assert may_match(conditions, {"seq": 4}, {"seq": 9})
