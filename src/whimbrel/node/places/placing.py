"""The place of a publication: where it is published, for which area, and by when it is due (STEAM, 4.3)."""

from __future__ import annotations

from typing import NamedTuple

from whimbrel.model.place import Area, Place

__all__ = ["Placing"]


class Placing(NamedTuple):
    """What a publication says of place and time; of a log, ``deadline_us`` is counted from when it was accepted."""

    place: Place | None
    radius_m: float | None
    deadline_us: int | None = None

    @property
    def area(self) -> Area | None:
        """The circle in which it is heard; None if it is heard everywhere."""
        return None if self.place is None or self.radius_m is None else Area(self.place, self.radius_m)
