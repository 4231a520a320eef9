"""The rows of a node: its state, written in small steps to a store that follows the log, and read from it again.

The rows of the hold, those of each part, and those of policies, which may be ahead (``policies``).
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
    """The rows that have changed since a store was last told."""

    def __init__(self, hold: Hold[Any], policies: Policies) -> None:
        self._hold, self._policies = hold, policies
        self._parts: dict[str, NodePart] = {}
        self._table: dict[str, Callable[..., bytes | None]] = {}
        self._touched = TouchedRows(self._table, encode=bytes)  # each row is encoded already
        self.touch: Callable[[Key], None] = self._touched.touch
        """Note that a row has changed that is not the hold's."""
        self.untouch: Callable[[Key], None] = self._touched.untouch
        """Note that the store has no such row and needs none."""
        hold.changes()  # from now on it notes its own

    def add(self, parts: Iterable[NodePart]) -> None:
        """Add the rows of *parts*."""
        for part in parts:
            for kind in part.kinds:
                self._parts[kind] = part
                self._table[kind] = partial(_row, part, kind)

    # -- writing -----------------------------------------------------------------------------------------------------

    @property
    def has_many_changes(self) -> bool:
        """Whether ``changes`` would take longer than clients like to wait."""
        return len(self._touched) + self._hold.changed + self._policies.changed > _MANY

    def some_changes(self) -> ChangedRows:
        """Return some of the rows that ``changes`` would; see ``TouchedRows.take_some``."""
        found = _together(self._hold.some_changes(_MANY), self._touched.take_some(_MANY))
        return _together(found, self._policies.some_changes(_MANY))

    def changes(self) -> ChangedRows:
        """Return the rows to put and those to drop since the last call."""
        return _together(_together(self._hold.changes(), self._touched.take()), self._policies.changes())

    def touch_all(self) -> None:
        """Mark every row as changed: the store has lost track."""
        self._hold.touch_all()
        self._policies.touch_all()
        parts = {id(part): part for part in self._parts.values()}
        self._touched.touch_only(key for part in parts.values() for key in part.keys())  # noqa: SIM118 # no mapping

    def discard_changes(self) -> None:
        """Forget the changes: the store will be told everything, later."""
        self._hold.discard_changes()
        self._policies.discard_changes()
        self._touched.clear()

    # -- reading -----------------------------------------------------------------------------------------------------

    def is_own(self, kind: object) -> bool:
        """Return whether rows of a kind are a part's or those of policies, and not the hold's."""
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
    """Return both, in the objects of *rows*."""
    put, drop = rows
    put.update(more[0])
    drop.update(more[1])
    return rows
