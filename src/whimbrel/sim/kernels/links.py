"""Contacts between nodes as flat arrays: the neighbours of each node, in ascending order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whimbrel.errors import InvalidValueError
from whimbrel.match.kernels.compiled import njit
from whimbrel.sim.contacts.table import Contacts

__all__ = ["connect", "disconnect", "link_room", "most_neighbours"]

_MAX_LINKS = 50_000_000


def link_room(contacts: Contacts, end_order: NDArray[np.int64]) -> int:
    """Return the columns that a table of neighbours needs; refuse a crowd whose table would fill the memory."""
    columns = (contacts.start, contacts.end, contacts.low, contacts.high, end_order)
    most = int(most_neighbours(contacts.nodes, *columns)) + 1
    if most * contacts.nodes > _MAX_LINKS:
        allowed = f"at most {_MAX_LINKS:,}: fewer nodes, or fewer of them in contact at once"
        raise InvalidValueError("nodes × neighbours at once", most * contacts.nodes, allowed)
    return most


@njit(cache=True, nogil=True)
def most_neighbours(nodes: Any, start: Any, end: Any, low: Any, high: Any, end_order: Any) -> Any:
    """Return the largest number of neighbours that any node has at any time."""
    degree = np.zeros(nodes, np.int64)
    most = 1
    ended = 0
    for begun in range(len(start)):
        while end[end_order[ended]] < start[begun]:
            degree[low[end_order[ended]]] -= 1
            degree[high[end_order[ended]]] -= 1
            ended += 1
        degree[low[begun]] += 1
        degree[high[begun]] += 1
        most = max(most, degree[low[begun]], degree[high[begun]])
    return most


@njit(cache=True, nogil=True)
def connect(neighbours: Any, since: Any, degree: Any, a: Any, b: Any, now: Any) -> None:
    """Add *b* to the neighbours of *a*, in order."""
    place = degree[a]
    while place > 0 and neighbours[a, place - 1] > b:
        neighbours[a, place] = neighbours[a, place - 1]
        since[a, place] = since[a, place - 1]
        place -= 1
    neighbours[a, place] = b
    since[a, place] = now
    degree[a] += 1


@njit(cache=True, nogil=True)
def disconnect(neighbours: Any, since: Any, degree: Any, a: Any, b: Any) -> None:
    """Remove *b* from the neighbours of *a*."""
    place = 0
    while neighbours[a, place] != b:
        place += 1
    degree[a] -= 1
    for each in range(place, degree[a]):
        neighbours[a, each] = neighbours[a, each + 1]
        since[a, each] = since[a, each + 1]
