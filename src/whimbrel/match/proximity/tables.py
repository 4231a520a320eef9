"""Tables of subscriptions, devices, sessions and memberships for the kernels; row n belongs to number (or handle) n.

Rule: a table grows by doubling, which moves it in memory; kernels find it by the addresses in ``desk``, which stays.
Rule: -1 means "none" in a column of numbers, and NaN as a latitude means "no place".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from whimbrel.match.proximity.words import address

__all__ = ["Tables"]

# Kinds of subscriptions: UNPLACED has neither near nor session, PLAIN only a session; others are named as their near.
UNPLACED, PLAIN, CIRCLE, POLYGON, AROUND, ANY = range(6)

# Positions in the table of addresses (``desk``) through which kernels find the tables.
WANTED_AT, SPOTS_AT, CORNERS_AT, DEVICES_AT, SEEN_AT, LINKS_AT, SESSIONS_AT, RINGS_AT = range(8)

# ``wanted``, the subscriptions by handle: eight words, one cache line. CORNERS is first corner · CORNER_RADIX + count.
KIND, SESSION, STALE, NEXT_HANDLE, HANDLE_BEFORE, IS_SOURCE, STAMP, CORNERS, WANTED = range(9)
CORNER_RADIX = 128
# ``spots``, per handle: latitude, longitude, radius, x, y and z of a circle; around a session, the radius alone.
SPOT = 6
# ``devices``: latitude, longitude, x, y and z. ``seen``, per device: time of report, first session and first ring.
PLACE = 5
REPORTED_AT, FIRST_SESSION, FIRST_RING, SEEN = range(4)
# ``links``: memberships of a device in a session, each in the linked list of its device and in that of its session.
DEVICE, OF_SESSION, NEXT_OF_DEVICE, BEFORE_OF_DEVICE, NEXT_OF_SESSION, BEFORE_OF_SESSION, LINK = range(7)
# ``sessions``: heads of the linked lists of a session's members and of its subscriptions.
FIRST_MEMBER, FIRST_HANDLE, OF_A_SESSION = range(3)
# ``rings``: one per size of circle that moves with a device: eight words, one cache line. BALL and SOLE_RADIUS are
# floats (``real_column``). SOLE is the ring's subscription, if it is the only one and its session has no other member.
# All values that decide about SOLE stand in the same row, so that a search reads one cache line and not six.
RING_DEVICE, RING_LEVEL, NEXT_RING, BALL, SOLE, SOLE_STALE, SOLE_SEEN, SOLE_RADIUS, RING = range(9)

_LEAST = 64


class Tables:
    """The tables as arrays; kernels find them through *desk*, the address of the table of their addresses."""

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
        """Grow the tables of subscriptions to include row *handle*."""
        if handle >= self.wanted.shape[0]:
            unused = np.full(WANTED, -1, np.int64)
            unused[KIND] = UNPLACED
            self.wanted, self.spots = _grown(self.wanted, handle, unused), _grown(self.spots, handle, 0.0)
            self._write_addresses()

    def room_for_corners(self, count: int) -> None:
        """Grow the table of corners to *count* rows."""
        if count > self.corners.shape[0]:
            self.corners = _grown(self.corners, count, 0.0)
            self._write_addresses()

    def room_for_device(self, device: int) -> None:
        """Grow the tables of devices to include row *device*."""
        if device >= self.devices.shape[0]:
            self.devices, self.seen = _grown(self.devices, device, np.nan), _grown(self.seen, device, -1)
            self._write_addresses()

    def room_for_link(self, link: int) -> None:
        """Grow the table of memberships to include row *link*."""
        if link >= self.links.shape[0]:
            self.links = _grown(self.links, link, -1)
            self._write_addresses()

    def room_for_session(self, session: int) -> None:
        """Grow the table of sessions to include row *session*."""
        if session >= self.sessions.shape[0]:
            self.sessions = _grown(self.sessions, session, -1)
            self._write_addresses()

    def room_for_ring(self, ring: int) -> None:
        """Grow the table of rings to include row *ring*."""
        if ring >= self.rings.shape[0]:
            self.rings = _grown(self.rings, ring, -1)
            self._write_addresses()

    def real_column(self, column: int) -> Any:
        """Return column *column* of the table of rings, as floats."""
        return self.rings.view(np.float64)[:, column]

    @property
    def size_bytes(self) -> int:
        """Memory of the tables, in bytes."""
        return sum(int(array.nbytes) for array in self._all())


def _grown(array: Any, row: int, fill: Any) -> Any:
    """Return a larger copy of *array* that includes the index *row*; the new rows have the value *fill*."""
    wider = np.empty((max(row + 1, 2 * array.shape[0]), *array.shape[1:]), array.dtype)
    wider[: array.shape[0]], wider[array.shape[0] :] = array, fill
    return wider
