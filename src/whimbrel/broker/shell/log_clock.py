"""The log's clock: the time that facts are stamped with, of a machine whose own clock may be wrong.

Rule: it is UTC where the machine's clock is. It follows the monotonic clock, and is corrected now and then
(``adjust``), so nothing that measures how long something lasts sees the machine's clock being set.
Rule: it never stands still. Where it is ahead of the machine's clock, which was set back or had been wrong, it goes a
tenth slower than time until both agree; what is to expire expires, if a little late.
Rule: it never jumps far at one word of the machine's clock. A clock that is suddenly more than a minute ahead is
believed once it has said so for a minute: one record of next week would keep the log in next week.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from whimbrel.model.clock import US_PER_S

__all__ = ["LogClock", "wall_clock"]

_MINUTE_US = 60 * US_PER_S
_BELIEVED_US = _MINUTE_US
"""By how much the machine's clock may be ahead and is believed at once."""
_PROBATION_US = _MINUTE_US
"""For how long one that is further ahead must say so."""
_SLOWER = 10
"""A clock that is ahead loses one in so many."""
_TOLD_US = 10 * US_PER_S
"""By how much it must be ahead before a line is logged."""


def wall_clock() -> int:
    """Return what the machine's clock says, in microseconds."""
    return time.time_ns() // 1_000


class LogClock:
    """The time, not before *start*; *say* is told what an operator should know of it."""

    def __init__(
        self,
        start: int,
        *,
        say: Callable[[str, float], None] = lambda *_: None,
        wall: Callable[[], int] = wall_clock,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._say, self._wall, self._monotonic_ns = say, wall, monotonic_ns
        self._adjusted_at = monotonic_ns() // 1_000
        self._offset = start - self._adjusted_at
        self._doubted_at: int | None = None
        """Since when the machine's clock has been too far ahead to be believed."""
        self._is_ahead_told = False
        self.adjust()

    def now(self) -> int:
        """Return the time."""
        return self._monotonic_ns() // 1_000 + self._offset

    def adjust(self) -> None:
        """Look at the machine's clock; call it often, and whenever much time may have passed unseen."""
        now = self._monotonic_ns() // 1_000
        elapsed, self._adjusted_at = now - self._adjusted_at, now
        ahead = now + self._offset - self._wall()
        if ahead >= 0:
            self._doubted_at = None
            self._offset -= min(ahead, max(elapsed, 0) // _SLOWER)
            self._tell_ahead(ahead)
        elif ahead >= -_BELIEVED_US:
            self._doubted_at = None
            self._offset -= ahead
        elif self._doubted_at is None:
            self._doubted_at = now
            self._say("the machine's clock jumped ahead; it is believed if it says so for a minute", -ahead / US_PER_S)
        elif now - self._doubted_at >= _PROBATION_US:
            self._doubted_at = None
            self._offset -= ahead
            self._say("the log's time follows the machine's clock, which jumped ahead", -ahead / US_PER_S)

    def _tell_ahead(self, ahead: int) -> None:
        is_told = ahead > _TOLD_US
        if is_told and not self._is_ahead_told:
            self._say("the log's time is ahead of the machine's clock; it goes on, a tenth slower", ahead / US_PER_S)
        self._is_ahead_told = is_told
