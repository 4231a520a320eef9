"""Motion: place, heading and speed of a node, from its own fixes, for its own filters only.

Rule: none of this is ever sent. The attributes for filters (``OWN_ATTRIBUTES``) are computed when an event arrives.
Rule: *the light I am driving towards* compares the distance to the producer from the previous place with that from the
current one (4.3). A node that stands keeps the direction of its last movement: a car at a red light still faces it.
Rule: a fix that is too far from the last one is a jump: the place counts, but heading and speed are unknown.
"""

from __future__ import annotations

import math

from whimbrel.model.attributes import Attributes, FrozenAttributes, Scalar
from whimbrel.model.clock import seconds
from whimbrel.model.place import Place, distance_m
from whimbrel.nearby.vocabulary import OWN_ATTRIBUTES

__all__ = ["Motion", "bearing"]

_STANDING_M = 1.0
"""Shorter distances are noise of the receiver, not a movement."""


def bearing(here: Place, there: Place) -> float:
    """Return the direction from *here* to *there* in degrees, clockwise from north; approximate, for a town."""
    east = (there.longitude - here.longitude + 180) % 360 - 180
    east *= math.cos(math.radians((here.latitude + there.latitude) / 2))
    return math.degrees(math.atan2(east, there.latitude - here.latitude)) % 360


class Motion:
    """The last places of one node."""

    __slots__ = ("_anchor", "_fixed_at", "_max_speed_m_s", "place", "previous", "speed_m_s", "teleported")

    def __init__(self, *, max_speed_m_s: float) -> None:
        self._max_speed_m_s = max_speed_m_s
        self.place: Place | None = None
        self.previous: Place | None = None
        """Place at which the last movement began."""
        self.speed_m_s: float | None = None
        self.teleported = 0
        """Number of fixes that were too far from the one before."""
        self._anchor: Place | None = None
        self._fixed_at = 0

    def move(self, place: Place | None, *, now: int) -> None:
        """Apply a fix; ``None`` if the place is unknown now."""
        before, took_s = self.place, seconds(now - self._fixed_at)
        self.place, self._fixed_at = place, now
        if place is None or before is None or self._anchor is None:
            self._begin(place)
            return
        moved_m = distance_m(before, place)
        if moved_m > max(took_s, 0.0) * self._max_speed_m_s + _STANDING_M:
            self.teleported += 1
            self._begin(place)
            return
        if took_s > 0:
            self.speed_m_s = moved_m / took_s
        if distance_m(self._anchor, place) >= _STANDING_M:
            self.previous, self._anchor = self._anchor, place

    def _begin(self, place: Place | None) -> None:
        self._anchor, self.previous, self.speed_m_s = place, None, None

    def attributes_seen_from(self, published: Attributes, there: Place) -> Attributes:
        """Return the attributes for filters of an event from *there*: the published ones, and this node's own.

        A published attribute with the name of one of ``OWN_ATTRIBUTES`` is dropped, even if this node's own is unknown.
        """
        others = {name: value for name, value in published.items() if name not in OWN_ATTRIBUTES}
        return FrozenAttributes({**others, **self.attributes(there)})

    def attributes(self, there: Place) -> dict[str, Scalar]:
        """Return this node's own attributes for an event from *there*; unknown ones are absent."""
        if self.place is None:
            return {}
        away_m = distance_m(self.place, there)
        found: dict[str, Scalar] = {"distance_m": away_m}
        if self.previous is not None:
            found["approaching"] = int(away_m < distance_m(self.previous, there))
            turned = bearing(self.place, there) - bearing(self.previous, self.place)
            found["heading_difference"] = abs((turned + 180) % 360 - 180)
        if self.speed_m_s is not None:
            found["speed"] = self.speed_m_s
        return found
