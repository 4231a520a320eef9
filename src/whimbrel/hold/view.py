"""The view of the hold: which of its rows have changed, for a store that follows it in small steps.

Rule: every rule that changes the state notes which row that changes (``touch``).
"""

from __future__ import annotations

import cbor2

from whimbrel.hold.rows import keys, row_table
from whimbrel.hold.state import Session, State
from whimbrel.hold.touched_rows import ChangedRows, Key, TouchedRows

__all__ = ["View"]


class View:
    """The rows of *state* that have changed since a store was last told."""

    __slots__ = ("_state", "_touched", "is_followed")

    def __init__(self, state: State, *, is_followed: bool) -> None:
        self._state = state
        self._touched = TouchedRows(row_table(state))
        self.is_followed = is_followed
        """Whether a store follows; until the first call of ``changes`` no change is noted."""

    def touch(self, key: Key) -> None:
        """Note that a row changed; hot paths check ``is_followed`` before they call."""
        if self.is_followed:
            self._touched.touch(key)

    @property
    def changed(self) -> int:
        """How many rows have changed since the last call of ``changes``."""
        return len(self._touched)

    def some_changes(self, most: int) -> ChangedRows:
        """Return about *most* of the rows that ``changes`` would; see ``TouchedRows.take_some``."""
        return self._with_time(self._touched.take_some(most)) if self.is_followed else ({}, set())

    def discard_changes(self) -> None:
        """Forget the changes: no store follows any more."""
        self._touched.clear()

    def touch_all(self) -> None:
        """Mark every row as changed, so that ``changes`` returns all of them."""
        self._touched.touch_only(keys(self._state))

    def changes(self) -> ChangedRows:
        """Return the rows to put and those to drop since the last call; the first call returns everything."""
        if not self.is_followed:
            self.is_followed = True
            self.touch_all()
        return self._with_time(self._touched.take())

    def _with_time(self, changes: ChangedRows) -> ChangedRows:
        """Add the row of the hold's time, which changes with every fact."""
        changes[0][("now",)] = cbor2.dumps(self._state.now)
        return changes

    def session(self, name: str) -> Session:
        """Return a session, a new one if there is none."""
        found = self._state.sessions.get(name)
        if found is None:
            found = self._state.begin(name)
            self.touch(("session", name))
        return found
