"""Logs of facts on a disk, and the rows of tables as ``SingleProcess`` has them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from single_process import Delivery, Match

from whimbrel.log.layout import create
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Fact, Outcome, WillChange, WillChanged, time_of
from whimbrel.model.tables import TIME_TYPE

__all__ = ["deliveries_in", "matches_in", "write_facts"]


def write_facts(log: Path, facts: Iterable[Fact]) -> dict[str, tuple[int, int]]:
    """Write facts of some nodes, each node's in order; return its first and last numbers.

    Numbers that a node lacks are of facts that change nothing: a log is dense.
    """
    by_node: dict[str, list[Fact]] = {}
    for fact in facts:
        by_node.setdefault(fact.node, []).append(fact)
    create(log)
    for node, own in by_node.items():
        with LogWriter(log, node) as writer:
            for fact in own:
                while writer.next_seq < fact.seq:
                    at, seq = time_of(fact), writer.next_seq
                    gone = WillChange.WITHDRAWN
                    writer.append(WillChanged(node=node, seq=seq, changed_at=at, device="nobody", change=gone))
                writer.append(fact)
    return {node: (0, own[-1].seq) for node, own in by_node.items()}


def matches_in(rows: pa.Table) -> list[Match]:
    """Return rows of ``matches``."""
    names = ("notification_node", "notification_seq", "session", "subject_filter", "name", "interest_seq")
    return [
        Match(node, seq, session, (subject_filter, name), interest)
        for node, seq, session, subject_filter, name, interest in _values(rows, names)
    ]


def deliveries_in(rows: pa.Table) -> list[Delivery]:
    """Return rows of ``deliveries``."""
    names = (
        *("notification_node", "notification_seq", "published_at", "subject", "deadline_at", "session", "device"),
        *("subscriptions", "outcome", "body_hash", "decided_at", "lapses_at", "via", "difference"),
    )
    return [Delivery(*_told(list(row))) for row in _values(rows, names)]


def _told(row: list[Any]) -> list[Any]:
    row[7] = frozenset((each["subject_filter"], each["name"]) for each in row[7])
    row[8] = Outcome(row[8])
    return row


def _values(rows: pa.Table, names: tuple[str, ...]) -> Iterable[tuple[Any, ...]]:
    columns = (rows.column(name) for name in names)
    plain = (
        column.cast(TIME_TYPE).cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in columns
    )
    return zip(*(column.to_pylist() for column in plain), strict=True)
