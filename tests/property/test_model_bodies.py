"""Codecs: what goes out comes back, and no bytes get past our errors."""

from __future__ import annotations

import json
import math
import random
from contextlib import suppress
from typing import TYPE_CHECKING

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whimbrel.errors import InvalidInputError, MalformedBodyError
from whimbrel.model.attributes import Attributes, Int64, Limits, Scalar, checked, type_of
from whimbrel.model.codecs import from_cbor, from_json, from_typed, merge_attributes, to_cbor, to_json, to_typed
from whimbrel.model.tables import attributes_from_column_value, attributes_to_column_value

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name[0] != "\0"  # these are the matcher's own
)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1).map(Int64)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def attributes(*values: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Attributes]:
    """Draw checked attributes with values of the given kinds."""
    return st.dictionaries(NAMES, st.one_of(*values), max_size=6).map(checked)


JSON_ATTRIBUTES = attributes(INT32, INT64, FINITE, TEXT)
ALL_ATTRIBUTES = attributes(INT32, INT64, FINITE, st.sampled_from([math.inf, -math.inf]), TEXT, st.binary())
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
BODIES = st.dictionaries(st.text(max_size=3), TREES, max_size=4)


def kinds(values: Attributes) -> dict[str, str]:
    """Return the type of each value."""
    return {name: type_of(value).word for name, value in values.items()}


def outcome(read: Callable[[bytes], Attributes], data: bytes) -> tuple[str, object]:
    """Return what became of *data*, the error's sentence included; anything but our error gets through."""
    try:
        return "attributes", dict(read(data))
    except MalformedBodyError as error:
        return "refused", str(error)


def size(value: Scalar) -> int:
    """Return the bytes that a value counts."""
    return len(value.encode()) if isinstance(value, str) else len(value) if isinstance(value, bytes) else 8


@given(values=JSON_ATTRIBUTES)
def test_json_comes_back_equal(values: Attributes) -> None:
    """Numbers, texts and names survive; only an int64 that fits int32 becomes narrower."""
    back = from_json(to_json(values))
    assert back == values
    assert kinds(back) == kinds(checked({n: int(v) if type(v) is Int64 else v for n, v in values.items()}))


@given(values=ALL_ATTRIBUTES)
def test_cbor_comes_back_equal(values: Attributes) -> None:
    """Opaque and infinities too."""
    assert from_cbor(to_cbor(values)) == values


@given(values=ALL_ATTRIBUTES)
def test_the_typed_form_and_the_column_lose_nothing(values: Attributes) -> None:
    """Types included: vectors and the log depend on it."""
    typed = from_typed(json.loads(json.dumps(to_typed(values))))
    stored = attributes_from_column_value(attributes_to_column_value(values))
    assert typed == stored == values
    assert kinds(typed) == kinds(stored) == kinds(values)


@settings(max_examples=300)
@given(data=st.binary(max_size=60))
def test_any_bytes_give_attributes_or_our_error(data: bytes) -> None:
    """A stranger's bytes must never become a traceback."""
    for read in (from_json, from_cbor):
        assert outcome(read, data)[0] in {"attributes", "refused"}


@settings(max_examples=200)
@given(body=BODIES, seed=st.integers(0, 2**32), flips=st.integers(0, 4))
def test_damaged_cbor_gives_attributes_or_our_error(body: dict[str, object], seed: int, flips: int) -> None:
    """Nearly valid bytes reach deeper than random ones."""
    rng = random.Random(seed)
    data = bytearray(cbor2.dumps(body))
    for _ in range(flips):
        data[rng.randrange(len(data))] = rng.randrange(256)
    damaged = bytes(data[: rng.randrange(len(data) + 1)] if flips == 4 else data)
    assert outcome(from_cbor, damaged)[0] in {"attributes", "refused"}


@settings(max_examples=200)
@given(
    parts=st.lists(st.sampled_from(['{"a":', '{"b.c":', "[", "]", "}", '"', "\\ud8", "1e", "9" * 30, ",", "-", "null"]))
)
def test_broken_json_gives_attributes_or_our_error(parts: list[str]) -> None:
    """Pieces of JSON in any order, with numbers, escapes and nesting cut anywhere."""
    assert outcome(from_json, "".join(parts).encode())[0] in {"attributes", "refused"}


@given(body=st.dictionaries(NAMES, INT32 | TEXT | st.booleans() | st.dictionaries(NAMES, INT32 | FINITE), max_size=4))
def test_json_and_cbor_say_the_same(body: dict[str, object]) -> None:
    """One meaning whatever the content type: the same attributes, or both refused."""
    json_says, cbor_says = outcome(from_json, json.dumps(body).encode()), outcome(from_cbor, cbor2.dumps(body))
    assert json_says == cbor_says or json_says[0] == cbor_says[0] == "refused"


@given(values=ALL_ATTRIBUTES, room=st.integers(0, 60), names=st.integers(0, 6))
def test_what_passes_the_limits_is_within_them(values: Attributes, room: int, names: int) -> None:
    """Whichever door it came through, nothing larger is inside."""
    limits = Limits(max_bytes=room, max_names=names, max_name_bytes=6)
    found = []
    with suppress(InvalidInputError):
        found.append(from_cbor(to_cbor(values), limits=limits))
    with suppress(InvalidInputError):
        found.append(from_typed(to_typed(values), limits=limits))
    for each in found:
        assert len(each) <= names
        assert all(len(name.encode()) <= 6 for name in each)
        assert sum(len(name.encode()) + size(value) for name, value in each.items()) <= room


@given(body=ALL_ATTRIBUTES, properties=attributes(TEXT))
def test_the_body_wins_and_nothing_is_lost(body: Attributes, properties: Attributes) -> None:
    """Every name of either side is there, with the body's value where both have it."""
    both = merge_attributes(body, properties)
    assert set(both) == set(body) | set(properties)
    assert all(both[name] == value for name, value in body.items())


@pytest.mark.parametrize(
    "opening", [b"[", b'{"a":', b"\x81", b"\xa1\x61a", b"\xc2", b"\x9f", b"\xbf\x61a", b"\xd8\x2b"]
)
@pytest.mark.parametrize("count", [1, 32, 33, 1_000, 100_000])
def test_nesting_never_reaches_the_stack(opening: bytes, count: int) -> None:
    """No depth gives a RecursionError, closed or not."""
    for read in (from_json, from_cbor):
        with pytest.raises(MalformedBodyError):
            read(b'{"x":' + opening * count if read is from_json else opening * count)
