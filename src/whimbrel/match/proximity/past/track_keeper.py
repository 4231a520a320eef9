"""Track keeper: where a node's devices were, and in which sessions, from consecutive spans (seq ranges) of its log.

Rule: the cost of a span depends only on the records in it. From before the span, only one place per device and the
members of each session are kept.
Rule: devices and sessions get small numbers, which stay the same as long as the keeper exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from whimbrel.match.proximity.ground import earth_points
from whimbrel.match.proximity.past.tracks import Base, TrackArrays, Tracks
from whimbrel.match.proximity.tables import PLACE
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.place import Place
from whimbrel.model.proximity import Sighting

__all__ = ["MemberChange", "Reports", "TrackKeeper"]

_SESSION, _DEVICE, _FROM, _TO = range(4)
_BEFORE = -1
"""Seq of places and memberships from before the first span."""


class Reports(NamedTuple):
    """Reports of places, one column per field, in ascending order of seq."""

    names: Sequence[str]
    """Names of the devices, each once."""
    device: Any
    """Index in *names* of each report's device."""
    seq: Any
    at: Any
    places: Any
    """Rows of latitude and longitude."""


class MemberChange(NamedTuple):
    """The fact that a device joined or left a session or, if *device* is None, that the session was deleted."""

    seq: int
    session: str
    device: str | None
    is_joined: bool = False


class TrackKeeper:
    """Places of the devices of one node, and members of its sessions, updated span by span."""

    def __init__(self) -> None:
        self._devices: dict[str, int] = {}
        self._sessions: dict[str, int] = {}
        self._base = Base()
        self._links = np.full((64, 4), _BEFORE, np.int64)
        self._link_count = 0
        self._free: list[int] = []
        self._open: dict[int, dict[int, int]] = {}
        """Row in ``_links`` of each membership that has not ended, by session and device."""
        self._closed: list[int] = []
        """Rows in ``_links`` of memberships that ended in the last span; the next span frees them."""
        self._placed = 0
        self._by_number: tuple[Any, ...] | None = None
        """Cache of the arrays of members by session and sessions by device; None after a change."""
        self._reported: tuple[Any, Any, Any, Any] | None = None
        """Last places of devices in the last span: device numbers, and seq, time and place of each."""
        self.changed: set[str] = set()
        """Devices whose place changed since the owner last cleared this set."""

    # -- the state before the first span -----------------------------------------------------------------------------

    def restore(self, places: Mapping[str, Sighting]) -> None:
        """Set the place that each device had before the first span (range of seqs) of the log."""
        numbers = np.fromiter(map(self._device, places), np.int64)
        if not numbers.size:
            return
        base, found = self._base, list(places.values())
        self._placed += int((base.seq[numbers] < 0).sum())
        base.seq[numbers], base.at[numbers] = [each.seq for each in found], [each.reported_at for each in found]
        base.spot[numbers, :2] = [(each.place.latitude, each.place.longitude) for each in found]
        base.spot[numbers, 2:] = earth_points(*np.ascontiguousarray(base.spot[numbers, :2].T))
        base.move(numbers, base.spot[numbers])

    def restore_member(self, session: str, device: str) -> None:
        """Make a device a member of a session from before the first span (range of seqs) of the log."""
        self._join(_BEFORE, self._session(session), self._device(device))

    def last(self, device: str) -> Sighting | None:
        """Return the last place of a device, or None if it has none."""
        self._settle()
        number = self._devices.get(device)
        if number is None or self._base.seq[number] < 0:
            return None
        latitude, longitude = self._base.spot[number, :2].tolist()
        return Sighting(int(self._base.seq[number]), int(self._base.at[number]), Place(latitude, longitude))

    def devices(self) -> list[str]:
        """Return the devices that have a place."""
        self._settle()
        return [device for device, number in self._devices.items() if self._base.seq[number] >= 0]

    def numbers(self, sessions: Iterable[str]) -> Any:
        """Return an array with the number of each session, given by name; an unknown session gets a new number."""
        return np.fromiter(map(self._session, sessions), np.int64)

    @property
    def size(self) -> int:
        """Number of devices that have a place."""
        return self._placed

    def _device(self, name: str) -> int:
        number = self._devices.setdefault(name, len(self._devices))
        self._base.make_room(number + 1)
        return number

    def _session(self, name: str) -> int:
        return self._sessions.setdefault(name, len(self._sessions))

    # -- a span ------------------------------------------------------------------------------------------------------

    def take(self, reports: Reports, changes: Iterable[MemberChange]) -> Tracks:
        """Apply the next span: its place reports and its *changes* of members, both in ascending order of seq.

        Return the places and memberships over the span (``Tracks``), which are valid until the next call.
        """
        self._settle()
        for change in changes:
            self._change(change)
        device = np.fromiter(map(self._device, reports.names), np.int64)[reports.device]
        order = np.argsort(device, kind="stable")  # stable, so by seq within each device
        spots = np.empty((order.size, PLACE), np.float64)
        spots[:, :2] = reports.places[order]
        spots[:, 2:] = earth_points(*np.ascontiguousarray(spots[:, :2].T))
        sorted_device = device[order]
        devices = len(self._devices)
        start = np.searchsorted(sorted_device, np.arange(devices + 1)).astype(np.int64)
        seq, at = (np.ascontiguousarray(column[order], np.int64) for column in (reports.seq, reports.at))
        last = start[1:] - 1
        moved = np.flatnonzero(np.diff(start))
        self._reported = (moved, seq[last[moved]], at[last[moved]], spots[last[moved]])
        self.changed.update(reports.names)
        by_seq = np.empty(order.size, np.int64)
        by_seq[:] = np.argsort(order, kind="stable")
        link_start, device_of, since, until, of_start, session_of = self._members()
        members = (link_start, device_of, since, until, of_start, session_of)
        arrays = TrackArrays(*members, start, seq, at, spots.reshape(-1), by_seq)
        return Tracks(arrays, self._base)

    def _settle(self) -> None:
        """Make the places and members at the end of the last span those before the next span."""
        if self._reported is not None:
            moved, seq, at, spots = self._reported
            base, self._reported = self._base, None
            self._placed += int((base.seq[moved] < 0).sum())
            base.seq[moved], base.at[moved], base.spot[moved] = seq, at, spots
            if moved.size:
                base.move(moved, spots)
        if self._closed:
            for row in self._closed:
                self._links[row, _SESSION] = _BEFORE
                self._free.append(row)
            self._closed, self._by_number = [], None

    def _change(self, change: MemberChange) -> None:
        session = self._session(change.session)
        members = self._open.get(session, {})
        if change.device is None:
            for row in self._open.pop(session, {}).values():
                self._end(row, change.seq)
        elif change.is_joined:
            self._join(change.seq, session, self._device(change.device))
        else:
            number = self._devices.get(change.device)
            if number is not None and number in members:
                self._end(members.pop(number), change.seq)

    def _join(self, seq: int, session: int, device: int) -> None:
        members = self._open.setdefault(session, {})
        if device in members:
            return
        if self._free:
            row = self._free.pop()
        else:
            row, self._link_count = self._link_count, self._link_count + 1
            if row == self._links.shape[0]:
                self._links = np.concatenate([self._links, np.full_like(self._links, _BEFORE)])
        self._links[row] = (session, device, seq, INT64_MAX)
        members[device] = row
        self._by_number = None

    def _end(self, row: int, seq: int) -> None:
        self._links[row, _TO] = seq
        self._closed.append(row)
        self._by_number = None

    def _members(self) -> tuple[Any, ...]:
        """Return the first six arrays of ``TrackArrays``: members of each session and sessions of each device."""
        sizes = (len(self._sessions), len(self._devices))
        if self._by_number is not None and self._by_number[0] == sizes:
            found: tuple[Any, ...] = self._by_number[1]
            return found
        links = self._links[: self._link_count]
        links = links[links[:, _SESSION] >= 0]
        by_session = links[np.argsort(links[:, _SESSION], kind="stable")]
        starts = np.searchsorted(by_session[:, _SESSION], np.arange(sizes[0] + 1)).astype(np.int64)
        columns = [np.ascontiguousarray(by_session[:, column]) for column in (_DEVICE, _FROM, _TO)]
        by_device = links[np.argsort(links[:, _DEVICE], kind="stable")]
        of_starts = np.searchsorted(by_device[:, _DEVICE], np.arange(sizes[1] + 1)).astype(np.int64)
        found = (starts, *columns, of_starts, np.ascontiguousarray(by_device[:, _SESSION]))
        self._by_number = (sizes, found)
        return found
