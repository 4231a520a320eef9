"""Attributes: what may be one, and what it costs."""

from __future__ import annotations

import pickle

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.model.attributes import (
    NO_ATTRIBUTES,
    AttributeType,
    FrozenAttributes,
    Int64,
    Limits,
    checked,
    integer,
    type_of,
)


def test_the_exact_class_tells_the_type() -> None:
    """Filters and the log ask the class, so it must survive the check."""
    values = checked({"a": 1, "b": Int64(1), "c": 1.0, "d": "x", "e": b"x", "f": True})
    kinds = [type_of(value) for value in values.values()]
    assert kinds == [*AttributeType, AttributeType.INT32]


@pytest.mark.parametrize(
    ("value", "kind"),
    [(2**31 - 1, int), (-(2**31), int), (2**31, Int64), (-(2**63), Int64), (2**63, float)],
)
def test_an_integer_takes_the_smallest_type_that_holds_it(value: int, kind: type) -> None:
    """int32, else int64, else real64: the same rule for every form of input."""
    assert type(integer(value)) is kind


HUGE = pytest.param(10**5000, id="huge")


class _Loud(str):
    __slots__ = ()


@pytest.mark.parametrize("value", [2**63, None, [1], {"a": 1}, bytearray(b"x"), _Loud("x"), 1j, HUGE])
def test_a_value_of_no_type_is_refused_by_name(value: object) -> None:
    """The sender must learn which attribute is wrong, however odd the value."""
    with pytest.raises(InvalidValueError) as caught:
        checked({"odd": value})
    assert str(caught.value).startswith("attribute odd: found")


def test_an_integer_beyond_real64_is_refused_in_words() -> None:
    """Python cannot even print such a number; our error can."""
    with pytest.raises(InvalidValueError, match="an integer of"):
        integer(10**5000)


@pytest.mark.parametrize("name", ["", "\ud800", "é" * 513])
def test_a_bad_name_is_refused(name: str) -> None:
    """A name has at least one character, an encoding, and at most 1,024 bytes of it."""
    with pytest.raises(InvalidValueError):
        checked({name: 1})


def test_bytes_are_counted_in_utf8() -> None:
    """Four letters of two bytes are eight bytes on the wire and on the disk."""
    assert checked({"n": "éééé"}, limits=Limits(max_bytes=9))
    with pytest.raises(InvalidValueError, match="at most 8 bytes"):
        checked({"n": "éééé"}, limits=Limits(max_bytes=8))


def test_too_many_names_are_refused() -> None:
    """The count is looked at before the values."""
    with pytest.raises(InvalidValueError, match="at most 2 names"):
        checked({"a": 1, "b": 2, "c": None}, limits=Limits(max_names=2))


def test_limits_that_make_no_sense_cannot_be_built() -> None:
    """Readers recurse once per level, so the depth itself is bounded."""
    with pytest.raises(InvalidValueError, match="max_depth"):
        Limits(max_depth=10_000)


def test_checked_attributes_never_change() -> None:
    """A notification is shared by every session that holds it."""
    values = checked({"a": 1})
    assert isinstance(values, FrozenAttributes)
    for change in ("clear()", "popitem()", "pop('a')", "update(a=2)", "setdefault('b', 2)", "__setitem__('a', 2)"):
        with pytest.raises(TypeError, match="never change"):
            eval(f"values.{change}", {"values": values})  # noqa: S307 # the texts are above


def test_checked_attributes_pickle_and_hash() -> None:
    """They travel to Spark workers and live in sets."""
    values = checked({"a": Int64(1), "b": b"x"})
    copy = pickle.loads(pickle.dumps(values))  # noqa: S301 # our own bytes
    assert (copy, type(copy["a"]), hash(copy)) == (values, Int64, hash(values))
    assert hash(NO_ATTRIBUTES) == hash(checked({}))
