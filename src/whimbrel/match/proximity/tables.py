"""Tables: what kernels know of subscriptions, devices, sessions and who is a member of which; rows by number.

Rule: a table grows by doubling and then lies elsewhere; kernels find it by the addresses in ``desk``, which stays.
Rule: -1 is "none" in a column of numbers, NaN as a latitude "no place".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whimbrel.match.proximity.words import address

__all__ = ["Tables"]

# Kinds of subscriptions: its session is unknown, and it says nothing of places; it says nothing; as ``model.near``.
UNPLACED, PLAIN, CIRCLE, POLYGON, AROUND, ANY = range(6)

# Which table, of ``desk``.
WANTED_AT, SPOTS_AT, CORNERS_AT, DEVICES_AT, SEEN_AT, LINKS_AT, SESSIONS_AT, RINGS_AT = range(8)

# ``wanted``, by handle: eight words, a line of memory. CORNERS is where the corners begin · MOST_CORNERS + how many.
KIND, SESSION, STALE, NEXT_HANDLE, HANDLE_BEFORE, IS_SOURCE, STAMP, CORNERS, WANTED = range(9)
MOST_CORNERS = 128
# ``spots``, by handle: latitude, longitude, radius, x, y and z of a circle; around a session, the radius alone.
SPOT = 6
# ``devices``: latitude, longitude, x, y and z. ``seen``, by device: when, and the first of its sessions and rings.
PLACE = 5
REPORTED_AT, FIRST_SESSION, FIRST_RING, SEEN = range(4)
# ``links``: who is a member of which session, as two lists.
DEVICE, OF_SESSION, NEXT_OF_DEVICE, BEFORE_OF_DEVICE, NEXT_OF_SESSION, BEFORE_OF_SESSION, LINK = range(7)
# ``sessions``.
FIRST_MEMBER, FIRST_HANDLE, OF_A_SESSION = range(3)
# ``rings``: one for each size of circle that a device carries along: eight words, a line of memory. BALL and RADIUS are
# floats (``real_column``). SOLE is the subscription that the ring is for, where it is the only one and its session has
# no other member; what decides about it stands beside it, so that a question reads one line of memory and not six.
RING_DEVICE, RING_LEVEL, NEXT_RING, BALL, SOLE, SOLE_STALE, SOLE_SEEN, SOLE_RADIUS, RING = range(9)

_LEAST = 64


class Tables:
    """The arrays, by name; *desk* is the address that kernels know them by."""

    def __init__(self) -> None:
        self.wanted = np.full((_LEAST, WANTED), -1, np.int64)
        self.wanted[:, KIND] = UNPLACED
        self.spots = np.zeros((_LEAST, SPOT), np.float64)
        self.corners = np.zeros((_LEAST, 2), np.float64)
        self.devices = np.full((_LEAST, PLACE), np.nan, np.float64)
        self.seen = np.full((_LEAST, SEEN), -1, np.int64)
        self.links = np.full((_LEAST, LINK), -1, np.int64)
        self.sessions = np.full((_LEAST, OF_A_SESSION), -1, np.int64)
        self.rings = np.full((_LEAST, RING), -1, np.int64)
        self._addresses = np.zeros(RINGS_AT + 1, np.int64)
        self._write_addresses()
        self.desk = address(self._addresses)

    def _all(self) -> tuple[Any, ...]:
        described = (self.wanted, self.spots, self.corners, self.devices, self.seen)
        return (*described, self.links, self.sessions, self.rings)

    def _write_addresses(self) -> None:
        self._addresses[:] = [address(array) for array in self._all()]

    def room_for_handle(self, handle: int) -> None:
        """Let there be a row for a subscription."""
        if handle >= self.wanted.shape[0]:
            unused = np.full(WANTED, -1, np.int64)
            unused[KIND] = UNPLACED
            self.wanted, self.spots = _grown(self.wanted, handle, unused), _grown(self.spots, handle, 0.0)
            self._write_addresses()

    def room_for_corners(self, count: int) -> None:
        """Let there be rows for *count* corners in all."""
        if count > self.corners.shape[0]:
            self.corners = _grown(self.corners, count, 0.0)
            self._write_addresses()

    def room_for_device(self, device: int) -> None:
        """Let there be a row for a device."""
        if device >= self.devices.shape[0]:
            self.devices, self.seen = _grown(self.devices, device, np.nan), _grown(self.seen, device, -1)
            self._write_addresses()

    def room_for_link(self, link: int) -> None:
        """Let there be a row for a membership."""
        if link >= self.links.shape[0]:
            self.links = _grown(self.links, link, -1)
            self._write_addresses()

    def room_for_session(self, session: int) -> None:
        """Let there be a row for a session."""
        if session >= self.sessions.shape[0]:
            self.sessions = _grown(self.sessions, session, -1)
            self._write_addresses()

    def room_for_ring(self, ring: int) -> None:
        """Let there be a row for a ring."""
        if ring >= self.rings.shape[0]:
            self.rings = _grown(self.rings, ring, -1)
            self._write_addresses()

    def real_column(self, column: int) -> Any:
        """Return a column of the rings that holds floats."""
        return self.rings.view(np.float64)[:, column]

    @property
    def size_bytes(self) -> int:
        """What they take."""
        return sum(int(array.nbytes) for array in self._all())


def _grown(array: Any, row: int, fill: Any) -> Any:
    """Return *array* with a row number *row*; what is new is *fill*."""
    wider = np.empty((max(row + 1, 2 * array.shape[0]), *array.shape[1:]), array.dtype)
    wider[: array.shape[0]], wider[array.shape[0] :] = array, fill
    return wider
