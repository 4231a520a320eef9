"""Places: degrees at the edge, metres inside, and how exact they are."""

from __future__ import annotations

import math
import pickle

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.model.place import Area, Place, Plane, Point, distance_m

BERLIN = Place(52.52, 13.405)


@pytest.mark.parametrize(
    ("latitude", "longitude"), [(90.1, 0), (0, -180.1), (math.nan, 0), (0, math.inf), (True, 0), (10**400, 0)]
)
def test_a_place_outside_the_earth_cannot_be_built(latitude: float, longitude: float) -> None:
    """Everything behind the edge may trust a place."""
    with pytest.raises(InvalidValueError, match="itude: found"):
        Place(latitude, longitude)


def test_a_place_has_a_text_form() -> None:
    """The user property ``place`` carries it."""
    assert str(Place.parse("52.52, -13.4050")) == "52.52,-13.405"
    assert Place.parse("+1,.5e1") == Place(1.0, 5.0)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "place"),
        ("1", "place"),
        ("1,2,3", "place"),
        ("1,x", "lon of place"),
        ("nan,1", "lat of place"),
        ("1_0,1", "lat of place"),
        ("١,1", "lat of place"),
        ("91,0", "latitude"),
        ("1" * 300 + ",0", "place"),
    ],
)
def test_a_text_that_is_no_place_says_which_half(text: str, what: str) -> None:
    """Precise errors go back to the device."""
    with pytest.raises(InvalidValueError) as caught:
        Place.parse(text)
    assert caught.value.what == what


@pytest.mark.parametrize(
    ("here", "there", "metres"),
    [
        (Place(40.6, -73.8), Place(51.6, -0.5), 5_551_759.400),
        (Place(0, 0), Place(90, 0), 10_001_965.729),
        (Place(0, 0), Place(0, 1), 111_319.491),
        (Place(-37.951033417, 144.424867889), Place(-37.652821139, 143.926495528), 54_972.271),
        (Place(0, 179.5), Place(0, -179.5), 111_319.491),
    ],
)
def test_distances_agree_with_published_geodesics(here: Place, there: Place, metres: float) -> None:
    """Two parts per million is less than any device knows of its place."""
    assert distance_m(here, there) == pytest.approx(metres, rel=2e-6)
    assert distance_m(there, here) == distance_m(here, there)


def test_the_far_side_of_the_earth_is_half_a_turn_away() -> None:
    """The formula must not break down at the antipodes; there it is good to 0.2 %."""
    for latitude in (0.0, 30.0, 90.0):
        assert distance_m(Place(latitude, 0), Place(-latitude, 180)) == pytest.approx(20_003_931, rel=2e-3)
    assert distance_m(BERLIN, BERLIN) == 0


def test_a_plane_measures_metres_around_its_origin() -> None:
    """East is x and north is y; 10 km away it is still right to a fifth of a percent at this latitude."""
    plane = Plane(BERLIN)
    place = plane.place(Point(6_000.0, 8_000.0))
    assert place.latitude > BERLIN.latitude
    assert place.longitude > BERLIN.longitude
    assert distance_m(BERLIN, place) == pytest.approx(10_000, rel=2e-3)


def test_a_plane_crosses_the_antimeridian() -> None:
    """Fiji has neighbours on the other side of the line."""
    plane = Plane(Place(-17.0, 179.99))
    point = plane.point(Place(-17.0, -179.99))
    assert point.x_m == pytest.approx(2_130, rel=1e-2)
    assert plane.place(point).longitude == pytest.approx(-179.99)


def test_a_plane_has_no_origin_at_a_pole_and_no_points_beyond() -> None:
    """There east is no direction; a wrong place would be worse than none."""
    with pytest.raises(InvalidValueError, match="latitude of a plane"):
        Plane(Place(89.5, 0))
    with pytest.raises(InvalidValueError, match="latitude"):
        Plane(BERLIN).place(Point(0.0, 1e7))
    with pytest.raises(InvalidValueError, match="degrees east"):
        Plane(BERLIN).place(Point(1e9, 0.0))


def test_an_area_contains_its_rim() -> None:
    """At most the radius, as the glossary has it."""
    there = Place(52.521, 13.405)
    radius_m = distance_m(BERLIN, there)
    assert Area(BERLIN, radius_m).contains(there)
    assert not Area(BERLIN, radius_m - 0.001).contains(there)
    assert Area(BERLIN, 0).contains(BERLIN)


def test_an_area_has_a_text_form() -> None:
    """The user property ``near`` carries it."""
    assert Area.parse("52.52,13.405,150") == Area(BERLIN, 150.0)
    assert str(Area(BERLIN, 150)) == "52.52,13.405,150.0"
    with pytest.raises(InvalidValueError, match="radius_m"):
        Area.parse("52.52,13.405,-1")


def test_places_pickle() -> None:
    """They travel to Spark workers."""
    for value in (Area(BERLIN, 150.0), Plane(BERLIN)):
        assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301 # our own bytes
