"""Logs to measure the pipeline on: publications and interests of the workloads, as Parquet in the layout of a log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from whimbrel.log.layout import create, part_path
from whimbrel.model.tables import ATTRIBUTES_TYPE, TABLES, attributes_to_column_value
from workloads import Workload

__all__ = ["write_log"]

NODE = "bench"
START_US = 1_767_225_600_000_000  # 2026-01-01
_DISTINCT = 50_000
"""Events that are drawn; the others are these again, in another order."""
_PART = 500_000


def write_log(
    directory: Path, workload: Workload, *, subscriptions: int, events: int, sessions: int, devices: int, seed: int
) -> None:
    """Write a log: interests first, then devices that join, then publications while some come and go."""
    create(directory, has_receipts=False)
    seq = 0
    texts = list(workload.texts(subscriptions, seed))
    names = [f"s{number % sessions}" for number in range(subscriptions)]
    _write(directory, "interests", [_interests(texts, names, seq)], seq, seq + subscriptions - 1)
    seq += subscriptions
    joins = list(_joins(sessions, devices, seq))
    _write(directory, "presence", [_presence(joins)], seq, seq + len(joins) - 1)
    seq += len(joins)
    drawn = _publications(list(workload.events(min(events, _DISTINCT), seed)))
    generator = np.random.default_rng(seed)
    for begin in range(0, events, _PART):
        count = min(_PART, events - begin)
        batch = drawn.take(pa.array(generator.integers(0, len(drawn), count)))
        numbered = _numbered(batch, seq + begin, count)
        _write(directory, "publications", [numbered], seq + begin, seq + begin + count - 1)


def _write(directory: Path, table: str, tables: list[Any], first: int, last: int) -> None:
    from datetime import UTC, datetime

    day = datetime.fromtimestamp(START_US / 1e6, UTC).date()
    path = part_path(directory, table, day=day, node=NODE, first=first, last=last)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.concat_tables(tables), path, compression="zstd", row_group_size=100_000)


def _filled(table: str, given: dict[str, Any], count: int) -> Any:
    """Return a table with *given* columns; the others are null, or nothing."""
    schema = TABLES[table].schema
    columns = []
    for field in schema:
        value = given.get(field.name)
        if value is None:
            value = pa.nulls(count, field.type)
        elif not isinstance(value, pa.Array | pa.ChunkedArray):
            value = pa.array([value] * count, field.type)
        columns.append(value.cast(field.type))
    return pa.table(columns, schema=schema)


def _interests(texts: list[str], sessions: list[str], first: int) -> Any:
    count = len(texts)
    given = {
        "node": NODE, "seq": pa.array(np.arange(first, first + count)), "changed_at": START_US, "change": "added",
        "session": pa.array(sessions), "name": pa.array([f"i{number}" for number in range(count)]),
        "filter_text": pa.array(texts), "keys": [], "accept_insecure": True,
    }  # fmt: skip
    return _filled("interests", given, count)


def _joins(sessions: int, devices: int, first: int) -> Iterator[dict[str, object]]:
    for number in range(sessions * devices):
        yield {
            "node": NODE,
            "seq": first + number,
            "changed_at": START_US,
            "device": f"d{number}",
            "session": f"s{number % sessions}",
            "change": "joined",
            "receipt": "keep" if number >= sessions else "take",
        }


def _presence(rows: list[dict[str, object]]) -> Any:
    return pa.Table.from_pylist(rows, TABLES["presence"].schema)


def _publications(events: list[Any]) -> Any:
    count = len(events)
    bodies = [json.dumps(dict(event)).encode()[:64] for event in events]
    attributes = pa.array([attributes_to_column_value(event) for event in events], ATTRIBUTES_TYPE)
    given = {
        "node": NODE, "seq": 0, "published_at": START_US, "subject": "ward/vitals", "attributes": attributes,
        "body": pa.array(bodies), "qos": 1, "retain": False, "keys": [], "deliver_insecure": True,
    }  # fmt: skip
    return _filled("publications", given, count)


def _numbered(table: Any, first: int, count: int) -> Any:
    """Give the rows their own numbers and times, a millisecond apart."""
    seqs = np.arange(first, first + count)
    times = pa.array(START_US + 1_000 * seqs).cast(TABLES["publications"].schema.field("published_at").type)
    schema = table.schema
    table = table.set_column(schema.get_field_index("seq"), schema.field("seq"), pa.array(seqs))
    return table.set_column(schema.get_field_index("published_at"), schema.field("published_at"), times)
