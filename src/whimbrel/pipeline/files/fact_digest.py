"""The digest of one fact of a log: by it a stream knows that it goes on in the log that it has read.

Rule: it is the same whether the fact is read from a segment or from Parquet, and stays so when tables get columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import cbor2
import pyarrow as pa

__all__ = ["fact_digest"]


def fact_digest(seq: int, tables: Mapping[str, Any], dead: Iterable[Any]) -> str | None:
    """Return the digest of the fact *seq* among rows of *tables*, ordered by number, or *dead* letters, if it is there.

    A fact that cannot be read has the digest of what its dead letter has of it.
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
