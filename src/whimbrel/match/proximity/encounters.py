# mypy: disable-error-code="no-any-return, no-untyped-call"
# (numba infers the types inside a kernel; mypy cannot know them)
"""Encounters: intervals in which two devices were within range, from positions that are each valid for some time.

Positions are processed in the order in which they begin; a grid holds the latest position of each device. A pair of
positions is found when the later one begins, and lasts while both are valid. Intervals of one pair of devices that
overlap or touch become one interval.
Rule: a position is valid from its beginning up to, but not at, its end; a device has one position at a time.
Rule: within range means ``distance_m(low, high) <= range_m``. The grid finds candidates; where the kernel is in doubt,
``distance_m`` itself decides.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from whimbrel.match.kernels.compiled import njit
from whimbrel.match.proximity.grid import Grid, level_of, put, search
from whimbrel.match.proximity.ground import DOUBT, OUTSIDE, ball_m, compare, earth_points, lambert_m
from whimbrel.match.proximity.words import address, real, set_real, set_word, word
from whimbrel.model.place import Place, distance_m

__all__ = ["Encounters", "Positions", "encounters"]

_SPOT, _FOUND = 5, 5
# A row of ``found``: two positions, begin, end and verdict; the distances are in an array beside it.


class Positions(NamedTuple):
    """Positions of devices, one column per field, in the order of *began*."""

    device: Any
    """Number of each position's device; devices are numbered from 0 on."""
    began: Any
    ended: Any
    places: Any
    """Rows of latitude and longitude."""


class Encounters(NamedTuple):
    """Intervals in which two devices were within range, one column per field, in the order of pairs and times."""

    low: Any
    high: Any
    began: Any
    ended: Any
    closest_m: Any


@njit(cache=True)
def _meet(
    grid: Any,
    level: Any,
    reach: Any,
    range_m: Any,
    devices: Any,
    began: Any,
    ended: Any,
    spots: Any,
    current: Any,
    begin: Any,
    count: Any,
    settled: Any,
    found: Any,
    distances: Any,
    room: Any,
    met: Any,
    met_room: Any,
) -> Any:
    """Process positions from index *begin* on; write pairs of positions within range to *found*.

    Return three numbers: of positions processed in all, of pairs written, and the reason for the stop. The reason is 0
    if all positions are processed, -1 if the grid is full, else the buffer size that the next position needs. Pairs
    among the first *settled* positions are left out.
    """
    n = 0
    for at in range(begin, count):
        device, spot, now = word(devices, at), spots + 8 * _SPOT * at, word(began, at)
        x, y, z = real(spot, 2), real(spot, 3), real(spot, 4)
        near = search(grid, x, y, z, reach, met, met_room) if at >= settled else 0
        if near > met_room or n + near > room:
            return at, n, max(near, n + near)
        for i in range(near):
            other = word(met, i)
            then = word(current, other)
            if other == device or word(ended, then) <= now:
                continue
            there = spots + 8 * _SPOT * then
            dx, dy, dz = real(there, 2) - x, real(there, 3) - y, real(there, 4) - z
            low, high = (spot, there) if device < other else (there, spot)
            here = (real(low, 0), real(low, 1), real(high, 0), real(high, 1))
            verdict = compare(dx * dx + dy * dy + dz * dz, range_m, *here)
            if verdict == OUTSIDE:
                continue
            row = found + 8 * _FOUND * n
            set_word(row, 0, at if device < other else then)
            set_word(row, 1, then if device < other else at)
            set_word(row, 2, now)
            set_word(row, 3, min(word(ended, at), word(ended, then)))
            set_word(row, 4, verdict)
            set_real(distances, n, lambert_m(*here))
            n += 1
        if not put(grid, device, level, x, y, z, 0.0):
            return at, n, -1
        set_word(current, device, at)
    return count, n, 0


@njit(cache=True)
def _merge(low: Any, high: Any, began: Any, ended: Any, closest: Any) -> Any:
    """Join intervals of one pair that overlap or touch, in place; return the number of intervals left.

    The intervals must be sorted by pair and time.
    """
    n = -1
    for i in range(low.size):
        if n >= 0 and low[n] == low[i] and high[n] == high[i] and began[i] <= ended[n]:
            ended[n] = max(ended[n], ended[i])
            closest[n] = min(closest[n], closest[i])
            continue
        n += 1
        low[n], high[n], began[n], ended[n], closest[n] = low[i], high[i], began[i], ended[i], closest[i]
    return n + 1


def encounters(positions: Positions, *, range_m: float, settled: int = 0) -> Encounters:
    """Return the intervals in which two devices were within *range_m*.

    Pairs among the first *settled* positions are left out.
    """
    count, reach = int(positions.device.size), ball_m(range_m)
    devices, began, ended = (np.ascontiguousarray(column, np.int64) for column in positions[:3])
    spots = np.empty((count, _SPOT), np.float64)
    spots[:, :2] = positions.places
    spots[:, 2:] = earth_points(*np.ascontiguousarray(spots[:, :2].T))
    numbers = int(devices.max(initial=-1)) + 1
    grid, current = Grid(room=numbers), np.zeros(max(1, numbers), np.int64)
    grid.make_room(numbers)
    met, parts, done = np.empty(2_048, np.int64), [], 0
    room = max(1_024, 4 * count)
    given = [address(array) for array in (devices, began, ended, spots, current)]
    while done < count:
        found, distances = np.empty((room, _FOUND), np.int64), np.empty(room, np.float64)
        rooms = (address(found), address(distances), room, address(met), met.size // 2)
        arguments: Any = (grid.head, level_of(reach), reach, float(range_m), *given, done, count, settled, *rooms)
        done, kept, missing = _meet(*arguments)
        if missing < 0:
            # The position that did not fit is processed again: drop its pairs, which are the last ones.
            kept -= int((np.maximum(found[:kept, 0], found[:kept, 1]) == done).sum())
            grid.rebuild()
        elif missing:
            met, room = np.empty(max(met.size, 4 * missing), np.int64), max(room, 2 * missing)
        parts.append((found[:kept], distances[:kept]))
    pairs = np.concatenate([np.empty((0, _FOUND), np.int64), *(found for found, _ in parts)])
    closest = np.concatenate([np.empty(0), *(distances for _, distances in parts)])
    return _merge_pairs(pairs, closest, devices, spots, range_m)


def _merge_pairs(pairs: Any, closest: Any, devices: Any, spots: Any, range_m: float) -> Encounters:
    stays = np.ones(pairs.shape[0], np.bool_)
    for at in np.flatnonzero(pairs[:, 4] == DOUBT).tolist():
        one, other = (Place(*spots[position, :2].tolist()) for position in pairs[at, :2].tolist())
        stays[at] = distance_m(one, other) <= range_m
    pairs, closest = pairs[stays], closest[stays]
    low, high = devices[pairs[:, 0]], devices[pairs[:, 1]]
    order = np.lexsort((pairs[:, 3], pairs[:, 2], high, low))
    columns = [low[order], high[order], pairs[order, 2], pairs[order, 3], closest[order]]
    count = _merge(*columns)
    return Encounters(*(column[:count] for column in columns))
