"""Subscriptions in force: convert the subscriptions of a node to Arrow rows of ``interests``.

Rule: a subscription without a seq is not in force: its filter cannot be read, and it matches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.hold.commands import Identity
from whimbrel.hold.sessions import Hold
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import SessionChange
from whimbrel.model.rows import COLUMNS, subscription_values
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.subscriptions.versions import CHANGED, open_intervals, touched_sessions, validity_intervals

__all__ = ["InForce", "changed_schema", "in_force_values"]

_COLUMNS = [COLUMNS["interests"].index(name) for name in CHANGED]


def changed_schema() -> Any:  # a pyarrow.Schema
    """Return the Arrow schema of the columns ``CHANGED`` of ``interests``."""
    schema = TABLES["interests"].schema
    return pa.schema([schema.field(name) for name in CHANGED])


def in_force_values(node: str, hold: Hold[Any], sessions: Iterable[str]) -> Iterator[tuple[object, ...]]:
    """Yield a row of ``interests`` (change: added) for each subscription in force of *sessions*."""
    for session in sessions:
        for subscription in hold.subscriptions(session):
            if subscription.seq is not None:
                yield _values(node, subscription)


def _values(node: str, subscription: Subscription) -> tuple[object, ...]:
    head = (node, subscription.seq, subscription.changed_at, InterestChange.ADDED.value, None)
    return (*head, *subscription_values(subscription))


class InForce:
    """The subscriptions in force of one *node*, taken from *hold*, for the matchers and windows of a worker."""

    def __init__(self, node: str, hold: Hold[Any]) -> None:
        self._node, self._hold = node, hold
        self.whose: dict[int, tuple[str, Identity]] = {
            each.seq: (session, (each.subject_filter, each.name))
            for session in hold.sessions()
            for each in hold.subscriptions(session)
            if each.seq is not None
        }
        """Session and identity of each subscription, by the seq of its row in ``interests``."""
        self._ended: list[int] = []
        """Seqs of the subscriptions in ``whose`` that end in the piece (chunk of the log) that is being folded."""
        self._tables: tuple[Any, Any] | None = None
        """Cache of ``rows`` and ``intervals``; None after a change."""

    def rows(self) -> Any:  # a pyarrow.Table
        """Return all subscriptions in force as rows of ``interests`` (change: added), with the columns ``CHANGED``."""
        return self._current()[0]

    def intervals(self) -> Any:  # a pyarrow.Table
        """Return the validity intervals of all subscriptions in force."""
        return self._current()[1]

    def _current(self) -> tuple[Any, Any]:
        if self._tables is None:
            rows = self.rows_of(self._hold.sessions())
            self._tables = (rows, open_intervals(rows))
        return self._tables

    def rows_of(self, sessions: Iterable[str]) -> Any:  # a pyarrow.Table
        """Return the subscriptions in force of *sessions*, in the form of ``rows``."""
        return _table(in_force_values(self._node, self._hold, sessions))

    def seqs(self) -> Any:  # a numpy array
        """Return the seqs of all subscriptions in force."""
        return np.fromiter(self.whose, np.int64, len(self.whose))

    def sessions_of(self, seqs: Any) -> list[str]:  # a numpy array
        """Return the sessions of the subscriptions with these *seqs*."""
        return [self.whose[seq][0] for seq in seqs.tolist()]

    def changing(self, interests: Any, sessions: Any) -> Any:  # pyarrow.Tables
        """Return the validity intervals of the subscriptions that a piece (chunk) of the log adds, changes or removes.

        Call this with the piece's rows of ``interests`` and ``sessions`` before the piece is folded (applied to the
        node's state); call ``remove_ended`` after that.
        """
        if not touched_sessions(interests, sessions):
            return self.no_intervals()
        before = _table(_values(self._node, each) for each in self._find_replaced(interests, sessions))
        found = validity_intervals(pa.concat_tables([before, interests]), sessions)
        columns = ("interest_seq", "session", "subject_filter", "name", "ended_seq")
        for seq, session, subject_filter, name, ended in zip(
            *(found.column(name).to_pylist() for name in columns), strict=True
        ):
            self.whose[seq] = (session, (subject_filter, name))
            if ended != INT64_MAX:
                self._ended.append(seq)
        return found

    def remove_ended(self) -> None:
        """Remove the subscriptions that ended in a piece of the log; call this once the piece was folded."""
        for seq in self._ended:
            del self.whose[seq]
        self._ended.clear()
        self._tables = None

    @staticmethod
    def no_intervals() -> Any:  # a pyarrow.Table
        """Return an empty table of validity intervals."""
        return open_intervals(changed_schema().empty_table())

    def _find_replaced(self, interests: Any, sessions: Any) -> Iterator[Subscription]:  # pyarrow.Tables
        """Yield the subscriptions in force that these rows change or remove, each once."""
        hold, found = self._hold, set[int]()
        names = ("session", "subject_filter", "name")
        changed = [
            hold.subscription(session, (subject_filter, name))
            for session, subject_filter, name in zip(
                *(interests.column(name).to_pylist() for name in names), strict=True
            )
        ]
        is_gone = pc.equal(sessions.column("change"), SessionChange.DELETED.value)
        for session in sessions.filter(is_gone).column("session").to_pylist():
            changed += hold.subscriptions(session)
        for each in changed:
            if each is not None and each.seq is not None and each.seq not in found:
                found.add(each.seq)
                yield each


def _table(rows: Iterable[tuple[object, ...]]) -> Any:  # a pyarrow.Table
    columns: list[Any] = list(zip(*rows, strict=True))
    schema = changed_schema()
    chosen = [columns[place] for place in _COLUMNS] if columns else [()] * len(CHANGED)
    return pa.table([pa.array(column, f.type) for column, f in zip(chosen, schema, strict=True)], schema=schema)
