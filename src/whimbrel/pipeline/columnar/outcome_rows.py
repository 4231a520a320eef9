"""Rows of ``deliveries`` from the output of the columnar hold: numbers become names, column by column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from whimbrel.hold.commands import Identity
from whimbrel.hold.shared_subscriptions import sorted_identities
from whimbrel.model.facts import Outcome
from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.pipeline.columnar.identity_sets import intern_sets, rehash_sets
from whimbrel.pipeline.columnar.tables import (
    ABSENT,
    AT,
    D_NAME,
    DEVICE,
    IDENTITIES,
    LAPSES_AT,
    NONE,
    NOTIFICATION,
    OUTCOME,
    OUTCOMES,
    S_NAME,
    SESSION,
    VIA,
    VIAS,
    Numbers,
)

__all__ = ["OutcomeRows"]

_SCHEMA = TABLES["deliveries"].schema
_FEW = 1_024


class OutcomeRows:
    """Converts output rows of the kernel to Arrow batches of ``deliveries`` of *node*."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._sessions: list[str] = []
        self._devices: list[str] = []
        """Names by row number."""
        self._identities: list[tuple[Identity, ...]] = []
        """Identities of each session's subscriptions, by bit."""
        self._table, self._numbers = _hash_table(_FEW)
        self._sets: list[tuple[Identity, ...]] = []
        """Sets of subscriptions that rows had so far, each as a sorted list."""
        self._arrow: Any = None
        """The same as an Arrow array; None if some are missing."""

    def add_session(self, name: str, identities: tuple[Identity, ...]) -> int:
        """Add a session with the *identities* of its subscriptions, by bit; return the number of its name."""
        self._sessions.append(name)
        self._identities.append(identities)
        return len(self._sessions) - 1

    def add_device(self, name: str) -> int:
        """Add a device; return the number of its name."""
        self._devices.append(name)
        return len(self._devices) - 1

    def batch(self, found: Numbers, rows: Numbers, notifications: Any) -> Any:
        """Convert *found*, output of the kernel; it is changed.

        *rows* are those of the state. *notifications* is a table with the columns seq, at, subject, deadline_at and
        body_hash.
        """
        count = found.shape[0]
        found[:, SESSION] = rows[found[:, SESSION], S_NAME]
        subscriptions = self._subscriptions(found)
        own = np.ascontiguousarray(found.T)
        has_device = own[DEVICE] != NONE
        devices = pa.array(rows[own[DEVICE], D_NAME], mask=~has_device)
        places = pa.array(own[NOTIFICATION])
        is_delivered = own[OUTCOME] == OUTCOMES.index(Outcome.DELIVERED)
        hashes = notifications.column("body_hash").take(pa.array(own[NOTIFICATION], mask=~is_delivered))
        lapses = own[LAPSES_AT]
        given = {
            "notification_node": pa.repeat(self._node, count),
            "notification_seq": notifications.column("seq").take(places),
            "published_at": notifications.column("at").take(places),
            "subject": notifications.column("subject").take(places),
            "deadline_at": notifications.column("deadline_at").take(places),
            "session": pa.array(self._sessions).take(pa.array(own[SESSION])),
            "device": pa.array(self._devices, pa.string()).take(devices),
            "subscriptions": subscriptions,
            "outcome": pa.array([each.value for each in OUTCOMES]).take(pa.array(own[OUTCOME])),
            "body_hash": hashes,
            "decided_at": pa.array(own[AT]).cast(TIME_TYPE),
            "lapses_at": pa.array(lapses, mask=lapses == ABSENT).cast(TIME_TYPE),
            "via": pa.array(VIAS, pa.string()).take(pa.array(own[VIA])),
            "difference": pa.nulls(count, pa.string()),
        }
        columns = [_whole(given[field.name]).cast(field.type) for field in _SCHEMA]
        return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)

    def _subscriptions(self, found: Numbers) -> Any:
        """Return the column ``subscriptions`` of output rows, whose sets of subscriptions are replaced by numbers."""
        while (count := intern_sets(found, self._table, self._numbers, len(self._sets))) == NONE:
            self._table, self._numbers = self._larger()
        if count > len(self._sets):
            used = np.flatnonzero(self._numbers >= len(self._sets))
            for place in used[np.argsort(self._numbers[used])].tolist():
                self._sets.append(self._set_of(*self._table[place].tolist()))
            self._arrow = None
        if self._arrow is None:
            structs = [[{"subject_filter": f, "name": name} for f, name in each] for each in self._sets]
            self._arrow = pa.array(structs, _SCHEMA.field("subscriptions").type)
        return self._arrow.take(pa.array(found[:, IDENTITIES]))

    def _set_of(self, session: int, identities: int) -> tuple[Identity, ...]:
        own = self._identities[session]
        return sorted_identities(tuple(each for bit, each in enumerate(own) if identities >> bit & 1))

    def _larger(self) -> tuple[Numbers, Numbers]:
        """Return a hash table of twice the size, with the same sets."""
        table, numbers = _hash_table(2 * self._numbers.size)
        rehash_sets(self._table, self._numbers, len(self._sets), table, numbers)
        return table, numbers


def _hash_table(size: int) -> tuple[Numbers, Numbers]:
    return np.zeros((size, 2), np.int64), np.full(size, NONE, np.int64)


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
