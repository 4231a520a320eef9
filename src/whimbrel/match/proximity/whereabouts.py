"""Membership and places: which devices are members of which sessions, and where each device was last.

Rule: a device's last place is kept until it reports another or is forgotten, even if the device is in no session: it
may join one later. Whether a place is too old is decided per subscription (``model.proximity``).
Rule: devices and sessions have small numbers. A number is reused once its device or session has nothing left here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from whimbrel.errors import InvalidValueError
from whimbrel.match.proximity.tables import (
    BEFORE_OF_DEVICE,
    BEFORE_OF_SESSION,
    DEVICE,
    FIRST_HANDLE,
    FIRST_MEMBER,
    FIRST_SESSION,
    HANDLE_BEFORE,
    NEXT_HANDLE,
    NEXT_OF_DEVICE,
    NEXT_OF_SESSION,
    OF_SESSION,
    REPORTED_AT,
    SESSION,
    Tables,
)
from whimbrel.model.place import Place

__all__ = ["Numbers", "Whereabouts", "checked_places"]


class Numbers:
    """Small numbers for names, from 0 on; a freed number is given to a later name."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: list[str | None] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        """Return how many numbers were ever given: one more than the highest, including free ones."""
        return len(self._names)

    def get(self, name: str) -> int | None:
        """Return the number of *name*, or None if it has none."""
        return self._numbers.get(name)

    def name(self, number: int) -> str:
        """Return the name of a number that is in use."""
        return self._names[number] or ""

    def give(self, name: str) -> int:
        """Return the number of *name*; give it a new one if it has none."""
        number = self._numbers.get(name)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._names[number] = name
            else:
                number = len(self._names)
                self._names.append(name)
            self._numbers[name] = number
        return number

    def free(self, number: int) -> None:
        """Free a number for reuse."""
        name = self._names[number]
        if name is not None:
            del self._numbers[name]
            self._names[number] = None
            self._free.append(number)

    def names(self) -> list[str]:
        """Return all names, by number; the names of free numbers are empty."""
        return [each or "" for each in self._names]


class Whereabouts:
    """Devices, sessions and memberships, stored in the rows of *tables*."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.device_numbers, self.session_numbers = Numbers(), Numbers()
        self._links: dict[tuple[int, int], int] = {}
        """Rows of ``links`` by session and device."""
        self._free_links: list[int] = []

    def device(self, name: str) -> int:
        """Return the number of a device; give it a new one if it has none."""
        number = self.device_numbers.give(name)
        self._tables.room_for_device(number)
        return number

    def session(self, name: str) -> int:
        """Return the number of a session; give it a new one if it has none."""
        number = self.session_numbers.give(name)
        self._tables.room_for_session(number)
        return number

    def let_go_of_session(self, session: int) -> None:
        """Free the number of *session* if it has neither members nor subscriptions."""
        if (self._tables.sessions[session] < 0).all():
            self.session_numbers.free(session)

    def let_go_of_device(self, device: int) -> None:
        """Free the number of *device* if it has neither a place nor a session."""
        if math.isnan(self._tables.devices[device, 0]) and self._tables.seen[device, FIRST_SESSION] < 0:
            self.device_numbers.free(device)

    # -- members of sessions -----------------------------------------------------------------------------------------

    def link(self, session: int, device: int) -> bool:
        """Make a device a member of a session; return False if it was one before."""
        if (session, device) in self._links:
            return False
        row = self._free_links.pop() if self._free_links else len(self._links)
        t = self._tables
        t.room_for_link(row)
        t.links[row, DEVICE], t.links[row, OF_SESSION] = device, session
        _push(t.links, row, (NEXT_OF_DEVICE, BEFORE_OF_DEVICE), t.seen, (device, FIRST_SESSION))
        _push(t.links, row, (NEXT_OF_SESSION, BEFORE_OF_SESSION), t.sessions, (session, FIRST_MEMBER))
        self._links[session, device] = row
        return True

    def unlink(self, session: int, device: int) -> bool:
        """Remove a device from a session; return whether it was a member."""
        row = self._links.pop((session, device), None)
        if row is None:
            return False
        t = self._tables
        _unlink(t.links, row, (NEXT_OF_DEVICE, BEFORE_OF_DEVICE), t.seen, (device, FIRST_SESSION))
        _unlink(t.links, row, (NEXT_OF_SESSION, BEFORE_OF_SESSION), t.sessions, (session, FIRST_MEMBER))
        self._free_links.append(row)
        return True

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield the pairs of session and member."""
        yield from self._links

    def members(self, session: int) -> list[int]:
        """Return the devices of a session."""
        found, link = [], int(self._tables.sessions[session, FIRST_MEMBER])
        while link >= 0:
            row = self._tables.links[link]
            found.append(int(row[DEVICE]))
            link = int(row[NEXT_OF_SESSION])
        return found

    def member_before(self, session: int) -> int:
        """Return the member that joined a session just before its newest one, or -1 if the session has one member."""
        link = int(self._tables.links[self._tables.sessions[session, FIRST_MEMBER], NEXT_OF_SESSION])
        return -1 if link < 0 else int(self._tables.links[link, DEVICE])

    # -- subscriptions of sessions -----------------------------------------------------------------------------------

    def push_handle(self, session: int, handle: int) -> None:
        """Add a subscription to a session."""
        t = self._tables
        t.wanted[handle, SESSION] = session
        _push(t.wanted, handle, (NEXT_HANDLE, HANDLE_BEFORE), t.sessions, (session, FIRST_HANDLE))

    def take_handle(self, handle: int) -> int:
        """Remove a subscription from its session; return the session, or -1 if it had none."""
        t = self._tables
        session = int(t.wanted[handle, SESSION])
        if session >= 0:
            _unlink(t.wanted, handle, (NEXT_HANDLE, HANDLE_BEFORE), t.sessions, (session, FIRST_HANDLE))
            t.wanted[handle, SESSION] = -1
        return session

    def handles_of(self, session: int) -> list[int]:
        """Return the subscriptions of a session."""
        found, handle = [], int(self._tables.sessions[session, FIRST_HANDLE])
        while handle >= 0:
            found.append(handle)
            handle = int(self._tables.wanted[handle, NEXT_HANDLE])
        return found

    # -- places of devices -------------------------------------------------------------------------------------------

    def places_at(self, session: int, *, now: int, stale_us: int) -> list[Place]:
        """Return the places of a session's members that are not too old, as ``model.proximity.hears`` takes them."""
        found = []
        for device in self.members(session):
            latitude, longitude = self._tables.devices[device, :2].tolist()
            if not math.isnan(latitude) and now - int(self._tables.seen[device, REPORTED_AT]) < stale_us:
                found.append(Place(latitude, longitude))
        return found


def checked_places(places: Any) -> Any:
    """Return rows of latitude and longitude as floats; refuse the first row that is not a place on Earth."""
    found = np.ascontiguousarray(places, np.float64).reshape(-1, 2)
    is_fine = (np.abs(found[:, 0]) <= 90) & (np.abs(found[:, 1]) <= 180)  # False for NaN
    if not is_fine.all():
        at = int(np.flatnonzero(~is_fine)[0])
        allowed = "latitude -90 to 90 and longitude -180 to 180"
        raise InvalidValueError(f"place {at}", tuple(found[at].tolist()), allowed)
    return found


def _push(rows: Any, row: int, columns: tuple[int, int], heads: Any, head: tuple[int, int]) -> None:
    """Insert *row* at the front of the linked list whose first row is ``heads[head]``.

    *columns* are the two columns of *rows* that have the number of the next and of the previous row.
    """
    following, before = columns
    first = heads[head]
    rows[row, following], rows[row, before] = first, -1
    if first >= 0:
        rows[first, before] = row
    heads[head] = row


def _unlink(rows: Any, row: int, columns: tuple[int, int], heads: Any, head: tuple[int, int]) -> None:
    """Remove *row* from the linked list whose first row is ``heads[head]`` (see ``_push``)."""
    following, before = columns
    after, previous = rows[row, following], rows[row, before]
    if after >= 0:
        rows[after, before] = previous
    if previous >= 0:
        rows[previous, following] = after
    else:
        heads[head] = after
