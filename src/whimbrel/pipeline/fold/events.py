"""Events: convert Arrow rows of the log to the input of the fold (``folds``).

A publication is an event only if a subscription matched it; the event has the seqs of the matching subscriptions. Each
receipt is an event. Each row of the other tables becomes a fact, and its event has only the fact's seq.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.hold.sessions import RETAINED
from whimbrel.log.columns import attributes_from, from_arrow
from whimbrel.model.attributes import NO_ATTRIBUTES
from whimbrel.model.facts import Fact, PresenceChange
from whimbrel.pipeline.fold.folds import EVENT, FACT, PUBLISHED, RECEIPT
from whimbrel.pipeline.fold.policies import attributes_bytes, body_seen
from whimbrel.pipeline.subscriptions.versions import PackedVersions

__all__ = ["EVENT_TABLES", "Seen", "fact_events", "published_events", "receipt_events"]

Arrow = Any
"""A ``pyarrow`` batch or table; pyarrow ships no types."""

_MOVES = pa.array(
    [
        PresenceChange.JOINED.value,
        PresenceChange.LEFT.value,
        PresenceChange.DISCONNECTED.value,
        PresenceChange.RECEIPTS.value,
    ]
)
"""Changes of presence that affect which device is owed which notification."""


EVENT_TABLES = ("interests", "presence", "sessions", "receipts", "reports", "policies", "decisions")
"""Tables whose rows become events, in addition to ``publications``."""
_RECEIPT = {
    "handed_at": "at",
    **{name: name for name in ("seq", "session", "device", "notification_seq", "via", "outcome")},
}
"""Field of an event for each column of ``receipts``; ``_RETAINED_ONLY`` has further columns."""


def receipt_events(rows: Arrow) -> Arrow:
    """Convert *rows*, a batch of ``receipts``, to events."""
    given = {new: rows.column(old) for old, new in _RECEIPT.items()} | _of_retained(rows)
    return _events({**given, "kind": pa.repeat(RECEIPT, rows.num_rows)}, rows.num_rows)


def fact_events(name: str, rows: Arrow) -> tuple[Arrow, dict[int, Fact]]:
    """Convert *rows* of the table *name* to facts; return one event per fact, and the facts by seq."""
    if name == "presence":
        rows = rows.filter(pc.is_in(rows.column("change"), _MOVES))
    given = {"seq": rows.column("seq"), "kind": pa.repeat(FACT, rows.num_rows)}
    return _events(given, rows.num_rows), {fact.seq: fact for fact in from_arrow(name, rows)}


_RETAINED_ONLY = ("published_at", "subject", "body_hash", "subscriptions")
"""Columns of receipts that the fold needs only for retained messages."""


def _of_retained(rows: Arrow) -> dict[str, Arrow]:
    """Return the columns that only receipts of retained messages need; they are null in all other rows."""
    is_retained = pc.fill_null(pc.equal(rows.column("via"), RETAINED), False)  # an Arrow function
    if not pc.any(is_retained).as_py():
        return {each: pa.nulls(rows.num_rows, EVENT.field(each).type) for each in _RETAINED_ONLY}
    places = pc.if_else(is_retained, pa.array(np.arange(rows.num_rows)), None)
    return {each: rows.column(each).take(places) for each in _RETAINED_ONLY}


_CARRIED = {"publisher": "device", "published_at": "at"} | {
    name: name for name in ("seq", "expires_at", "deadline_at", "subject", "body", "qos")
}
"""Field of an event for each column of ``publications``."""


class Seen(Enum):
    """How much of a publication policies may read: nothing, its attributes, or its body too."""

    NOTHING = 0
    ATTRIBUTES = 1
    BODIES = 2


def published_events(
    batch: Arrow, found: PackedVersions, rows: Any, handles: Any, *, seen: Seen = Seen.NOTHING
) -> Iterator[Arrow]:
    """Yield, as Arrow rows, one event per publication that matched, with the seqs of the matching subscriptions.

    *rows* (row numbers in *batch*) and *handles* (indices of subscription versions in *found*) are the result of
    ``PackedVersions.match``.
    """
    wanted, starts = np.unique(rows, return_index=True)
    offsets = np.append(starts, rows.size).astype(np.int32)
    some = pa.array(wanted)
    given = {new: batch.column(old).take(some) for old, new in _CARRIED.items()}
    given |= {
        "kind": pa.repeat(PUBLISHED, wanted.size),
        "interests": pa.ListArray.from_arrays(pa.array(offsets), pa.array(found.begun[handles])),
        "body_hash": _hashes(given.pop("body")),
    }
    if seen is not Seen.NOTHING:
        given |= _contents(batch.take(some), has_bodies=seen is Seen.BODIES)
    yield _events(given, wanted.size)


def _hashes(bodies: Arrow) -> Arrow:
    return pa.array([hashlib.sha256(body).digest() for body in bodies.to_pylist()], pa.binary())


def _contents(rows: Arrow, *, has_bodies: bool) -> dict[str, Arrow]:
    """Return the columns of *rows* that policies may read: attributes, length of the body and, on request, body."""
    told = attributes_from(rows.column("attributes"))
    attributes = pa.array([attributes_bytes(each or NO_ATTRIBUTES) for each in told], pa.binary())
    bodies = rows.column("body")
    kept = {"content": attributes, "body_bytes": pc.binary_length(bodies)}
    if has_bodies:
        kept["body"] = pa.array(map(body_seen, bodies.to_pylist()), pa.binary())
    return kept


def _events(given: Mapping[str, Arrow], count: int) -> Arrow:
    columns = [_whole(given[f.name]).cast(f.type) if f.name in given else pa.nulls(count, f.type) for f in EVENT]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT)


def _whole(column: Arrow) -> Arrow:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
