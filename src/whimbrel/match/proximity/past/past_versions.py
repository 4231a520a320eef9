"""Matching of the past: which versions of subscriptions each publication of a log reached.

A *version* is a subscription from one change to the next. Versions with the same subject filter, content filter and
keys share one *filter combination* (``wish`` in the code). A matcher finds the combinations that a publication matches;
this module then decides, by place, which of their versions it reached. Candidates come from the smaller of two sources:
all versions of the combinations, or the versions that a search by place finds (``hear_then``). A *near* is the place
condition of a subscription.

| the version has | it is found by |
|---|---|
| no near | its combination; if there are many and the publication has an area, the sessions in the area |
| a near of up to 50 km | its combination; if there are many, the circles around the place and the devices near it |
| a larger near | its combination |
| ``near=any`` | its combination, whatever the area is |

Rule: the result does not depend on how a version is found; a differential test varies ``PastBounds``.
Rule: the caller decides which versions were in force; the result may include other versions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from whimbrel.match.proximity.grid import LEVELS, Grid, levels_of
from whimbrel.match.proximity.ground import DOUBT, INSIDE, ball_m, earth_points, polygon_ball
from whimbrel.match.proximity.index import Publications
from whimbrel.match.proximity.kernels import FOUND
from whimbrel.match.proximity.past.track_kernels import (
    BEGUN,
    ENDED,
    ENTRIES,
    ENTRY,
    ENTRY_CLASS,
    ENTRY_HANDLE,
    ENTRY_START,
    ENTRY_WISH,
    REACHES,
    VERSION_WISH,
    WISHED,
    hear_then,
    sieve_then,
)
from whimbrel.match.proximity.past.tracks import Tracks
from whimbrel.match.proximity.tables import (
    ANY,
    AROUND,
    CIRCLE,
    CORNER_RADIX,
    CORNERS,
    KIND,
    PLAIN,
    POLYGON,
    SESSION,
    STALE,
    STAMP,
    Tables,
)
from whimbrel.match.proximity.words import address
from whimbrel.model.near import Around, Near
from whimbrel.model.place import Area, Place
from whimbrel.model.proximity import hears

__all__ = ["PastBounds", "PastVersions", "PlaceColumns"]

_NO_CLASS = -1
_OF_THE_PLAIN = LEVELS
"""Class of versions without a near; each lower class has the versions with ``near=R`` for one range of radii."""


class PastBounds(NamedTuple):
    """Limits that decide how a version of a subscription is found."""

    narrow_m: float = 50_000.0
    """Largest radius of a near, in metres, for which a version may be found by place."""
    few: int = 64
    """Most versions of a publication's filter combinations that are checked one by one; if more, place is searched."""
    window: int = 32_768
    """Most place reports between the first and the last publication that are searched together."""


class PlaceColumns(NamedTuple):
    """The place conditions (near) of versions of subscriptions, one column per field."""

    kind: Any
    """Kind of each version's near: ``tables.PLAIN`` (none), ``CIRCLE`` and so on."""
    stale_us: Any
    circle: Any
    """Rows of latitude, longitude and radius; a near around the session has only the radius."""
    corner_start: Any
    """Index of the first corner of each version, and at the end the number of corners."""
    corners: Any
    """Rows of longitude, which may lie beyond 180 degrees, and latitude."""

    @property
    def is_plain(self) -> bool:
        """Whether no version has a near (place condition)."""
        return bool((self.kind == PLAIN).all())


class PastVersions:
    """Versions of subscriptions, numbered from 0, and the search for those that publications reached.

    ``wishes`` has the filter combination of each version. A version was in force after the seq *begun* and before the
    seq *ended*.
    """

    def __init__(
        self,
        columns: PlaceColumns,
        *,
        wishes: Any,
        wish_count: int,
        begun: Any,
        ended: Any,
        bounds: PastBounds | None = None,
    ) -> None:
        self._bounds = PastBounds() if bounds is None else bounds
        self._kind = np.ascontiguousarray(columns.kind, np.int64)
        self._columns = columns
        reach = self._reaches()
        is_near = np.isin(self._kind, (CIRCLE, POLYGON, AROUND))
        is_narrow = is_near & (reach <= self._bounds.narrow_m)
        kinds = ((self._kind == PLAIN), (self._kind == ANY), is_narrow, is_near & ~is_narrow)
        self._plain, self._any, self._narrow, self._wide = (_Lists(wishes, mask, wish_count) for mask in kinds)
        self._is_all_plain = bool(kinds[0].all())
        self._followed: tuple[Any, Tracks] | None = None
        self._arrays = [np.ascontiguousarray(array, np.int64) for array in (begun, ended, wishes)]
        self._narrow_of = is_narrow
        self._reach_m = reach
        self._is_ready = False
        self._stamp = 0
        self._found, self._met = np.empty((1_024, FOUND), np.int64), np.empty(2_048, np.int64)
        self._wish_count = wish_count

    def _reaches(self) -> Any:
        """Return the radius of each version's near (place condition), in metres; 0 if it has none."""
        reach = np.where(np.isin(self._kind, (CIRCLE, AROUND)), self._columns.circle[:, 2], 0.0)
        for handle in np.flatnonzero(self._kind == POLYGON).tolist():
            reach[handle] = polygon_ball(self._corners(handle))[2]
        return reach

    def _corners(self, handle: int) -> Any:
        return self._columns.corners[slice(*self._columns.corner_start[handle : handle + 2].tolist())]

    # -- tables for the kernels --------------------------------------------------------------------------------------

    def _make_ready(self) -> None:
        """Build the tables and the grid of circles and polygons, at the first publication with a place."""
        if self._is_ready:
            return
        self._is_ready = True
        count = self._kind.size
        t = self._tables = Tables()
        t.room_for_handle(max(count, 1))
        t.wanted[:count] = -1
        t.wanted[:count, KIND], t.wanted[:count, STALE] = self._kind, self._columns.stale_us
        t.wanted[:, STAMP] = -1
        circle = self._columns.circle
        t.spots[:count, :3] = np.where(np.isnan(circle), 0.0, circle)
        t.spots[:count, 3:6] = earth_points(*np.ascontiguousarray(t.spots[:count, :2].T))
        t.room_for_corners(max(1, self._columns.corners.shape[0]))
        t.corners[: self._columns.corners.shape[0]] = self._columns.corners
        for handle in np.flatnonzero(self._kind == POLYGON).tolist():
            first, end = self._columns.corner_start[handle : handle + 2].tolist()
            t.wanted[handle, CORNERS] = first * CORNER_RADIX + end - first
            latitude, longitude, radius_m = polygon_ball(self._corners(handle))
            t.spots[handle, :3] = latitude, longitude, radius_m
            t.spots[handle, 3:6] = earth_points(np.array([latitude]), np.array([longitude]))[0]
        areas = np.flatnonzero(self._narrow_of & (self._kind != AROUND))
        self._areas = Grid(room=areas.size)
        radii = np.where(self._kind[areas] == CIRCLE, ball_m(t.spots[areas, 2]), t.spots[areas, 2])
        self._areas.put_many(areas, levels_of(radii), t.spots[areas, 3:6], radii)
        around = self._narrow_of & (self._kind == AROUND)
        level = levels_of(self._reach_m)
        self._class = np.where(around, level, np.where(self._kind == PLAIN, _OF_THE_PLAIN, _NO_CLASS)).astype(np.int64)
        reaches = np.zeros(LEVELS + 1, np.float64)
        np.maximum.at(reaches, level[around], ball_m(self._reach_m[around]))
        self._of_levels = reaches
        self._wished = np.full(self._wish_count + 1, -1, np.int64)

    def _follow(self, numbers: Any, tracks: Tracks) -> None:
        """Prepare to use *tracks*; *numbers* has the number of each version's session, which *tracks* may not know."""
        if self._followed is not None and self._followed[0] is numbers and self._followed[1] is tracks:
            return
        self._followed = (numbers, tracks)
        sessions = np.where(numbers < tracks.sessions, numbers, -1).astype(np.int64)
        self._tables.wanted[: self._kind.size, SESSION] = sessions
        begun, ended, wishes = self._arrays
        found = np.flatnonzero((self._class != _NO_CLASS) & (sessions >= 0))
        found = found[np.argsort(sessions[found], kind="stable")]
        starts = np.searchsorted(sessions[found], np.arange(tracks.sessions + 1))
        of_start, of_session = tracks.arrays.of_start, tracks.arrays.of_session
        counts = np.diff(starts)[of_session]
        ends = np.cumsum(counts)
        places = np.arange(ends[-1] if ends.size else 0) + np.repeat(starts[of_session] - (ends - counts), counts)
        handles = found[places]
        entries = np.empty((handles.size, ENTRY), np.int64)
        entries[:, ENTRY_HANDLE], entries[:, ENTRY_CLASS] = handles, self._class[handles]
        entries[:, ENTRY_WISH] = wishes[handles]
        self._entries = (np.concatenate([[0], ends]).astype(np.int64)[of_start], entries)
        self._desk_words = np.zeros(REACHES + 1, np.int64)
        placed: dict[int, Any] = {BEGUN: begun, ENDED: ended, VERSION_WISH: wishes, WISHED: self._wished}
        placed |= {ENTRY_START: self._entries[0], ENTRIES: entries, REACHES: self._of_levels}
        for place, array in placed.items():
            self._desk_words[place] = address(array)

    # -- matching ----------------------------------------------------------------------------------------------------

    def find_reached(
        self, rows: Any, wishes: Any, where: Publications | None, seqs: Any, numbers: Any, tracks: Tracks
    ) -> tuple[Any, Any]:
        """Return the pairs of publication (row) and version that it reached, in ascending order of rows.

        *rows* (ascending) and ``wishes`` are pairs of a publication and a filter combination (subject filter, content
        filter and keys) that it matches. *where* has the place, area and time of each publication, or is None if no
        publication has a place. *numbers* has the number of each version's session in *tracks*.
        """
        has_area = None if where is None else ~np.isnan(where.spots[:, 5])
        if self._is_all_plain and (has_area is None or not has_area.any()):
            return self._plain.expand(rows, wishes)
        if where is None or has_area is None:
            parts = [self._plain.expand(rows, wishes), self._any.expand(rows, wishes)]
            return _in_order(parts)
        self._make_ready()
        self._follow(numbers, tracks)
        is_for_area = has_area[rows]
        parts = [self._plain.expand(rows[~is_for_area], wishes[~is_for_area]), self._any.expand(rows, wishes)]
        has_place = ~np.isnan(where.spots[:, 0])
        count = where.times.size
        plain, narrow = (each.totals(rows, wishes, count) for each in (self._plain, self._narrow))
        seeks_plain, seeks_near = has_area & (plain > self._bounds.few), has_place & (narrow > self._bounds.few)
        asked = [self._wide.expand(*_where(has_place[rows], rows, wishes))]
        asked.append(self._plain.expand(*_where((has_area & ~seeks_plain)[rows], rows, wishes)))
        asked.append(self._narrow.expand(*_where((has_place & ~seeks_near)[rows], rows, wishes)))
        parts.append(self._sieve(*_in_order(asked), where, seqs, tracks))
        seeks = seeks_plain | seeks_near
        if seeks.any():
            reaches = np.where(seeks_plain, ball_m(where.spots[:, 5]), 0.0)
            parts.append(self._sought(rows, wishes, where, seqs, tracks, (seeks, seeks_near, reaches)))
        return _in_order(parts)

    def _sieve(self, rows: Any, handles: Any, where: Publications, seqs: Any, tracks: Tracks) -> tuple[Any, Any]:
        """Return the pairs of *rows* (publications) and *handles* (versions) whose version was in force and reached."""
        begun, ended, _ = self._arrays
        in_force = (begun[handles] < seqs[rows]) & (seqs[rows] < ended[handles])
        rows, handles = (np.ascontiguousarray(each[in_force], np.int64) for each in (rows, handles))
        verdicts = np.empty(rows.size, np.int64)
        given = [address(array) for array in (where.spots, where.times, seqs)]
        pairs = [address(array) for array in (rows, handles, verdicts)]
        arguments: Any = (self._tables.desk, tracks.desk, *given, rows.size, *pairs)
        sieve_then(*arguments)
        for at in np.flatnonzero(verdicts == DOUBT).tolist():
            verdicts[at] = self._hears(int(rows[at]), int(handles[at]), where, seqs, tracks)
        return rows[verdicts == INSIDE], handles[verdicts == INSIDE]

    def _sought(
        self, rows: Any, wishes: Any, where: Publications, seqs: Any, tracks: Tracks, sought: tuple[Any, Any, Any]
    ) -> tuple[Any, Any]:
        """Return the pairs of publication and version that a search by place finds, window by window (ranges of seqs).

        *sought* has three arrays, by publication: whether to search at all, whether to search versions with a near
        (place condition), and the radius of the area in which to search sessions (0: not at all).
        """
        seeks, seeks_near, reaches = sought
        asked = np.flatnonzero(seeks)
        asked = asked[np.argsort(seqs[asked], kind="stable")]
        parts = []
        for begin, end in tracks.windows(seqs[asked], self._bounds.window):
            some = asked[begin:end]
            tracks.look_at(int(seqs[some[0]]), int(seqs[some[-1]]))
            given = Publications(np.ascontiguousarray(where.spots[some]), np.ascontiguousarray(where.times[some]))
            more = (np.ascontiguousarray(reaches[some]), seeks_near[some].astype(np.int64))
            starts, chosen = _lists_of(rows, wishes, some)
            own = np.ascontiguousarray(seqs[some])
            found = self._found_in_window(given, own, more, starts, chosen, tracks)
            for at in np.flatnonzero(found[:, 2] == DOUBT).tolist():
                row, handle = found[at, :2].tolist()
                found[at, 2] = self._hears(row, handle, given, own, tracks)
            found = found[found[:, 2] == INSIDE]
            parts.append((some[found[:, 0]], found[:, 1]))
        return _in_order(parts)

    def _found_in_window(
        self, given: Publications, seqs: Any, sought: tuple[Any, Any], starts: Any, wishes: Any, tracks: Tracks
    ) -> Any:
        grids = (self._areas.head, tracks.base_grid.head, tracks.window_grid.head)
        desks = (self._tables.desk, tracks.desk, address(self._desk_words))
        arrays = [address(array) for array in (given.spots, given.times, seqs, *sought, starts, wishes)]
        begin, end, parts = 0, int(given.times.size), []
        while begin < end:
            stamp, self._stamp = self._stamp + 1, self._stamp + 1 + end
            rooms = (address(self._found), self._found.shape[0], address(self._met), self._met.size // 2)
            arguments: Any = (*desks, *grids, *arrays, begin, end, LEVELS, stamp, *rooms)
            begin, kept, room = hear_then(*arguments)
            parts.append(self._found[:kept].copy())
            if room > min(self._met.size // 2, self._found.shape[0]):
                self._met = np.empty(max(4 * room, self._met.size), np.int64)
                self._found = np.empty((max(2 * room, self._found.shape[0]), FOUND), np.int64)
        return np.concatenate([np.empty((0, FOUND), np.int64), *parts])

    def _hears(self, row: int, handle: int, where: Publications, seqs: Any, tracks: Tracks) -> bool:
        """Return whether publication *row* reached version *handle*, by the reference ``model.proximity.hears``.

        The kernels are never in doubt about polygons, so a polygon need not be restored here.
        """
        wanted, spot = self._tables.wanted[handle], self._tables.spots[handle].tolist()
        latitude, longitude, radius_m = where.spots[row, [0, 1, 5]].tolist()
        place, near = Place(latitude, longitude), None
        if wanted[KIND] == CIRCLE:
            near = Area(Place(spot[0], spot[1]), spot[2])
        around: Near | None = Around(spot[2]) if wanted[KIND] == AROUND else near
        area = None if math.isnan(radius_m) else Area(place, radius_m)
        session, seq, now = int(wanted[SESSION]), int(seqs[row]), int(where.times[row])
        stale_us = int(wanted[STALE])
        places = [] if session < 0 else tracks.places_at(session, seq=seq, now=now, stale_us=stale_us)
        return hears(around, places, place=place, area=area)


class _Lists:
    """Versions of subscriptions that *mask* selects, grouped by filter combination (subject, content and keys)."""

    def __init__(self, wishes: Any, mask: Any, wish_count: int) -> None:
        chosen = np.flatnonzero(mask)
        own = wishes[chosen]
        order = np.argsort(own, kind="stable")
        self._versions = chosen[order].astype(np.int64)
        self._counts = np.bincount(own, minlength=wish_count).astype(np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._counts)]).astype(np.int64)
        self._is_single = bool((self._counts == 1).all())

    def expand(self, rows: Any, wishes: Any) -> tuple[Any, Any]:
        """Return a pair of row and version for each version of each given pair of row and filter combination."""
        if self._is_single:
            return rows.astype(np.int64, copy=False), self._versions[wishes]
        if not self._versions.size:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        counts = self._counts[wishes]
        ends = np.cumsum(counts)
        places = np.arange(ends[-1] if ends.size else 0) + np.repeat(self._starts[wishes] - (ends - counts), counts)
        return np.repeat(rows, counts).astype(np.int64, copy=False), self._versions[places]

    def totals(self, rows: Any, wishes: Any, count: int) -> Any:
        """Return, for each of *count* rows, how many versions its filter combinations have together."""
        return np.bincount(rows, weights=self._counts[wishes], minlength=count)


def _where(mask: Any, *arrays: Any) -> Sequence[Any]:
    return [array[mask] for array in arrays]


def _lists_of(rows: Any, wishes: Any, chosen: Any) -> tuple[Any, Any]:
    """Return where the filter combinations of each *chosen* row begin, and one array of all these combinations."""
    first, last = np.searchsorted(rows, chosen, side="left"), np.searchsorted(rows, chosen, side="right")
    counts = last - first
    ends = np.cumsum(counts)
    places = np.arange(ends[-1]) + np.repeat(first - (ends - counts), counts)
    starts = np.concatenate([[0], ends]).astype(np.int64)
    return starts, np.ascontiguousarray(wishes[places], np.int64)


def _in_order(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Join pairs of row (publication) and version (of a subscription) from several searches; sort them by row."""
    some = [part for part in parts if part[0].size]
    if not some:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if len(some) == 1 and (np.diff(some[0][0]) >= 0).all():
        return some[0]
    rows, handles = (np.concatenate(arrays) for arrays in zip(*some, strict=True))
    order = np.argsort(rows, kind="stable")
    return rows[order], handles[order]
