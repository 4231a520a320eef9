"""Cells: a grid of squares of equal size over the ground, shared by a deployment; multicast addresses depend on it.

A cell is named by level, row and column. Level 0 has the deployment's cells (500 m); each further level doubles the
side. Rows are bands of latitude from the south pole; a row has as many columns as fit its edge nearer to a pole, so a
cell is never narrower than its side. The last level has one cell, the whole Earth.

Rule: a place is in exactly one cell of each level. Every place of an area is in one of the cells of ``cover``.
Rule: ``cover`` uses at most ``MAX_CELLS`` cells: if the area touches more on a level, a coarser level is used. Each
further cell costs a datagram per frame; a larger cell makes nodes decode frames from further away. The receiver always
checks its place against the exact area; cells only decide which nodes receive a frame at all.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from whimbrel.errors import InvalidValueError
from whimbrel.model.place import Area, Place
from whimbrel.nearby.deployment import Deployment

__all__ = ["MAX_CELLS", "MAX_LEVEL", "Cell", "cell_of", "check_radius", "cover", "levels"]

_DEGREE_M = 111_000.0
"""Approximate metres per degree of latitude: rows need the same number everywhere, not the true one."""
_LEAST_DEGREE_M = 110_567.0
"""Metres of the shortest degree of latitude, at the equator: the size of an area is never underestimated."""
MAX_CELLS = 4
"""Most cells of an area: a circle at most as wide as a cell touches two rows and, in each, two columns."""
MAX_LEVEL = 16
"""The level of the one cell that is the whole Earth."""


class Cell(NamedTuple):
    """One square of the ground; text form ``level.row.column``."""

    level: int
    row: int
    column: int

    def __str__(self) -> str:
        return f"{self.level}.{self.row}.{self.column}"


_EARTH = Cell(MAX_LEVEL, 0, 0)


def cell_of(place: Place, *, level: int, deployment: Deployment) -> Cell:
    """Return the cell of *level* in which *place* is."""
    if level == MAX_LEVEL:
        return _EARTH
    height = _height(level, deployment)
    row = _row(place.latitude, height)
    return Cell(level, row, _column(place.longitude, _columns(row, height)))


@lru_cache(maxsize=4_096)
def cover(area: Area, *, deployment: Deployment) -> frozenset[Cell]:
    """Return the cells of the finest level on which *area* touches at most ``MAX_CELLS`` of them."""
    for level in levels(deployment=deployment):
        found = frozenset((_EARTH,)) if level == MAX_LEVEL else _find_cells(area, level, deployment)
        if found is not None:
            return found
    raise AssertionError("the last level has one cell")


@lru_cache(maxsize=64)
def levels(*, deployment: Deployment) -> tuple[int, ...]:
    """Return the levels that areas of the deployment can use: a consumer listens on its own cell of each.

    The whole Earth is one of them: near a pole, where a row has few columns, an area may touch too many cells of any
    other level.
    """
    level = 0
    while _most_touched(deployment.max_radius_m, deployment.cell_m << level) > MAX_CELLS and level < MAX_LEVEL - 1:
        level += 1
    return (*range(level + 1), MAX_LEVEL)


def check_radius(area: Area, *, deployment: Deployment) -> None:
    """Raise ``InvalidValueError`` if *area* is larger than the deployment allows."""
    if area.radius_m > deployment.max_radius_m:
        raise InvalidValueError("radius_m of an area", area.radius_m, f"at most {deployment.max_radius_m:g}")


def _most_touched(radius_m: float, side_m: float) -> int:
    # The bounding box of a circle is wider than the circle in the rows nearer to the equator; a third more is ample.
    across = 2 * radius_m / side_m
    return math.ceil(across * 1.01 + 1) * math.ceil(across * 1.33 + 1)


def _height(level: int, deployment: Deployment) -> float:
    """Return the height of a row in degrees of latitude."""
    return (deployment.cell_m << level) / _DEGREE_M


def _row(latitude: float, height: float) -> int:
    return min(int((latitude + 90) / height), math.ceil(180 / height) - 1)


def _columns(row: int, height: float) -> int:
    """Return the number of columns of *row*: the sides that fit the circle of latitude at its edge nearer to a pole."""
    south = row * height - 90
    north = min(south + height, 90.0)
    furthest = max(abs(south), abs(north))
    return max(1, int(360 * math.cos(math.radians(furthest)) / height))


def _column(longitude: float, columns: int) -> int:
    return min(int((longitude + 180) / 360 * columns), columns - 1)


def _find_cells(area: Area, level: int, deployment: Deployment) -> frozenset[Cell] | None:
    """Return the cells that the area's bounding box touches, or ``None`` if they are too many."""
    height = _height(level, deployment)
    reach = area.radius_m / _LEAST_DEGREE_M + 1e-9
    south, north = area.centre.latitude - reach, area.centre.latitude + reach
    first, last = _row(max(south, -90.0), height), _row(min(north, 90.0), height)
    if last - first >= MAX_CELLS:
        return None
    found: set[Cell] = set()
    half = _half_width(area.centre.latitude, reach)
    for row in range(first, last + 1):
        columns = _columns(row, height)
        spanned = _find_columns(area.centre.longitude, half, columns)
        if len(found) + len(spanned) > MAX_CELLS:
            return None
        found.update(Cell(level, row, column % columns) for column in spanned)
    return frozenset(found)


def _find_columns(longitude: float, half: float, columns: int) -> range:
    """Return the columns within *half* degrees of *longitude*; the numbers may be below 0 or beyond the last column."""
    if half >= 180 or columns == 1:
        return range(columns)
    west, east = ((longitude + side + 180) / 360 * columns for side in (-half, half))
    spanned = range(math.floor(west), math.floor(east) + 1)
    return spanned if len(spanned) < columns else range(columns)


def _half_width(latitude: float, reach: float) -> float:
    """Return an upper bound of the half width, in degrees of longitude, of a circle of *reach* degrees."""
    if abs(latitude) + reach >= 90:
        return 180.0  # it contains a pole
    sine = math.sin(math.radians(reach)) / math.cos(math.radians(latitude))
    return math.degrees(math.asin(min(sine, 1.0))) * 1.01 + 1e-9
