"""The proximity index against the meaning: random circles, polygons, moves, removals, poles, the date line, files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import polygons

from whimbrel.errors import InvalidValueError
from whimbrel.match.proximity.index import ProximityIndex, Publications
from whimbrel.match.proximity.stored import read, state_arrays
from whimbrel.model.near import ANYWHERE, Anywhere, Around, Near
from whimbrel.model.place import Area, Place, distance_m
from whimbrel.model.polygon import Polygon
from whimbrel.model.proximity import Sighting, hears, places_at

# Crowded corners of the Earth, so that things meet: a town, the poles, the date line, and the other end of the town.
CORNERS = [(52.52, 13.405), (90.0, 0.0), (-90.0, 77.0), (-17.0, 180.0), (-52.52, -166.595), (0.0, 0.0)]
DEGREES = [0.0, 1e-9, 0.001, -0.001, 0.002, 0.01, -0.5, 3.0]
RADII = [0.0, 1.0, 111.19, 200.0, 250.0, 5_000.0, 150_000.0, 4e6, 1.9e7, 20_037_508.5]


def _moved(corner: tuple[float, float], north: float, east: float) -> Place:
    longitude = corner[1] + east
    longitude -= 360 * ((longitude > 180) - (longitude < -180))
    return Place(min(max(corner[0] + north, -90.0), 90.0), longitude)


PLACES = st.builds(_moved, st.sampled_from(CORNERS), st.sampled_from(DEGREES), st.sampled_from(DEGREES)) | st.builds(
    Place, st.floats(-90, 90), st.floats(-180, 180)
)
REACHES = st.sampled_from(RADII) | st.floats(0, 1_000)
AREAS = st.builds(Area, PLACES, REACHES)
NEARS = st.none() | AREAS | polygons(PLACES) | st.builds(Around, REACHES) | st.just(ANYWHERE)
SESSIONS, DEVICES, HANDLES = st.sampled_from("stu"), st.sampled_from("abcd"), st.integers(0, 9)
STALES = st.sampled_from([0, 1, 5, 120_000_000, 2**63 - 1])


@dataclass
class _Wanted:
    near: Near | None
    session: str | None
    stale_us: int
    is_source: bool


@dataclass
class Brute:
    """The meaning, asked of everybody in turn."""

    wanted: dict[int, _Wanted] = field(default_factory=dict)
    members: set[tuple[str, str]] = field(default_factory=set)
    seen: dict[str, Sighting] = field(default_factory=dict)

    def hears(self, handle: int, place: Place | None, radius_m: float | None, now: int) -> bool:
        """Tell whether a subscription hears a publication."""
        one = self.wanted[handle]
        theirs = [self.seen.get(device) for session, device in self.members if session == one.session]
        area = None if place is None or radius_m is None or one.session is None else Area(place, radius_m)
        return hears(one.near, places_at(theirs, now=now, stale_us=one.stale_us), place=place, area=area)


Step = Callable[[ProximityIndex, Brute], None]


def _put(handle: int, near: Near | None, session: str | None, stale_us: int, is_source: bool) -> Step:  # noqa: FBT001
    def step(index: ProximityIndex, brute: Brute) -> None:
        index.remove(handle)
        brute.wanted.pop(handle, None)
        whose = "s" if session is None and isinstance(near, Around) else session
        finds = is_source and near is not None and not isinstance(near, Anywhere)
        index.put(handle, near, session=whose, stale_us=stale_us, is_source=finds)
        brute.wanted[handle] = _Wanted(near, whose, stale_us, finds)

    return step


def _remove(handle: int) -> Step:
    def step(index: ProximityIndex, brute: Brute) -> None:
        index.remove(handle)
        brute.wanted.pop(handle, None)

    return step


def _member(session: str, device: str, joins: bool) -> Step:  # noqa: FBT001
    def step(index: ProximityIndex, brute: Brute) -> None:
        (index.join if joins else index.leave)(session, device)
        (brute.members.add if joins else brute.members.discard)((session, device))

    return step


def _move(device: str, place: Place, at: int) -> Step:
    def step(index: ProximityIndex, brute: Brute) -> None:
        index.move(device, place, at)
        brute.seen[device] = Sighting(0, at, place)

    return step


def _forget(device: str) -> Step:
    def step(index: ProximityIndex, brute: Brute) -> None:
        index.forget(device)
        brute.seen.pop(device, None)

    return step


def _rebuild() -> Step:
    return lambda index, _: index.rebuild()


STEPS = st.one_of(
    st.builds(_put, HANDLES, NEARS, st.none() | SESSIONS, STALES, st.booleans()),
    st.builds(_put, HANDLES, NEARS, SESSIONS, st.just(120_000_000), st.just(True)),
    st.builds(_remove, HANDLES),
    st.builds(_member, SESSIONS, DEVICES, st.just(True)),
    st.builds(_member, SESSIONS, DEVICES, st.booleans()),
    st.builds(_move, DEVICES, PLACES, st.integers(0, 9)),
    st.builds(_move, DEVICES, PLACES, st.integers(0, 9)),
    st.builds(_forget, DEVICES),
    st.builds(_rebuild),
)
PUBLICATIONS = st.lists(st.tuples(st.none() | PLACES, st.none() | REACHES, st.integers(0, 12)), min_size=1, max_size=6)


def _check(index: ProximityIndex, brute: Brute, published: list[tuple[Place | None, float | None, int]]) -> None:
    """Ask all three questions about everything."""
    places = [place for place, _, _ in published]
    radii = [None if place is None else radius for place, radius, _ in published]
    events = Publications.of(places, radii, [at for _, _, at in published])
    verdicts = {
        (row, handle): brute.hears(handle, places[row], radii[row], published[row][2])
        for row in range(len(published))
        for handle in brute.wanted
    }
    rows, handles = index.near(events)
    found = list(zip(rows.tolist(), handles.tolist(), strict=True))
    assert rows.tolist() == sorted(rows.tolist())
    assert len(found) == len(set(found))
    assert set(found) == {pair for pair, is_heard in verdicts.items() if is_heard and brute.wanted[pair[1]].is_source}
    for row, (place, radius_m, at) in enumerate(zip(places, radii, [at for _, _, at in published], strict=True)):
        alone = [] if place is None else index.near_one(place, radius_m, at).tolist()
        assert alone == [handle for own, handle in found if own == row]
    pairs = sorted(verdicts)
    stays = index.sieve(events, np.array([r for r, _ in pairs], np.int64), np.array([h for _, h in pairs], np.int64))
    assert dict(zip(pairs, stays.tolist(), strict=True)) == verdicts
    for row, radius_m in enumerate(radii):
        if radius_m is not None:
            inside = index.inside(events, row).tolist()
            assert len(inside) == len(set(inside))
            assert set(inside) == {
                handle
                for (r, handle), is_heard in verdicts.items()
                if r == row and is_heard and not brute.wanted[handle].is_source
                if brute.wanted[handle].session is not None and brute.wanted[handle].near != ANYWHERE
            }


@given(steps=st.lists(STEPS, max_size=30), published=PUBLICATIONS)
@settings(max_examples=300, deadline=None)
def test_the_index_hears_what_the_meaning_hears(
    steps: list[Step], published: list[tuple[Place | None, float | None, int]]
) -> None:
    """Whatever moved, came and went: candidates by grid, verdicts as written; and again after files."""
    index, brute = ProximityIndex(), Brute()
    for number, step in enumerate(steps):
        step(index, brute)
        if number % 9 == 8:
            _check(index, brute, published)
    _check(index, brute, published)
    again = read(state_arrays(index), handles=10)
    assert len(again) == len(index)
    _check(again, brute, published)


def _drawn(rng: Random) -> Step:
    """Return a step, drawn without hypothesis, whose lists are too short for much to meet."""
    place = _moved(
        rng.choice(CORNERS[:2]) if rng.random() < 0.8 else rng.choice(CORNERS), rng.choice(DEGREES), rng.choice(DEGREES)
    )
    radius_m = rng.choice(RADII[2:7])
    near: Near | None = rng.choice([None, Area(place, radius_m), Around(radius_m), Around(radius_m), _SQUARE, ANYWHERE])
    handle, session, device = rng.randrange(10), rng.choice("stu"), rng.choice("abcd")
    kind = rng.choice(
        ["put", "put", "put", "join", "join", "move", "move", "move", "leave", "remove", "forget", "rebuild"]
    )
    match kind:
        case "put":
            return _put(handle, near, session, rng.choice([0, 1, 3, 5, 120_000_000]), rng.random() < 0.7)
        case "remove":
            return _remove(handle)
        case "join" | "leave":
            return _member(session, device, joins=kind == "join")
        case "move":
            return _move(device, place, rng.randrange(6))
        case "forget":
            return _forget(device)
    return _rebuild()


_SQUARE = Polygon.parse("52.51,13.4;52.51,13.41;52.53,13.41;52.53,13.4")


@pytest.mark.parametrize("seed", range(25))
def test_long_histories_agree_with_the_meaning(seed: int) -> None:
    """Sessions of several devices, places that grow stale, nears of every kind, and files on the way."""
    rng = Random(seed)
    index, brute = ProximityIndex(), Brute()
    for number in range(120):
        _drawn(rng)(index, brute)
        if number % 6 == 5:
            published: list[tuple[Place | None, float | None, int]] = []
            for _ in range(4):
                seen = [each.place for each in brute.seen.values()]
                place = rng.choice([*seen, _moved(rng.choice(CORNERS), rng.choice(DEGREES), rng.choice(DEGREES))])
                reaches = [None, None, *RADII[2:6], *(distance_m(place, each) for each in seen)]
                published.append((place, rng.choice(reaches), rng.randrange(12)))
            _check(index, brute, published)
        if number % 40 == 39:
            index = read(state_arrays(index), handles=10)


@given(here=PLACES, there=PLACES, nudge=st.sampled_from([0.0, 1e-9, -1e-9, 1e-7, -1e-7, 1e-3]))
@example(here=Place(0, 0), there=Place(0, 180), nudge=0.0)
@example(here=Place(0.1, 0), there=Place(0, 179.9), nudge=0.0)
@settings(max_examples=300, deadline=None)
def test_the_rim_is_where_the_distance_says(here: Place, there: Place, nudge: float) -> None:
    """A circle whose rim is a nanometre away, through the other place, is decided by ``distance_m``."""
    radius_m = min(max(distance_m(here, there) + nudge, 0.0), 20_037_508.5)
    index, brute = ProximityIndex(), Brute()
    for step in (
        _put(0, Area(here, radius_m), None, 5, is_source=True),
        _put(1, Around(radius_m), "s", 5, is_source=True),
        _put(2, None, "s", 5, is_source=False),
        _member("s", "a", joins=True),
        _move("a", here, 0),
    ):
        step(index, brute)
    _check(index, brute, [(there, None, 1), (there, radius_m, 1)])


def test_many_devices_and_areas_are_found_as_by_hand() -> None:
    """Large enough for rooms to grow and cubes to be looked at on the ground, column by column."""
    random = np.random.default_rng(27)
    index = ProximityIndex()
    base, count = np.array([47.0, 179.9]), 3_000
    places = base + random.normal(0, 0.05, (count, 2))
    places[:, 1] = (places[:, 1] + 180) % 360 - 180
    for number in range(count):
        index.join(f"s{number}", f"d{number}")
        index.put(number, Around(200.0) if number % 2 else None, session=f"s{number}", is_source=bool(number % 2))
    devices = np.array([index.device(f"d{number}") for number in range(count)])
    for _ in range(3):
        places[:, 0] += random.normal(0, 0.01, count)
        index.move_many(devices, places, np.zeros(count, np.int64))
    chosen = [Place(*places[number].tolist()) for number in range(0, count, 60)]
    for radius_m in (100.0, 2_000.0, 30_000.0, 1e7):
        events = Publications.of(chosen, [radius_m] * len(chosen), [1] * len(chosen))
        rows, handles = index.near(events)
        for row, place in enumerate(chosen):
            away = np.array([distance_m(place, Place(*each)) for each in places.tolist()]) if row < 5 else None
            if away is not None:
                want = set(np.flatnonzero(away <= radius_m).tolist())
                assert set(index.inside(events, row).tolist()) == {each for each in want if each % 2 == 0}
                close = set(np.flatnonzero(away <= min(radius_m, 200.0)).tolist())
                assert set(handles[rows == row].tolist()) == {each for each in close if each % 2}


def test_what_is_no_place_is_refused_before_anything_moves() -> None:
    """A batch of a thousand reports must not be half taken."""
    index = ProximityIndex()
    device = index.device("a")
    for places in ([[91.0, 0.0]], [[0.0, 181.0]], [[float("nan"), 0.0]], [[0.0, float("inf")]]):
        with pytest.raises(InvalidValueError, match="latitude -90 to 90"):
            index.move_many(np.array([device]), np.array(places), np.array([0]))
    with pytest.raises(InvalidValueError, match="numbers from 0 to 0"):
        index.move_many(np.array([7]), np.zeros((1, 2)), np.array([0]))
    with pytest.raises(InvalidValueError, match="no session is given"):
        index.put(0, Around(5.0), session=None)


def test_teleporting_devices_leave_no_more_behind_than_they_are() -> None:
    """Cubes that emptied are gone when there is no room for more."""
    random = np.random.default_rng(5)
    index = ProximityIndex()
    devices = np.array([index.device(f"d{number}") for number in range(50)])
    for _ in range(400):
        places = np.stack([random.uniform(-90, 90, 50), random.uniform(-180, 180, 50)], axis=1)
        index.move_many(devices, places, np.zeros(50, np.int64))
    assert index.size_bytes < 1_000_000
