"""Tables: every column described, the attribute column exact, pyarrow nowhere else."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import fields

import pyarrow as pa
import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.model.attributes import Int64, checked, type_of
from whimbrel.model.device import DeviceState
from whimbrel.model.notification import Notification
from whimbrel.model.subscription import Subscription
from whimbrel.model.tables import (
    ATTRIBUTES_TYPE,
    TABLES,
    TIME_TYPE,
    as_markdown,
    attributes_from_column_value,
    attributes_to_column_value,
)

LOG = ["publications", "interests", "presence", "sessions", "reports", "receipts", "wills", "policies", "decisions"]
OUT = [
    "matches",
    "deliveries",
    "popularity",
    "replicas",
    "link_quality",
    "latency",
    "contacts",
    "meetings",
    "dead_letters",
]


def test_all_tables_of_the_architecture_are_there() -> None:
    """Nine in, nine out; the log's come first."""
    assert list(TABLES) == LOG + OUT
    assert [table.name for table in TABLES.values() if table.is_log] == LOG


@pytest.mark.parametrize("name", LOG + OUT)
def test_every_column_is_described(name: str) -> None:
    """The docs and Spark's comments are made from it; a nullable column says what null means."""
    table = TABLES[name]
    assert table.description.endswith(".")
    for column in table.schema:
        description = column.metadata[b"description"].decode()
        assert description.endswith(".")
        assert not column.nullable or "null" in description


@pytest.mark.parametrize("name", LOG + OUT)
def test_times_are_timestamps_and_only_times(name: str) -> None:
    """One unit and one zone in every engine."""
    for column in TABLES[name].schema:
        is_time = column.name.endswith(("_at", "window_start", "window_end"))
        assert is_time == (column.type == TIME_TYPE)


def test_the_attribute_column_is_the_decided_one() -> None:
    """Every engine reads this type."""
    entry = pa.struct(
        {"type": pa.int8(), "int": pa.int64(), "real": pa.float64(), "text": pa.string(), "opaque": pa.binary()}
    )
    assert pa.map_(pa.string(), entry) == ATTRIBUTES_TYPE


@pytest.mark.parametrize(
    ("name", "value"), [("publications", Notification), ("interests", Subscription), ("reports", DeviceState)]
)
def test_values_and_tables_have_the_same_words(name: str, value: type) -> None:
    """One word per thing in code and columns; only a filter's parsed form is in no row."""
    assert {field.name for field in fields(value)} - {"parsed"} <= set(TABLES[name].schema.names)


def test_every_log_table_begins_with_its_identity() -> None:
    """(node, seq) identifies and orders every fact."""
    assert all(TABLES[name].schema.names[:2] == ["node", "seq"] for name in LOG)


def test_attributes_go_through_arrow_unchanged() -> None:
    """Types too, and NaN."""
    values = checked({"a": 1, "b": Int64(2), "c": math.inf, "d": "é", "e": b"\0"})
    column = pa.array([attributes_to_column_value(values)], type=ATTRIBUTES_TYPE)
    back = attributes_from_column_value(column[0].as_py())
    assert back == values
    assert [type_of(value) for value in back.values()] == [type_of(value) for value in values.values()]
    assert attributes_from_column_value(dict(attributes_to_column_value(values))) == values


@pytest.mark.parametrize(
    "entries",
    [
        [("a", {"type": 6, "int": 1})],
        [("a", {"type": 4, "text": None})],
        [("a", {"type": 1, "int": 2**31})],
        [("a", {"type": 3, "real": []})],
        [("a", {"type": 2, "int": 1}), ("a", {"type": 2, "int": 2})],
    ],
)
def test_a_log_written_by_others_is_looked_at(entries: list[tuple[str, dict[str, object]]]) -> None:
    """Anything may make a log; what is read from it holds the same rules."""
    with pytest.raises(InvalidValueError, match="attribute"):
        attributes_from_column_value(entries)


def test_the_page_names_every_column() -> None:
    """It is the reference; a column that is missing there does not exist for a reader."""
    page = as_markdown()
    assert "`map<string, struct<type tinyint, int bigint, real double, text string, opaque binary>>`" in page
    for table in TABLES.values():
        assert f"## `{table.name}`" in page
        assert all(f"| `{column}` |" in page for column in table.schema.names)


def test_only_tables_loads_pyarrow() -> None:
    """``import whimbrel.model`` stays light; commands start fast."""
    code = "import sys, whimbrel.model, whimbrel.model.codecs; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
