"""Arrow columns of attributes: every layout gives the row reader's answer or is refused, and none hurts the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import attributes

from whimbrel.errors import InvalidValueError
from whimbrel.log.columns import from_arrow, to_arrow
from whimbrel.match.index.content import ContentIndex
from whimbrel.match.matcher import Interest, Matcher
from whimbrel.model.attributes import DEFAULT_LIMITS, INT32_MAX, Attributes, Int64, checked
from whimbrel.model.notification import Notification
from whimbrel.model.rows import row_of
from whimbrel.model.tables import ATTRIBUTES_TYPE, attributes_from_column_value, attributes_to_column_value

FILTERS = (
    "a == 1",
    "a > 0.5 || b == 'ab'",
    "require(b)",
    "contains(b, 'a') && !(c == 3L)",
    "regex(b, 'a.*')",
    "size(d) > 1",
    "fold-case(b) == 'abc'",
    "a + 1 == 2",
    "opaque(c)",
)
ROWS: tuple[Attributes, ...] = (
    {"a": 1, "b": "ab"},
    {"a": Int64(1), "b": "ABC", "c": Int64(3)},
    {},
    {"a": 0.75, "c": b"\0\1", "d": b"xyz"},
    {"b": "aß" * 40, "d": "long enough not to be kept inside a view", "c": b"neither would this be, of bytes"},
    {"d": "", "a": -(2**31)},
)
FIELDS = [field.name for field in ATTRIBUTES_TYPE.item_type]


def _index() -> ContentIndex:
    return ContentIndex.load(enumerate(FILTERS))


def _column(rows: Sequence[Attributes] = ROWS) -> Any:
    return pa.array([attributes_to_column_value(row) for row in rows], ATTRIBUTES_TYPE)


def _pairs(found: tuple[Any, Any]) -> set[tuple[int, int]]:
    return set(zip(found[0].tolist(), found[1].tolist(), strict=True))


def _wanted(index: ContentIndex, rows: Sequence[Attributes]) -> set[tuple[int, int]]:
    return {(row, handle) for row, event in enumerate(rows) for handle in index.match(event)}


def _rebuilt(column: Any, types: dict[str, Any], *, key: Any = None, order: Sequence[str] = FIELDS) -> Any:
    """Return *column* with its fields cast to *types* and in another *order*."""
    values = {name: column.items.field(name) for name in FIELDS}
    values |= {name: values[name].cast(kind) for name, kind in types.items()}
    entries = pa.StructArray.from_arrays([values[name] for name in order], names=list(order))
    keys = column.keys if key is None else column.keys.cast(key)
    return pa.MapArray.from_arrays(column.offsets, keys, entries)


SAME = {
    "views of strings": {"text": pa.string_view()},
    "views of bytes": {"opaque": pa.binary_view()},
    "large": {"text": pa.large_string(), "opaque": pa.large_binary()},
    "dictionaries": {"text": pa.dictionary(pa.int16(), pa.string()), "opaque": pa.dictionary(pa.int8(), pa.binary())},
    "a type of 32 bits": {"type": pa.int32()},
    "unsigned types": {"type": pa.uint8(), "int": pa.int64()},
    "all of them": {"type": pa.int64(), "text": pa.string_view(), "opaque": pa.large_binary()},
}


@pytest.mark.parametrize("order", [FIELDS, FIELDS[::-1], ["text", "type", "int", "real", "opaque"]], ids=str)
@pytest.mark.parametrize("key", [None, pa.string_view(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
@pytest.mark.parametrize("types", SAME.values(), ids=SAME)
def test_layouts_that_say_the_same_give_the_same_answer(types: dict[str, Any], key: Any, order: list[str]) -> None:
    """Polars writes views, pandas dictionaries, other writers what they like."""
    index = _index()
    column = _rebuilt(_column(), types, key=key, order=order)
    assert _pairs(index.match_arrow(column)) == _wanted(index, ROWS)
    half = column.slice(1, 4)
    assert _pairs(index.match_arrow(half)) == _wanted(index, ROWS[1:5])
    assert _pairs(index.match_arrow(pa.chunked_array([column, half]))) == _wanted(index, [*ROWS, *ROWS[1:5]])


OTHERS = {
    "no map": pa.list_(ATTRIBUTES_TYPE.item_type),
    "a map of numbers": pa.map_(pa.string(), pa.int64()),
    "names that are bytes": pa.map_(pa.binary(), ATTRIBUTES_TYPE.item_type),
    "text that is bytes": pa.map_(
        pa.string(), pa.struct([f if f.name != "text" else f.with_type(pa.binary()) for f in ATTRIBUTES_TYPE.item_type])
    ),
    "reals that are integers": pa.map_(
        pa.string(), pa.struct([f if f.name != "real" else f.with_type(pa.int64()) for f in ATTRIBUTES_TYPE.item_type])
    ),
    "a field less": pa.map_(pa.string(), pa.struct(list(ATTRIBUTES_TYPE.item_type)[:4])),
    "a field more": pa.map_(pa.string(), pa.struct([*ATTRIBUTES_TYPE.item_type, ("more", pa.int8())])),
    "a field twice": pa.map_(pa.string(), pa.struct([*list(ATTRIBUTES_TYPE.item_type)[:4], ("text", pa.string())])),
    "strings": pa.string(),
    "nothing": pa.null(),
}


@pytest.mark.parametrize("kind", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("rows", [0, 2])
def test_other_types_are_refused(kind: Any, rows: int) -> None:
    """Bytes read as something else than they are give answers, too."""
    with pytest.raises(InvalidValueError, match=r"type of|fields of"):
        _index().match_arrow(pa.nulls(rows, kind))


def test_what_is_no_arrow_array_is_refused() -> None:
    """A numpy array has a length as well."""
    with pytest.raises(InvalidValueError, match="an Arrow array"):
        _index().match_arrow(np.zeros(3))


def test_a_null_row_has_no_attributes_whatever_its_offsets_span() -> None:
    """Arrow lets a null row keep its items; they are not there."""
    index, whole = _index(), _column()
    mask = pa.array([False, True, False, True, True, False])
    column = pa.MapArray.from_arrays(whole.offsets, whole.keys, whole.items, mask=mask)
    assert column.null_count == 3
    rows = [{} if is_null else row for row, is_null in zip(ROWS, mask.to_pylist(), strict=True)]
    assert _pairs(index.match_arrow(column)) == _wanted(index, rows)
    assert _pairs(index.match_arrow(column.slice(1, 3))) == _wanted(index, rows[1:4])
    index.add(99, "require(a)")  # decided by the closures
    assert _pairs(index.match_arrow(column)) == _wanted(index, rows)


_ONE = {"type": 1, "int": 1, "real": None, "text": None, "opaque": None}
REFUSED = {
    "a name twice": ([("a", _ONE), ("b", _ONE), ("a", _ONE)], "each name once"),
    "a name nobody asks for twice": ([("z", _ONE), ("z", _ONE)], "each name once"),
    "an int32 out of range": ([("a", {**_ONE, "int": INT32_MAX + 1})], "an integer from"),
    "an int32 below its range": ([("a", {**_ONE, "int": -(2**31) - 1})], "an integer from"),
    "a type that is none": ([("a", {**_ONE, "type": 6})], "1 to 5"),
    "a type below": ([("a", {**_ONE, "type": -1})], "1 to 5"),
    "no type": ([("a", {**_ONE, "type": None})], "1 to 5"),
    "no value": ([("a", None)], "a type and a value"),
    "no integer": ([("a", {**_ONE, "int": None})], "the field int"),
    "no long integer": ([("a", {**_ONE, "type": 2, "int": None})], "the field int"),
    "no real": ([("a", {**_ONE, "type": 3})], "the field real"),
    "no text": ([("a", {**_ONE, "type": 4})], "the field text"),
    "no bytes": ([("a", {**_ONE, "type": 5})], "the field opaque"),
    "no name": ([("", _ONE)], "at least one character"),
    "a name of the matcher's own": ([("\0subject", {**_ONE, "type": 4, "text": "s/1"})], "not U\\+0000"),
}


@pytest.mark.parametrize(("row", "allowed"), REFUSED.values(), ids=REFUSED)
def test_rows_that_the_row_reader_refuses_are_refused(row: Any, allowed: str) -> None:
    """One meaning of a notification: what cannot be read one by one cannot be matched by the thousand."""
    with pytest.raises(InvalidValueError, match=allowed) as alone:
        attributes_from_column_value(row)
    good = attributes_to_column_value({"a": 1})
    matcher = Matcher.load([("x", Interest(filter_text="a == 1", subject_filter="s/+")), ("y", Interest())])
    column = pa.array([good, good, row, good], ATTRIBUTES_TYPE)
    for batch, number in ((column, 2), (column.slice(1), 1)):
        with pytest.raises(InvalidValueError, match=allowed) as caught:
            matcher.match_batch(["s/1"] * len(batch), batch)
        assert caught.value.what == f"row {number}, {alone.value.what}"
    for inside in (column.slice(0, 2), column.slice(3)):
        rows, _ = matcher.match_batch(["s/1"] * len(inside), inside)
        assert len(rows) == 2 * len(inside)


def test_an_entry_that_is_null_has_no_value_whatever_lies_under_it() -> None:
    """The log's own reader, the matcher and Spark must refuse the same rows."""
    whole = _column([{"a": 1}])
    fields = [whole.items.field(name) for name in FIELDS]
    entries = pa.StructArray.from_arrays(fields, names=FIELDS, mask=pa.array([True]))
    column = pa.MapArray.from_arrays(whole.offsets, whole.keys, entries)
    with pytest.raises(InvalidValueError, match="a type and a value"):
        _index().match_arrow(column)
    fact = Notification(node="n", seq=1, published_at=2, attributes=checked({"a": 1}))
    table = to_arrow("publications", [row_of(fact)[1]])
    at = table.schema.get_field_index("attributes")
    assert list(from_arrow("publications", table)) == [fact]
    with pytest.raises(InvalidValueError, match="a type from 1 to 5 and its value"):
        list(from_arrow("publications", table.set_column(at, "attributes", column)))


def test_what_a_node_accepted_once_is_matched_whatever_our_limits_are() -> None:
    """A log is read without limits: its node may have had others."""
    index = ContentIndex.load([(1, "require(a)"), (2, "n1000 == 1"), (3, "a + 1 == 2 || size(a) > 5")])
    large = {"a": "x" * (DEFAULT_LIMITS.max_bytes + 1)}
    many = {f"n{i}": 1 for i in range(DEFAULT_LIMITS.max_names + 1)}
    assert _pairs(index.match_arrow(_column([large, many]))) == {(0, 1), (0, 3), (1, 2)}


def test_damaged_buffers_are_refused() -> None:
    """A file from somebody else may say that a string ends beyond its buffer; the kernel would read there."""
    whole = _column()
    texts = whole.items.field("text")
    beyond = np.frombuffer(texts.buffers()[1], np.int32).copy()
    beyond[2] = 2**30
    no_text = pa.StringArray.from_buffers(len(texts), pa.py_buffer(beyond), texts.buffers()[2], texts.buffers()[0])
    no_utf8 = pa.StringArray.from_buffers(
        len(texts), texts.buffers()[1], pa.py_buffer(b"\xff" * texts.buffers()[2].size), texts.buffers()[0]
    )
    for bad in (no_text, no_utf8):
        fields = [bad if name == "text" else whole.items.field(name) for name in FIELDS]
        entries = pa.StructArray.from_arrays(fields, names=FIELDS)
        with pytest.raises(InvalidValueError, match="valid Arrow"):
            _index().match_arrow(pa.MapArray.from_arrays(whole.offsets, whole.keys, entries))
    backwards = pa.array([0, 2, 1, 3, 3, 3, 3], pa.int32())
    with pytest.raises(InvalidValueError, match="valid Arrow"):
        _index().match_arrow(pa.MapArray.from_arrays(backwards, whole.keys, whole.items))


_LAYOUTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from([pa.int16(), pa.int64(), pa.uint8()]),
        "real": st.just(pa.float64()),
        "text": st.sampled_from([pa.string_view(), pa.large_string(), pa.dictionary(pa.int16(), pa.string())]),
        "opaque": st.sampled_from([pa.binary_view(), pa.large_binary()]),
    },
)


@given(
    rows=st.lists(attributes().map(checked), min_size=1, max_size=8),
    types=_LAYOUTS,
    order=st.permutations(FIELDS),
    data=st.data(),
)
def test_any_layout_and_slice_agrees_with_the_rows(
    rows: list[Attributes], types: dict[str, Any], order: list[str], data: st.DataObject
) -> None:
    """One answer, however the batch came to us."""
    index = _index()
    whole = _rebuilt(_column(rows), types, order=order)
    nulls = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    column = pa.MapArray.from_arrays(whole.offsets, whole.keys, whole.items, mask=pa.array(nulls))
    begin = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(begin, len(rows)))
    shown = [{} if is_null else row for row, is_null in zip(rows, nulls, strict=True)][begin:end]
    assert _pairs(index.match_arrow(column.slice(begin, end - begin))) == _wanted(index, shown)
