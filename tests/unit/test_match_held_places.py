"""Held places against all of them looked at one by one."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from whimbrel.match.proximity.ground import ball_m
from whimbrel.match.proximity.held_places import HeldPlaces, Seen
from whimbrel.model.place import Place, distance_m

STALE_US = 50
CENTRES = [(52.52, 13.4), (0.0, 180.0), (89.9999, 10.0), (-90.0, 0.0)]


def random_place(random: Random, spread: float) -> tuple[float, float]:
    """Return a place near one of a few, two of them where degrees are special."""
    latitude, longitude = random.choice(CENTRES)
    turned = longitude + random.uniform(-spread, spread)
    return max(-90.0, min(90.0, latitude + random.uniform(-spread, spread))), (turned + 180) % 360 - 180


@pytest.mark.parametrize("range_m", [0.0, 50.0, 5_000.0, 1_000_000.0])
@pytest.mark.parametrize("seed", range(3))
def test_places_are_those_that_were_kept(seed: int, range_m: float) -> None:
    """Through moves and drops: by name exactly, by what is near at least those, by time exactly once."""
    random, now = Random(seed), 1_000
    held, wanted = HeldPlaces(reach_m=ball_m(range_m), stale_us=STALE_US), dict[str, Seen]()
    for _ in range(40):
        now += random.randint(1, 20)
        taken = held.take_due(now)
        assert taken == {name for name, seen in wanted.items() if seen[0] + STALE_US <= now}
        for name in taken | set(random.sample(sorted(wanted), len(wanted) // 8)):
            del wanted[name]
            assert held.drop(name)
            assert not held.drop(name)
        moved = {f"d{random.randrange(60)}": random_place(random, range_m / 50_000) for _ in range(12)}
        at = now - random.randint(1, 5)
        before = wanted | {name: (at, *place) for name, place in moved.items()}
        kept = held.keep(moved, np.full(len(moved), at), np.array(list(moved.values())), now=now)
        assert set(kept) == {name for name in moved if wanted.get(name) != before[name]}
        wanted = before
        assert held.places == wanted
        here = random_place(random, range_m / 50_000)
        near = {name for name, (_, *place) in wanted.items() if distance_m(Place(*here), Place(*place)) <= range_m}
        assert held.around(np.array([here])) >= near


def test_a_place_that_begins_later_is_due_when_it_begins() -> None:
    """A checkpoint may have places of clocks that were ahead."""
    held = HeldPlaces(reach_m=10.0, stale_us=STALE_US)
    where = np.array([[1.0, 2.0]])
    assert held.keep(["ahead"], np.array([150]), where, now=100) == ["ahead"]
    assert held.take_due(149) == set()
    assert held.take_due(160) == {"ahead"}
    assert held.keep(["ahead"], np.array([150]), where, now=160) == []
    assert held.take_due(199) == set()
    assert held.take_due(200) == {"ahead"}


def test_only_places_near_are_looked_at() -> None:
    """Of ten thousand along a road, those within reach and few more."""
    held = HeldPlaces(reach_m=50.0, stale_us=STALE_US)
    places = np.stack([40 + np.arange(10_000) / 1_000, np.full(10_000, 13.0)], axis=1)  # 111 m apart
    held.keep([f"d{number}" for number in range(10_000)], np.zeros(10_000, np.int64), places, now=1)
    assert "d70" in held.around(places[70:71])
    assert len(held.around(places[70:71])) <= len({"before", "here", "behind"})
    assert len(held.around(places[[70, 700]])) <= 2 * len({"before", "here", "behind"})


def test_a_device_that_reports_for_ever_is_remembered_once() -> None:
    """Places may hold for a week: what reports leave behind is bounded by how many devices there are."""
    held = HeldPlaces(reach_m=50.0, stale_us=7 * 86_400_000_000)
    for at in range(3_000):
        held.keep(["chatty"], np.array([at]), np.array([[1.0, at / 1_000]]), now=at + 1)
    assert len(held._heap) < 1_500  # memory is what this is about
    assert len(held._devices) == 1
