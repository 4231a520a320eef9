"""The digest of one fact: a stream compares it to check that it continues in the same log.

Rule: the digest is the same whether the fact is read from a segment or from Parquet. It stays the same when a table
gets new columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import cbor2
import pyarrow as pa

__all__ = ["fact_digest"]


def fact_digest(seq: int, tables: Mapping[str, Any], dead: Iterable[Any]) -> str | None:
    """Return the digest of the fact *seq*, or None if the fact is not found.

    It is searched in the last row of each of *tables*, and in *dead*, rows of ``dead_letters``. The digest of an
    invalid fact is that of its dead letter's content.
    """
    for name, rows in tables.items():
        if rows.num_rows and rows.column("seq")[-1].as_py() == seq:
            return _digest(name, rows.slice(rows.num_rows - 1))
    for rows in dead:
        for row in rows.select(["position", "content"]).to_pylist():
            if row["position"] == seq:
                return hashlib.sha256(row["content"] or b"").hexdigest()
    return None


def _digest(table: str, row: Any) -> str | None:  # a pyarrow.Table of one row
    values = {name: _plain(row.column(name)) for name in sorted(row.column_names)}
    known = {name: value for name, value in values.items() if value is not None}
    return hashlib.sha256(cbor2.dumps([table, known], canonical=True)).hexdigest()


def _plain(column: Any) -> object:  # a pyarrow.ChunkedArray of one value
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column)[0].as_py()
