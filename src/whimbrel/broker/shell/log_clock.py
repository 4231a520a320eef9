"""Log clock: the time stamps of the log's records, which never go back even if the machine's clock is wrong or set.

Rule: the log's time is UTC if the machine's clock is right. It advances with the monotonic clock and is corrected now
and then (``adjust``), so setting the machine's clock does not disturb the measurement of durations.
Rule: the log's time never stands still. If it is ahead of the machine's clock, which was set back or had been wrong, it
runs a tenth slower until both agree; so expiry still happens, if a little late.
Rule: the log's time never follows a sudden jump at once. A machine's clock that is more than a minute ahead is followed
only after it has been ahead for a minute: a single record stamped a week too late would keep the log's time there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from whimbrel.model.clock import US_PER_S

__all__ = ["LogClock", "wall_clock"]

_MINUTE_US = 60 * US_PER_S
_BELIEVED_US = _MINUTE_US
"""Most by which the machine's clock may be ahead for the log's time to follow it at once."""
_PROBATION_US = _MINUTE_US
"""Time for which the machine's clock must be further ahead before the log's time follows it."""
_SLOWER = 10
"""While the log's time is ahead of the machine's clock, it loses one microsecond in this many."""
_TOLD_US = 10 * US_PER_S
"""A line is logged if the log's time is ahead of the machine's clock by more than this."""


def wall_clock() -> int:
    """Return the time of the machine's clock, in microseconds since 1970."""
    return time.time_ns() // 1_000


class LogClock:
    """Clock of the log, which begins at *start* or later; *say* logs a line for the operator when clocks disagree."""

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
        """Monotonic time since when the machine's clock has been too far ahead to be followed; None if it is not."""
        self._is_ahead_told = False
        self.adjust()

    def now(self) -> int:
        """Return the log's time, in microseconds since 1970."""
        return self._monotonic_ns() // 1_000 + self._offset

    def adjust(self) -> None:
        """Correct the log's time by the machine's clock.

        Call this often, and again at once after a pause in which the process did not run.
        """
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
