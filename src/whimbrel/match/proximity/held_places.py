"""Held places: where devices are now. Places are found by device, by nearness, and by the time at which they expire.

Rule: the cost of a change depends on the number of changed devices, not on the number of devices with a place.
Rule: ``around`` returns every device that may be in reach, and some that are not; the caller decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from whimbrel.match.proximity.ground import earth_points

__all__ = ["HeldPlaces", "Seen"]

Seen: TypeAlias = tuple[int, float, float]
"""Time of a device's report, latitude and longitude."""
_LEAST_M = 32.0
_AXIS_BITS = 19
_OFFSET = 1 << (_AXIS_BITS - 1)
_AXES = np.array([1 << 2 * _AXIS_BITS, 1 << _AXIS_BITS, 1], np.int64)
_STEPS = np.array(list(product((-1, 0, 1), repeat=3)), np.int64) @ _AXES
_FEW = 1_000


class HeldPlaces:
    """Last places of devices, each valid for *stale_us* microseconds; *reach_m* is the longest distance searched."""

    def __init__(self, *, reach_m: float, stale_us: int) -> None:
        self._edge_m, self._stale_us = max(reach_m, _LEAST_M), stale_us
        self.places: dict[str, Seen] = {}
        """Places by device; those set here directly, or by ``replace``, can be searched only after ``index``."""
        self._is_indexed = False
        self._cube: dict[str, int] = {}
        self._devices: dict[int, set[str]] = {}
        """Devices in each cube of space; the edge of a cube is the reach."""
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        """Times at which a place starts or stops counting; outdated entries remain until they are due."""

    def replace(self, places: dict[str, Seen]) -> list[str]:
        """Set the places of all devices at once; return the devices whose place is new or gone.

        For a caller that moves most devices: ``index`` then has to be called before the next search.
        """
        before, self.places = self.places, places
        self._is_indexed = False
        changed = [device for device, seen in places.items() if before.get(device) != seen]
        return changed + [device for device in before if device not in places]

    def index(self, now: int) -> None:
        """Index all places by nearness and by expiry at the time *now*, unless this was done since ``replace``."""
        if self._is_indexed:
            return
        self._cube, self._devices, self._due, self._heap = {}, {}, {}, []
        self._is_indexed = True
        seen = list(self.places.values())
        where = np.array([each[1:] for each in seen], np.float64).reshape(-1, 2)
        self.keep(list(self.places), np.array([each[0] for each in seen], np.int64), where, now=now)

    def keep(self, devices: Iterable[str], began: Any, where: Any, *, now: int) -> list[str]:
        """Set the places of devices, each valid from its time in *began* on; return the devices whose place is new."""
        changed = []
        for device, since, (latitude, longitude), cube in zip(
            devices, began.tolist(), where.tolist(), self._cubes(where).tolist(), strict=True
        ):
            seen = (since, latitude, longitude)
            if self.places.get(device) != seen:
                self.places[device] = seen
                changed.append(device)
            if self._cube.get(device) != cube:
                self._leave(device)
                self._cube[device] = cube
                self._devices.setdefault(cube, set()).add(device)
            due = since if since >= now else since + self._stale_us
            if self._due.get(device) != due:
                self._due[device] = due
                heappush(self._heap, (due, device))
        if len(self._heap) > 2 * len(self._due) + _FEW:
            self._heap = [(due, device) for device, due in self._due.items()]
            heapify(self._heap)
        return changed

    def drop(self, device: str) -> bool:
        """Remove a device's place; return whether it had one."""
        self._due.pop(device, None)
        self._leave(device)
        return self.places.pop(device, None) is not None

    def take_due(self, now: int) -> set[str]:
        """Return the devices whose place becomes valid or expires by *now*.

        The caller must ``keep`` or ``drop`` each of them.
        """
        found = set()
        while self._heap and self._heap[0][0] <= now:
            due, device = heappop(self._heap)
            if self._due.get(device) == due:
                del self._due[device]
                found.add(device)
        return found

    def around(self, where: Any) -> set[str]:
        """Return the devices that may be near any of these places, given as rows of latitude and longitude."""
        asked = np.unique(self._cubes(where)[:, None] + _STEPS).tolist()
        return set().union(*(self._devices[cube] for cube in asked if cube in self._devices))

    def _cubes(self, where: Any) -> Any:
        points = earth_points(*np.ascontiguousarray(where.T))
        return (np.floor(points / self._edge_m).astype(np.int64) + _OFFSET) @ _AXES

    def _leave(self, device: str) -> None:
        cube = self._cube.pop(device, None)
        if cube is not None:
            others = self._devices[cube]
            others.remove(device)
            if not others:
                del self._devices[cube]
