"""Datagrams: their number for one frame on a link, and their transmission time.

Rule: a frame needs one datagram for each cell that its area touches, and as many again for the relays of these cells
while it may be repeated. One own beacon in five needs one more, for nodes with other cells. A frame for one node needs
one.
Rule: no frame needs more than ``MAX_DATAGRAMS``, whatever the radius of its area.
Rule: the datagrams of a frame leave one after the other, and a receiver may hear only the last: the time of all of them
is subtracted from the remaining time of a frame, and included in latency bounds.
"""

from __future__ import annotations

from whimbrel.model.place import Area
from whimbrel.nearby.cells import MAX_CELLS, cover
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Asked, Frame

__all__ = ["MAX_DATAGRAMS", "datagrams_for", "datagrams_of", "tells_deployment", "travel_us"]

_TELLS_DEPLOYMENT = 5
"""Interval of beacons (one in five) that also go to the address that nodes with other cells hear."""
MAX_DATAGRAMS = 2 * MAX_CELLS + 1


def datagrams_for(area: Area, *, is_repeated: bool, deployment: Deployment) -> int:
    """Return the number of datagrams of a frame with *area*; *is_repeated* if it may be repeated."""
    return len(cover(area, deployment=deployment)) * (2 if is_repeated else 1)


def datagrams_of(frame: Frame, *, deployment: Deployment) -> int:
    """Return the number of datagrams of *frame*, without the one that announces the deployment's cells."""
    if isinstance(frame, Asked):
        return 1
    return datagrams_for(frame.area, is_repeated=frame.hops > 0, deployment=deployment)


def tells_deployment(number: int) -> bool:
    """Return whether a producer's beacon *number* of a subject, from 0, also goes to nodes with other cells."""
    return number % _TELLS_DEPLOYMENT == 0


def travel_us(frame: Frame, *, deployment: Deployment) -> int:
    """Return the longest time from the start of a transmission of *frame* to its receipt, in microseconds."""
    return datagrams_of(frame, deployment=deployment) * deployment.airtime_us
