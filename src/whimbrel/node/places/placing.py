"""The place of a publication: where it was published, for which area, and its delivery deadline (STEAM, 4.3)."""

from __future__ import annotations

from typing import NamedTuple

from whimbrel.model.place import Area, Place

__all__ = ["Placing"]


class Placing(NamedTuple):
    """Place, radius of the area, and deadline of a publication; ``deadline_us`` counts from its acceptance."""

    place: Place | None
    radius_m: float | None
    deadline_us: int | None = None

    @property
    def area(self) -> Area | None:
        """The circle in which sessions get the publication; None if it is for all places."""
        return None if self.place is None or self.radius_m is None else Area(self.place, self.radius_m)
