"""The view of the hold: which of its rows have changed, for a store that follows it in small steps.

Rule: every rule that changes the state notes which row that changes (``touch``).
"""

from __future__ import annotations

from whimbrel.hold.rows import Key, changed_rows, keys
from whimbrel.hold.state import Session, State

__all__ = ["View"]


class View:
    """The rows that have changed since they were last asked for."""

    __slots__ = ("_state", "_touched", "is_followed")

    def __init__(self, state: State, *, is_followed: bool) -> None:
        self._state = state
        self._touched: set[Key] = set()
        self.is_followed = is_followed
        """Whether a store follows; until the first call of ``changes`` no change is noted."""

    def touch(self, key: Key) -> None:
        """Note that a row changed; hot paths check ``is_followed`` before they call."""
        if self.is_followed:
            self._touched.add(key)

    @property
    def changed(self) -> int:
        """How many rows have changed since the last call of ``changes``."""
        return len(self._touched)

    def some_changes(self, most: int) -> tuple[dict[Key, bytes], set[Key]]:
        """Return at most about *most* of the rows that ``changes`` would; these may change again before it is called.

        For a caller that has much to write and little time at once: what all calls return together, the later before
        the earlier, is what one call of ``changes`` at the end would have returned.
        """
        if not self.is_followed:
            return {}, set()
        chosen = {self._touched.pop() for _ in range(min(most, len(self._touched)))}
        return changed_rows(self._state, chosen)

    def discard_changes(self) -> None:
        """Forget what has changed: no store follows any more."""
        self._touched.clear()

    def touch_all(self) -> None:
        """Let ``changes`` return everything there is, whatever it returned before."""
        self._touched = set(keys(self._state))

    def changes(self) -> tuple[dict[Key, bytes], set[Key]]:
        """Return the rows to put and those to drop since the last call; the first call returns everything."""
        if not self.is_followed:
            self.is_followed = True
            self._touched = set(keys(self._state))
        touched, self._touched = self._touched, set()
        return changed_rows(self._state, touched)

    def session(self, name: str) -> Session:
        """Return a session, a new one if there is none."""
        found = self._state.sessions.get(name)
        if found is None:
            found = self._state.begin(name)
            self.touch(("session", name))
        return found
