"""Whereabouts: which devices are members of which sessions, and where each device was last.

Rule: a device's last place stays until it reports another or is forgotten, whether it is a member of anything or not:
it may join later. Whether the place still counts is asked of each subscription (``model.proximity``).
Rule: numbers are small, and used again once nothing is left of a device or session.
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
    """Names under small numbers."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: list[str | None] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        """Return how many numbers there are, free ones too."""
        return len(self._names)

    def get(self, name: str) -> int | None:
        """Return the number of *name*, if it has one."""
        return self._numbers.get(name)

    def name(self, number: int) -> str:
        """Return the name of a number that is in use."""
        return self._names[number] or ""

    def give(self, name: str) -> int:
        """Return the number of *name*, a new one if it has none."""
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
        """Let a number be given again."""
        name = self._names[number]
        if name is not None:
            del self._numbers[name]
            self._names[number] = None
            self._free.append(number)

    def names(self) -> list[str]:
        """Return all names by number; those of free numbers are empty."""
        return [each or "" for each in self._names]


class Whereabouts:
    """Devices, sessions and who is a member of which, in *tables*."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.device_numbers, self.session_numbers = Numbers(), Numbers()
        self._links: dict[tuple[int, int], int] = {}
        """By session and device."""
        self._free_links: list[int] = []

    def device(self, name: str) -> int:
        """Return the number of a device, a new one if it has none."""
        number = self.device_numbers.give(name)
        self._tables.room_for_device(number)
        return number

    def session(self, name: str) -> int:
        """Return the number of a session, a new one if it has none."""
        number = self.session_numbers.give(name)
        self._tables.room_for_session(number)
        return number

    def let_go_of_session(self, session: int) -> None:
        """Let the number of a session be used again if nothing is left of it."""
        if (self._tables.sessions[session] < 0).all():
            self.session_numbers.free(session)

    def let_go_of_device(self, device: int) -> None:
        """Let the number of a device be used again if nothing is left of it."""
        if math.isnan(self._tables.devices[device, 0]) and self._tables.seen[device, FIRST_SESSION] < 0:
            self.device_numbers.free(device)

    # -- who is a member of what -------------------------------------------------------------------------------------

    def link(self, session: int, device: int) -> bool:
        """Let a device be a member; return whether it was none."""
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
        """Let a device be no member any more; return whether it was one."""
        row = self._links.pop((session, device), None)
        if row is None:
            return False
        t = self._tables
        _unlink(t.links, row, (NEXT_OF_DEVICE, BEFORE_OF_DEVICE), t.seen, (device, FIRST_SESSION))
        _unlink(t.links, row, (NEXT_OF_SESSION, BEFORE_OF_SESSION), t.sessions, (session, FIRST_MEMBER))
        self._free_links.append(row)
        return True

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield sessions and their members."""
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
        """Return the device that joined a session before the last one did, -1 if that is the only one."""
        link = int(self._tables.links[self._tables.sessions[session, FIRST_MEMBER], NEXT_OF_SESSION])
        return -1 if link < 0 else int(self._tables.links[link, DEVICE])

    # -- what a session wants ----------------------------------------------------------------------------------------

    def push_handle(self, session: int, handle: int) -> None:
        """Let a session have a subscription."""
        t = self._tables
        t.wanted[handle, SESSION] = session
        _push(t.wanted, handle, (NEXT_HANDLE, HANDLE_BEFORE), t.sessions, (session, FIRST_HANDLE))

    def take_handle(self, handle: int) -> int:
        """Let a session not have a subscription any more; return the session, -1 if it had none."""
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

    # -- where devices are -------------------------------------------------------------------------------------------

    def places_at(self, session: int, *, now: int, stale_us: int) -> list[Place]:
        """Return where a session is, as ``model.proximity`` has it."""
        found = []
        for device in self.members(session):
            latitude, longitude = self._tables.devices[device, :2].tolist()
            if not math.isnan(latitude) and now - int(self._tables.seen[device, REPORTED_AT]) < stale_us:
                found.append(Place(latitude, longitude))
        return found


def checked_places(places: Any) -> Any:
    """Return rows of latitude and longitude as floats, or refuse the first that is nowhere on Earth."""
    found = np.ascontiguousarray(places, np.float64).reshape(-1, 2)
    is_fine = (np.abs(found[:, 0]) <= 90) & (np.abs(found[:, 1]) <= 180)  # NaN is not
    if not is_fine.all():
        at = int(np.flatnonzero(~is_fine)[0])
        allowed = "latitude -90 to 90 and longitude -180 to 180"
        raise InvalidValueError(f"place {at}", tuple(found[at].tolist()), allowed)
    return found


def _push(rows: Any, row: int, columns: tuple[int, int], heads: Any, head: tuple[int, int]) -> None:
    """Put *row* before the others of a list; *columns* are where a row keeps the next and the one before."""
    following, before = columns
    first = heads[head]
    rows[row, following], rows[row, before] = first, -1
    if first >= 0:
        rows[first, before] = row
    heads[head] = row


def _unlink(rows: Any, row: int, columns: tuple[int, int], heads: Any, head: tuple[int, int]) -> None:
    """Take *row* out of its list."""
    following, before = columns
    after, previous = rows[row, following], rows[row, before]
    if after >= 0:
        rows[after, before] = previous
    if previous >= 0:
        rows[previous, following] = after
    else:
        heads[head] = after
