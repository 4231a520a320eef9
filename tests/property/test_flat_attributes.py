"""The short way of reading a JSON body gives what the long way gives, or gives way to it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.errors import MalformedBodyError
from whimbrel.model.attributes import NO_ATTRIBUTES, Attributes, type_of
from whimbrel.model.codecs import _LIMITS, attributes_of, from_json

_NAMES = st.sampled_from(["a", "b", "a.b", "", "\0", "é"]) | st.text(max_size=4)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**33), 2**33)
    | st.integers(2**62, 2**66)
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_NAMES, inner, max_size=2),
    max_leaves=6,
)


def slowly(body: bytes) -> Attributes:
    """Return what the rules say."""
    try:
        return from_json(body, limits=_LIMITS)
    except MalformedBodyError:
        return NO_ATTRIBUTES


def typed(attributes: Attributes) -> dict[str, tuple[object, str]]:
    """Return values with their types: 1 and 1.0 are not the same, nor are 0.0 and -0.0."""
    return {name: (type_of(value), repr(value)) for name, value in attributes.items()}


@given(pairs=st.lists(st.tuples(_NAMES, _VALUES), max_size=5), ascii_only=st.booleans())
def test_both_ways_agree_on_any_object(pairs: list[tuple[str, object]], ascii_only: bool) -> None:  # noqa: FBT001
    """Names twice, nesting, nulls, large numbers and infinities among them."""
    members = (f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=ascii_only)}" for name, value in pairs)
    body = ("{" + ", ".join(members) + "}").encode(errors="surrogatepass")
    assert typed(attributes_of(body)) == typed(slowly(body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": -0}',
        b'{"a": -0.0}',
        b'{"a": 2147483648}',
        b'{"a": 99999999999999999999999}',
        b'{"a": "\\ud800"}',
        b'{"a": "\\u00e9"}',
        b'{"\\u0000a": 1}',
        b'{"": 1}',
        b'{"a": {"b": 1}, "a.b": 2}',
        b'{"a": [1]}',
        b'{"a": null}',
        b'{"a": "x\ny"}',
        b'{"a": 1} x',
        b' {"a": true} ',
        b"{" + b'"a":{' * 100 + b"}" * 101,
        b'{"a": ' + b"[" * 900,
        b'{"a": ' + b"1" * 900 + b"}",
        b'{"' + b"n" * 1_010 + b'": 1}',
        b"{}",
    ],
)
def test_both_ways_agree_on_what_there_is_a_rule_for(body: bytes) -> None:
    """Each rule of the long way, once."""
    assert typed(attributes_of(body)) == typed(slowly(body))
