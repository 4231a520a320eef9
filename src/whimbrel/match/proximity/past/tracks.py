"""Tracks: where devices were, and of which sessions they were members, over a span of a node's log.

Rule: order is by ``seq``. For a publication, a device is at the last place that it reported with a lower seq. It is a
member of a session from the seq at which it joined to the seq at which it left, or at which the session was deleted.
Rule: sightings (reported places) are sorted by device and seq, so that a kernel finds the last one before a publication
by bisection. A device without a sighting in the span is where it was before the span (``base``).
Rule: the grids only find candidates for the publications of a window, a range of seqs. The grid of ``base`` holds each
device once, where it was at the beginning of the window; the other grid holds all places reported within the window. So
any place that counts for a publication is in one of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.match.proximity.grid import POINT_LEVEL, Grid
from whimbrel.match.proximity.tables import PLACE
from whimbrel.match.proximity.words import address
from whimbrel.model.place import Place
from whimbrel.model.proximity import Sighting, places_at

__all__ = ["BASE_AT", "BASE_SPOT", "LINK_DEVICE", "LINK_FROM", "LINK_START", "LINK_TO", "OF_SESSION", "OF_START"]
__all__ += ["SIGHT_AT", "SIGHT_SEQ", "SIGHT_SPOT", "SIGHT_START", "WINDOW_DEVICE", "Base", "TrackArrays", "Tracks"]

# Positions in the table of addresses (``desk``) through which kernels find the arrays of a span.
LINK_START, LINK_DEVICE, LINK_FROM, LINK_TO, OF_START, OF_SESSION = range(6)
SIGHT_START, SIGHT_SEQ, SIGHT_AT, SIGHT_SPOT, BASE_AT, BASE_SPOT, WINDOW_DEVICE = range(6, 13)


class TrackArrays(NamedTuple):
    """Places and memberships over a span of a log, as flat arrays of 64-bit words; a link is one membership."""

    link_start: Any
    """Per session: index of its first membership in the arrays ``link_…``."""
    link_device: Any
    link_from: Any
    """Per member: seq of joining; it counts for publications with a higher seq."""
    link_to: Any
    """Per member: seq of leaving; it counts for publications with a lower seq."""
    of_start: Any
    """Per device: index of its first session in ``of_session``."""
    of_session: Any
    sight_start: Any
    """Per device: index of its first sighting (reported place) in the arrays ``sight_…``."""
    sight_seq: Any
    sight_at: Any
    sight_spot: Any
    """Latitude, longitude, x, y and z of each sighting."""
    order: Any
    """Indexes of the sightings in the order of their seqs."""

    def check(self) -> TrackArrays:
        """Return the arrays.

        Raise ``InvalidValueError`` for a wrong size or index, because the kernels check no bounds.
        """
        devices, sessions = self.of_start.size - 1, self.link_start.size - 1
        sights, links = self.sight_seq.size, self.link_device.size
        sizes = (self.link_from.size, self.link_to.size, self.sight_start.size - 1, self.sight_at.size, self.order.size)
        if sizes != (links, links, devices, sights, sights) or self.sight_spot.size != PLACE * sights:
            raise InvalidValueError("tracks", Phrase(f"arrays of {sizes}"), "arrays that are as long as each other")
        for start, count in (
            (self.link_start, links),
            (self.of_start, self.of_session.size),
            (self.sight_start, sights),
        ):
            if not (start.size and start[0] == 0 and start[-1] == count and (np.diff(start) >= 0).all()):
                raise InvalidValueError("tracks", Phrase("starts out of order"), f"ascending, from 0 to {count}")
        bounds = ((self.link_device, devices), (self.of_session, sessions), (self.order, sights))
        for numbers, below in bounds:
            if numbers.size and not 0 <= numbers.min() <= numbers.max() < below:
                raise InvalidValueError("tracks", Phrase(f"a number up to {numbers.max()}"), f"0 to {below - 1}")
        return self


class Base:
    """Places of devices before a span (range of seqs), by device number.

    *grid* has the devices where they were at the beginning of the window that is being searched, a part of the span.
    """

    def __init__(self, devices: int = 64) -> None:
        self.seq, self.at = np.full(devices, -1, np.int64), np.zeros(devices, np.int64)
        self.spot = np.full((devices, PLACE), np.nan, np.float64)
        self.grid = Grid(room=devices)

    def make_room(self, devices: int) -> None:
        """Grow the tables for device numbers below *devices*."""
        more = devices - self.seq.size
        if more > 0:
            more = max(more, self.seq.size)
            self.seq = np.concatenate([self.seq, np.full(more, -1, np.int64)])
            self.at = np.concatenate([self.at, np.zeros(more, np.int64)])
            self.spot = np.concatenate([self.spot, np.full((more, PLACE), np.nan, np.float64)])

    def move(self, devices: Any, spots: Any) -> None:
        """Move devices in the grid to *spots* (rows of latitude, longitude, x, y, z); each device may occur once."""
        self.grid.put_many(
            devices, np.full(devices.size, POINT_LEVEL, np.int64), spots[:, 2:5], np.zeros(devices.size, np.float64)
        )


class Tracks:
    """Places and memberships over a span (range of seqs) of one node's log; *base* has the places before the span.

    Without *base*, the span is the whole log.
    """

    def __init__(self, arrays: TrackArrays, base: Base | None = None) -> None:
        self.arrays = arrays
        self.devices, self.sessions = arrays.of_start.size - 1, arrays.link_start.size - 1
        self._base = Base(self.devices) if base is None else base
        self._base.make_room(self.devices)
        self._is_whole = base is None
        self._device = np.repeat(np.arange(self.devices), np.diff(arrays.sight_start))
        self._spots = arrays.sight_spot.reshape(-1, PLACE)
        self._seqs = arrays.sight_seq[arrays.order]
        self._rolled = 0
        """Number of sightings (reported places), in the order of seqs, that the base grid (``base_grid``) includes."""
        self._window: tuple[int, int] | None = None
        self.window_grid = Grid()
        self._window_device = np.zeros(1, np.int64)
        self._addresses = np.zeros(WINDOW_DEVICE + 1, np.int64)
        self._kept = [arrays.link_start, arrays.link_device, arrays.link_from, arrays.link_to]
        self._kept += [arrays.of_start, arrays.of_session, arrays.sight_start, arrays.sight_seq, arrays.sight_at]
        self._kept += [arrays.sight_spot, self._base.at, self._base.spot]
        self._addresses[:WINDOW_DEVICE] = [address(array) for array in self._kept]
        self._addresses[WINDOW_DEVICE] = address(self._window_device)
        self.desk = address(self._addresses)

    @property
    def base_grid(self) -> Grid:
        """The grid of the places that devices had at the beginning of the window (see ``look_at``)."""
        return self._base.grid

    def windows(self, seqs: Any, most: int) -> list[tuple[int, int]]:
        """Split the ascending *seqs* of publications into windows, returned as slices (begin, end).

        Within one window devices report at most *most* places, unless it has a single publication.
        """
        before = np.searchsorted(self._seqs, seqs, side="left")
        found, begin = [], 0
        while begin < seqs.size:
            end = max(begin + 1, int(np.searchsorted(before, before[begin] + most, side="right")))
            found.append((begin, end))
            begin = end
        return found

    def look_at(self, first: int, last: int) -> None:
        """Set both grids for a window of publications, with seqs from *first* to *last*."""
        low, high = np.searchsorted(self._seqs, [first, last], side="left").tolist()
        if self._window == (low, high):
            return
        if low < self._rolled:
            self._begin_again()
        self._roll(low)
        within = self.arrays.order[low:high]
        self.window_grid = Grid(room=within.size)
        self._window_device = np.ascontiguousarray(self._device[within], np.int64)
        if within.size:
            levels = np.full(within.size, POINT_LEVEL, np.int64)
            points, radii = self._spots[within, 2:5], np.zeros(within.size, np.float64)
            self.window_grid.put_many(np.arange(within.size), levels, points, radii)
            self._addresses[WINDOW_DEVICE] = address(self._window_device)
        self._window = (low, high)

    def _roll(self, until: int) -> None:
        """Move the devices in the base grid to their last sightings (reported places) before index *until*.

        The index is that of a sighting in the order of seqs.
        """
        passed = self.arrays.order[self._rolled : until]
        if passed.size:
            last = np.full(self.devices, -1, np.int64)
            last[self._device[passed]] = passed  # of several sightings of a device, the last one is kept
            moved = np.flatnonzero(last >= 0)
            self._base.move(moved, self._spots[last[moved]])
        self._rolled = until

    def _begin_again(self) -> None:
        """Reset the base grid to where devices were before the span, the range of seqs that the tracks cover."""
        self._base.grid = Grid(room=self.devices)
        known = np.flatnonzero(~np.isnan(self._base.spot[: self.devices, 0]))
        if known.size and not self._is_whole:
            self._base.move(known, self._base.spot[known])
        self._rolled, self._window = 0, None

    def places_at(self, session: int, *, seq: int, now: int, stale_us: int) -> list[Place]:
        """Return the places of a session's members at *seq*, in the form that ``model.proximity.hears`` takes."""
        a = self.arrays
        members = range(*a.link_start[session : session + 2].tolist())
        devices = {int(a.link_device[link]) for link in members if a.link_from[link] < seq < a.link_to[link]}
        return places_at([self._sighting(device, seq) for device in sorted(devices)], now=now, stale_us=stale_us)

    def _sighting(self, device: int, seq: int) -> Sighting | None:
        begin, end = self.arrays.sight_start[device : device + 2].tolist()
        at = begin + int(np.searchsorted(self.arrays.sight_seq[begin:end], seq, side="left")) - 1
        if at >= begin:
            number, when, spot = self.arrays.sight_seq[at], self.arrays.sight_at[at], self._spots[at]
        else:
            number, when, spot = self._base.seq[device], self._base.at[device], self._base.spot[device]
        if math.isnan(spot[0]):
            return None
        return Sighting(int(number), int(when), Place(float(spot[0]), float(spot[1])))
