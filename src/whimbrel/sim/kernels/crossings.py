"""Contacts of walks, fast: the twin of ``sim.contacts.crossings``.

With few nodes, the corners of every pair are compared. With many nodes, time is cut into windows, and in each window
only nodes in neighbouring cells of a grid are compared. A cell is as wide as the radio range plus the distance by which
two nodes can approach each other in a window, so no pair that can meet is left out. A piece of a contact belongs to the
window in which it starts.

Rule: both ways compute each piece with the same function from the same corners, so the results are equal bit by bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whimbrel.match.kernels.compiled import njit
from whimbrel.sim.contacts.crossings import TOUCH_S
from whimbrel.sim.contacts.table import Contacts
from whimbrel.sim.mobility.walks import Walks

__all__ = ["fast_contacts_of", "time_order"]

_GRID_CELLS = 5
"""With fewer cells per side, comparing all pairs is faster."""
_TOUCH_S = TOUCH_S


def fast_contacts_of(walks: Walks, *, range_m: float, is_grid: bool | None = None) -> Contacts:
    """Return all contacts of *walks*; *is_grid* forces the grid or the comparison of all pairs (None: by size)."""
    range_m, seconds = float(range_m), float(walks.seconds)  # numba compiles again for each type
    lines, top_speed = _lines(walks)
    window_s = range_m / max(2 * top_speed, 1e-9)  # two nodes approach each other by at most one range
    cell_m = range_m + 2 * top_speed * window_s
    width_m = float(max(np.ptp(walks.x), np.ptp(walks.y), 1e-9))
    if is_grid is None:
        is_grid = width_m / cell_m >= _GRID_CELLS
    room = _estimate_contacts(walks, range_m, top_speed, width_m)
    while True:
        start, end = np.empty(room), np.empty(room)
        low, high = np.empty(room, np.int32), np.empty(room, np.int32)
        if is_grid:
            origin = (float(walks.x.min()), float(walks.y.min()))
            where = (walks.first, lines, seconds, range_m, window_s, cell_m, *origin, width_m)
            found = _grid(*where, start, end, low, high)
        else:
            found = _pairs(walks.first, lines, seconds, range_m, start, end, low, high)
        if found <= room:
            break
        room = found
    start, end, low, high = start[:found], end[:found], low[:found], high[:found]
    if is_grid:
        order = np.lexsort((start, high, low))
        start, end, low, high = start[order], end[order], low[order], high[order]
        found = _merged(start, end, low, high)
        start, end, low, high = start[:found], end[:found], low[:found], high[:found]
    order = time_order(start, seconds)  # until here pair by pair, so equal times stay in the order of the pairs
    return Contacts(
        nodes=walks.nodes,
        seconds=walks.seconds,
        start=start[order],
        end=end[order],
        low=low[order],
        high=high[order],
    )


def _lines(walks: Walks) -> tuple[NDArray[np.float64], float]:
    """Return time, place and velocity at each corner as columns, and the highest speed."""
    took_s = np.diff(walks.time, append=walks.time[-1:])
    is_line = took_s > 0
    is_line[walks.first[1:] - 1] = False  # the last corner of a node
    took_s[~is_line] = 1.0
    vx = np.where(is_line, np.diff(walks.x, append=walks.x[-1:]) / took_s, 0.0)
    vy = np.where(is_line, np.diff(walks.y, append=walks.y[-1:]) / took_s, 0.0)
    return np.stack([walks.time, walks.x, walks.y, vx, vy], axis=1), float(np.hypot(vx, vy).max(initial=0.0))


def _estimate_contacts(walks: Walks, range_m: float, speed_m_s: float, width_m: float) -> int:
    """Return an estimate, somewhat too high, of the number of contacts of random walks."""
    pairs = walks.nodes * (walks.nodes - 1) / 2
    share = min(1.0, 4 * range_m * range_m / (width_m * width_m))
    rate = 4 * range_m * speed_m_s / (width_m * width_m)
    return int(1.5 * pairs * (share + rate * walks.seconds)) + 1_000


@njit(cache=True, nogil=True)
def time_order(times: Any, seconds: Any) -> Any:
    """Return the stable order of *times* from 0 to *seconds*: a bucket sort, because the times are spread evenly."""
    count = len(times)
    buckets = max(count, 1)
    scale = buckets / max(seconds, 1e-300)
    heads = np.zeros(buckets + 1, np.int64)
    for each in range(count):
        heads[min(int(times[each] * scale), buckets - 1) + 1] += 1
    for each in range(buckets):
        heads[each + 1] += heads[each]
    order = np.empty(count, np.int64)
    for each in range(count):
        bucket = min(int(times[each] * scale), buckets - 1)
        order[heads[bucket]] = each
        heads[bucket] += 1
    for place in range(1, count):  # a bucket has few entries
        mine = order[place]
        back = place
        while back > 0 and times[order[back - 1]] > times[mine]:
            order[back] = order[back - 1]
            back -= 1
        order[back] = mine
    return order


@njit(cache=True, nogil=True)
def _inside(x: Any, y: Any, vx: Any, vy: Any, range_m: Any, length_s: Any) -> Any:
    """Return start and end of the time in which two nodes are in range; start > end means never."""
    beyond = x * x + y * y - range_m * range_m
    closing = x * vx + y * vy
    speed2 = vx * vx + vy * vy
    # The least distance first: one test that almost always excludes the pair, and that the processor predicts well.
    nearest_s = min(max(-closing / (speed2 + 1e-30), 0.0), length_s)
    x, y = x + vx * nearest_s, y + vy * nearest_s
    if x * x + y * y > range_m * range_m * (1 + 1e-9):
        return 1.0, 0.0
    if speed2 == 0:
        if beyond <= 0:
            return 0.0, length_s
        return 1.0, 0.0
    root2 = closing * closing - speed2 * beyond
    if root2 <= 0:
        return 1.0, 0.0
    root = math.sqrt(root2)
    begins, ends = (-closing - root) / speed2, (-closing + root) / speed2
    if ends > 0 and begins < length_s:
        return begins, ends
    return 1.0, 0.0


@njit(cache=True, nogil=True)
def _inside_of_lines(lines: Any, i: Any, j: Any, now: Any, length_s: Any, range_m: Any) -> Any:
    """Return start and end, counted from *now*, of the time in which nodes on lines *i* and *j* are in range."""
    x = (lines[j, 1] + lines[j, 3] * (now - lines[j, 0])) - (lines[i, 1] + lines[i, 3] * (now - lines[i, 0]))
    y = (lines[j, 2] + lines[j, 4] * (now - lines[j, 0])) - (lines[i, 2] + lines[i, 4] * (now - lines[i, 0]))
    return _inside(x, y, lines[j, 3] - lines[i, 3], lines[j, 4] - lines[i, 4], range_m, length_s)


@njit(cache=True, nogil=True)
def _pairs(first: Any, lines: Any, seconds: Any, range_m: Any, start: Any, end: Any, low: Any, high: Any) -> Any:
    """Compare all pairs; write contacts, pair by pair, while the arrays have room; return the number of all."""
    found = 0
    room = len(start)
    nodes = len(first) - 1
    for a in range(nodes):
        for b in range(a + 1, nodes):
            i, j = first[a], first[b]
            last_i, last_j = first[a + 1] - 2, first[b + 1] - 2
            now = 0.0
            last_end = -1e300
            while now < seconds:
                next_i, next_j = lines[i + 1, 0], lines[j + 1, 0]
                until = min(next_i, next_j, seconds)
                begins, ends = _inside_of_lines(lines, i, j, now, until - now, range_m)
                if begins <= ends and until > now:
                    begins = now + begins if begins > 0 else now
                    ends = now + ends if ends < until - now else until
                    if begins > last_end + _TOUCH_S:
                        if found < room:
                            start[found], low[found], high[found] = begins, a, b
                        found += 1
                    if found <= room:
                        end[found - 1] = ends
                    last_end = ends
                now = until
                i += np.int64(next_i <= now and i < last_i)
                j += np.int64(next_j <= now and j < last_j)
    return found


@njit(cache=True, nogil=True)
def _grid(first: Any, lines: Any, seconds: Any, range_m: Any, window_s: Any, cell_m: Any, x0: Any, y0: Any, width_m: Any, start: Any, end: Any, low: Any, high: Any) -> Any:  # noqa: E501 # fmt: skip
    """Compare nodes of neighbouring cells, window by window; write pieces in any order, return their number."""
    nodes = len(first) - 1
    room = len(start)
    found = 0
    side = int(width_m / cell_m) + 1
    cell = np.empty(nodes, np.int64)
    members = np.empty(nodes, np.int64)
    line = first[:nodes].copy()  # the line that each node walks when the window begins
    for window in range(math.ceil(seconds / window_s)):
        begin = window * window_s
        finish = (window + 1) * window_s
        heads = np.zeros(side * side + 1, np.int64)
        for node in range(nodes):
            at = line[node]
            while at < first[node + 1] - 2 and lines[at + 1, 0] <= begin:
                at += 1
            line[node] = at
            row = int((lines[at, 2] + lines[at, 4] * (begin - lines[at, 0]) - y0) / cell_m)
            column = int((lines[at, 1] + lines[at, 3] * (begin - lines[at, 0]) - x0) / cell_m)
            row, column = min(max(row, 0), side - 1), min(max(column, 0), side - 1)
            cell[node] = row * side + column
            heads[cell[node] + 1] += 1
        for each in range(side * side):
            heads[each + 1] += heads[each]
        filled = heads[:-1].copy()
        for node in range(nodes):
            members[filled[cell[node]]] = node
            filled[cell[node]] += 1
        for a in range(nodes):
            row, column = cell[a] // side, cell[a] % side
            for next_row in range(max(row - 1, 0), min(row + 2, side)):
                for next_column in range(max(column - 1, 0), min(column + 2, side)):
                    other = next_row * side + next_column
                    for member in range(heads[other], heads[other + 1]):
                        b = members[member]
                        if b <= a:
                            continue
                        i, j = line[a], line[b]
                        last_i, last_j = first[a + 1] - 2, first[b + 1] - 2
                        now = max(lines[i, 0], lines[j, 0])
                        while now < finish and now < seconds:
                            next_i, next_j = lines[i + 1, 0], lines[j + 1, 0]
                            until = min(next_i, next_j, seconds)
                            begins, ends = _inside_of_lines(lines, i, j, now, until - now, range_m)
                            if begins <= ends and until > now:
                                begins = now + begins if begins > 0 else now
                                if begin <= begins < finish:
                                    if found < room:
                                        start[found], low[found], high[found] = begins, a, b
                                        end[found] = now + ends if ends < until - now else until
                                    found += 1
                            now = until
                            i += np.int64(next_i <= now and i < last_i)
                            j += np.int64(next_j <= now and j < last_j)
    return found


@njit(cache=True, nogil=True)
def _merged(start: Any, end: Any, low: Any, high: Any) -> Any:
    """Merge pieces that touch, in place; the input is ordered by pair and time. Return the number of contacts."""
    found = 0
    for piece in range(len(start)):
        is_same = found > 0 and low[found - 1] == low[piece] and high[found - 1] == high[piece]
        if is_same and start[piece] <= end[found - 1] + _TOUCH_S:
            end[found - 1] = end[piece]
        else:
            start[found], end[found], low[found], high[found] = start[piece], end[piece], low[piece], high[piece]
            found += 1
    return found
