"""How fast places are found and moved, beside scipy's cKDTree and h3 (micro): who is near, and which areas contain it.

The town has as many devices to the square kilometre as make about seventy within 200 m of any place.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import h3
import numpy as np
from scipy.spatial import cKDTree

from measure import Check, Comparison, Figure, Job, Report, measure
from places_live import core_us, live, reports
from whimbrel.match.matcher import Interest, Matcher, PublishedAt
from whimbrel.match.proximity.ground import earth_points
from whimbrel.match.proximity.index import ProximityIndex, Publications
from whimbrel.model.near import Around
from whimbrel.model.place import Area, Place, Plane, distance_m

__all__ = ["run"]

_SEED = 27
_TOWN = Place(52.5, 13.4)
_WITHIN = 70
_REACH_M = 200.0
_STEP_M = 15.0
_AREAS_M = (100.0, 1_000.0)
_RESOLUTION = 9
"""Of h3: cells of about 0.1 km²; finer ones make a circle of 200 m a hundred cells, coarser ones find too many."""


class _Sizes(NamedTuple):
    devices: int
    areas: int
    events: int
    repetitions: int


_FULL, _QUICK = _Sizes(100_000, 1_000, 5_000, 5), _Sizes(2_000, 50, 100, 1)


class _World:
    """Places of devices, areas and publications, seeded."""

    def __init__(self, sizes: _Sizes) -> None:
        self.random = np.random.default_rng(_SEED)
        self.side_m = math.sqrt(sizes.devices * math.pi * _REACH_M**2 / _WITHIN)
        self.plane = Plane(_TOWN)
        self.devices = self.somewhere(sizes.devices)
        centres = self.somewhere(sizes.areas)
        radii = self.random.uniform(*_AREAS_M, sizes.areas)
        self.areas = [Area(Place(*at), radius) for at, radius in zip(centres.tolist(), radii.tolist(), strict=True)]
        self.events = self.somewhere(sizes.events)
        self.places = [Place(*at) for at in self.events.tolist()]

    def somewhere(self, count: int) -> Any:
        """Return latitudes and longitudes all over the town."""
        metres = self.random.uniform(0, self.side_m, (count, 2))
        return np.array([_TOWN.latitude, _TOWN.longitude]) + metres / [self.plane.metres_north, self.plane.metres_east]

    def walked(self) -> Any:
        """Return where the devices are some seconds later."""
        metres = self.random.normal(0, _STEP_M, self.devices.shape)
        return self.devices + metres / [self.plane.metres_north, self.plane.metres_east]


def run(*, quick: bool) -> Report:
    """Measure everything; *quick* only proves that it runs and that the results are right."""
    sizes = _QUICK if quick else _FULL
    report = Report("places", packages=("whimbrel", "numba", "numpy", "scipy", "h3"))
    world = _World(sizes)
    _areas(report, world, sizes)
    _near(report, world, sizes)
    live(report, world.devices, world.places)
    reports(report, sizes.devices)
    sized = f"{sizes.devices:,} devices, {sizes.areas:,} areas of {_AREAS_M[0]:g} to {_AREAS_M[1]:g} m"
    report.notes += [
        f"{sized}, {sizes.events:,} publications, in a square of {world.side_m / 1_000:.1f} km.",
        f"A step of a device is about {_STEP_M:g} m.",
        "cKDTree: over points in space, as our grid; a move is a share of building it anew, for it knows no moves.",
        f"h3: dictionaries of cells of resolution {_RESOLUTION}; candidates of both are decided by their chord.",
        "The figures are core time of ours alone, the least of several runs; the comparisons are wall time, in turns.",
        "The live route: what the broker asks about a publication, of subject, keys and places, up to sessions' names.",
    ]
    return report


def _areas(report: Report, world: _World, sizes: _Sizes) -> None:
    """Which areas contain a publication, with all devices moving beside."""
    index = ProximityIndex()
    for number in range(sizes.devices):
        index.join(f"s{number}", f"d{number}")
    for number, area in enumerate(world.areas):
        index.put(number, area, session=None, is_source=True)
    numbers = np.array([index.device(f"d{number}") for number in range(sizes.devices)])
    times = np.zeros(sizes.devices, np.int64)
    index.move_many(numbers, world.devices, times)
    where = Publications.of(world.places, [None] * sizes.events, [1] * sizes.events)
    tree, cells = _AreasInTree(world.areas), _AreasInCells(world.areas)
    title = f"{sizes.areas:,} areas: which contain a publication"
    jobs = [
        Job("proximity index", sizes.events, lambda: index.near(where)),
        Job("cKDTree", sizes.events, lambda: tree.match(world.events)),
        Job("h3", sizes.events, lambda: cells.match(world.events)),
    ]
    report.comparisons.append(
        Comparison(title=title, item="event", timings=measure(jobs, repetitions=sizes.repetitions))
    )
    report.figures.append(Figure(f"{title}: core time", core_us(lambda: index.near(where), sizes.events), "µs/event"))
    rows, handles = index.near(where)
    found = set(zip(rows.tolist(), handles.tolist(), strict=True))
    want = {(row, n) for row, at in enumerate(world.places[:200]) for n, a in enumerate(world.areas) if a.contains(at)}
    report.checks.append(Check("areas: as distance_m has it", {pair for pair in found if pair[0] < 200} == want))
    report.checks.append(
        Check("areas: h3 and cKDTree find the same", found == tree.match(world.events) == cells.match(world.events))
    )
    moves = [world.walked() for _ in range(2)]
    buckets = _Buckets(world.devices)
    jobs = [
        Job("proximity index", sizes.devices, lambda: _taken(index, numbers, moves, times)),
        Job("cKDTree", sizes.devices, lambda: _Tree(_taken_from(moves))),
        Job("h3", sizes.devices, lambda: buckets.move(_taken_from(moves))),
    ]
    title = f"{sizes.devices:,} devices: a move, in a batch of all"
    report.comparisons.append(
        Comparison(title=title, item="move", timings=measure(jobs, repetitions=sizes.repetitions))
    )
    took = core_us(lambda: _taken(index, numbers, moves, times), sizes.devices)
    report.figures.append(Figure(f"{title}: core time", took, "µs/move"))


def _near(report: Report, world: _World, sizes: _Sizes) -> None:
    """Who hears a publication for an area, of devices that say ``near=200`` and no more; by the matcher."""
    matcher = Matcher()
    for number in range(sizes.devices):
        matcher.places.join(f"s{number}", f"d{number}")
        matcher.add(str(number), Interest(near=Around(_REACH_M), session=f"s{number}"))
    numbers = np.array([matcher.places.device(f"d{number}") for number in range(sizes.devices)])
    times = np.zeros(sizes.devices, np.int64)
    matcher.places.move_many(numbers, world.devices, times)
    where = Publications.of(world.places, [_REACH_M] * sizes.events, [1] * sizes.events)
    empty: list[dict[str, int]] = [{}] * sizes.events

    def matched() -> tuple[Any, Any]:
        return matcher.match_batch(None, empty, where=where)

    tree, buckets = _Tree(world.devices), _Buckets(world.devices)
    title = f"{sizes.devices:,} of near=200: who hears a publication for 200 m"
    jobs = [
        Job("matcher, in a batch", sizes.events, matched),
        Job("cKDTree", sizes.events, lambda: tree.within(world.events, _REACH_M)),
        Job("h3", sizes.events, lambda: buckets.within(world.events, _REACH_M)),
    ]
    report.comparisons.append(
        Comparison(title=title, item="publication", timings=measure(jobs, repetitions=sizes.repetitions))
    )
    took = core_us(matched, sizes.events)
    one = PublishedAt(world.places[0], _REACH_M, 1)
    alone = core_us(lambda: [matcher.match_parts(None, {}, where=one) for _ in range(200)], 200)
    rows, handles = matched()
    report.figures += [
        Figure(f"{title}: core time", took, "µs/publication"),
        Figure(f"{title}: rate on one core", 1e6 / took, "publications/s"),
        Figure(f"{title}: one at a time", alone, "µs/publication"),
        Figure(f"{title}: hits", rows.size / sizes.events, ""),
        Figure(f"{title}: memory, names aside", matcher.places.size_bytes / sizes.devices, "bytes/device"),
    ]
    places = [Place(*at) for at in world.devices.tolist()]
    found, wide = (
        [set(handles[rows == row].tolist()) for row in range(20)],
        tree.within(world.events[:20], 1.01 * _REACH_M),
    )
    want = [{n for n in wide[row] if distance_m(places[n], world.places[row]) <= _REACH_M} for row in range(20)]
    report.checks.append(Check("near: as distance_m has it", found == want))
    theirs = sum(map(len, tree.within(world.events, _REACH_M)))
    h3_theirs = sum(map(len, buckets.within(world.events, _REACH_M)))
    report.checks.append(
        Check(
            "near: h3 and cKDTree find as many, but on the rim",
            abs(theirs - rows.size) + abs(h3_theirs - rows.size) <= 4,
        )
    )


def _taken_from(moves: list[Any]) -> Any:
    """Return the next of two walks, in turns: each begins where the other ended."""
    moves.reverse()
    return moves[0]


def _taken(index: ProximityIndex, numbers: Any, moves: list[Any], times: Any) -> None:
    index.move_many(numbers, _taken_from(moves), times)


class _Tree:
    """Devices in a cKDTree, by their points in space."""

    def __init__(self, places: Any) -> None:
        self._tree = cKDTree(earth_points(places[:, 0], places[:, 1]))

    def within(self, places: Any, radius_m: float) -> list[list[int]]:
        """Return the devices near each place."""
        found: list[list[int]] = self._tree.query_ball_point(
            earth_points(places[:, 0], places[:, 1]), radius_m
        ).tolist()
        return found


class _AreasInTree:
    """Areas in a cKDTree, by their centres: what the largest reaches is looked at again."""

    def __init__(self, areas: list[Area]) -> None:
        centres = np.array([[area.centre.latitude, area.centre.longitude] for area in areas])
        self._points = earth_points(centres[:, 0], centres[:, 1])
        self._radii = np.array([area.radius_m for area in areas])
        self._tree = cKDTree(self._points)

    def match(self, places: Any) -> set[tuple[int, int]]:
        """Return publications and the areas that contain them."""
        points = earth_points(places[:, 0], places[:, 1])
        found = set()
        for row, near in enumerate(self._tree.query_ball_point(points, float(self._radii.max()))):
            away = np.sqrt(((self._points[near] - points[row]) ** 2).sum(axis=1))
            found |= {(row, near[at]) for at in np.flatnonzero(away <= self._radii[near]).tolist()}
        return found


class _AreasInCells:
    """Areas under each cell of h3 that they may touch."""

    def __init__(self, areas: list[Area]) -> None:
        edge_m = h3.average_hexagon_edge_length(_RESOLUTION, unit="m")
        self._areas: dict[str, list[int]] = {}
        centres = np.array([[area.centre.latitude, area.centre.longitude] for area in areas])
        self._points = earth_points(centres[:, 0], centres[:, 1])
        self._radii = [area.radius_m for area in areas]
        for number, area in enumerate(areas):
            middle = h3.latlng_to_cell(area.centre.latitude, area.centre.longitude, _RESOLUTION)
            for cell in h3.grid_disk(middle, math.ceil((area.radius_m + edge_m) / (1.3 * edge_m)) + 1):
                self._areas.setdefault(cell, []).append(number)

    def match(self, places: Any) -> set[tuple[int, int]]:
        """Return publications and the areas that contain them."""
        points = earth_points(places[:, 0], places[:, 1])
        found = set()
        for row, (latitude, longitude) in enumerate(places.tolist()):
            near = self._areas.get(h3.latlng_to_cell(latitude, longitude, _RESOLUTION), [])
            away = np.sqrt(((self._points[near] - points[row]) ** 2).sum(axis=1)).tolist()
            found |= {(row, n) for n, metres in zip(near, away, strict=True) if metres <= self._radii[n]}
        return found


class _Buckets:
    """Devices under their cells of h3."""

    def __init__(self, places: Any) -> None:
        self._cells: list[str] = [""] * len(places)
        self._devices: dict[str, set[int]] = {}
        self._points: Any = None
        self.move(places)

    def move(self, places: Any) -> None:
        """Let all devices be where they are now."""
        self._points = earth_points(places[:, 0], places[:, 1])
        for number, (latitude, longitude) in enumerate(places.tolist()):
            cell = h3.latlng_to_cell(latitude, longitude, _RESOLUTION)
            if cell != self._cells[number]:
                self._devices.get(self._cells[number], set()).discard(number)
                self._devices.setdefault(cell, set()).add(number)
                self._cells[number] = cell

    def within(self, places: Any, radius_m: float) -> list[list[int]]:
        """Return the devices near each place."""
        edge_m = h3.average_hexagon_edge_length(_RESOLUTION, unit="m")
        rings = math.ceil((radius_m + edge_m) / (1.3 * edge_m)) + 1
        points, found = earth_points(places[:, 0], places[:, 1]), []
        for row, (latitude, longitude) in enumerate(places.tolist()):
            cells = h3.grid_disk(h3.latlng_to_cell(latitude, longitude, _RESOLUTION), rings)
            near = [number for cell in cells for number in self._devices.get(cell, ())]
            away = ((self._points[near] - points[row]) ** 2).sum(axis=1)
            found.append([near[at] for at in np.flatnonzero(away <= radius_m**2).tolist()])
        return found
