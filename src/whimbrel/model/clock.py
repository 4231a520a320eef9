"""Time: int64 microseconds UTC inside, seconds and ISO 8601 only at the edge.

Rule: alive iff ``now < expires_at``; TTLs, deadlines, tokens and caches all call ``is_alive``.
Rule: code that decides never reads a clock; the shell reads one and passes ``now``.
"""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import INT64_MAX, INT64_MIN, instant

__all__ = ["US_PER_S", "Clock", "SystemClock", "format_time", "is_alive", "microseconds", "parse_time", "seconds"]

US_PER_S = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ISO_8601 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})")


class Clock(Protocol):
    """A source of the current time."""

    def now(self) -> int:
        """Return the microseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's clock; it may be set back, so it gives timestamps but never an order."""

    def now(self) -> int:
        """Return the microseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000


def microseconds(seconds: float) -> int:
    """Return *seconds*, a value from the edge, rounded to whole microseconds."""
    if not isinstance(seconds, float) or math.isfinite(seconds):
        # Converting both parts separately is exact; converting the sum would round twice.
        whole_s = int(seconds)
        total_us = whole_s * US_PER_S + round((seconds - whole_s) * US_PER_S)
        if INT64_MIN <= total_us <= INT64_MAX:
            return total_us
    raise InvalidValueError("seconds", seconds, "a number whose microseconds fit 64 bits")


def seconds(duration_us: int) -> float:
    """Return *duration_us* in seconds, for the edge."""
    return duration_us / US_PER_S


def is_alive(expires_at: int | None, *, now: int) -> bool:
    """Return whether something that expires at *expires_at* is still alive; ``None`` never expires."""
    return expires_at is None or now < expires_at


def format_time(time_us: int) -> str:
    """Return *time_us* as ISO 8601 in UTC, always with six decimals, so that texts sort like times."""
    try:
        moment = _EPOCH + timedelta(microseconds=instant("time", time_us))
    except OverflowError:
        raise InvalidValueError("time", time_us, "a time in the years 1 to 9999") from None
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_time(text: str) -> int:
    """Return the microseconds UTC of an ISO 8601 *text* with date, time, and ``Z`` or an offset."""
    if _ISO_8601.fullmatch(text):
        try:
            return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND
        except ValueError:
            pass  # a 13th month, a 25th hour
    raise InvalidValueError("time", text, "ISO 8601 such as 2004-05-17T09:30:00.250000Z")
