"""Dead letters against Python's reading of the same rows: whole columns must not let through what a fact refuses.

Rows are valid facts with a fault, or none, or what only looks like one, in any column; ``validate_rows`` must keep
aside exactly the rows that no fact can be built from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from whimbrel.errors import InvalidInputError
from whimbrel.log.columns import from_arrow, to_arrow
from whimbrel.match.prepared import check_stored
from whimbrel.match.topics import check_topic_filter
from whimbrel.model.facts import Mode, Outcome, PresenceChange, SessionChange
from whimbrel.model.keys import Scheme
from whimbrel.model.subscription import InterestChange
from whimbrel.model.tables import TABLES, attributes_to_column_value
from whimbrel.pipeline.files.dead_letters import validate_rows
from whimbrel.pipeline.files.schemas import TIMES
from whimbrel.pipeline.files.suspects import suspects

ROWS = 700
INT64 = (-(2**63), -1, 0, 1, 2**63 - 1)
INT32 = (-(2**31), -1, 0, 1, 2, 2**31 - 1)
REALS = (-0.1, -0.0, 0.5, 1.0, 1.1, 90.0, 180.5, 2.1e7, math.nan, math.inf, -math.inf)
NODES = ("n", "n1", "", "no node", "n\n", "é", "-n", "n" * 64, "n" * 65, "n\0")
TEXTS = (
    "",
    "a",
    "a/b",
    "a/+",
    "a#",
    "x\0",
    "\0",
    "é" * 512,
    "é" * 513,
    "two words",
    "line\n",
    "x" * 65_536,
    "x" * 262_145,
)
WORDS = (*TEXTS, *(each.value for kind in (InterestChange, PresenceChange, SessionChange, Mode) for each in kind))
OUTCOMES = (*(each.value for each in Outcome), "Delivered", "lost", "")
FILTERS = ("a > 1", "a >", "b == 'x'", "b == '\0'", "")
PACKET_IDS = (0, 1, 65_535, 65_536, -1)


def _entry(**fields: Any) -> dict[str, Any]:
    return dict.fromkeys(("type", "int", "real", "text", "opaque")) | fields


ATTRIBUTES: tuple[object, ...] = (
    [],
    attributes_to_column_value({"a": 1, "b": 0.5, "c": "t", "d": b"o", "e": math.nan}),
    *([(name, _entry(type=4, text="x"))] for name in ("", "a", "\0a", "a\0", "é")),
    *([("a", _entry(type=kind, int=number))] for kind in range(-1, 7) for number in (None, -(2**31), 2**31)),
    [("a", _entry(type=3, real=1.0)), ("b", _entry(type=4))],
    [("a", _entry())],
    [("a", None)],
    [("a", _entry(type=1, int=1)), ("b", _entry(type=1, int=1)), ("a", _entry(type=1, int=1))],
    [("a", _entry(type=1, int=1)), ("a", _entry(type=1, int=2))],
)
DIGESTS = (bytes(20), bytes(32), bytes(19), b"", None)
KEYS: tuple[object, ...] = (
    [],
    [None],
    *([{"scheme": scheme, "digest": digest}] for scheme in ("producer", "none", "", None) for digest in DIGESTS),
    [{"scheme": each.value, "digest": bytes(32)} for each in Scheme],
    [{"scheme": "producer", "digest": number.to_bytes(20, "big")} for number in range(257)],
    [{"scheme": "producer", "digest": bytes(20)}] * 257,
)
PLACES = tuple({"latitude": a, "longitude": b} for a in (0.0, 90.0, *REALS, None) for b in (0.0, -180.0, 181.0, None))
AREAS = tuple(place | {"radius_m": radius} for place in PLACES[::3] for radius in (0.0, 20_037_508.5, *REALS, None))
DISPLAYS = tuple({"width_px": width, "height_px": height} for width in (0, 5, -1, None) for height in (0, -1, None))
SUBSCRIPTIONS: tuple[object, ...] = (
    [],
    [None],
    *([{"subject_filter": text, "name": name}] for text in (None, "", "a") for name in (None, "", "n")),
)

VALUES: Mapping[str, tuple[object, ...]] = {
    "node": NODES,
    "notification_node": NODES,
    "attributes": ATTRIBUTES,
    "members": ATTRIBUTES,
    "read": ATTRIBUTES,
    "changed": ATTRIBUTES,
    "removed": ([], ["x"], [""], [None], ["\0"], ["a", "x"], ["y" * 1_025], ["z"] * 1_025),
    "keys": KEYS,
    "place": PLACES,
    "near": AREAS,
    "display": DISPLAYS,
    "subscriptions": SUBSCRIPTIONS,
    "body": (b"", b"x"),
    "properties": (b"", b"x"),
    "body_hash": (b"", bytes(31), bytes(32), bytes(33)),
    "qos": (-1, 0, 1, 2, 3),
    "packet_id": PACKET_IDS,
    "identifier": (-1, 0, 1, 268_435_455, 268_435_456),
    "max_held": INT32,
    "outcome": OUTCOMES,
    "via": ("live", "held", "retained", "pigeon", ""),
    "filter_text": (*FILTERS, *TEXTS),
    "receipt": ("take", "keep", "give", ""),
    "corners": tuple(
        [{"latitude": a, "longitude": b} for a, b in corners]
        for corners in (
            [],
            [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)],
            [(0.0, 0.0), (0.0, 1.0)],
            [(0.0, 0.0), (2.0, 2.0), (0.0, 2.0), (2.0, 0.0)],
            [(0.0, 0.0), (91.0, 1.0), (1.0, 1.0)],
            [(0.0, None), (0.0, 1.0), (1.0, 1.0)],
        )
    ),
}
"""What to try in a column by its name; the others are tried by their type."""

PLACES_OF_INTERESTS = ("around_m", "corners", "hears_anywhere", "stale_us")
"""Columns that have a test of their own."""


def _values(field: Any) -> tuple[object, ...]:
    kind = field.type
    if field.name in VALUES:
        return VALUES[field.name]
    if pa.types.is_string(kind):
        return WORDS
    if pa.types.is_floating(kind):
        return REALS
    if pa.types.is_boolean(kind):
        return (True, False)
    if pa.types.is_int32(kind):
        return INT32
    assert pa.types.is_int64(kind) or pa.types.is_timestamp(kind), field
    return INT64


LEAST: Mapping[str, list[dict[str, object]]] = {
    "publications": [
        {"attributes": [], "body": b"", "qos": 0, "retain": False, "keys": [], "deliver_insecure": True},
        {"attributes": [], "body": b"", "qos": 2, "retain": True, "keys": [], "deliver_insecure": True, "packet_id": 9},
        {"attributes": [], "body": b"", "qos": 1, "retain": True, "keys": [], "deliver_insecure": False}
        | {"place": {"latitude": 1.0, "longitude": 2.0}, "radius_m": 5.0},
    ],
    "interests": [
        {"change": "added", "session": "s", "name": "", "keys": [], "accept_insecure": True},
        {"change": "removed", "session": "s", "name": "n", "keys": [], "accept_insecure": True, "subject_filter": "a"},
    ],
    "presence": [
        {"device": "d", "change": "connected"},
        {"device": "d", "change": "disconnected", "session_expiry_us": 5, "sent_seq": 7},
        {"device": "d", "change": "joined", "session": "s", "receipt": "take"},
        {"device": "d", "change": "left", "session": "s"},
        {"device": "d", "change": "released", "packet_id": 1},
        {"device": "d", "change": "completed", "packet_id": 65_535},
        {"device": "d", "change": "receipts", "session": "s", "confirms": True},
    ],
    "sessions": [{"change": "created", "session": "s"}],
    "reports": [{"device": "d"}],
    "receipts": [
        {"session": "s", "device": "d", "notification_node": "n", "notification_seq": 1, "subscriptions": []}
        | {"outcome": "delivered"}
    ],
    "wills": [
        {"device": "d", "change": "left", "subject": "s", "body": b"x", "qos": 1, "retain": False, "delay_us": 1}
        | {"keys": [], "deliver_insecure": True},
        {"device": "d", "change": "withdrawn", "keys": [], "deliver_insecure": True},
    ],
    "policies": [
        {"change": "put", "owner": "o", "name": "p", "text": "return m;"},
        {"change": "removed", "owner": "o", "name": "p", "device": "d"},
        {"change": "chosen", "owner": "o", "device": "d"},
    ],
    "decisions": [
        {"session": "s", "device": "d", "notification_node": "n", "notification_seq": 1, "policy_seq": 0}
        | {"policy": "p", "outcome": outcome, "read": [], "changed": [], "removed": [], "steps": 1}
        | {"bytes_read": 0, "pixels_read": 0}
        | others
        for outcome, others in (
            ("withheld", {"reason": "r", "changed": attributes_to_column_value({"x": 1})}),
            ("delivered", {"body_hash": bytes(32), "body_bytes": 1, "body": b"x", "attributes": []}),
        )
    ],
}


def _rows(table: str, random: Random, *, columns: Collection[str] | None = None) -> Any:
    """Return rows as Arrow, all columns nullable: each fault of each column alone, then two or three together.

    Faults are in *columns*, or in all that Spark judges.
    """
    fields = list(TABLES[table].schema)
    tried_in = {field.name for field in fields}.difference(PLACES_OF_INTERESTS) if columns is None else columns
    choices = {field.name: (None, *_values(field)) for field in fields if field.name in tried_in}
    tried = [{name: value} for name, values in choices.items() for value in values]
    while len(tried) < ROWS:
        names = random.sample(list(choices), random.randint(2, 3))
        tried.append({name: random.choice(choices[name]) for name in names})
    rows = []
    for number, fault in enumerate(tried):
        base = {"node": "n", "seq": 1, TIMES[table]: 2} | LEAST[table][number % len(LEAST[table])]
        rows.append(base | fault)
    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in fields]
    return pa.table(arrays, schema=pa.schema([field.with_nullable(True) for field in fields]))


def _refusal(table: str, row: Any) -> str | None:
    """Return why no fact can be built of *row*, or why it could not be matched by."""
    try:
        list(from_arrow(table, row))
        if table == "interests":
            for name, check in (("subject_filter", check_topic_filter), ("filter_text", check_stored)):
                text = row.column(name)[0].as_py()
                if text is not None:
                    check(text)
    except InvalidInputError as error:
        return str(error)[:200]
    return None


@pytest.mark.parametrize("table", TIMES)
def test_a_row_is_a_dead_letter_exactly_where_python_refuses_it(table: str) -> None:
    """Else the pipeline counts what no other reader believes, or drops what every other reader has."""
    _compare(table, _rows(table, Random(table)))


def test_a_subscription_with_a_bad_place_is_a_dead_letter() -> None:
    """A polygon that crosses itself, a negative radius, two nears at once."""
    _compare("interests", _rows("interests", Random(27), columns=("near", *PLACES_OF_INTERESTS)))


def _compare(table: str, data: Any) -> None:
    refused = [number for number in range(data.num_rows) if _refusal(table, data.slice(number, 1)) is not None]
    numbered = data.append_column("number", pa.array(range(data.num_rows), pa.int32()))
    good, dead = validate_rows(table, numbered, node=None, now=0)
    kept = set(good.column("number").to_pylist())
    assert {number: data.slice(number, 1).to_pylist() for number in kept.intersection(refused)} == {}
    assert kept == set(range(data.num_rows)).difference(refused)
    assert dead.num_rows == len(refused)
    assert 0 < len(kept) < data.num_rows


@pytest.mark.parametrize("table", TIMES)
def test_what_is_proven_good_in_whole_columns_need_not_be_asked(table: str) -> None:
    """The fast path has a switch: with every row asked one by one, the same rows are dead, for the same reasons."""
    data = _rows(table, Random(f"{table} again")).slice(3)  # a slice shares its memory with what it does not show
    fast = validate_rows(table, data, node="n", now=0)
    slow = validate_rows(table, data, node="n", now=0, suspected=lambda _, rows, __: np.ones(rows.num_rows, np.bool_))
    assert fast.dead.equals(slow.dead)
    assert fast.good.num_rows == slow.good.num_rows < data.num_rows


@pytest.mark.parametrize("table", TIMES)
def test_rows_without_a_fault_are_not_looked_at_one_by_one(table: str) -> None:
    """To ask of each row takes a hundred times as long as to look at whole columns."""
    rows: list[dict[str, object]] = [{"node": "n", "seq": 1, TIMES[table]: 2} | each for each in LEAST[table]]
    if table == "publications":
        rows = [row | {"attributes": attributes_to_column_value({"pulse": 1, "bed": "b"})} for row in rows]
    schema = TABLES[table].schema
    found = pa.table([pa.array([row.get(field.name) for row in rows], field.type) for field in schema], schema=schema)
    assert not suspects(table, found, "n").any()


def test_what_is_no_unicode_is_a_dead_letter_and_ends_nothing() -> None:
    """Parquet may have any bytes where text is said to be; who reads them must not stop there for ever."""
    row = {"node": "n", "seq": 1, "changed_at": 2, "change": "created", "session": "s"}
    rows = to_arrow("sessions", [row, row | {"session": "x"}])
    broken = pa.array([b"s", b"\xff\xfe"], pa.binary()).view(pa.string())
    place = rows.schema.get_field_index("session")
    good, dead = validate_rows("sessions", rows.set_column(place, rows.schema.field(place), broken), node="n", now=0)
    assert good.column("session").to_pylist() == ["s"]
    (letter,) = dead.to_pylist()
    assert letter["reason"].startswith("session: found")
    assert json.loads(letter["content"])["session"] == "\ufffd\ufffd"


def test_a_row_of_another_node_is_a_dead_letter() -> None:
    """Its number is that node's: taken here, two facts would have the same identity."""
    rows = to_arrow("sessions", [{"node": "m", "seq": 1, "changed_at": 2, "change": "created", "session": "s"}])
    _, dead = validate_rows("sessions", rows, node="n", now=0)
    assert dead.column("reason").to_pylist() == ["node: found 'm', allowed is n, whose log it is in"]


REASONS: tuple[tuple[str, dict[str, object], str], ...] = (
    ("publications", {"body": None}, "body: found nothing, allowed is a value"),
    ("publications", {"qos": 3}, "qos: found 3, allowed is an integer from 0 to 2"),
    ("publications", {"subject": "a/#"}, "subject: found 'a/#', allowed is"),
    ("publications", {"radius_m": 5.0}, "radius_m: found 5.0, allowed is"),
    ("publications", {"attributes": [("x", _entry(type=9))]}, "attribute x: found type 9"),
    ("interests", {"filter_text": "a >"}, "filter_text: error"),
    (
        "interests",
        {"subject_filter": "a+"},
        "subject_filter: 'a+' is no topic filter: + and # must be whole levels",
    ),
    ("presence", {"change": "left"}, "session of a device that left: found nothing"),
    ("receipts", {"via": "pigeon"}, "via: found 'pigeon', allowed is live, held"),
    ("wills", {"subject": None}, "subject: found nothing, allowed is"),
)


@pytest.mark.parametrize(("table", "fault", "reason"), REASONS)
def test_a_dead_letter_says_what_was_found_and_what_is_allowed(
    table: str, fault: dict[str, object], reason: str
) -> None:
    """Who finds one must know what to mend, and where it stands."""
    row = {"node": "n", "seq": 7, TIMES[table]: 2} | LEAST[table][0] | fault
    fields = [field.with_nullable(True) for field in TABLES[table].schema]
    rows = pa.table([pa.array([row.get(field.name)], field.type) for field in fields], schema=pa.schema(fields))
    (letter,) = validate_rows(table, rows, node="n", now=5).dead.to_pylist()
    assert letter["reason"].startswith(reason)
    assert (letter["source"], letter["position"]) == (f"log table {table}", 7)
    assert letter["content"].startswith(b"{")
