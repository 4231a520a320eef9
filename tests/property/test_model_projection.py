"""Places: projections and distances anywhere on Earth."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.errors import InvalidValueError
from whimbrel.model.place import Area, Place, Plane, Point, distance_m

PLACES = st.builds(Place, st.floats(-90, 90), st.floats(-180, 180))
PLANES = st.builds(Plane, st.builds(Place, st.floats(-70, 70), st.floats(-180, 180)))
NEAR = st.builds(Point, st.floats(-50_000, 50_000), st.floats(-50_000, 50_000))


@given(place=PLACES)
def test_a_place_comes_back_from_its_text(place: Place) -> None:
    """No digit is lost between devices."""
    assert Place.parse(str(place)) == place
    assert Area.parse(str(Area(place, 1.5))) == Area(place, 1.5)


@given(text=st.text(max_size=20) | st.text("0123456789.,-+eE ", max_size=20))
def test_any_text_is_a_place_or_our_error(text: str) -> None:
    """It comes from a user property."""
    with suppress(InvalidValueError):
        place = Place.parse(text)
        assert Place.parse(str(place)) == place


@given(plane=PLANES, point=NEAR)
def test_a_point_comes_back_from_its_place(plane: Plane, point: Point) -> None:
    """To a tenth of a millimetre, across the antimeridian too."""
    back = plane.point(plane.place(point))
    assert back.distance_m(point) < 1e-4


@given(plane=PLANES, here=NEAR, step=st.builds(Point, st.floats(-150, 150), st.floats(-150, 150)))
def test_a_plane_is_as_exact_as_it_says(plane: Plane, here: Point, step: Point) -> None:
    """Off by tan |latitude| · r / R, as the module's docstring promises; 2e-4 is the second order at 70 km."""
    there = Point(here.x_m + step.x_m, here.y_m + step.y_m)
    flat_m = here.distance_m(there)
    true_m = distance_m(plane.place(here), plane.place(there))
    slope = math.tan(math.radians(abs(plane.origin.latitude)))
    allowed = slope * (abs(here.y_m) + 150) / 6_335_000 + 2e-4
    assert abs(true_m - flat_m) <= allowed * max(flat_m, true_m) + 1e-4


@given(here=PLACES, there=PLACES, third=PLACES)
def test_distance_is_a_distance(here: Place, there: Place, third: Place) -> None:
    """Never negative, never more than half round, the same both ways; no short cut beyond the formula's error."""
    direct = distance_m(here, there)
    assert 0 <= direct <= 20_040_000
    assert direct == pytest.approx(distance_m(there, here), rel=1e-9, abs=1e-6)
    assert direct <= (distance_m(here, third) + distance_m(third, there)) * 1.003 + 1e-6


@given(here=PLACES, there=PLACES, radius_m=st.floats(0, 20_000_000))
def test_an_area_contains_what_is_within_its_radius(here: Place, there: Place, radius_m: float) -> None:
    """Membership is decided by one formula, everywhere."""
    assert Area(here, radius_m).contains(there) == (distance_m(here, there) <= radius_m)
    assert Area(here, radius_m).contains(here)
