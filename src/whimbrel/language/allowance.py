"""The allowance: limits how long pattern searches run without a pause, so that a costly match blocks no other work.

Whether a search finds something (its verdict) depends only on its pattern and its string. So a match may be stopped
before its next expensive search and restarted in a later *turn*, after other work has run. It then finds the earlier
verdicts in a cache, and gets further each time.
Rule: an allowance decides when a verdict is found, never which verdict.
Rule: a search that cannot take long always runs; and each turn runs at least one long search.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["CHEAP_STEPS", "Allowance", "OutOfAllowanceError", "current_allowance"]

CHEAP_STEPS = 2_000
"""Most steps (instructions times bytes) of a search that takes only some microseconds and is not timed."""

_Result = TypeVar("_Result")


class OutOfAllowanceError(Exception):
    """The time for searches in one turn is spent.

    Internal: the next attempt starts with the verdicts found so far.
    """


class Allowance:
    """Time for searches in one turn (between other work): about *piece_s* seconds, as measured by *stopwatch*."""

    def __init__(self, stopwatch: Callable[[], float], piece_s: float) -> None:
        self._stopwatch, self._piece_s = stopwatch, piece_s
        self._until: float | None = None
        """End of the turn's time, set by its first long search."""
        self._verdicts: dict[tuple[object, bytes], bool] = {}
        """Verdicts of searches in the current match, which is not finished."""

    def attempt(self, match: Callable[[], _Result]) -> _Result:
        """Run *match*, which makes searches, and return its result.

        Raise ``OutOfAllowanceError`` before a further long search if the time of this turn is spent. Then let other
        work run, call ``renew``, and call this with the same *match*: it finds the earlier verdicts in the cache.
        """
        token = _current.set(self)
        try:
            found = match()
        finally:
            _current.reset(token)
        if self._verdicts:
            self._verdicts.clear()
        return found

    def renew(self) -> None:
        """Begin a new turn with the full time, after other work has run."""
        self._until = None

    def attempting(self, match: Callable[[], _Result]) -> Generator[None, None, _Result]:
        """Run *match* until it is finished and return its result.

        Yield whenever the time of a turn is spent, then repeat it.
        """
        while True:
            try:
                return self.attempt(match)
            except OutOfAllowanceError:
                yield
                self.renew()

    def verdict_of(self, pattern: object, data: bytes, search: Callable[[bytes], bool]) -> bool:
        """Return the verdict of *pattern* on *data*, found by *search* or in the cache of the current match."""
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
