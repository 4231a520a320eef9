# mypy: disable-error-code="no-any-return, no-untyped-call, misc, assignment, index, operator"
# (numba infers the types inside a kernel; mypy cannot know them)
"""Geometry on the Earth for the kernels: points in metres from the Earth's centre, distances and polygons.

Rule: ``compare`` returns INSIDE, OUTSIDE or DOUBT. It is a twin of ``distance_m(a, b) <= radius_m`` and is never wrong;
on DOUBT the caller must use ``distance_m`` itself. The chord, the straight line through the Earth, decides nearly all
cases. Why: ``distance_m`` is within two parts in a million of the shortest way up to 3,000 km, and within 0.2 % of it
anywhere. The shortest way is never shorter than its chord and, up to 100 km, at most eleven parts in a million longer.
The few other cases are measured by Lambert's formula, as in ``distance_m``. They are in doubt within a micrometre of
the rim, because the C library of the kernels need not round as Python's does.
Rule: ``is_in_polygon`` makes exactly the additions and products of ``Polygon.contains``; IEEE 754 rounds both alike.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from whimbrel.match.kernels.compiled import njit
from whimbrel.match.proximity.words import real
from whimbrel.model.place import ECCENTRICITY_SQUARED, EQUATOR_RADIUS_M, FLATTENING

__all__ = [
    "DOUBT",
    "INSIDE",
    "OUTSIDE",
    "POLE_RADIUS_M",
    "ball_m",
    "by_chord",
    "compare",
    "earth_point",
    "earth_points",
    "is_in_polygon",
    "lambert_m",
    "polygon_ball",
]

OUTSIDE, INSIDE, DOUBT = 0, 1, 2
POLE_RADIUS_M = EQUATOR_RADIUS_M * (1 - FLATTENING)
_SHORT_M, _LONG_M = 100_000.0, 2_500_000.0
_SHARE, _LONG_SHARE, _ABSOLUTE_M = 1e-4, 1e-2, 1e-6
_DOUBT_SHARE = 1e-9


def ball_m(radius_m: float) -> float:
    """Return an upper bound of the chord (straight line through the Earth) to any place within *radius_m*."""
    return radius_m * (1 + _LONG_SHARE) + 1.0


@njit(cache=True)
def earth_point(latitude: Any, longitude: Any) -> Any:
    """Return x, y and z of a place, in metres from the Earth's centre: towards 0° E, 90° E and the North Pole."""
    phi, turn = math.radians(latitude), math.radians(longitude)
    sine = math.sin(phi)
    normal = EQUATOR_RADIUS_M / math.sqrt(1 - ECCENTRICITY_SQUARED * sine * sine)
    axis = normal * math.cos(phi)
    return axis * math.cos(turn), axis * math.sin(turn), normal * (1 - ECCENTRICITY_SQUARED) * sine


@njit(cache=True)
def earth_points(latitudes: Any, longitudes: Any) -> Any:
    """Return the ``earth_point`` of each place, as rows."""
    found = np.empty((latitudes.size, 3), np.float64)
    for i in range(latitudes.size):
        found[i, 0], found[i, 1], found[i, 2] = earth_point(latitudes[i], longitudes[i])
    return found


@njit(cache=True)
def lambert_m(latitude: Any, longitude: Any, other_latitude: Any, other_longitude: Any) -> Any:
    """Return the distance by Lambert's formula, like ``distance_m``; only the last bits may differ."""
    phi, other_phi = math.radians(latitude), math.radians(other_latitude)
    beta = math.atan2((1 - FLATTENING) * math.sin(phi), math.cos(phi))
    other_beta = math.atan2((1 - FLATTENING) * math.sin(other_phi), math.cos(other_phi))
    degrees = other_longitude - longitude
    if degrees > 180:
        degrees -= 360
    elif degrees < -180:
        degrees += 360
    mean, half = (beta + other_beta) / 2, (other_beta - beta) / 2
    half_sine, turn_sine = math.sin(half), math.sin(math.radians(degrees) / 2)
    chord = half_sine * half_sine + math.cos(beta) * math.cos(other_beta) * turn_sine * turn_sine
    chord = min(chord, 1.0)
    if chord == 0:
        return 0.0
    angle = 2 * math.atan2(math.sqrt(chord), math.sqrt(1 - chord))
    across = 0.0
    if chord < 1:
        side = math.sin(mean) * math.cos(half)
        across = side * side / (1 - chord)
    side = math.cos(mean) * half_sine
    along = side * side / chord
    bent = (angle - math.sin(angle)) * across + (angle + math.sin(angle)) * along
    return EQUATOR_RADIUS_M * (angle - FLATTENING / 2 * bent)


@njit(cache=True)
def by_chord(chord_squared: Any, radius_m: Any) -> Any:
    """Return whether two places are at most *radius_m* apart, using only the chord: INSIDE, OUTSIDE or DOUBT."""
    if radius_m <= _SHORT_M:
        near = radius_m * (1 - _SHARE) - _ABSOLUTE_M
        if near > 0 and chord_squared <= near * near:
            return INSIDE
    share = _SHARE if radius_m <= _LONG_M else _LONG_SHARE
    far = radius_m * (1 + share) + _ABSOLUTE_M
    return OUTSIDE if chord_squared > far * far else DOUBT


@njit(cache=True)
def compare(
    chord_squared: Any, radius_m: Any, latitude: Any, longitude: Any, other_latitude: Any, other_longitude: Any
) -> Any:
    """Return whether two places are at most *radius_m* apart: INSIDE, OUTSIDE or DOUBT."""
    verdict = by_chord(chord_squared, radius_m)
    if verdict != DOUBT:
        return verdict
    # At opposite ends of the Earth, two quotients in Lambert's formula are 0/0: the result depends on the last bits.
    over_m = lambert_m(latitude, longitude, other_latitude, other_longitude) - radius_m
    if abs(over_m) <= radius_m * _DOUBT_SHARE + _ABSOLUTE_M or radius_m + over_m > 19_900_000.0:
        return DOUBT
    return INSIDE if over_m <= 0 else OUTSIDE


@njit(cache=True)
def is_in_polygon(corners: Any, count: Any, latitude: Any, longitude: Any) -> Any:
    """Return whether a place is in the polygon of *count* corners (longitude, latitude) at the address *corners*."""
    west, east, south, north = np.inf, -np.inf, np.inf, -np.inf
    for i in range(count):
        west, east = min(west, real(corners, 2 * i)), max(east, real(corners, 2 * i))
        south, north = min(south, real(corners, 2 * i + 1)), max(north, real(corners, 2 * i + 1))
    x, y = longitude, latitude
    if x < west:
        x += 360.0
    elif x > east:
        x -= 360.0
    if not (west <= x <= east and south <= y <= north):
        return False
    is_inside = False
    x0, y0 = real(corners, 2 * count - 2), real(corners, 2 * count - 1)
    for i in range(count):
        x1, y1 = real(corners, 2 * i), real(corners, 2 * i + 1)
        side = (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0)
        if side == 0 and min(x0, x1) <= x <= max(x0, x1) and min(y0, y1) <= y <= max(y0, y1):
            return True
        if (y0 > y) != (y1 > y) and (side > 0) == (y1 > y0):
            is_inside = not is_inside
        x0, y0 = x1, y1
    return is_inside


def polygon_ball(flat: Any) -> tuple[float, float, float]:
    """Return the centre of a polygon's bounding box (latitude, longitude), and the radius of a ball around the polygon.

    In a box of at most 180 degrees, a corner is farthest from the centre, except for the flattening; hence the margin.
    """
    (west, south), (east, north) = flat.min(axis=0).tolist(), flat.max(axis=0).tolist()
    latitude, longitude = (south + north) / 2, (west + east) / 2
    points = earth_points(np.array([latitude, south, north]), np.array([longitude, west, west]))
    return latitude, longitude, ball_m(float(np.sqrt(((points[1:] - points[0]) ** 2).sum(axis=1)).max()))
