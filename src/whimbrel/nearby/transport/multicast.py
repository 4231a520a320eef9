"""Multicast addresses of frames on a link: one for each subject and cell, and one for the relays of each cell.

If two names share an address by their hashes, a node only receives frames for others; the area of a frame is checked
against the node's place in any case.

Rule: a frame goes to its subject's address in every cell that its area touches. While it may be repeated, it also goes
to the relays' address there: a relay without a subscription would not hear it otherwise.
Rule: a request or an objection goes to one address, that of its destination node; every node listens on its own.
Rule: a node listens in the cell of its own place on each level: for its subjects, and for relays if it is one. A
producer listens for its own subjects in all cells of its area.
Rule: a producer sends some of its beacons also to an address of its subject without a cell, on which all subscribers of
the subject listen: a node whose deployment has other cells would otherwise never hear the producer, nor notice why.
"""

from __future__ import annotations

from collections.abc import Iterable

from whimbrel.model.place import Area, Place
from whimbrel.multicast.sockets import MulticastSocket, hashed_address
from whimbrel.nearby.cells import Cell, cell_of, cover, levels
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Asked, Frame

__all__ = [
    "PORT",
    "MulticastSocket",
    "addresses_for",
    "addresses_of",
    "deployment_address",
    "group_address",
    "node_address",
]

PORT = 27_302
_RELAYS = ""
"""The subject of the relays' addresses; no event type has this name."""
_ANYWHERE = Cell(-1, -1, -1)
"""The cell in addresses without a cell."""


def group_address(subject: str, cell: Cell) -> str:
    """Return the address of *subject* in *cell*."""
    return hashed_address(f"{subject}\0{cell}")


def deployment_address(subject: str) -> str:
    """Return the address without a cell, to which producers of *subject* send some beacons with their cell size."""
    return group_address(subject, _ANYWHERE)


def node_address(name: str) -> str:
    """Return the address of frames for the node *name* alone."""
    return hashed_address(f"\0{name}")


def addresses_of(frame: Frame, *, deployment: Deployment) -> list[str]:
    """Return the destination addresses of *frame*."""
    if isinstance(frame, Asked):
        return [node_address(frame.to)]
    cells = sorted(cover(frame.area, deployment=deployment))
    found = [group_address(frame.subject, cell) for cell in cells]
    if frame.hops:
        found += [group_address(_RELAYS, cell) for cell in cells]
    return found


def addresses_for(
    name: str,
    place: Place | None,
    *,
    subjects: Iterable[str],
    announced: Iterable[tuple[str, Area]],
    is_relay: bool,
    deployment: Deployment,
) -> frozenset[str]:
    """Return the addresses on which the node *name* at *place* listens."""
    found = {node_address(name)}
    found |= {
        group_address(subject, cell) for subject, area in announced for cell in cover(area, deployment=deployment)
    }
    if place is not None:
        cells = [cell_of(place, level=level, deployment=deployment) for level in levels(deployment=deployment)]
        subjects = list(subjects)
        heard = [*subjects, *([_RELAYS] if is_relay else [])]
        found |= set(map(deployment_address, subjects))
        found |= {group_address(each, cell) for each in heard for cell in cells}
    return frozenset(found)
