"""View of the hold: records which rows of its saved state have changed, so that a store is updated in small steps.

Rule: every rule that changes the state marks the changed row (``touch``).
"""

from __future__ import annotations

from collections.abc import Callable

import cbor2

from whimbrel.hold.rows import keys, row_table
from whimbrel.hold.state import Session, State
from whimbrel.hold.touched_rows import ChangedRows, Key, TouchedRows

__all__ = ["View"]


class View:
    """Rows of *state* that have changed since they were last written to a store."""

    __slots__ = ("_state", "_touched", "is_followed")

    def __init__(self, state: State, *, is_followed: bool) -> None:
        self._state = state
        self._touched = TouchedRows(row_table(state))
        self.is_followed = is_followed
        """Whether a store saves the changes; before the first call of ``changes``, no change is recorded."""

    def touch(self, key: Key) -> None:
        """Mark a row as changed; hot paths check ``is_followed`` before they call."""
        if self.is_followed:
            self._touched.touch(key)

    @property
    def mark(self) -> Callable[[Key], None]:
        """The function that marks a row as changed, or ignores it if no change is recorded; for loops."""
        return self._touched.touch if self.is_followed else self.touch

    @property
    def changed(self) -> int:
        """Number of rows that have changed since the last call of ``changes``."""
        return len(self._touched)

    def some_changes(self, most: int) -> ChangedRows:
        """Return about *most* of the changed rows, in the form of ``changes``; see ``TouchedRows.take_some``."""
        return self._with_time(self._touched.take_some(most)) if self.is_followed else ({}, set())

    def discard_changes(self) -> None:
        """Forget the changes and record no more, because no store saves them; a later ``changes`` returns all rows."""
        self._touched.clear()
        self.is_followed = False

    def touch_all(self) -> None:
        """Mark every row as changed, so that ``changes`` returns all of them."""
        self.is_followed = True
        self._touched.touch_only(keys(self._state))

    def changes(self) -> ChangedRows:
        """Return the rows to write to a store, and the keys to delete, since the last call; the first returns all."""
        if not self.is_followed:
            self.touch_all()
        return self._with_time(self._touched.take())

    def _with_time(self, changes: ChangedRows) -> ChangedRows:
        """Add the row with the hold's time, which every fact changes, to *changes*, and return *changes*."""
        changes[0][("now",)] = cbor2.dumps(self._state.now)
        return changes

    def session(self, name: str) -> Session:
        """Return the session *name*; create it if it does not exist."""
        found = self._state.sessions.get(name)
        if found is None:
            found = self._state.begin(name)
            self.touch(("session", name))
        return found
