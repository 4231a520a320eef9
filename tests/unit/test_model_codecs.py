"""Codecs: the rules of the architecture page, one by one."""

from __future__ import annotations

import math
import pickle

import cbor2
import pytest

from whimbrel.errors import InvalidValueError, MalformedBodyError
from whimbrel.model.attributes import Int64, Limits, checked
from whimbrel.model.codecs import from_cbor, from_json, from_properties, merge_attributes, to_cbor, to_json


def test_json_numbers_and_booleans_get_their_types() -> None:
    """int32, else int64, else real64; point or exponent is real64; a boolean is int32."""
    found = from_json('{"a":1,"b":2147483648,"c":9223372036854775808,"d":1.0,"e":1e2,"f":true}')
    assert [(value, type(value)) for value in found.values()] == [
        (1, int),
        (2**31, Int64),
        (2.0**63, float),
        (1.0, float),
        (100.0, float),
        (1, int),
    ]


def test_nested_objects_are_flattened_and_arrays_and_nulls_skipped() -> None:
    """Filters speak of flat names; what they cannot speak of is left in the body."""
    found = from_json(b'{"a":{"b":{"c":1},"d":[1,{"x":2}]},"e":null,"f":"g"}')
    assert found == {"a.b.c": 1, "f": "g"}


def test_cbor_follows_the_same_rules_and_has_bytes() -> None:
    """One meaning for both forms; CBOR's undefined is another null."""
    body = {"a": {"b": True}, "c": b"x", "d": [1], "e": None, "f": cbor2.undefined, "g": 2**70, "h": 2**40}
    found = from_cbor(cbor2.dumps(body))
    assert found == {"a.b": 1, "c": b"x", "g": 2.0**70, "h": 2**40}
    assert [type(value) for value in found.values()] == [int, bytes, float, Int64]


def test_cbor_that_says_it_is_cbor_is_read() -> None:
    """Tag 55799 is a file's magic number and changes nothing."""
    body = cbor2.dumps(cbor2.CBORTag(55799, {"a": {"b": 1}}))
    assert from_cbor(body) == {"a.b": 1}


@pytest.mark.parametrize(
    ("body", "line", "column", "reason"),
    [
        ('{"a": 1,\n "b": }', 2, 7, "Expecting value"),
        ("", 1, 1, "Expecting value"),
        ("{" + '"a":{' * 40, 1, 161, "deeper than the 32 levels"),
        ('{"a": "\ud800"}', 1, 8, "lone surrogate"),
        ('{"a": [1, NaN]}', None, None, "found NaN"),
        ('{"a": -Infinity}', None, None, "found -Infinity"),
        ('{"a": 1e400}', None, None, "found the number 1e400"),
        ('{"a": ' + "9" * 5000 + "}", None, None, "real64"),
        ('{"a": 1, "a": 2}', None, None, "'a' twice in one object"),
        ('{"a.b": 1, "a": {"b": 2}}', None, None, "'a.b' twice once"),
        ('{"": 1}', None, None, "attribute name"),
        (r'{"a": "\ud800"}', None, None, "lone surrogates"),
        (r'{"\udfff": 1}', None, None, "lone surrogates"),
        ("[1]", None, None, "an array on top"),
        ("null", None, None, "null on top"),
    ],
)
def test_bad_json_is_refused_with_reason_and_place(
    body: str, line: int | None, column: int | None, reason: str
) -> None:
    """The sender must be able to find the fault."""
    with pytest.raises(MalformedBodyError, match=reason) as caught:
        from_json(body)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_json_is_utf8_and_says_which_byte_is_not() -> None:
    """UTF-16 and Latin-1 are refused, not guessed."""
    with pytest.raises(MalformedBodyError, match="JSON body, byte 7: not UTF-8"):
        from_json(b'{"a": "\xff"}')


def test_brackets_inside_strings_are_no_depth() -> None:
    """Only real nesting counts, also after escaped quotes."""
    text = '{"a": "' + r"\"[{" * 50 + '"}'
    assert from_json(text) == {"a": '"[{' * 50}


def test_an_unterminated_string_is_scanned_once() -> None:
    """A megabyte of escaped quotes must not cost a square of it."""
    with pytest.raises(MalformedBodyError, match="Unterminated string"):
        from_json('{"a":"' + r"\"[" * 300_000)


@pytest.mark.parametrize(
    ("body", "offset", "reason"),
    [
        (b"", 0, "premature end"),
        (b"\xa1\x61a\x01\x02", 4, "bytes after the end"),
        (b"\xa1\x61a\xc0\x61x", 6, "found tag 0, allowed are 2, 3, 55799"),
        (b"\xa1\x61a\x81\xd8\x23\x63(*)", 10, "found tag 35"),
        (b"\xa1\x61a\xd8\x1c\x80", 6, "found tag 28"),
        (b"\xa1\x61a\xd9\xff\xff\x80", 7, "found tag 65535"),
        (b"\xa1\x01\x02", 2, "map key must be"),
        (b"\xa1\x41a\x02", None, "a key of bytes under ''"),
        (b"\xa2\x61a\x01\x61a\x02", 7, "Duplicate map key"),
        (b"\xa1\x61a\xe0", None, "CBORSimpleValue at 'a'"),
        (b"\xa1\x61\xff\x01", 3, "text string"),
        (b"\x81\x01", None, "found list on top"),
        (b"\x9b" + b"\xff" * 8, 9, "premature end"),
        (b"\xa1\x61a\xc2\x58\xff" + b"\xff" * 255, None, "real64"),
        (b"\xc2" * 5000, 33, "nesting depth"),
        (b"\xa1\x61a" * 32 + b"\xa0", None, "deeper than the 32 levels"),
    ],
)
def test_bad_cbor_is_refused_with_reason_and_place(body: bytes, offset: int | None, reason: str) -> None:
    """Whatever else the CBOR library can build is not ours to build for a stranger."""
    with pytest.raises(MalformedBodyError, match=reason) as caught:
        from_cbor(body)
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(max_bytes=10), "found 21 bytes, allowed are 10"),
        (Limits(max_depth=1), "deeper than the 1 levels"),
        (Limits(max_names=1), "more than the 1 names"),
        (Limits(max_name_bytes=2), "attribute name"),
    ],
)
def test_json_limits_hold(limits: Limits, reason: str) -> None:
    """Size, depth, count and names are bounded for every deployment."""
    with pytest.raises(MalformedBodyError, match=reason):
        from_json('{"a":{"b":1},"cde":2}', limits=limits)


def test_a_long_path_over_many_leaves_is_refused_early() -> None:
    """Flattening repeats the path for every leaf: a small body must not become a large map."""
    leaves = ",".join(f'"{number}":1' for number in range(900))
    body = '{"' + "p" * 1000 + '":{"' + "q" * 1000 + '":{' + leaves + "}}}"
    with pytest.raises(MalformedBodyError, match="counted with its path"):
        from_json(body)


def test_user_properties_are_strings_and_come_once() -> None:
    """MQTT allows a name twice; a filter could not say which it means."""
    assert from_properties([("a", "1"), ("b", "")]) == {"a": "1", "b": ""}
    with pytest.raises(InvalidValueError, match="each name once"):
        from_properties([("a", "1"), ("a", "2")])


def test_the_body_wins_over_a_property() -> None:
    """The architecture page says so; both engines must."""
    assert merge_attributes(checked({"a": 1}), checked({"a": "x", "b": "y"})) == {"a": 1, "b": "y"}


def test_limits_hold_for_both_together() -> None:
    """Two halves within the limits may be beyond them together."""
    with pytest.raises(InvalidValueError, match="at most 1 names"):
        merge_attributes(checked({"a": 1}), checked({"b": "y"}), limits=Limits(max_names=1))


@pytest.mark.parametrize("value", [b"x", math.nan, -math.inf])
def test_json_does_not_pretend_to_have_what_it_lacks(value: float | bytes) -> None:
    """A silent change of type would make a filter answer differently."""
    with pytest.raises(InvalidValueError, match="what JSON has"):
        to_json(checked({"a": value}))


def test_cbor_carries_all_five_types() -> None:
    """Opaque and NaN have a place there."""
    found = from_cbor(to_cbor(checked({"a": 1, "b": Int64(2**40), "c": math.inf, "d": "é", "e": b"\0"})))
    assert found == {"a": 1, "b": 2**40, "c": math.inf, "d": "é", "e": b"\0"}


def test_the_error_pickles() -> None:
    """It crosses from a Spark worker to the driver."""
    error = MalformedBodyError("JSON", "why", 1, 2)
    assert str(pickle.loads(pickle.dumps(error))) == "JSON body, line 1, column 2: why"  # noqa: S301 # our own bytes
