"""The proximity index: subscriptions by handle, moving devices, and the check of which publications reach whom.

A publication *reaches* a subscription (the subscription *hears* it) if ``model.proximity.hears`` returns True. There
are three searches. ``near`` returns the subscriptions that a publication reaches, of those that are to be found by
place (``is_source``). ``inside`` returns the other subscriptions in the area of a publication. ``sieve`` checks pairs
that were found by subject and content. All three decide by ``kernels.decide`` and, in doubt, by the slower ``hears``.
Rule: the order of calls is the order of the log: a move counts for every later search.
Rule: a subscription without a session ignores areas, because its place is unknown.
Rule: new subscriptions go into the grids at the next search, many at a time.
Rule: only one thread at a time may use the index.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.match.proximity.grid import Grid, levels_of, search
from whimbrel.match.proximity.ground import DOUBT, INSIDE, ball_m, earth_point, earth_points, polygon_ball
from whimbrel.match.proximity.kernels import FOUND, SPOT_OF, match_inside, match_near, move_many, sieve
from whimbrel.match.proximity.rings import Rings
from whimbrel.match.proximity.tables import (
    ANY,
    AROUND,
    CIRCLE,
    CORNER_RADIX,
    CORNERS,
    IS_SOURCE,
    KIND,
    PLAIN,
    POLYGON,
    SESSION,
    STALE,
    UNPLACED,
    Tables,
)
from whimbrel.match.proximity.whereabouts import Whereabouts, checked_places
from whimbrel.match.proximity.words import address
from whimbrel.model.bounds import INT32_MAX, whole
from whimbrel.model.near import DEFAULT_STALE_US, Anywhere, Around, Near
from whimbrel.model.place import Area, Place
from whimbrel.model.polygon import Polygon
from whimbrel.model.proximity import hears

__all__ = ["ProximityIndex", "Publications", "Wanted"]

_MUCH_LEFT = 1_024
"""Number of corners of removed polygons above which the table of corners is compacted."""


class Publications(NamedTuple):
    """Publications: rows of latitude, longitude, x, y, z and radius (NaN: no place, or no area), and their times."""

    spots: Any
    times: Any

    @classmethod
    def of(cls, places: Sequence[Place | None], radii_m: Sequence[float | None], times: Sequence[int]) -> Publications:
        """Return publications at *places* (None: nowhere) for *radii_m* (None: no area), accepted at *times*."""
        spots = np.full((len(places), SPOT_OF), np.nan, np.float64)
        for row, (place, radius_m) in enumerate(zip(places, radii_m, strict=True)):
            if place is not None:
                spots[row, 0], spots[row, 1] = place.latitude, place.longitude
                spots[row, 5] = math.nan if radius_m is None else radius_m
        spots[:, 2:5] = earth_points(spots[:, 0], spots[:, 1])
        return cls(spots, np.array(times, np.int64).reshape(len(places)))

    @classmethod
    def of_one(cls, place: Place | None, radius_m: float | None, time: int) -> Publications:
        """Return one publication, faster than ``of`` does."""
        spots = np.full((1, SPOT_OF), np.nan, np.float64)
        if place is not None:
            point = earth_point(place.latitude, place.longitude)
            spots[0] = (place.latitude, place.longitude, *point, math.nan if radius_m is None else radius_m)
        return cls(spots, np.array([time], np.int64))


class Wanted(NamedTuple):
    """A subscription to add; *shape* has the three numbers of a circle, or the corners of a polygon."""

    kind: int
    shape: Any
    session: str | None
    stale_us: int
    is_source: bool


class ProximityIndex:
    """Subscriptions, places of devices, and members of sessions, with the searches by place."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.where = Whereabouts(self.tables)
        self._rings = Rings(self.tables)
        self._areas, self._points = Grid(), Grid()
        self._new_areas: set[int] = set()
        self._corners_used = self._corners_left = 0
        self._stamp = 0
        self._found, self._met = np.empty((1_024, FOUND), np.int64), np.empty(2_048, np.int64)
        self._rooms = self._buffers()
        self._one = Publications(np.full((1, SPOT_OF), np.nan, np.float64), np.zeros(1, np.int64))
        """Buffer that ``near_one`` overwrites with its publication."""
        self._one_at = address(self._one.spots), address(self._one.times)
        self._count = 0

    def __len__(self) -> int:
        """Return the number of subscriptions that depend on places."""
        return self._count

    # -- subscriptions -----------------------------------------------------------------------------------------------

    def put(
        self,
        handle: int,
        near: Near | None,
        *,
        session: str | None,
        stale_us: int | None = None,
        is_source: bool = False,
    ) -> None:
        """Add a subscription under an unused handle (number); if *is_source*, the search ``near`` finds it.

        ``near=R`` without a session is refused, because there is no device to be near to.
        """
        if session is None and isinstance(near, Around):
            raise InvalidValueError("near", str(near), "a circle or polygon where no session is given")
        if is_source and (near is None or isinstance(near, Anywhere)):
            raise InvalidValueError("near", near, "a circle, polygon or radius where place is to find it")
        kind, shape = _shape(near, session)
        stale = DEFAULT_STALE_US if stale_us is None else stale_us
        self.put_row(handle, Wanted(kind, shape, session, stale, is_source))

    def put_row(self, handle: int, wanted: Wanted) -> None:
        """Add a subscription, as ``put`` does, without a check of its values."""
        t = self.tables
        t.room_for_handle(whole("handle", handle, 0, INT32_MAX))
        if wanted.kind == UNPLACED:
            return
        self._count += 1
        row = t.wanted[handle]
        row[:] = -1
        row[KIND], row[STALE], row[IS_SOURCE] = wanted.kind, wanted.stale_us, wanted.is_source
        t.spots[handle] = 0.0
        if wanted.kind == POLYGON:
            self._put_corners(handle, wanted.shape)
        elif wanted.shape is not None:
            _write_spot(t.spots[handle], *wanted.shape)
        if wanted.session is not None:
            self.where.push_handle(self.where.session(wanted.session), handle)
        if wanted.is_source and wanted.kind == AROUND:
            session, radius_m = int(t.wanted[handle, SESSION]), float(t.spots[handle, 2])
            members = self.where.members(session)
            for device in members:
                self._rings.carry(device, radius_m, handle if len(members) == 1 else -1)
        elif wanted.is_source:
            self._new_areas.add(handle)

    def remove(self, handle: int) -> None:
        """Remove a subscription, if present."""
        t = self.tables
        if handle >= t.wanted.shape[0] or t.wanted[handle, KIND] == UNPLACED:
            return
        kind, is_source = int(t.wanted[handle, KIND]), t.wanted[handle, IS_SOURCE] == 1
        session = self.where.take_handle(handle)
        if is_source and kind == AROUND:
            for device in self.where.members(session):
                self._rings.drop(device, float(t.spots[handle, 2]))
        elif is_source:
            self._new_areas.discard(handle)
            self._areas.drop_many(np.array([handle], np.int64))
        if kind == POLYGON:
            self._corners_left += int(t.wanted[handle, CORNERS]) % CORNER_RADIX
        t.wanted[handle, KIND] = UNPLACED
        self._count -= 1
        if session >= 0:
            self.where.let_go_of_session(session)

    def _put_corners(self, handle: int, flat: Any) -> None:
        if self._corners_left > _MUCH_LEFT and 2 * self._corners_left > self._corners_used:
            self._pack_corners(handle)
        t, first, count = self.tables, self._corners_used, len(flat)
        t.room_for_corners(first + count)
        t.corners[first : first + count] = flat
        self._corners_used += count
        t.wanted[handle, CORNERS] = first * CORNER_RADIX + count
        _write_spot(t.spots[handle], *polygon_ball(t.corners[first : first + count]))

    def _pack_corners(self, newest: int) -> None:
        """Rewrite the table of corners without those of removed polygons.

        The polygon *newest* has no corners in it yet.
        """
        t = self.tables
        packed, used = np.zeros_like(t.corners), 0
        for handle in np.flatnonzero(t.wanted[:, KIND] == POLYGON).tolist():
            if handle != newest:
                first, count = divmod(int(t.wanted[handle, CORNERS]), CORNER_RADIX)
                packed[used : used + count] = t.corners[first : first + count]
                t.wanted[handle, CORNERS] = used * CORNER_RADIX + count
                used += count
        t.corners[:] = packed
        self._corners_used, self._corners_left = used, 0

    # -- devices and sessions ----------------------------------------------------------------------------------------

    def join(self, session: str, device: str) -> None:
        """Make a device a member of a session."""
        whose, number = self.where.session(session), self.where.device(device)
        if self.where.link(whose, number):
            other = self.where.member_before(whose)
            for handle, radius_m in self._around(whose):
                self._rings.carry(number, radius_m, handle if other < 0 else -1)
            if other >= 0:
                self._rings.share(other)

    def leave(self, session: str, device: str) -> None:
        """Remove a device from a session."""
        whose, number = self.where.session_numbers.get(session), self.where.device_numbers.get(device)
        if whose is not None and number is not None and self.where.unlink(whose, number):
            for _, radius_m in self._around(whose):
                self._rings.drop(number, radius_m)
            self.where.let_go_of_session(whose)
            self.where.let_go_of_device(number)

    def _around(self, session: int) -> Iterable[tuple[int, float]]:
        """Yield handle and radius of each subscription of a session with ``near=R`` that the rings (circles) find."""
        for handle in self.where.handles_of(session):
            if self.tables.wanted[handle, KIND] == AROUND and self.tables.wanted[handle, IS_SOURCE] == 1:
                yield handle, float(self.tables.spots[handle, 2])

    def device(self, name: str) -> int:
        """Return the device's number for ``move_many``; the number is valid until the device is forgotten."""
        return self.where.device(name)

    def move(self, device: str, place: Place, at: int) -> None:
        """Set the place of a device, as reported at the time *at*."""
        places = np.array([[place.latitude, place.longitude]])
        self._move(np.array([self.where.device(device)], np.int64), places, np.array([at], np.int64))

    def move_many(self, devices: Any, places: Any, at: Any) -> None:
        """Set the places (latitude and longitude) of devices, given by number, as reported at *at*; in this order.

        If any place is not on Earth, the call is refused before anything moves.
        """
        numbers, times = np.ascontiguousarray(devices, np.int64), np.ascontiguousarray(at, np.int64)
        found = checked_places(places)
        if not numbers.size == times.size == found.shape[0]:
            raise InvalidValueError("places", found.shape[0], f"{numbers.size}, one for each device, and as many times")
        known = len(self.where.device_numbers)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < known:
            raise InvalidValueError(
                "devices", Phrase(f"{numbers.min()} to {numbers.max()}"), f"numbers from 0 to {known - 1}"
            )
        self._move(numbers, found, times)

    def _move(self, devices: Any, places: Any, times: Any) -> None:
        self._rings.settle()
        self._points.make_room(len(self.where.device_numbers))
        where = (address(devices), address(places), address(times))
        done, full = 0, -1
        while full:
            heads = (self.tables.desk, self._points.head, self._rings.grid.head)
            done, full = move_many(*heads, devices.size, *where, done)
            if full:
                (self._points if full == 1 else self._rings.grid).rebuild()

    def forget(self, device: str) -> None:
        """Remove the place of a device."""
        number = self.where.device_numbers.get(device)
        if number is not None:
            self.tables.devices[number] = math.nan
            self._points.drop_many(np.array([number], np.int64))
            self._rings.forget(number)
            self.where.let_go_of_device(number)

    def _settle(self) -> None:
        """Insert the subscriptions added since the last search into the grids."""
        self._rings.settle()
        if self._new_areas:
            t, handles = self.tables, np.fromiter(sorted(self._new_areas), np.int64)
            self._new_areas.clear()
            radii = t.spots[handles, 2]
            radii = np.where(t.wanted[handles, KIND] == CIRCLE, ball_m(radii), radii)
            self._areas.put_many(handles, levels_of(radii), t.spots[handles, 3:6], radii)

    def rebuild(self) -> None:
        """Rebuild the grids without empty cubes; worth its cost after many devices came or went."""
        self._settle()
        for grid in (self._areas, self._points, self._rings.grid):
            grid.rebuild()

    @property
    def size_bytes(self) -> int:
        """Memory of the grids and the tables without the names, in bytes."""
        grids = (self._areas, self._points, self._rings.grid)
        return self.tables.size_bytes + sum(each.size_bytes for each in grids)

    # -- questions ---------------------------------------------------------------------------------------------------

    def near(self, events: Publications) -> tuple[Any, Any]:
        """Search by place: return pairs of a publication's row and the handle of a subscription that it reaches.

        Only subscriptions added with ``is_source`` are searched. Rows ascend.
        """
        self._settle()
        spots, times = address(events.spots), address(events.times)
        begin, end, parts = 0, int(events.times.size), []
        while begin < end:
            stamp, self._stamp = self._stamp + 1, self._stamp + 1 + end
            grids = (self._areas.head, self._rings.grid.head)
            begin, kept, room, _ = match_near(self.tables.desk, *grids, spots, times, begin, end, stamp, *self._rooms)
            parts.append(self._found[:kept].copy())
            self._widen(room)
        found = parts[0] if len(parts) == 1 else np.concatenate([np.empty((0, FOUND), np.int64), *parts])
        return self._certain(events, found)

    def near_one(self, place: Place, radius_m: float | None, time: int) -> Any:
        """Return the handles that ``near`` returns for one publication; the array is valid until the next call."""
        self._settle()
        latitude, longitude = place.latitude, place.longitude
        radius = math.nan if radius_m is None else radius_m
        self._one.spots[0] = (latitude, longitude, *earth_point(latitude, longitude), radius)
        self._one.times[0] = time
        desk, areas, rings = self.tables.desk, self._areas.head, self._rings.grid.head
        begin = 0
        while True:
            self._stamp += 1
            begin, kept, room, doubts = match_near(desk, areas, rings, *self._one_at, 0, 1, self._stamp, *self._rooms)
            if begin:
                break
            self._widen(room)
        if doubts:
            return self._certain(self._one, self._found[:kept])[1]
        return self._found[:kept, 1]

    def inside(self, events: Publications, row: int) -> Any:
        """Return the subscriptions added without ``is_source`` whose session is in the area of publication *row*.

        Subscriptions that areas do not restrict (``near=any``, or without a session) are not included.
        """
        self._settle()
        reach, time = ball_m(float(events.spots[row, 5])), int(events.times[row])
        spot, is_narrow, n = address(events.spots) + 8 * SPOT_OF * row, True, 0
        while is_narrow:
            self._stamp += 1
            n, room = match_inside(self.tables.desk, self._points.head, spot, time, reach, self._stamp, *self._rooms)
            is_narrow = self._widen(room)
        found = self._found[:n].copy()
        found[:, 0] = row
        return self._certain(events, found)[1]

    def devices_within(self, area: Area) -> list[str]:
        """Return the devices in an area, whatever the age of their reports, and some devices just outside of it."""
        self._points.make_room(len(self.where.device_numbers))
        ball = (*earth_point(area.centre.latitude, area.centre.longitude), ball_m(area.radius_m))
        is_narrow, count = True, 0
        while is_narrow:
            asked: Any = (self._points.head, *ball, *self._rooms[2:])
            count = search(*asked)
            is_narrow = self._widen(count)
        names = self.where.device_numbers
        return [names.name(number) for number in self._met[:count].tolist()]

    def sieve(self, events: Publications, rows: Any, handles: Any) -> Any:
        """Return for each pair of publication and subscription whether the publication reaches the subscription."""
        rows, handles = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(handles, np.int64)
        if handles.size:
            self.tables.room_for_handle(int(handles.max()))
        verdicts = np.empty(rows.size, np.int64)
        arrays = map(address, (rows, handles, verdicts))
        sieve(self.tables.desk, address(events.spots), address(events.times), rows.size, *arrays)
        for at in np.flatnonzero(verdicts == DOUBT).tolist():
            verdicts[at] = self._hears(events, int(rows[at]), int(handles[at]))
        return verdicts == INSIDE

    def _widen(self, room: int) -> bool:
        """Enlarge the buffers of the searches if they hold fewer than *room* results; return whether they did."""
        if room <= min(self._met.size // 2, self._found.shape[0]):
            return False
        self._met = np.empty(max(4 * room, self._met.size), np.int64)
        self._found = np.empty((max(2 * room, self._found.shape[0]), FOUND), np.int64)
        self._rooms = self._buffers()
        return True

    def _buffers(self) -> tuple[int, int, int, int]:
        """Return address and size of the buffer for results, then address and size of the buffer for candidates."""
        return address(self._found), self._found.shape[0], address(self._met), self._met.size // 2

    def _certain(self, events: Publications, found: Any) -> tuple[Any, Any]:
        """Return rows and handles of the results in *found*.

        ``model.proximity.hears`` decides those that are in doubt.
        """
        doubts = np.flatnonzero(found[:, 2] == DOUBT).tolist()
        if doubts:
            stays = np.ones(found.shape[0], np.bool_)
            for at in doubts:
                stays[at] = self._hears(events, int(found[at, 0]), int(found[at, 1]))
            found = found[stays]
        return found[:, 0], found[:, 1]

    def _hears(self, events: Publications, row: int, handle: int) -> bool:
        """Return whether publication *row* reaches subscription *handle*, by the reference ``model.proximity.hears``.

        The kernels are never in doubt about polygons, so a polygon need not be restored here.
        """
        wanted, spot = self.tables.wanted[handle], self.tables.spots[handle]
        session, now = int(wanted[SESSION]), int(events.times[row])
        latitude, longitude, radius_m = events.spots[row, [0, 1, 5]].tolist()
        place = Place(latitude, longitude)
        near: Near | None = None
        if wanted[KIND] == CIRCLE:
            near = Area(Place(float(spot[0]), float(spot[1])), float(spot[2]))
        elif wanted[KIND] == AROUND:
            near = Around(float(spot[2]))
        area = None if math.isnan(radius_m) or session < 0 else Area(place, radius_m)
        places = [] if session < 0 else self.where.places_at(session, now=now, stale_us=int(wanted[STALE]))
        return hears(near, places, place=place, area=area)


def _shape(near: Near | None, session: str | None) -> tuple[int, Any]:
    """Return the kind of a subscription (see ``tables``), and the numbers of its circle or corners of its polygon."""
    if isinstance(near, Area):
        return CIRCLE, (near.centre.latitude, near.centre.longitude, near.radius_m)
    if isinstance(near, Polygon):
        return POLYGON, near.flat
    if isinstance(near, Around):
        return AROUND, (0.0, 0.0, near.radius_m)
    if isinstance(near, Anywhere):
        return ANY, None
    return (UNPLACED if session is None else PLAIN), None


def _write_spot(spot: Any, latitude: float, longitude: float, radius_m: float) -> None:
    spot[:] = (latitude, longitude, radius_m, *earth_point(latitude, longitude))
