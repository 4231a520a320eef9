"""A clock that is moved by hand.

Rule: it never goes backwards and never moves by itself, so a test decides what time it is.
"""

from __future__ import annotations

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import INT64_MAX, instant, whole
from whimbrel.model.clock import microseconds

__all__ = ["ManualClock"]


class ManualClock:
    """A ``Clock`` for tests that moves only when told to (``advance``, ``move_to``)."""

    def __init__(self, now: int = 0) -> None:
        self._now = instant("now", now)

    def now(self) -> int:
        """Return the microseconds since 1970-01-01 UTC."""
        return self._now

    def advance(self, duration_us: int) -> int:
        """Advance by *duration_us* and return the new time."""
        whole("duration_us", duration_us, 0, INT64_MAX)
        return self.move_to(self._now + duration_us)

    def advance_s(self, duration_s: float) -> int:
        """Advance by *duration_s* seconds and return the new time."""
        return self.advance(microseconds(duration_s))

    def move_to(self, now: int) -> int:
        """Move to *now*, which must not be in the past, and return it."""
        if now < self._now:
            raise InvalidValueError("now", now, f"{self._now} or later: time does not go back")
        self._now = instant("now", now)
        return self._now
