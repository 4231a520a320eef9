"""Rows: the columns are the tables', and a bad value names its column."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.model.columns import LOG_SPECS, Column, Kind
from whimbrel.model.facts import Outcome, PresenceChange, Receipt
from whimbrel.model.notification import NotificationId
from whimbrel.model.rows import COLUMNS, fact_of, row_of
from whimbrel.model.tables import TABLES

LEAST = {
    "publications": {"node": "n", "seq": 1, "published_at": 2},
    "interests": {"node": "n", "seq": 1, "changed_at": 2, "change": "added", "session": "s"},
    "presence": {"node": "n", "seq": 1, "changed_at": 2, "device": "d", "change": "connected"},
    "sessions": {"node": "n", "seq": 1, "changed_at": 2, "change": "created", "session": "s"},
    "reports": {"node": "n", "seq": 1, "reported_at": 2, "device": "d"},
    "receipts": {
        "node": "n",
        "seq": 1,
        "handed_at": 2,
        "session": "s",
        "device": "d",
        "notification_node": "n",
        "notification_seq": 0,
    },
    "wills": {"node": "n", "seq": 1, "changed_at": 2, "device": "d", "change": "left", "subject": "s"},
    "policies": {"node": "n", "seq": 1, "changed_at": 2, "change": "chosen", "owner": "o", "device": "d"},
    "decisions": {
        "node": "n",
        "seq": 1,
        "decided_at": 2,
        "session": "s",
        "device": "d",
        "notification_node": "n",
        "notification_seq": 0,
        "policy_seq": 0,
        "policy": "p",
        "outcome": "withheld",
    },
}


def test_the_columns_are_those_of_the_tables() -> None:
    """Rows and Arrow schemas are made of one table of columns."""
    assert {name: tuple(table.schema.names) for name, table in TABLES.items() if table.is_log} == COLUMNS


def test_rows_need_no_arrow() -> None:
    """Writing a log must stay light."""
    code = (
        "import sys, whimbrel.log.writer, whimbrel.log.reader, whimbrel.log.importing; print('pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("table", COLUMNS)
def test_a_row_may_leave_out_what_has_a_default(table: str) -> None:
    """Lines that people write by hand say only what matters."""
    name, row = row_of(fact_of(table, LEAST[table]))
    assert name == table
    assert tuple(row) == COLUMNS[table]
    assert row.items() >= LEAST[table].items()


@pytest.mark.parametrize(("table", "column"), [(table, column) for table in COLUMNS for column in LEAST[table]])
def test_a_missing_column_is_named(table: str, column: str) -> None:
    """Whoever made the row must know what to add."""
    row = {name: value for name, value in LEAST[table].items() if name != column}
    with pytest.raises(InvalidValueError, match=f"^{column}: found nothing"):
        fact_of(table, row)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("publications", "attributes", [1]),
        ("publications", "attributes", {"a": None}),
        ("publications", "body", "text"),
        ("publications", "retain", 1),
        ("publications", "keys", [{"scheme": "none", "digest": bytes(20)}]),
        ("publications", "keys", [None]),
        ("publications", "place", {"latitude": 1}),
        ("publications", "place", "1,2"),
        ("publications", "properties", "text"),
        ("publications", "packet_id", 1),
        ("interests", "qos", 3),
        ("interests", "no_local", 1),
        ("interests", "retain_as_published", "yes"),
        ("interests", "identifier", 0),
        ("presence", "packet_id", 1),
        ("presence", "session_expiry_us", 1),
        ("presence", "sent_seq", 1),
        ("interests", "change", "bought"),
        ("interests", "change", ["added"]),
        ("interests", "near", {"latitude": 1, "longitude": 2}),
        ("interests", "corners", [{"latitude": 1}]),
        ("interests", "hears_anywhere", 1),
        ("interests", "stale_us", -1),
        ("presence", "receipt", "give"),
        ("reports", "display", 7),
        ("receipts", "body_hash", "0" * 32),
        ("receipts", "via", ["live"]),
        ("receipts", "battery", "full"),
        ("receipts", "outcome", None),
        ("receipts", "notification_seq", -1),
        ("receipts", "notification_node", "no node"),
        ("receipts", "subscriptions", [{"subject_filter": 1, "name": ""}]),
        ("receipts", "subscriptions", "all"),
        ("reports", "members", [1]),
        ("policies", "change", "bought"),
        ("policies", "text", "return m;"),
        ("decisions", "outcome", "expired"),
        ("decisions", "body_hash", bytes(32)),
        ("decisions", "body", b""),
        ("decisions", "attributes", {}),
        ("decisions", "read", None),
        ("decisions", "changed", {"a": None}),
        ("decisions", "removed", [1]),
        ("decisions", "removed", "a"),
        ("decisions", "steps", -1),
    ],
)
def test_a_bad_value_names_its_column(table: str, column: str, value: object) -> None:
    """No value of any type gets past as something else, or as a traceback."""
    with pytest.raises(InvalidValueError) as refused:
        fact_of(table, {**LEAST[table], column: value})
    assert refused.value.what.removeprefix("attribute ") in {column, "a"}


LATER = {
    "publications": ["properties", "packet_id", "will_seq"],
    "interests": [
        *("qos", "no_local", "retain_as_published", "identifier"),
        *("around_m", "corners", "hears_anywhere", "stale_us"),
    ],
    "presence": ["packet_id", "session_expiry_us", "sent_seq", "confirms", "owner"],
    "receipts": ["published_at", "subject"],
    "reports": ["members"],
    "decisions": ["publisher"],
}
"""The columns that logs of some release do not have; those of later releases follow."""


@pytest.mark.parametrize("table", COLUMNS)
def test_columns_that_came_later_may_be_null(table: str) -> None:
    """Older logs do not have them, and a reader of many files fills in null."""
    later = [column for column in LOG_SPECS[table].columns if column.is_later]
    names = [column.name for column in later]
    assert names[: len(LATER.get(table, []))] == LATER.get(table, [])
    assert [*LOG_SPECS[table].columns[len(COLUMNS[table]) - len(later) :]] == later
    assert all(column.is_nullable for column in later)
    assert fact_of(table, {**LEAST[table], **dict.fromkeys(names)}) == fact_of(table, LEAST[table])


_NEEDED_BY: dict[str, dict[str, object]] = {"radius_m": {"place": {"latitude": 0, "longitude": 0}}}
_USUAL = {"packet_id": 1, "session_expiry_us": 1, "sent_seq": 1, "confirms": True, "owner": "ann"}


@pytest.mark.parametrize("change", PresenceChange)
@pytest.mark.parametrize("column", ["packet_id", "session_expiry_us", "sent_seq", "confirms", "owner"])
def test_what_a_change_of_presence_says_belongs_to_it(change: PresenceChange, column: str) -> None:
    """A packet is released or completed; a session's end is told where a device joins or goes."""
    row = {**LEAST["presence"], "change": change.value}
    if change in {PresenceChange.JOINED, PresenceChange.LEFT, PresenceChange.RECEIPTS}:
        row["session"] = "s"
    if change is PresenceChange.RECEIPTS:
        row["confirms"] = True
    if change is PresenceChange.JOINED:
        row["receipt"] = "take"
    is_of_a_packet = change in {PresenceChange.RELEASED, PresenceChange.COMPLETED}
    if is_of_a_packet:
        row["packet_id"] = 1
    fact_of("presence", row)
    may_have = {
        "packet_id": is_of_a_packet,
        "session_expiry_us": change.value in {"joined", "disconnected"},
        "sent_seq": change.value in {"disconnected", "left"},
        "confirms": change.value in {"joined", "receipts"},
        "owner": change.value == "joined",
    }
    with pytest.raises(InvalidValueError, match=f"^{column}"):
        fact_of("presence", {**row, column: -1 if may_have[column] else _USUAL[column]})


def test_an_unknown_table_is_refused() -> None:
    """The message lists those that are known."""
    with pytest.raises(InvalidValueError, match="publications, interests"):
        fact_of("matches", {})


def test_values_are_plain() -> None:
    """What goes into Arrow, CBOR and JSON has no class of ours in it."""
    receipt = Receipt(
        node="n",
        seq=3,
        handed_at=4,
        session="s",
        device="d",
        battery=1,
        notification=NotificationId("m", 2),
        outcome=Outcome.TAKEN_ELSEWHERE,
    )
    _, row = row_of(receipt)
    assert (row["notification_node"], row["notification_seq"], row["outcome"]) == ("m", 2, "taken elsewhere")
    assert type(row["battery"]) is float


def test_attributes_beyond_todays_limits_are_still_read() -> None:
    """A node may have had other limits when it accepted them."""
    many = {f"a{index}": index for index in range(2_000)}
    assert row_of(fact_of("publications", {**LEAST["publications"], "attributes": many}))[1]["attributes"] == many


def _beyond(column: Column) -> Iterator[object]:
    """Yield values just outside what the table of columns allows."""
    assert column.least is not None
    assert column.most is not None
    least, most = int(column.least), int(column.most)
    match column.kind:
        case Kind.TEXT:
            yield "x" * (most + 1)
            yield from ("x" * (least - 1), *(f"x{each}" for each in column.without), 1)
        case Kind.BODY | Kind.PROPERTIES:
            yield "text"  # the most is too much for a test
        case Kind.HASH:
            yield from (bytes(least - 1), bytes(most + 1), "0" * 32)
        case Kind.TIME:
            yield from (least - 1, most + 1, "now")
        case Kind.REAL:
            yield from (math.nextafter(column.least, -math.inf), math.nextafter(column.most, math.inf), math.nan, True)
        case _:
            yield from (least - 1, most + 1, True)


_BOUNDED = [(table, column) for table, spec in LOG_SPECS.items() for column in spec.columns if column.least is not None]


@pytest.mark.parametrize(("table", "column"), _BOUNDED, ids=lambda value: getattr(value, "name", value))
def test_a_fact_has_the_bounds_of_its_columns(table: str, column: Column) -> None:
    """The bounds stand in the table of columns, which finds suspects, and in the fact, which refuses them."""
    found = 0
    for value in _beyond(column):
        if value == "" and column.least == 0:
            continue
        with pytest.raises(InvalidValueError):
            fact_of(table, {**LEAST[table], **_NEEDED_BY.get(column.name, {}), column.name: value})
        found += 1
    assert found


def test_an_interest_has_one_near() -> None:
    """A circle and a distance from oneself at once would mean neither."""
    both = {"near": {"latitude": 1, "longitude": 2, "radius_m": 3}, "around_m": 200.0}
    with pytest.raises(InvalidValueError, match="one of near, around_m"):
        fact_of("interests", {**LEAST["interests"], **both})
