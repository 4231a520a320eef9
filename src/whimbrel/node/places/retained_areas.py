"""Retained areas: the retained messages for an area, and the sessions that have received them.

Rule: a session that enters the area of a retained message receives the message once. While the message stays retained,
neither leaving and returning nor a restart sends it again.
Rule: areas are indexed by cells of a tenth of a degree, so that a report is compared with few areas. These are at most
``MAX_IN_CELL`` areas of its cell, and at most ``MAX_WIDE`` areas that are wide or near a pole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import cbor2

from whimbrel.hold.touched_rows import Key
from whimbrel.model.place import Area, Place
from whimbrel.node.memory import AREA_BYTES, SEEN_BYTES, MemoryCount
from whimbrel.node.publication import KeptNotification

__all__ = ["MAX_AREAS", "MAX_IN_CELL", "MAX_WIDE", "RetainedAreas", "is_wide"]

MAX_AREAS, MAX_IN_CELL, MAX_WIDE = 100_000, 2_000, 100
"""Most retained messages with an area, most of them in one cell, and most with a wide area."""
_MAX_SEEN = 1_000
"""Most messages per session that are remembered as received; beyond, the oldest are forgotten."""
_CELLS, _AROUND = 10, 3_600
_WIDE_M, _MAX_LATITUDE = 5_000.0, 80.0
_METRES_OF_A_DEGREE = 110_000.0  # a little less than the true value, so that no cell is missed


def is_wide(area: Area) -> bool:
    """Return whether *area* is wide or near a pole: then it is compared with every report."""
    return area.radius_m > _WIDE_M or abs(area.centre.latitude) > _MAX_LATITUDE


class RetainedAreas:
    """The retained messages with an area; *touch* is called with the key of each session's row that changes."""

    def __init__(self, touch: Callable[[Key], None], memory: MemoryCount) -> None:
        self._touch, self._memory = touch, memory
        self._areas: dict[str, tuple[KeptNotification, Area]] = {}
        """Message and area, per subject."""
        self._wide: dict[str, None] = {}
        self._cells: dict[tuple[int, int], dict[str, None]] = {}
        self._seen: dict[str, dict[int, None]] = {}
        """Seqs of the messages that a session has received, retained or live, per session."""

    def __len__(self) -> int:
        return len(self._areas)

    @property
    def wide_count(self) -> int:
        """Number of wide areas, which are compared with every report."""
        return len(self._wide)

    def crowd(self, area: Area) -> int:
        """Return the number of areas in the fullest cell that *area* overlaps."""
        return max((len(self._cells.get(cell, ())) for cell in _cells_of(area)), default=0)

    def put(self, message: KeptNotification) -> None:
        """Set the retained message of a subject, which may have an area."""
        self.remove(message.subject)
        area = None if message.placing is None else message.placing.area
        if area is None:
            return
        self._areas[message.subject] = (message, area)
        self._memory.counted += AREA_BYTES
        if is_wide(area):
            self._wide[message.subject] = None
        else:
            for cell in _cells_of(area):
                self._cells.setdefault(cell, {})[message.subject] = None

    def remove(self, subject: str) -> None:
        """Remove the area of a subject, whose retained message was removed."""
        found = self._areas.pop(subject, None)
        if found is None:
            return
        self._memory.counted -= AREA_BYTES
        self._wide.pop(subject, None)
        for cell in _cells_of(found[1]):
            if subject in self._cells.get(cell, ()):
                del self._cells[cell][subject]
                if not self._cells[cell]:
                    del self._cells[cell]

    def enter(self, session: str, place: Place) -> Iterator[KeptNotification]:
        """Yield the messages retained for *place* that *session* has not received, and mark them as received."""
        if not self._areas:
            return
        cell = (math.floor(place.latitude * _CELLS), math.floor(place.longitude * _CELLS) % _AROUND)
        for subject in [*self._cells.get(cell, ()), *self._wide]:
            message, area = self._areas[subject]
            if message.seq not in self._seen.get(session, ()) and area.contains(place):
                self.see(session, message)
                yield message

    def see(self, session: str, message: KeptNotification) -> None:
        """Record that *session* has received a retained message with an area."""
        if message.subject not in self._areas:
            return
        seen = self._seen.setdefault(session, {})
        before = len(seen)
        seen[message.seq] = None
        if len(seen) > _MAX_SEEN:
            del seen[next(iter(seen))]
        self._memory.counted += SEEN_BYTES * (len(seen) - before)
        self._touch(("arrived", session))

    def end(self, session: str) -> None:
        """Remove the record of received messages of a session that ended."""
        seen = self._seen.pop(session, None)
        if seen is not None:
            self._memory.counted -= SEEN_BYTES * len(seen)
            self._touch(("arrived", session))

    # -- rows --------------------------------------------------------------------------------------------------------

    @property
    def kinds(self) -> frozenset[str]:
        """The kind of its rows."""
        return frozenset({"arrived"})

    def keys(self) -> Iterator[Key]:
        """Yield the keys of all rows."""
        yield from (("arrived", session) for session in self._seen)

    def row(self, key: Key) -> bytes | None:
        """Return the row of a session: the seqs of its received messages; None if there are none."""
        seen = self._seen.get(str(key[1]))
        return cbor2.dumps(list(seen)) if seen else None

    def restore(self, rows: Mapping[Key, bytes]) -> None:
        """Restore the received messages of sessions from *rows*."""
        for (_, session), value in rows.items():
            seen = self._seen[str(session)] = dict.fromkeys(cbor2.loads(value))
            self._memory.counted += SEEN_BYTES * len(seen)


def _cells_of(area: Area) -> Iterator[tuple[int, int]]:
    """Yield the cells that an area overlaps; none for a wide area, which is compared with every report."""
    if is_wide(area):
        return
    latitude, longitude = area.centre.latitude, area.centre.longitude
    north = area.radius_m / _METRES_OF_A_DEGREE
    east = north / math.cos(math.radians(min(abs(latitude) + north, 89.0)))
    rows = range(math.floor((latitude - north) * _CELLS), math.floor((latitude + north) * _CELLS) + 1)
    columns = range(math.floor((longitude - east) * _CELLS), math.floor((longitude + east) * _CELLS) + 1)
    for row in rows:
        for column in columns:
            yield row, column % _AROUND
