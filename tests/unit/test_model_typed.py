"""The typed form: JSON that keeps every type."""

from __future__ import annotations

import math

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.model.attributes import Int64, Limits, checked
from whimbrel.model.codecs import from_typed, to_typed


def test_every_type_is_written_and_read() -> None:
    """The test vectors are in this form."""
    values = checked({"a": -1, "b": Int64(2), "c": 0.5, "d": "x", "e": b"\x01\xff"})
    typed = to_typed(values)
    assert typed["b"] == {"t": "int64", "v": 2}
    assert typed["e"] == {"t": "opaque", "v": "01ff"}
    assert from_typed(typed) == values
    assert type(from_typed(typed)["b"]) is Int64


def test_reals_that_json_lacks_are_words() -> None:
    """NaN has no JSON number, and the vectors need it."""
    assert to_typed(checked({"a": math.inf, "b": -math.inf})) == {
        "a": {"t": "real64", "v": "inf"},
        "b": {"t": "real64", "v": "-inf"},
    }
    found = from_typed({"a": {"t": "real64", "v": "nan"}})["a"]
    assert isinstance(found, float)
    assert math.isnan(found)


@pytest.mark.parametrize(
    "value",
    [
        1,
        {"t": "int32"},
        {"t": "int32", "v": 1, "w": 2},
        {"t": "int16", "v": 1},
        {"t": ["int32"], "v": 1},
        {"t": "int32", "v": 2**31},
        {"t": "int32", "v": True},
        {"t": "int32", "v": 1.0},
        {"t": "int64", "v": 2**63},
        {"t": "int64", "v": "1"},
        {"t": "real64", "v": "NaN"},
        {"t": "real64", "v": 10**5000},
        {"t": "string", "v": 1},
        {"t": "string", "v": "\ud800"},
        {"t": "opaque", "v": "0"},
        {"t": "opaque", "v": "00 00"},
        {"t": "opaque", "v": b"00"},
    ],
)
def test_what_is_not_in_the_form_is_refused_by_name(value: object) -> None:
    """A vector with a typing mistake must not test something else."""
    with pytest.raises(InvalidValueError) as caught:
        from_typed({"odd": value})
    assert "odd" in str(caught.value)


def test_the_limits_hold_here_too() -> None:
    """A log that is imported from JSON lines is input like any other."""
    two = to_typed(checked({"a": "xx", "b": 1}))
    for limits in (Limits(max_names=1), Limits(max_bytes=10), Limits(max_name_bytes=1, max_bytes=5)):
        with pytest.raises(InvalidValueError):
            from_typed(two, limits=limits)
