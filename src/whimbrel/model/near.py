"""Near: the places that a subscription wants notifications from (STEAM, 4.3: the proximity filter).

| text | meaning |
|---|---|
| ``lat,lon,R`` | an ``Area``: the notification's place is in this circle |
| ``lat,lon;lat,lon;…`` | a ``Polygon``: the notification's place is inside |
| ``R`` | ``Around``: the notification's place is at most R metres from the session itself |
| ``any`` | ``Anywhere``: notifications with an area are also received outside the area |

Rule: ``str(near)`` is the text form, and ``parse_near(str(near)) == near`` within the bounds of ``parse_near``.
Rule: ``parse_near`` is for the edge and limits a radius to ``MAX_NEAR_M``. The values themselves accept what older logs
may contain. ``proximity`` evaluates ``near``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import INT64_MAX, real, whole
from whimbrel.model.place import MAX_RADIUS_M, Area
from whimbrel.model.polygon import Polygon

__all__ = [
    "ANYWHERE",
    "DEFAULT_STALE_US",
    "MAX_NEAR_M",
    "MAX_STALE_US",
    "Anywhere",
    "Around",
    "Near",
    "parse_near",
    "parse_stale_us",
]

MAX_NEAR_M = 1_000_000.0
"""Largest radius that a client may request, also for a publication's area: nothing beyond it is near."""
DEFAULT_STALE_US = 120_000_000
"""Time for which a reported place counts, unless the subscription sets another."""
MAX_STALE_US = 7 * 86_400_000_000
"""Longest such time that a client may request: a week."""

_RADIUS = re.compile(r"(?:[0-9]{1,16}(?:\.[0-9]{0,32})?|\.[0-9]{1,32})(?:[eE][+-]?[0-9]{1,3})?")
_FORMS = "lat,lon,radius; a radius; lat,lon;lat,lon;lat,lon and so on; or any"


@dataclass(frozen=True, slots=True)
class Around:
    """Within *radius_m* of the session, wherever the session is."""

    radius_m: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius_m", real("radius_m", self.radius_m, 0, MAX_RADIUS_M))

    def __str__(self) -> str:
        return repr(self.radius_m)


@dataclass(frozen=True, slots=True)
class Anywhere:
    """Areas do not matter; requested by consoles, if the rights file allows it."""

    def __str__(self) -> str:
        return "any"


ANYWHERE = Anywhere()
Near: TypeAlias = Area | Polygon | Around | Anywhere


def parse_near(text: str) -> Near:
    """Parse the text form (see above); the radius must be at most ``MAX_NEAR_M``."""
    text = text.strip(" ")
    if text == "any":
        return ANYWHERE
    if ";" in text:
        return Polygon.parse(text)
    if "," in text:
        area = Area.parse(text)
        real("radius of near", area.radius_m, 0, MAX_NEAR_M)
        return area
    if not _RADIUS.fullmatch(text):
        raise InvalidValueError("near", text[:256], _FORMS)
    return Around(real("radius of near", float(text), 0, MAX_NEAR_M))


def parse_stale_us(text: str) -> int:
    """Parse *text*, in seconds, into the microseconds for which a place counts."""
    if not _RADIUS.fullmatch(text.strip(" ")):
        raise InvalidValueError("stale", text[:256], "a number of seconds")
    seconds = real("stale", float(text), 0, MAX_STALE_US / 1e6)
    return whole("stale", round(seconds * 1e6), 0, INT64_MAX)
