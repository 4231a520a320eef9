"""What a body's attributes are, now and for every log that was ever written."""

from __future__ import annotations

import cbor2
import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.log.compact import move_body, publication_values
from whimbrel.log.records import BODY, publication_body, receipt_body, receipt_prefix, row_from, time_from
from whimbrel.model.attributes import Int64, Scalar, type_of
from whimbrel.model.codecs import attributes_of
from whimbrel.model.subscription import SubscriptionIdentity

MANY = b"{" + b",".join(b'"a%d":1' % number for number in range(1_001)) + b"}"
DEEP = b'{"a":' * 33 + b"1" + b"}" * 33


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", {}),
        (b"39.2", {}),
        (b'[{"a": 1}]', {}),
        (b"{", {}),
        (b'{"a": 1} and more', {}),
        (b'{"a": 1, "a": 2}', {}),
        (b'{"a": NaN}', {}),
        (b"\xef\xbb\xbf{}", {}),
        (b'{"a": 1, "b": 4294967296, "c": 1.0, "d": "x", "e": true, "f": null, "g": [1]}', None),
        (b' \r\n\t{"a": {"b": 1}}', {"a.b": 1}),
        (b"\xa1aa\x01", {"a": 1}),
        (b"\xbfaa\x01\xff", {"a": 1}),
        (b"\xa1\x01\x01", {}),
        (b"\xa2aa", {}),
        (MANY, {}),
        (DEEP, {}),
        (b'{"a": "%b"}' % (b"x" * (1 << 20)), {}),
    ],
)
def test_attributes_of_a_body_never_change(body: bytes, found: dict[str, Scalar] | None) -> None:
    """Compact records hold no attributes: another answer here would change what old facts say."""
    if found is None:
        found = {"a": 1, "b": Int64(2**32), "c": 1.0, "d": "x", "e": 1}
    got = attributes_of(body, has_value=False)
    assert got == found
    assert [*map(type_of, got.values())] == [*map(type_of, found.values())]


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"39.2", 39.2), (b" 39\n", 39), (b"-7", -7), (b"4294967296", Int64(2**32)), (b"99999999999999999999", 1e20),
        (b"true", 1), (b"false", 0), (b'"on"', "on"), (b'"a\\nb"', "a\nb"), (b"null", None),
        (b"on", "on"), (b"21.5 C", "21.5 C"), ("caf\u00e9".encode(), "caf\u00e9"), (b"NaN", "NaN"), (b"1e999", "1e999"),
        (b"01", "01"), (b"tru", "tru"), (b"1,2", "1,2"), (b'1,"x":2', '1,"x":2'), (b"1}", "1}"), (b"[1]", "[1]"),
        (b"x" * 1_024, "x" * 1_024), (b"x" * 1_025, None), (b'"%b"' % (b"x" * 2_000), "x" * 2_000),
        (b"", None), (b"a\nb", None), (b"a\x7f", None), ("\u0085".encode(), None), (b"\xff", None), (b"{", None),
        (b"{}", None), (b'{"a": 1} and more', None), (b" {", None), (b"\xa1\x01\x01", None),
    ],
)  # fmt: skip
def test_a_body_that_is_no_object_has_a_value(body: bytes, value: Scalar | None) -> None:
    """A thermometer that says 39.2 can be asked for value > 39; these never change either."""
    got = attributes_of(body)
    assert got == ({} if value is None else {"value": value})
    assert [*map(type_of, got.values())] == ([] if value is None else [type_of(value)])


def test_a_value_gives_way_to_what_is_said_of_it() -> None:
    """The body wins over a property; a body that is said to be CBOR is no text."""
    assert attributes_of(b"7", [("value", "8"), ("unit", "C")]) == {"value": 7, "unit": "C"}
    assert attributes_of(b"7", content_type="application/json") == {"value": 7}
    assert attributes_of(b"7", content_type="application/cbor") == {}


def test_a_log_remembers_by_which_rule_a_body_was_matched() -> None:
    """An older Whimbrel's publication of 39.2 had no attributes, and nobody got it for its value."""
    record = bytearray(publication_body(1, 2, b"p", b"s", b"39.2")[BODY.size :])
    assert publication_values(bytes(record))[3] == {"value": 39.2}
    record[8] &= ~0x40
    assert publication_values(bytes(record))[3] == {}


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON ; charset=utf-8", "text/plain", None])
def test_a_content_type_says_more_than_the_body_and_denies_nothing(content_type: str | None) -> None:
    """A body that begins as an object is read as one whatever it is called."""
    assert attributes_of(b'{"a": 1}', content_type=content_type) == {"a": 1}
    assert attributes_of(cbor2.dumps(cbor2.CBORTag(55799, {"a": 1})), content_type="application/cbor") == {"a": 1}
    assert attributes_of(cbor2.dumps(cbor2.CBORTag(55799, {"a": 1}))) == {}
    assert attributes_of(b"\xa1aa\x01", content_type="application/json") == {}


def test_a_property_that_can_be_no_attribute_is_left_out() -> None:
    """MQTT allows names that are empty, or come twice; the others still count."""
    pairs = [("", "x"), ("a", "1"), ("a", "2"), ("b", "3"), ("n" * 1_025, "long")]
    assert attributes_of(b'{"b": 4}', pairs) == {"a": "1", "b": 4}
    assert attributes_of(b'{"b": 4}', [(str(number), "") for number in range(1_000)]) == {"b": 4}


def test_bytes_of_compact_records_never_change() -> None:
    """They are on disks; this is the form that docs and other readers know."""
    publication = publication_body(1, 2, b"p", b"s", b"body", qos=2, retain=True, expires_at=3, packet_id=4)
    start = "0000000000000001 07 0000000000000002 5d 0001 0001"
    assert publication == bytes.fromhex(f"{start} 0000000000000003 0004 70 73 626f6479")
    prefix = receipt_prefix("s", "d", [SubscriptionIdentity("a/#")])
    assert prefix == bytes.fromhex("83 6173 6164 82 63612f23 60")
    start = "0000000000000001 08 0000000000000002 0000000000000003 02"
    assert receipt_body(1, 2, prefix, 3, "held") == bytes.fromhex(start) + prefix
    start = "0000000000000001 0c 0000000000000002 3ff8000000000000 c000000000000000"
    assert move_body(1, 2, 1.5, -2.0, b"d") == bytes.fromhex(f"{start} 64")


@pytest.mark.parametrize(
    ("number", "payload", "what"),
    [
        (7, b"", "payload"),
        (7, bytes(8) + b"\x80" + bytes(4), "flags"),
        (7, bytes(8) + b"\x20" + bytes(4) + b"\x00\x00\x00\x09", "payload"),
        (7, bytes(9) + b"\x00\x01\x00\x00\xff", "publisher"),
        (8, bytes(16), "payload"),
        (8, bytes(16) + b"\x04" + receipt_prefix("s", "d"), "via"),
        (8, bytes(17) + cbor2.dumps(["s", "d", ["a"]]), "payload"),
        (8, bytes(17) + cbor2.dumps(["s", 1, []]), "payload"),
        (12, bytes(23), "payload"),
        (12, bytes(24) + b"\xff", "device"),
        (13, b"", "table number"),
    ],
)
def test_what_is_no_compact_record_is_refused(number: int, payload: bytes, what: str) -> None:
    """A newer Whimbrel may have more flags; half a fact would be worse than none."""
    with pytest.raises(InvalidValueError) as refused:
        row_from("n", 1, number, payload)
    assert refused.value.what == what


def test_a_compact_record_without_a_time_is_refused() -> None:
    """Recovery asks for the time of the last record."""
    with pytest.raises(InvalidValueError, match="time of a record"):
        time_from(7, bytes(7))
    body = publication_body(1, 5, b"", b"", b"")
    assert time_from(7, body[BODY.size :]) == 5


@pytest.mark.parametrize(("session", "device"), [("", "d"), ("s", ""), ("s", "\ud800")])
def test_a_prefix_is_checked_when_it_is_made(session: str, device: str) -> None:
    """Later it is only copied."""
    with pytest.raises(InvalidValueError):
        receipt_prefix(session, device)
