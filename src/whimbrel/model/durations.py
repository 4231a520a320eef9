"""Durations as people write them: a number of seconds, or one with a unit: ``90s``, ``15m``, ``1.5h``, ``7d``."""

from __future__ import annotations

import re

__all__ = ["LONGEST_S", "seconds_of"]

LONGEST_S = 1e9
_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[0-9]{1,2})?) ?(|ms|s|m|h|d|w)")


def seconds_of(text: str, *, unit: str = "s") -> float | None:
    """Return the seconds that *text* names, None if it is no duration; a number alone is in *unit*.

    >>> seconds_of("1.5h"), seconds_of("7", unit="d"), seconds_of("soon")
    (5400.0, 604800.0, None)
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        return None
    seconds = float(found[1]) * _UNITS_S[found[2] or unit]
    return seconds if seconds <= LONGEST_S else None
