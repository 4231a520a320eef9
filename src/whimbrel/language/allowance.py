"""The allowance: how long searches may take at a stretch, so that a match with many dear patterns is done in pieces.

The verdict of a search depends on its pattern and its string alone. So a match may be broken off before its next dear
search and begun again later: it finds the verdicts it came to before, and gets a little further each time.
Rule: an allowance decides when a verdict is found, never what it is.
Rule: a search that cannot take long is made without asking; a turn always makes one that can.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["CHEAP_STEPS", "Allowance", "OutOfAllowanceError", "current_allowance"]

CHEAP_STEPS = 2_000
"""A search of no more steps (instructions times bytes) takes some microseconds, and is not counted."""

_Result = TypeVar("_Result")


class OutOfAllowanceError(Exception):
    """Too many searches for one attempt; internal, the next attempt goes on with what was found."""


class Allowance:
    """What the searches of one turn may take: about *piece_s* by *stopwatch*, which returns a time in seconds."""

    def __init__(self, stopwatch: Callable[[], float], piece_s: float) -> None:
        self._stopwatch, self._piece_s = stopwatch, piece_s
        self._until: float | None = None
        """Set by the first search."""
        self._verdicts: dict[tuple[object, bytes], bool] = {}
        """Of the match that was attempted and is not done."""

    def attempt(self, match: Callable[[], _Result]) -> _Result:
        """Return what *match* returns, or raise ``OutOfAllowanceError`` if it has to be attempted again."""
        token = _current.set(self)
        try:
            found = match()
        finally:
            _current.reset(token)
        if self._verdicts:
            self._verdicts.clear()
        return found

    def renew(self) -> None:
        """Allow as much as in the beginning: a new turn begins."""
        self._until = None

    def attempting(self, match: Callable[[], _Result]) -> Generator[None, None, _Result]:
        """Attempt *match* until it is done, yielding where the allowance of a turn is spent; return what it returns."""
        while True:
            try:
                return self.attempt(match)
            except OutOfAllowanceError:
                yield
                self.renew()

    def decided(self, pattern: object, data: bytes, search: Callable[[bytes], bool]) -> bool:
        """Return the verdict of *search*, which is the one of *pattern*, on *data*."""
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
    """Return the allowance of the match under way, if it has one."""
    return _current.get()
