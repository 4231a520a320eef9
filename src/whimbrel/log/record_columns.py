"""Columns of records: those of a segment as Arrow tables, without a list of values for each.

Nearly all records of a busy node are publications and deliveries in their compact form. Of these most columns are the
same in every row, and the names of subscribers and subjects come again and again: each is read once.
Rule: ``values_from`` and ``values_to_arrow`` are the reference; ``tests/property/test_log_record_columns.py`` compares.
Rule: an error says only that there is one: the reference says which record, and what is wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from whimbrel.errors import InvalidValueError
from whimbrel.log import compact
from whimbrel.log.columns import attributes_array, values_to_arrow
from whimbrel.log.records import TABLE_NAMES, cbor_values, values_from
from whimbrel.model.codecs import attributes_of
from whimbrel.model.facts import Outcome
from whimbrel.model.tables import TABLES

__all__ = ["UNREADABLE", "RecordColumns"]

Arrow: TypeAlias = Any
"""A ``pyarrow.Table`` or array; pyarrow ships no types."""

UNREADABLE = (InvalidValueError, ValueError, TypeError, IndexError, OverflowError, struct.error, pa.ArrowException)
"""What a record that is no row makes ``tables`` raise."""


class _Records(NamedTuple):
    """Records of one form."""

    seqs: list[int]
    payloads: list[bytes]


class RecordColumns:
    """The records of a node that are added, in the order of their numbers, as tables."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._by_form: dict[int, _Records] = {}

    def add(self, seq: int, number: int, payload: bytes) -> None:
        """Take a record in."""
        found = self._by_form.get(number)
        if found is None:
            found = self._by_form[number] = _Records([], [])
        found.seqs.append(seq)
        found.payloads.append(payload)

    def tables(self) -> dict[str, list[Arrow]]:
        """Return, by table that has any, its rows: a ``pyarrow.Table`` for each form that records have."""
        found: dict[str, list[Arrow]] = {}
        for number, records in self._by_form.items():
            make = _BY_COLUMNS.get(number)
            rows = self._by_rows(number, records) if make is None else _filled(self._node, records, *make(records))
            found.setdefault(TABLE_NAMES[number], []).append(rows)
        return found

    def _by_rows(self, number: int, records: _Records) -> Arrow:
        pairs = zip(records.seqs, records.payloads, strict=True)
        rows = [values_from(self._node, seq, number, payload)[1] for seq, payload in pairs]
        return values_to_arrow(TABLE_NAMES[number], rows)


def _publications(records: _Records) -> tuple[str, Mapping[str, Arrow]]:
    found = compact.publication_columns(records.payloads)
    told = zip(found.body, found.has_value, strict=True)
    given = found._asdict()
    del given["has_value"]
    none = np.zeros(len(records.seqs) + 1, np.int32)
    schema = TABLES["publications"].schema
    return "publications", given | {
        "attributes": attributes_array([attributes_of(body, has_value=has_value) for body, has_value in told]),
        "keys": pa.ListArray.from_arrays(pa.array(none), pa.array([], schema.field("keys").type.value_type)),
        "deliver_insecure": pa.repeat(pa.scalar(True), len(records.seqs)),  # Arrow's own
    }


def _receipts(records: _Records) -> tuple[str, Mapping[str, Arrow]]:
    found = compact.receipt_columns(records.payloads)
    schema, codes = TABLES["receipts"].schema, pa.array(found.subscriber, pa.int64())
    known = [compact.subscriber_values(cbor_values(rest)) for rest in found.subscribers]
    named = {
        name: pa.array(column, schema.field(name).type).take(codes)
        for name, column in zip(("session", "device", "subscriptions"), zip(*known, strict=True), strict=True)
    }
    return "receipts", named | {
        "handed_at": found.handed_at,
        "notification_node": _NODE,
        "notification_seq": found.notification_seq,
        "outcome": pa.repeat(pa.scalar(Outcome.DELIVERED.value), len(records.seqs)),
        "via": found.via,
    }


_NODE = "$node"
"""Stands for the name of the node."""
_BY_COLUMNS: dict[int, Callable[[_Records], tuple[str, Mapping[str, Any]]]] = {
    compact.PUBLICATION: _publications,
    compact.DELIVERY: _receipts,
}


def _filled(node: str, records: _Records, table: str, given: Mapping[str, Any]) -> Arrow:
    """Return a table whose other columns are null."""
    count, arrays = len(records.seqs), []
    given = {**given, "seq": records.seqs, "node": _NODE}
    for field in TABLES[table].schema:
        column = given.get(field.name)
        if column is None:
            arrays.append(pa.nulls(count, field.type))
        elif column is _NODE:
            arrays.append(pa.repeat(pa.scalar(node), count))
        else:
            arrays.append(column if isinstance(column, pa.Array) else pa.array(column, field.type))
    return pa.Table.from_arrays(arrays, schema=TABLES[table].schema)
