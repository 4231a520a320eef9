"""Motion: what a consumer knows of itself and never sends."""

from __future__ import annotations

import pytest

from whimbrel.model.attributes import Attributes
from whimbrel.model.place import Place, Plane, Point
from whimbrel.nearby.motion import Motion, bearing

PLANE = Plane(Place(53.3438, -6.2546))
LIGHT = PLANE.place(Point(0, 0))


def _at(x_m: float, y_m: float = 0.0) -> Place:
    return PLANE.place(Point(x_m, y_m))


def _driven(*stops: tuple[float, float]) -> Motion:
    """Return the motion of a car with one fix a second at these metres east and north."""
    motion = Motion(max_speed_m_s=100)
    for second, (x_m, y_m) in enumerate(stops):
        motion.move(_at(x_m, y_m), now=second * 1_000_000)
    return motion


def test_a_car_approaches_until_it_has_passed() -> None:
    """The content filter of Figure 1."""
    coming, gone = _driven((-90, 0), (-80, 0)).attributes(LIGHT), _driven((10, 0), (20, 0)).attributes(LIGHT)
    assert (coming["approaching"], gone["approaching"]) == (1, 0)
    assert coming["distance_m"] == pytest.approx(80, abs=0.1)
    assert coming["speed"] == pytest.approx(10, abs=0.1)
    assert coming["heading_difference"] == pytest.approx(0, abs=0.1)
    assert gone["heading_difference"] == pytest.approx(180, abs=0.1)


def test_a_car_that_stands_at_the_light_still_faces_it() -> None:
    """The driver who waits wants to know when it turns green."""
    standing = _driven((-30, 0), (-20, 0), (-20.2, 0), (-19.9, 0)).attributes(LIGHT)
    assert standing["approaching"] == 1
    assert isinstance(standing["speed"], float)
    assert standing["speed"] < 1


def test_what_is_unknown_is_absent() -> None:
    """A filter over it is undefined, and only true delivers."""
    assert Motion(max_speed_m_s=100).attributes(LIGHT) == {}
    assert set(_driven((-90, 0)).attributes(LIGHT)) == {"distance_m"}


def test_a_position_that_teleports_is_no_movement() -> None:
    """A broken receiver must not make a car approach at the speed of sound."""
    motion = _driven((-900, 0), (-20, 0))
    assert motion.teleported == 1
    assert set(motion.attributes(LIGHT)) == {"distance_m"}
    motion.move(_at(-10), now=2_000_000)
    assert motion.attributes(LIGHT)["approaching"] == 1
    motion.move(None, now=3_000_000)
    assert motion.attributes(LIGHT) == {}


def test_a_clock_that_is_set_back_gives_no_speed() -> None:
    """It may give none, but it must not divide by nothing."""
    motion = _driven((-90, 0))
    motion.move(_at(-89.5), now=-5)
    assert "speed" not in motion.attributes(LIGHT)


@pytest.mark.parametrize(("x_m", "y_m", "degrees"), [(0, 9, 0), (9, 0, 90), (0, -9, 180), (-9, 0, 270)])
def test_bearings_are_clockwise_from_north(x_m: float, y_m: float, degrees: float) -> None:
    """As a compass has them."""
    assert bearing(LIGHT, _at(x_m, y_m)) == pytest.approx(degrees, abs=0.01)


def test_the_consumers_own_attributes_win_over_published_ones() -> None:
    """Also where the own one is unknown: nobody else can say that this car approaches."""
    published: Attributes = {"status": "red", "approaching": 1, "speed": 99.0}
    passed = _driven((20, 0), (40, 0)).attributes_seen_from(published, LIGHT)
    assert (passed["status"], passed["approaching"]) == ("red", 0)
    assert passed["speed"] != 99.0
    standing = _driven((20, 0)).attributes_seen_from(published, LIGHT)
    assert set(standing) == {"status", "distance_m"}
