"""Where a session is and what it hears: each sentence of docs/explanation/where-is-a-session.md."""

from __future__ import annotations

import pytest

from whimbrel.model.near import ANYWHERE, DEFAULT_STALE_US, Around, Near
from whimbrel.model.place import Area, Place, distance_m
from whimbrel.model.polygon import Polygon
from whimbrel.model.proximity import Sighting, conditions, hears, is_fresh, latest, places_at

HERE, CLOSE, FAR = Place(52.52, 13.405), Place(52.521, 13.405), Place(52.62, 13.405)
AWAY_M = distance_m(HERE, CLOSE)


def test_only_reports_with_a_lower_seq_count() -> None:
    """The order of the log decides, not the clock."""
    sightings = [Sighting(3, 100, HERE), Sighting(7, 90, CLOSE), Sighting(9, 80, FAR)]
    assert latest(sightings, seq=9) == sightings[1]
    assert latest(sightings, seq=8) == sightings[1]
    assert latest(sightings, seq=7) == sightings[0]
    assert latest(sightings, seq=3) is None


def test_a_place_counts_while_it_is_younger_than_stale() -> None:
    """Alive iff now < expires_at, as everything here."""
    seen = Sighting(1, 1_000, HERE)
    assert is_fresh(seen, now=1_000 + DEFAULT_STALE_US - 1)
    assert not is_fresh(seen, now=1_000 + DEFAULT_STALE_US)
    assert is_fresh(seen, now=1_009, stale_us=10)
    assert not is_fresh(seen, now=1_010, stale_us=10)
    assert not is_fresh(seen, now=1_000, stale_us=0)


def test_a_session_is_where_its_members_are() -> None:
    """The phone is inside, the laptop reports nothing, the watch fell silent."""
    members = [Sighting(1, 1_000, HERE), None, Sighting(2, 10, FAR)]
    assert places_at(members, now=1_010, stale_us=100) == [HERE]


AREA = Area(HERE, AWAY_M)
SMALLER = Area(HERE, AWAY_M - 0.001)
SQUARE = Polygon.parse("52,13;52,14;53,14;53,13")


@pytest.mark.parametrize(
    ("near", "places", "place", "area", "expected"),
    [
        (None, [], None, None, True),
        (None, [], HERE, None, True),
        (None, [], HERE, AREA, False),
        (None, [CLOSE], HERE, AREA, True),
        (None, [CLOSE], HERE, SMALLER, False),
        (None, [FAR, CLOSE], HERE, AREA, True),
        (ANYWHERE, [], HERE, AREA, True),
        (ANYWHERE, [], None, None, True),
        (Area(CLOSE, AWAY_M), [], HERE, None, True),
        (Area(CLOSE, AWAY_M - 0.001), [], HERE, None, False),
        (Area(CLOSE, AWAY_M), [], None, None, False),
        (Area(CLOSE, AWAY_M), [], HERE, AREA, False),
        (Area(CLOSE, AWAY_M), [FAR], HERE, AREA, False),
        (Area(CLOSE, AWAY_M), [HERE], HERE, AREA, True),
        (SQUARE, [], HERE, None, True),
        (SQUARE, [], Place(51, 13), None, False),
        (Around(AWAY_M), [CLOSE], HERE, None, True),
        (Around(AWAY_M - 0.001), [CLOSE], HERE, None, False),
        (Around(AWAY_M), [FAR, CLOSE], HERE, None, True),
        (Around(AWAY_M), [], HERE, None, False),
        (Around(AWAY_M), [CLOSE], None, None, False),
        (Around(1e6), [CLOSE], HERE, SMALLER, False),
    ],
)
def test_all_three_conditions_must_hold(
    near: Near | None,
    places: list[Place],
    place: Place | None,
    area: Area | None,
    expected: bool,  # noqa: FBT001 # a parameter
) -> None:
    """Inside the publication's area, from inside near, close to the session; the reasons say the same."""
    assert hears(near, places, place=place, area=area) is expected
    assert all(each.is_met for each in conditions(near, places, place=place, area=area)) is expected
