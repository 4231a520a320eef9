"""The allowance: limits the time of searches per turn, so that a match with many expensive patterns is done in pieces.

The verdict of a search depends only on its pattern and its string. So a match may be stopped before its next expensive
search and restarted later: it then finds the earlier verdicts in a cache, and gets a little further each time.
Rule: an allowance decides when a verdict is found, never which verdict.
Rule: a search that cannot take long always runs; and each turn runs at least one long search.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["CHEAP_STEPS", "Allowance", "OutOfAllowanceError", "current_allowance"]

CHEAP_STEPS = 2_000
"""Most steps (instructions times bytes) of a cheap search; it takes some microseconds and is not counted."""

_Result = TypeVar("_Result")


class OutOfAllowanceError(Exception):
    """The turn's time is spent; internal: the next attempt continues with the verdicts found so far."""


class Allowance:
    """The time for searches in one turn: about *piece_s* by *stopwatch*, which returns a time in seconds."""

    def __init__(self, stopwatch: Callable[[], float], piece_s: float) -> None:
        self._stopwatch, self._piece_s = stopwatch, piece_s
        self._until: float | None = None
        """End of the turn's time, set by its first long search."""
        self._verdicts: dict[tuple[object, bytes], bool] = {}
        """Verdicts of the current match, which is not finished."""

    def attempt(self, match: Callable[[], _Result]) -> _Result:
        """Run *match* and return its result; raise ``OutOfAllowanceError`` if it must be attempted again."""
        token = _current.set(self)
        try:
            found = match()
        finally:
            _current.reset(token)
        if self._verdicts:
            self._verdicts.clear()
        return found

    def renew(self) -> None:
        """Begin a new turn with the full time."""
        self._until = None

    def attempting(self, match: Callable[[], _Result]) -> Generator[None, None, _Result]:
        """Attempt *match* until it succeeds and return its result; yield whenever the time of a turn is spent."""
        while True:
            try:
                return self.attempt(match)
            except OutOfAllowanceError:
                yield
                self.renew()

    def verdict_of(self, pattern: object, data: bytes, search: Callable[[bytes], bool]) -> bool:
        """Return the verdict of *pattern*, by *search*, on *data*; a verdict is cached until the match succeeds."""
        key = pattern, data
        known = self._verdicts.get(key)
        if known is not None:
            return known
        if self._until is None:
            self._until = self._stopwatch() + self._piece_s
        elif self._stopwatch() >= self._until:
            raise OutOfAllowanceError
        found = self._verdicts[key] = search(data)
        return found


_current: ContextVar[Allowance | None] = ContextVar("allowance", default=None)


def current_allowance() -> Allowance | None:
    """Return the allowance of the current match, or None if it has none."""
    return _current.get()
