"""Polygons against exact arithmetic: the winding number in fractions, which rounds nothing."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import polygons

from whimbrel.errors import InvalidValueError
from whimbrel.model.place import Place
from whimbrel.model.polygon import Polygon

_CORNERS = st.lists(st.builds(Place, st.integers(-3, 3), st.integers(-3, 3)), min_size=3, max_size=7)


def _winding(polygon: Polygon, x: Fraction, y: Fraction) -> int | None:
    """Return how often the rim goes round a point; None on the rim."""
    flat = [(Fraction(a), Fraction(b)) for a, b in polygon.flat]
    turns = 0
    for (x0, y0), (x1, y1) in zip([flat[-1], *flat], flat, strict=False):
        side = (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0)
        if side == 0 and min(x0, x1) <= x <= max(x0, x1) and min(y0, y1) <= y <= max(y0, y1):
            return None
        if y0 <= y < y1 and side > 0:
            turns += 1
        elif y1 <= y < y0 and side < 0:
            turns -= 1
    return turns


def _is_inside(polygon: Polygon, place: Place) -> bool:
    found = [_winding(polygon, Fraction(place.longitude) + turn, Fraction(place.latitude)) for turn in (-360, 0, 360)]
    return any(each is None or each != 0 for each in found)


@given(corners=_CORNERS, latitude=st.integers(-12, 12), longitude=st.integers(-12, 12))
def test_on_a_coarse_map_a_polygon_contains_what_exact_arithmetic_says(
    corners: list[Place], latitude: int, longitude: int
) -> None:
    """Corners, rims and touching shapes in plenty; small numbers round nothing, so there is no excuse."""
    try:
        polygon = Polygon(tuple(corners))
    except InvalidValueError:
        assume(False)
    place = Place(latitude / 4, longitude / 4)
    assert polygon.contains(place) is _is_inside(polygon, place)


@settings(max_examples=200)
@given(polygon=polygons(), data=st.data())
def test_a_polygon_anywhere_contains_its_corners_and_what_exact_arithmetic_says(
    polygon: Polygon, data: st.DataObject
) -> None:
    """Across the antimeridian too; within a rounding of the rim either answer is right."""
    assert all(map(polygon.contains, polygon.corners))
    share = data.draw(st.tuples(st.floats(0, 1), st.floats(0, 1)))
    longitude = polygon.west + share[0] * (polygon.east - polygon.west)
    longitude -= 360 * ((longitude > 180) - (longitude < -180))
    place = Place(min(max(polygon.south + share[1] * (polygon.north - polygon.south), -90), 90), longitude)
    nudged = [Place(place.latitude, place.longitude + by) for by in (-1e-12, 1e-12) if abs(place.longitude + by) <= 180]
    around = {_is_inside(polygon, each) for each in (place, *nudged)}
    assert polygon.contains(place) in around


@given(corners=_CORNERS)
def test_what_is_refused_crosses_or_touches_itself(corners: list[Place]) -> None:
    """And what is accepted goes round everything inside exactly once."""
    try:
        polygon = Polygon(tuple(corners))
    except InvalidValueError:
        return
    points = [
        (Fraction(x, 3) + Fraction(1, 7), Fraction(y, 3) + Fraction(1, 11)) for x in range(-9, 9) for y in range(-9, 9)
    ]
    assert {_winding(polygon, x, y) for x, y in points} <= {0, 1, None} or {
        _winding(polygon, x, y) for x, y in points
    } <= {0, -1, None}
