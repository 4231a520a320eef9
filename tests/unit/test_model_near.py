"""What a subscription says of places, and what is refused."""

from __future__ import annotations

import pickle

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.model.near import ANYWHERE, MAX_NEAR_M, Around, parse_near, parse_stale_us
from whimbrel.model.place import Area, Place
from whimbrel.model.polygon import Polygon

SQUARE = Polygon((Place(0, 0), Place(0, 2), Place(2, 2), Place(2, 0)))


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("52.52,13.405,150", Area(Place(52.52, 13.405), 150.0)),
        ("200", Around(200.0)),
        (" 0.5 ", Around(0.5)),
        ("any", ANYWHERE),
        ("0,0;0,2;2,2;2,0", SQUARE),
        ("0,0;0,2;2,2;2,0;0,0", SQUARE),
    ],
)
def test_near_has_four_forms(text: str, meaning: object) -> None:
    """A circle, a distance from oneself, a polygon, closed or not, and anywhere."""
    found = parse_near(text)
    assert found == meaning
    assert parse_near(str(found)) == meaning
    assert pickle.loads(pickle.dumps(found)) == meaning  # noqa: S301 # our own bytes


@pytest.mark.parametrize(
    ("text", "found", "allowed"),
    [
        ("91,0,100", "91", "-90 to 90"),
        ("0,181,100", "181", "-180 to 180"),
        ("nan,0,100", "nan", "decimal number"),
        ("NaN", "NaN", "lat,lon,radius"),
        ("inf", "inf", "lat,lon,radius"),
        ("-5", "-5", "lat,lon,radius"),
        ("kitchen", "kitchen", "lat,lon,radius"),
        ("", "''", "lat,lon,radius"),
        ("0,0,20037508", "20037508", f"{MAX_NEAR_M:.12g}"),
        ("20037508", "20037508", f"{MAX_NEAR_M:.12g}"),
        ("1e999", "inf", f"{MAX_NEAR_M:.12g}"),
        ("0,0;1,1", "2", "3 to 64"),
        (";".join(f"{n / 10},{n % 2}" for n in range(65)), "65", "3 to 64"),
        ("0,0;2,2;0,2;2,0", "edges from corners 1 and 3", "does not cross itself"),
        ("0,0;0,2;0,1;2,1", "edges from corners 1 and 2", "does not cross itself"),
        ("0,0;0,2;1,1;2,2;2,0;1,1", "edges from corners", "does not cross itself"),
        ("0,0;0,0;1,1;1,0", "corner 1 twice", "each corner once"),
        ("0,0;91,0;1,1", "91", "-90 to 90"),
        ("0,-100;0,0;0,100;1,0", "200 degrees", "180 degrees"),
        ("0,-90;1,90;2,0", "180 degrees", "shorter"),
        ("80,0;80,120;80,-120", "round a pole", "does not"),
        ("0,0;" * 2_000, "8000 characters", "4096"),
    ],
)
def test_what_is_no_near_is_refused_naming_what_was_found_and_allowed(text: str, found: str, allowed: str) -> None:
    """A client with a broken sensor must learn what to change (issue 27, hostile inputs)."""
    with pytest.raises(InvalidValueError) as error:
        parse_near(text)
    assert found in str(error.value)
    assert allowed in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"), [("120", 120_000_000), ("0", 0), ("0.5", 500_000), ("604800", 604_800_000_000)]
)
def test_stale_is_in_seconds(text: str, expected: int) -> None:
    """As ttl is."""
    assert parse_stale_us(text) == expected


@pytest.mark.parametrize("text", ["", "nan", "-1", "604801", "1e99", "soon"])
def test_stale_is_bounded(text: str) -> None:
    """A place from last month is no place."""
    with pytest.raises(InvalidValueError, match="stale"):
        parse_stale_us(text)


@pytest.mark.parametrize(
    ("place", "is_inside"),
    [
        (Place(1, 1), True),
        (Place(0, 0), True),
        (Place(2, 1), True),
        (Place(1, 0), True),
        (Place(2.0000001, 1), False),
        (Place(1, -0.0000001), False),
        (Place(1, 179), False),
    ],
)
def test_the_rim_of_a_polygon_is_inside(place: Place, is_inside: bool) -> None:  # noqa: FBT001 # a parameter
    """Corners and edges, as of a circle."""
    assert SQUARE.contains(place) is is_inside


def test_a_polygon_may_be_hollow() -> None:
    """A U is open above: its middle is outside."""
    letter = Polygon.parse("0,0;0,3;3,3;3,2;1,2;1,1;3,1;3,0")
    assert letter.contains(Place(0.5, 1.5))
    assert not letter.contains(Place(2, 1.5))
    assert letter.contains(Place(2, 2.5))
    assert letter.contains(Place(1, 1.5))


@pytest.mark.parametrize("longitude", [179.5, -179.5, 180.0, -180.0, 179.0, -179.0])
def test_a_polygon_may_lie_across_the_antimeridian(longitude: float) -> None:
    """Fiji does."""
    fiji = Polygon.parse("-20,179;-20,-179;-15,-179;-15,179")
    assert fiji.contains(Place(-17, longitude))
    assert not fiji.contains(Place(-17, 0))
    assert not fiji.contains(Place(-17, 178.9))
    assert not fiji.contains(Place(-17, -178.9))
