"""Cells: every place of an area is in a cell of its cover, wherever on Earth."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from whimbrel.errors import InvalidValueError
from whimbrel.model.place import MAX_RADIUS_M, Area, Place, distance_m
from whimbrel.nearby.cells import MAX_CELLS, cell_of, check_radius, cover, levels
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.group.relay import is_inside

TOWN = Deployment()
places = st.builds(Place, st.floats(-90, 90), st.floats(-180, 180))
radii = st.floats(0, 5_000) | st.sampled_from([0.0, 150.0, 1_500.0, 5_000.0])


@st.composite
def _inside(draw: st.DrawFn) -> tuple[Area, Place]:
    """Draw an area and a place in it, near the rim more often than not."""
    centre, radius_m = draw(places), draw(radii)
    angle, share = draw(st.floats(0, 2 * math.pi)), draw(st.floats(0.9, 1) | st.floats(0, 1))
    latitude = centre.latitude + share * radius_m * math.cos(angle) / 111_700
    assume(abs(latitude) < 89.999)
    east = share * radius_m * math.sin(angle) / (111_700 * math.cos(math.radians(latitude)))
    place = Place(latitude, (centre.longitude + east + 180) % 360 - 180)
    assume(distance_m(centre, place) <= radius_m)
    return Area(centre, radius_m), place


@given(_inside())
@example((Area(Place(0, 180), 400), Place(0, -179.999)))
@example((Area(Place(89.99, 0), 5_000), Place(89.99, 180)))
@example((Area(Place(90, 0), 0), Place(90, 77)))
def test_the_cover_holds_every_place_of_its_area(found: tuple[Area, Place]) -> None:
    """A consumer listens on the cells of its own place: if the cover left one out, it would miss the event."""
    area, place = found
    cells = cover(area, deployment=TOWN)
    (level,) = {cell.level for cell in cells}
    assert cell_of(place, level=level, deployment=TOWN) in cells
    assert len(cells) <= MAX_CELLS
    assert level in levels(deployment=TOWN)


@given(places, st.floats(5_000, MAX_RADIUS_M))
def test_an_area_as_large_as_the_earth_still_has_few_cells(centre: Place, radius_m: float) -> None:
    """Whatever a stranger announces, its cover is small; the deployment refuses it besides."""
    assert 1 <= len(cover(Area(centre, radius_m), deployment=TOWN)) <= MAX_CELLS


@given(places, st.floats(1, 12_000), st.floats(-0.2, 0.2), st.floats(-0.3, 0.3))
def test_inside_is_what_the_exact_distance_says(centre: Place, radius_m: float, north: float, east: float) -> None:
    """The flat map decides only where it cannot be wrong."""
    place = Place(max(-90.0, min(90.0, centre.latitude + north)), (centre.longitude + east + 180) % 360 - 180)
    assert is_inside(Area(centre, radius_m), place) == Area(centre, radius_m).contains(place)
    rim = Area(centre, min(distance_m(centre, place), MAX_RADIUS_M))
    assert is_inside(rim, place)
    assert not is_inside(rim, None)


def test_a_street_uses_the_finest_level_and_a_district_a_coarser_one() -> None:
    """500 m cells for what they were made for."""
    here = Place(53.3438, -6.2546)
    small, large = (cover(Area(here, radius_m), deployment=TOWN) for radius_m in (200, 4_000))
    assert {cell.level for cell in small} == {0}
    assert {cell.level for cell in large} == {4}


def test_an_area_beyond_the_deployments_largest_is_refused() -> None:
    """The paper knows no limit; ours is a setting."""
    check_radius(Area(Place(0, 0), 5_000), deployment=TOWN)
    with pytest.raises(InvalidValueError, match="at most 5000"):
        check_radius(Area(Place(0, 0), 5_001), deployment=TOWN)
