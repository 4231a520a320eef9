"""A broadcast radio: determines which nodes hear a transmission, by range and loss.

Rule: a node hears another if it is within range at that moment and the frame is not lost; each receiver loses frames
independently. Only range and loss are simulated, no collisions and no shadowing; the reports state this.
Rule: neighbours are found through a grid whose cells are as wide as the range, and cached until a node moves.
"""

from __future__ import annotations

import math
from random import Random

from whimbrel.model.bounds import real, whole
from whimbrel.model.place import Point

__all__ = ["BroadcastRadio"]


class BroadcastRadio:
    """The radio medium between numbered nodes."""

    def __init__(
        self, *, range_m: float, random: Random, loss: float = 0.0, shortest_us: int = 300, longest_us: int = 1_500
    ) -> None:
        self.range_m = real("range_m", range_m, 1, 1e6)
        self.loss = real("loss", loss, 0, 1)
        self._random = random
        self._shortest_us = whole("shortest_us", shortest_us, 0, 10**9)
        self._longest_us = whole("longest_us", longest_us, shortest_us, 10**9)
        self._points: dict[int, Point] = {}
        self._grid: dict[tuple[int, int], set[int]] = {}
        self._near: dict[int, list[int]] = {}
        self._walls: frozenset[int] | None = None

    def place(self, node: int, point: Point) -> None:
        """Set the position of *node* to *point*."""
        before = self._points.get(node)
        if before is not None:
            self._grid[self._cell(before)].discard(node)
        self._points[node] = point
        self._grid.setdefault(self._cell(point), set()).add(node)
        self._near.clear()

    def point(self, node: int) -> tuple[float, float]:
        """Return the position of *node*, in metres."""
        return self._points[node].x_m, self._points[node].y_m

    def divide(self, apart: frozenset[int] | None) -> None:
        """Cut the network in two: the nodes *apart* and the others do not hear each other; ``None`` rejoins them."""
        self._walls = apart
        self._near.clear()

    def neighbours(self, node: int) -> list[int]:
        """Return the nodes within range of *node*, ascending."""
        found = self._near.get(node)
        if found is None:
            here = self._points[node]
            column, row = self._cell(here)
            cells = ((column + x, row + y) for x in (-1, 0, 1) for y in (-1, 0, 1))
            candidates = (other for cell in cells for other in self._grid.get(cell, ()))
            found = sorted(other for other in candidates if other != node and self._reaches(node, other, here))
            self._near[node] = found
        return found

    def transmit(self, node: int) -> list[int]:
        """Return the nodes that hear a transmission of *node* now."""
        found = self.neighbours(node)
        if not self.loss:
            return found
        draw, loss = self._random.random, self.loss
        return [other for other in found if draw() >= loss]

    def travel_us(self, datagrams: int = 1) -> int:
        """Draw the duration of a transmission of *datagrams* datagrams, which are sent one after the other."""
        return self._random.randint(self._shortest_us, self._longest_us) * datagrams

    def _cell(self, point: Point) -> tuple[int, int]:
        return math.floor(point.x_m / self.range_m), math.floor(point.y_m / self.range_m)

    def _reaches(self, node: int, other: int, here: Point) -> bool:
        if self._walls is not None and (node in self._walls) != (other in self._walls):
            return False
        return here.distance_m(self._points[other]) <= self.range_m
