"""Records: encode one fact of the log as bytes, and decode it.

A record's body is its seq (int64), its table number (uint8) and its payload: the row's values as a CBOR list in the
order of ``model.rows.COLUMNS``, without node and seq. Attributes and variables are a flat list of name, type, value, ….
The body's length and CRC-32 (uint32 each) precede the body. All numbers are big-endian. Publications, receipts and
moves (reports of a position only) also have a compact payload, under table numbers of their own (``compact``).

Rule: a table number is never reused for another table. Columns are added only at the end, so a payload with fewer
values is from an older Whimbrel. A payload with more values, or an unknown table number, is from a newer Whimbrel and
is refused.
Rule: the CRC starts from the segment's salt, a random number. So neither a body that a publisher crafted nor old disk
blocks of another file pass for a record.
Rule: table 0 is a *mark* (a commit marker): not a fact, only the last seq that was durable when the mark was written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn
from zlib import crc32

import cbor2

from whimbrel.errors import InvalidValueError, Phrase, description_of
from whimbrel.log import compact
from whimbrel.log.compact import publication_body, receipt_body, receipt_prefix
from whimbrel.model.attributes import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    Attributes,
    AttributeType,
    FrozenAttributes,
    Int64,
    Scalar,
)
from whimbrel.model.columns import LOG_SPECS, Kind
from whimbrel.model.facts import Fact
from whimbrel.model.rows import COLUMNS, values_of

__all__ = [
    "BODY",
    "HEAD",
    "MARK",
    "MARK_BYTES",
    "MAX_BODY_BYTES",
    "PUBLICATIONS",
    "TABLE_NAMES",
    "TABLE_NUMBERS",
    "body_of",
    "cbor_values",
    "framed",
    "is_publication",
    "mark",
    "pieces_of",
    "publication_body",
    "receipt_body",
    "receipt_prefix",
    "row_from",
    "time_from",
    "values_from",
]

HEAD = struct.Struct(">II")
"""Frame head: length and CRC-32 of the body."""
BODY = struct.Struct(">qB")
"""Start of a body: seq and table number; the payload follows."""
MARK = 0
MARK_BYTES = HEAD.size + BODY.size
_PIECE_BYTES = 256 << 10
"""Most bytes of a group in one write, so that a nearly full disk takes at least the first records of the group."""
MAX_BODY_BYTES = 272 << 20
"""Largest body of a record: a little more than the largest MQTT packet (256 MiB)."""

TABLE_NUMBERS = {name: spec.record for name, spec in LOG_SPECS.items()}
"""Table number of the full (not compact) records of each table."""
TABLE_NAMES = {
    **{number: name for name, number in TABLE_NUMBERS.items()},
    compact.PUBLICATION: "publications",
    compact.DELIVERY: "receipts",
    compact.MOVE: "reports",
}
"""Table name of each table number, full and compact."""
PUBLICATIONS = frozenset(number for number, table in TABLE_NAMES.items() if table == "publications")
"""Table numbers of publication records, full and compact."""
_COMPACT = frozenset({compact.PUBLICATION, compact.DELIVERY, compact.MOVE})
_MAPS = {
    table: [at - 2 for at, column in enumerate(spec.columns) if column.kind is Kind.ATTRIBUTES]
    for table, spec in LOG_SPECS.items()
}
"""Indices of the attribute columns of each table, counted without node and seq."""

_KINDS: dict[type, int] = {
    int: AttributeType.INT32.value,
    Int64: AttributeType.INT64.value,
    float: AttributeType.REAL64.value,
    str: AttributeType.STRING.value,
    bytes: AttributeType.OPAQUE.value,
}
_CLASSES: dict[object, Any] = {1: int, 2: int, 3: float, 4: str, 5: bytes}
_MAX_DEPTH = 4  # the list, a column's list, an item's map, and one to spare


class _NoTags(Mapping[int, Callable[[object, bool], NoReturn]]):
    """Decoders of CBOR tags that refuse every tag: we write none, and decoding them would build costly objects."""

    def __getitem__(self, tag: int) -> Callable[[object, bool], NoReturn]:
        def refuse(_value: object, _immutable: bool) -> NoReturn:  # noqa: FBT001 # cbor2 calls it so
            raise InvalidValueError("payload", Phrase(f"tag {tag}"), "CBOR without tags")

        return refuse

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 1  # not 0: an empty mapping is falsy, and could be read as "no mapping given"


_NO_TAGS = _NoTags()


def body_of(fact: Fact) -> tuple[bytes, int]:
    """Encode *fact* as the body of a record; return the body and the fact's time."""
    table, values = values_of(fact)
    row = values[2:]
    for at in _MAPS[table]:
        if row[at] is not None:
            row[at] = _flat(row[at])  # type: ignore[arg-type]  # these columns hold attributes
    try:
        body = BODY.pack(fact.seq, TABLE_NUMBERS[table]) + cbor2.dumps(row)
    except (cbor2.CBOREncodeError, ValueError) as error:  # such as a lone surrogate
        raise InvalidValueError(f"a row of {table}", Phrase(str(error)), "what CBOR can hold") from error
    if len(body) > MAX_BODY_BYTES:
        raise InvalidValueError(f"a row of {table}", Phrase(f"{len(body)} bytes"), f"at most {MAX_BODY_BYTES} bytes")
    return body, values[2]  # type: ignore[return-value]  # the third column of every table is its time


def is_publication(body: bytes) -> bool:
    """Return whether the record *body* is a publication."""
    return body[BODY.size - 1] in PUBLICATIONS


def framed(body: bytes, salt: int) -> bytes:
    """Return the frame of a record's *body*: its length, its checksum, then the body."""
    return HEAD.pack(len(body), crc32(body, salt)) + body


def mark(seq: int, salt: int) -> bytes:
    """Return the frame of a mark: all records up to *seq* were durable when the mark was written."""
    return framed(BODY.pack(seq, MARK), salt)


def row_from(node: str, seq: int, number: int, payload: bytes) -> tuple[str, dict[str, object]]:
    """Return table name and row of a record, or raise ``InvalidValueError``; values are as CBOR decoded them."""
    table, values = values_from(node, seq, number, payload)
    return table, dict(zip(COLUMNS[table], values, strict=False))


def values_from(node: str, seq: int, number: int, payload: bytes) -> tuple[str, list[object]]:
    """Return table name and values of a record, in the order of the table's columns.

    Columns that were added to the table after the record was written are missing at the end.
    """
    table = TABLE_NAMES.get(number)
    if table is None:
        raise InvalidValueError("table number", number, f"1 to {max(TABLE_NAMES)}; more are from a newer Whimbrel")
    columns = COLUMNS[table]
    if number == compact.PUBLICATION:
        values = compact.publication_values(payload)
    elif number == compact.DELIVERY:
        values = compact.receipt_values(node, payload, cbor_values(compact.receipt_rest(payload)))
    elif number == compact.MOVE:
        values = compact.move_values(payload)
    else:
        values = cbor_values(payload)
    if len(values) + 2 > len(columns):
        allowed = f"at most {len(columns) - 2}; more are from a newer Whimbrel"
        raise InvalidValueError(f"number of values in {table}", len(values), allowed)
    if number not in _COMPACT:
        for at in _MAPS[table]:
            if at < len(values) and (values[at] is not None or table == "publications"):
                values[at] = _attributes(values[at])
    return table, [node, seq, *values]


def time_from(number: int, payload: bytes) -> int:
    """Return the time of a record with the table number *number*: the first value of its *payload*."""
    if number in _COMPACT:
        return compact.time_of(payload)
    values = cbor_values(payload)
    if not values or type(values[0]) is not int:
        raise InvalidValueError("time of a record", values[:1], "microseconds")
    return values[0]


def cbor_values(payload: bytes) -> list[object]:
    """Decode an untrusted CBOR list, or raise ``InvalidValueError``."""
    try:
        values: object = cbor2.loads(
            payload,
            semantic_decoders=_NO_TAGS,
            max_depth=_MAX_DEPTH,
            allow_indefinite=False,
            allow_duplicate_keys=False,
        )
    except (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise InvalidValueError("payload", Phrase(str(error)), "a CBOR list of a row's values") from None
    if type(values) is not list:
        raise InvalidValueError("payload", description_of(values), "a CBOR list of a row's values")
    return values


def _flat(attributes: Attributes) -> list[object]:
    flat: list[object] = []
    for name, value in attributes.items():
        flat += (name, _KINDS[type(value)], value)
    return flat


def _attributes(flat: Any) -> Attributes:  # noqa: ANN401 # decoded CBOR; its types are checked here
    """Decode attributes from a flat list (``_flat``), and check names and values as ``checked`` does, in one pass."""
    if type(flat) is not list or len(flat) % 3:
        raise InvalidValueError("attributes", flat, "a list of name, type, value, …")
    found: dict[str, Scalar] = {}
    each = iter(flat)
    for name, kind, value in zip(each, each, each, strict=True):
        if type(name) is not str or not name or name[0] == "\0":
            raise InvalidValueError("attribute name", name, "text of at least one character, the first not U+0000")
        if type(kind) is not int or type(value) is not _CLASSES.get(kind):
            raise InvalidValueError(f"attribute {name}", value, f"a value of its type, which is {kind!r}")
        if kind == 1:
            if not INT32_MIN <= value <= INT32_MAX:
                raise InvalidValueError(f"attribute {name}", value, "32 bits")
        elif kind == 2:
            if not INT64_MIN <= value <= INT64_MAX:
                raise InvalidValueError(f"attribute {name}", value, "64 bits")
            value = Int64(value)  # noqa: PLW2901 # the loop over untyped values is where they get their type
        found[name] = value
    if len(found) * 3 != len(flat):
        raise InvalidValueError("attributes", flat[::3], "each name once")
    return FrozenAttributes(found)


def pieces_of(group: list[tuple[bytes, int]]) -> Iterator[list[tuple[bytes, int]]]:
    """Divide the records of a group into lists of about ``_PIECE_BYTES`` each."""
    begin = size = 0
    for at, (body, _) in enumerate(group):
        size += len(body)
        if size > _PIECE_BYTES and at > begin:
            yield group[begin:at]
            begin, size = at, len(body)
    if group:
        yield group[begin:]
