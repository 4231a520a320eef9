"""Polygons: areas with corners, besides the circle (``place.Area``).

Rule: an edge is a straight line on a map of degrees, longitude against latitude, as in GeoJSON (RFC 7946, 3.1.1). From
corner to corner it takes the short way, also across the antimeridian.
Rule: the rim, corners and edges alike, counts as inside.
Rule: a polygon does not touch itself, has 3 to 64 corners, spans at most 180 degrees of longitude, and contains no
pole. Other polygons cannot be built; the error names the corners.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations, pairwise

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.model.place import Place

__all__ = ["MAX_CORNERS", "MAX_WIDTH_DEGREES", "MIN_CORNERS", "Polygon"]

MIN_CORNERS, MAX_CORNERS = 3, 64
MAX_WIDTH_DEGREES = 180.0
_MAX_TEXT = 64 * MAX_CORNERS
_Flat = tuple[float, float]
"""Longitude, which may exceed 180 degrees, and latitude."""


@dataclass(frozen=True, slots=True)
class Polygon:
    """All places inside *corners* or on the rim; the last corner is joined to the first."""

    corners: tuple[Place, ...]
    flat: tuple[_Flat, ...] = field(init=False, repr=False, compare=False)
    """The corners on the map; longitudes continue beyond 180 degrees if an edge crosses the antimeridian."""
    west: float = field(init=False, repr=False, compare=False)
    east: float = field(init=False, repr=False, compare=False)
    south: float = field(init=False, repr=False, compare=False)
    north: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        count = len(self.corners)
        if not MIN_CORNERS <= count <= MAX_CORNERS:
            raise InvalidValueError("corners of a polygon", count, f"{MIN_CORNERS} to {MAX_CORNERS}")
        flat = _unroll(self.corners)
        west, east = min(x for x, _ in flat), max(x for x, _ in flat)
        if east - west > MAX_WIDTH_DEGREES:
            allowed = f"at most {MAX_WIDTH_DEGREES:g} degrees of longitude"
            raise InvalidValueError("width of a polygon", Phrase(f"{east - west:g} degrees"), allowed)
        _check_simple(flat)
        south, north = min(y for _, y in flat), max(y for _, y in flat)
        values = {"flat": flat, "west": west, "east": east, "south": south, "north": north}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str) -> Polygon:
        """Return the polygon with the text form ``lat,lon;lat,lon;lat,lon``; a last corner may repeat the first."""
        if len(text) > _MAX_TEXT:
            raise InvalidValueError("polygon", Phrase(f"{len(text)} characters"), f"at most {_MAX_TEXT}")
        corners = tuple(Place.parse(part) for part in text.split(";"))
        if len(corners) > MIN_CORNERS and corners[0] == corners[-1]:
            corners = corners[:-1]
        return cls(corners)

    def __str__(self) -> str:
        return ";".join(map(str, self.corners))

    def contains(self, place: Place) -> bool:
        """Return whether *place* is inside or on the rim; counts the edges that a ray to the east crosses."""
        y, x = place.latitude, place.longitude
        if x < self.west:
            x += 360.0
        elif x > self.east:
            x -= 360.0
        if not (self.west <= x <= self.east and self.south <= y <= self.north):
            return False
        is_inside = False
        x0, y0 = self.flat[-1]
        for x1, y1 in self.flat:
            side = (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0)
            if side == 0 and min(x0, x1) <= x <= max(x0, x1) and min(y0, y1) <= y <= max(y0, y1):
                return True
            if (y0 > y) != (y1 > y) and (side > 0) == (y1 > y0):
                is_inside = not is_inside
            x0, y0 = x1, y1
        return is_inside


def _unroll(corners: tuple[Place, ...]) -> tuple[_Flat, ...]:
    """Return the corners on the map; each is reached the short way from the one before."""
    turns = 0
    flat = [(corners[0].longitude, corners[0].latitude)]
    for number, (here, there) in enumerate(pairwise((*corners, corners[0])), start=1):
        step = there.longitude - here.longitude
        if abs(step) == MAX_WIDTH_DEGREES:
            what = f"edge of a polygon from {here} to {there}"
            raise InvalidValueError(what, Phrase("180 degrees of longitude"), "less, so that one way is the shorter")
        turns += (step < -MAX_WIDTH_DEGREES) - (step > MAX_WIDTH_DEGREES)
        if number < len(corners):
            flat.append((there.longitude + 360.0 * turns, there.latitude))
    if turns:
        sentence = "the polygon goes round a pole: choose one that does not"
        raise InvalidValueError("polygon", Phrase("a pole inside"), "none", sentence)
    return tuple(flat)


def _check_simple(flat: tuple[_Flat, ...]) -> None:
    """Refuse edges of length zero, and edges that meet anywhere except in a shared corner."""
    count = len(flat)
    edges = [(flat[at], flat[(at + 1) % count]) for at in range(count)]
    for at, (here, there) in enumerate(edges):
        if here == there:
            raise InvalidValueError(
                "corners of a polygon", Phrase(f"corner {at + 1} twice in a row"), "each corner once"
            )
    for (i, one), (j, other) in combinations(enumerate(edges), 2):
        if j == i + 1:
            is_touching = _turns_back(one[0], one[1], other[1])
        elif i == 0 and j == count - 1:
            is_touching = _turns_back(other[0], other[1], one[1])
        else:
            is_touching = _meet(*one, *other)
        if is_touching:
            found = f"edges from corners {i + 1} and {j + 1} that cross or touch"
            raise InvalidValueError("polygon", found, "one that does not cross itself")


def _turns_back(before: _Flat, corner: _Flat, after: _Flat) -> bool:
    """Return whether two edges that share *corner* overlap, as in a spike."""
    if _side(before, corner, after) != 0:
        return False
    ahead = (corner[0] - before[0]) * (after[0] - corner[0]) + (corner[1] - before[1]) * (after[1] - corner[1])
    return ahead < 0


def _meet(a: _Flat, b: _Flat, c: _Flat, d: _Flat) -> bool:
    """Return whether the line from *a* to *b* shares a point with the line from *c* to *d*."""
    if max(a[0], b[0]) < min(c[0], d[0]) or max(c[0], d[0]) < min(a[0], b[0]):
        return False
    if max(a[1], b[1]) < min(c[1], d[1]) or max(c[1], d[1]) < min(a[1], b[1]):
        return False
    return _side(a, b, c) * _side(a, b, d) <= 0 and _side(c, d, a) * _side(c, d, b) <= 0


def _side(a: _Flat, b: _Flat, c: _Flat) -> int:
    """Return the side of the line from *a* to *b* on which *c* lies: 1 left, -1 right, 0 on the line."""
    side = (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
    return (side > 0) - (side < 0)
