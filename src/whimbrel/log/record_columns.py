"""Columns of records: decode the records of a segment into Arrow tables, without a list of values per record.

Nearly all records of a busy node are compact publications and deliveries. Most of their columns have the same value in
every row. Names of subscribers and subjects repeat, so each distinct name is decoded once.
Rule: ``values_from`` and ``values_to_arrow`` are the reference; ``tests/property/test_log_record_columns.py`` compares.
Rule: an error reports only that some record is bad. The reference finds which record it is, and what is wrong with it.
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
"""Exceptions that ``RecordColumns.tables`` raises for a record that is not a valid row."""


class _Records(NamedTuple):
    """Records with the same table number, in the order of their seqs."""

    seqs: list[int]
    payloads: list[bytes]


class RecordColumns:
    """Collector of a node's records, added in the order of their seqs, that returns them as Arrow tables."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._by_form: dict[int, _Records] = {}

    def add(self, seq: int, number: int, payload: bytes) -> None:
        """Add one record to the collector; *number* is its table number, which also distinguishes full from compact."""
        found = self._by_form.get(number)
        if found is None:
            found = self._by_form[number] = _Records([], [])
        found.seqs.append(seq)
        found.payloads.append(payload)

    def tables(self) -> dict[str, list[Arrow]]:
        """Return, per table name, one or two ``pyarrow.Table``: of its full records and of its compact ones, if any."""
        found: dict[str, list[Arrow]] = {}
        for number, records in self._by_form.items():
            make = _BY_COLUMNS.get(number)
            rows = self._by_rows(number, records) if make is None else _fill(self._node, records, *make(records))
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
        "deliver_insecure": pa.repeat(pa.scalar(True), len(records.seqs)),  # made by Arrow, without a Python list
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
"""Placeholder for the name of the node."""
_BY_COLUMNS: dict[int, Callable[[_Records], tuple[str, Mapping[str, Any]]]] = {
    compact.PUBLICATION: _publications,
    compact.DELIVERY: _receipts,
}


def _fill(node: str, records: _Records, table: str, given: Mapping[str, Any]) -> Arrow:
    """Return the rows of *table* with the columns *given*, seq and node; all other columns are null."""
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
