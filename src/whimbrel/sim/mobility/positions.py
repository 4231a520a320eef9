"""Position logs: walks as rows of the table ``reports``, for ``whimbrel log import`` and the pipeline.

Rule: the origin of the square is a place on Earth, its metres are those of the plane around it, and time 0 is a date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from whimbrel.model.clock import format_time
from whimbrel.model.place import Place, Plane, Point
from whimbrel.sim.mobility.walks import Walks

__all__ = ["ORIGIN", "START_US", "position_lines"]

ORIGIN = Place(41.8535, 12.6231)
"""The campus of Tor Vergata in Rome, where Campus++ comes from."""
START_US = 1_767_571_200_000_000
"""2026-01-05T00:00:00Z, the Monday on which generated logs begin."""
_BLOCK = 1_000


def position_lines(walks: Walks, *, every_s: float, origin: Place = ORIGIN, start_us: int = START_US) -> Iterator[str]:
    """Yield one JSON line per node every *every_s* seconds, in the order of time."""
    plane = Plane(origin)
    count = int(walks.seconds / every_s) + 1
    for block in range(0, count, _BLOCK):
        times = np.arange(block, min(block + _BLOCK, count), dtype=np.float64) * every_s
        places = walks.positions(times)
        for tick, now_s in enumerate(times.tolist()):
            reported_at = format_time(start_us + round(now_s * 1e6))
            for node in range(walks.nodes):
                x, y = places[node, tick].tolist()
                place = plane.place(Point(x, y))
                row = {
                    "table": "reports",
                    "reported_at": reported_at,
                    "device": f"node-{node}",
                    "place": {"latitude": round(place.latitude, 7), "longitude": round(place.longitude, 7)},
                }
                yield json.dumps(row) + "\n"
