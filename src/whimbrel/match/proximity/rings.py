"""Rings: the circles that move with devices, for subscriptions with a distance from the session (``near=R``).

A search for a publication's place finds the rings around it, and through them the subscriptions.
Rule: a device has one ring for each class of sizes (``level_of``) that its sessions' subscriptions use. The ring is as
large as the largest circle it has had; each subscription is then checked with its own radius.
Rule: a ring that only one subscription needs leads straight to that subscription (``SOLE``), if its session has no
other member. Either all rings of a device do this, or none: then the device leads to its sessions, and these to all
their subscriptions, each of which is reported once.
"""

from __future__ import annotations

import numpy as np

from whimbrel.match.proximity.grid import Grid, level_of
from whimbrel.match.proximity.ground import ball_m
from whimbrel.match.proximity.tables import (
    BALL,
    FIRST_RING,
    NEXT_RING,
    REPORTED_AT,
    RING_DEVICE,
    RING_LEVEL,
    SOLE,
    SOLE_RADIUS,
    SOLE_SEEN,
    SOLE_STALE,
    STALE,
    Tables,
)

__all__ = ["Rings"]


class Rings:
    """The rings (circles around moving devices), stored in *tables*, and the grid that finds rings around a place."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.grid = Grid()
        self._ring_of: dict[tuple[int, int], tuple[int, int]] = {}
        """Number of the ring, and the number of subscriptions that need it, by device and level (size class)."""
        self._free: list[int] = []
        self._made = 0
        self._changed: set[int] = set()

    def carry(self, device: int, radius_m: float, sole: int = -1) -> None:
        """Add a circle around a device for one subscription.

        *sole* is its handle, or -1 if the session has other members.
        """
        t, ball = self._tables, ball_m(radius_m)
        level = level_of(ball)
        ring, users = self._ring_of.get((device, level), (-1, 0))
        if ring < 0:
            ring = self._free.pop() if self._free else self._made
            self._made = max(self._made, ring + 1)
            t.room_for_ring(ring)
            t.rings[ring] = (
                device,
                level,
                t.seen[device, FIRST_RING],
                0,
                -1,
                0,
                0,
                0,
            )  # the columns of floats are 0.0, which has the same bits as 0
            t.seen[device, FIRST_RING] = ring
        balls = t.real_column(BALL)
        balls[ring] = max(float(balls[ring]), ball)
        following = int(t.rings[ring, NEXT_RING])
        if sole >= 0 and not users and (following < 0 or t.rings[following, SOLE] >= 0):
            t.rings[ring, SOLE], t.rings[ring, SOLE_STALE] = sole, t.wanted[sole, STALE]
            t.rings[ring, SOLE_SEEN] = t.seen[device, REPORTED_AT]
            t.real_column(SOLE_RADIUS)[ring] = radius_m
        else:
            self.share(device)
        self._ring_of[device, level] = (ring, users + 1)
        self._changed.add(ring)

    def share(self, device: int) -> None:
        """Make the rings of a device lead to all its sessions, no longer straight to one subscription."""
        ring = int(self._tables.seen[device, FIRST_RING])
        while ring >= 0:
            self._tables.rings[ring, SOLE] = -1
            ring = int(self._tables.rings[ring, NEXT_RING])

    def drop(self, device: int, radius_m: float) -> None:
        """Release one use of a device's ring (circle) of this size; the last release removes the ring."""
        key = (device, level_of(ball_m(radius_m)))
        ring, users = self._ring_of[key]
        if users > 1:
            self._ring_of[key] = (ring, users - 1)
            return
        del self._ring_of[key]
        self._changed.discard(ring)
        self.grid.drop_many(np.array([ring], np.int64))
        t = self._tables
        at = int(t.seen[device, FIRST_RING])
        if at == ring:
            t.seen[device, FIRST_RING] = t.rings[ring, NEXT_RING]
        else:
            while int(t.rings[at, NEXT_RING]) != ring:  # the chain has at most one ring per size
                at = int(t.rings[at, NEXT_RING])
            t.rings[at, NEXT_RING] = t.rings[ring, NEXT_RING]
        self._free.append(ring)

    def forget(self, device: int) -> None:
        """Remove the rings of a device from the grid."""
        ring = int(self._tables.seen[device, FIRST_RING])
        while ring >= 0:
            self.grid.drop_many(np.array([ring], np.int64))
            ring = int(self._tables.rings[ring, NEXT_RING])

    def settle(self) -> None:
        """Insert the rings that changed since the last call into the grid, and make room there for all rings."""
        self.grid.make_room(self._made)
        if not self._changed:
            return
        t = self._tables
        rings = np.fromiter(sorted(self._changed), np.int64)
        self._changed.clear()
        rings = rings[~np.isnan(t.devices[t.rings[rings, RING_DEVICE], 0])]
        points = t.devices[t.rings[rings, RING_DEVICE], 2:5]
        self.grid.put_many(rings, t.rings[rings, RING_LEVEL], points, t.real_column(BALL)[rings])
