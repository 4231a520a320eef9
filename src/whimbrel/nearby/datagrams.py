"""Datagrams: how many of them one frame is on a link, and how long they take.

Rule: a frame is one datagram for each cell that its area touches, and as many again for the relays of these cells while
it may be repeated. One own beacon in five has one more, for nodes with other cells. A frame for one node is one.
Rule: no frame is more than ``MAX_DATAGRAMS``, whatever the radius of its area.
Rule: the datagrams of a frame leave one after the other, so a receiver may hear the last of them: that long is taken
off the remaining time of a frame, and counted in what is promised.
"""

from __future__ import annotations

from whimbrel.model.place import Area
from whimbrel.nearby.cells import MAX_CELLS, cover
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Asked, Frame

__all__ = ["MAX_DATAGRAMS", "datagrams_for", "datagrams_of", "tells_deployment", "travel_us"]

_TELLS_DEPLOYMENT = 5
"""One beacon in five also goes where nodes with other cells hear it."""
MAX_DATAGRAMS = 2 * MAX_CELLS + 1


def datagrams_for(area: Area, *, is_repeated: bool, deployment: Deployment) -> int:
    """Return how many datagrams a frame with *area* is; *is_repeated* if it may be repeated."""
    return len(cover(area, deployment=deployment)) * (2 if is_repeated else 1)


def datagrams_of(frame: Frame, *, deployment: Deployment) -> int:
    """Return how many datagrams *frame* is, without the one that tells the cells of the deployment."""
    if isinstance(frame, Asked):
        return 1
    return datagrams_for(frame.area, is_repeated=frame.hops > 0, deployment=deployment)


def tells_deployment(number: int) -> bool:
    """Return whether a producer's beacon *number* of a subject, from 0, also goes to nodes with other cells."""
    return number % _TELLS_DEPLOYMENT == 0


def travel_us(frame: Frame, *, deployment: Deployment) -> int:
    """Return how long it takes at most from the start of a transmission of *frame* to its receipt."""
    return datagrams_of(frame, deployment=deployment) * deployment.airtime_us
