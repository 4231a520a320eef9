"""The rows of a node: its state as rows, of which the changed ones are written to a store, and from which it restores.

There are rows of the hold, of each part, and of policies; policies may be ahead of the others (``policies``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from whimbrel.hold.sessions import Hold
from whimbrel.hold.touched_rows import ChangedRows, Key, TouchedRows
from whimbrel.node.parts import NodePart
from whimbrel.node.policies import Policies

__all__ = ["NodeRows"]

_MANY = 250


class NodeRows:
    """Tracker of the rows that have changed since the last write to a store."""

    def __init__(self, hold: Hold[Any], policies: Policies) -> None:
        self._hold, self._policies = hold, policies
        self._parts: dict[str, NodePart] = {}
        self._table: dict[str, Callable[..., bytes | None]] = {}
        self._touched = TouchedRows(self._table, encode=bytes)  # each row is encoded already
        self.touch: Callable[[Key], None] = self._touched.touch
        """Mark a row as changed; the hold marks its own rows."""
        self.untouch: Callable[[Key], None] = self._touched.untouch
        """Unmark a row that the store does not have and need not get."""
        hold.changes()  # from now on the hold marks its own changed rows

    def add(self, parts: Iterable[NodePart]) -> None:
        """Add the rows of *parts*."""
        for part in parts:
            for kind in part.kinds:
                self._parts[kind] = part
                self._table[kind] = partial(_row, part, kind)

    # -- writing -----------------------------------------------------------------------------------------------------

    @property
    def has_many_changes(self) -> bool:
        """Whether ``changes`` would take so long that clients would notice."""
        return len(self._touched) + self._hold.changed + self._policies.changed > _MANY

    def some_changes(self) -> ChangedRows:
        """Return some of the rows that ``changes`` would; see ``TouchedRows.take_some``."""
        found = _together(self._hold.some_changes(_MANY), self._touched.take_some(_MANY))
        return _together(found, self._policies.some_changes(_MANY))

    def changes(self) -> ChangedRows:
        """Return the rows to put and those to drop since the last call."""
        return _together(_together(self._hold.changes(), self._touched.take()), self._policies.changes())

    def touch_all(self) -> None:
        """Mark every row as changed, because the store may have missed changes."""
        self._hold.touch_all()
        self._policies.touch_all()
        parts = {id(part): part for part in self._parts.values()}
        self._touched.touch_only(key for part in parts.values() for key in part.keys())  # noqa: SIM118 # no mapping

    def discard_changes(self) -> None:
        """Forget which rows have changed: the store will get all rows later."""
        self._hold.discard_changes()
        self._policies.discard_changes()
        self._touched.clear()

    # -- reading -----------------------------------------------------------------------------------------------------

    def is_own(self, kind: object) -> bool:
        """Return whether rows of *kind* belong to a part or to policies, not to the hold."""
        return kind in self._parts or kind in self._policies.kinds

    def restore(self, rows: Sequence[tuple[Key, bytes]]) -> None:
        """Restore the parts from *rows*."""
        found: dict[int, tuple[NodePart, dict[Key, bytes]]] = {
            id(part): (part, {}) for part in (*self._parts.values(), self._policies)
        }
        for key, value in rows:
            kind = str(key[0])
            found[id(self._parts.get(kind, self._policies))][1][key] = value
        for part, own in found.values():
            part.restore(own)
        self._touched.clear()


def _row(part: NodePart, kind: str, *whose: str | int | None) -> bytes | None:
    return part.row((kind, *whose))


def _together(rows: ChangedRows, more: ChangedRows) -> ChangedRows:
    """Merge *more* into *rows*, and return *rows*."""
    put, drop = rows
    put.update(more[0])
    drop.update(more[1])
    return rows
