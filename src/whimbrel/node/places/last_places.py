"""The last places of devices: one interface and one kind of row, for brokers and for pipeline workers.

A broker stores them in a dictionary (``hold.rules.places``), because it reads the places of single devices. A worker
stores them in arrays (``match.proximity.past.track_keeper``), because its reports are Arrow columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import cbor2

from whimbrel.hold.touched_rows import Key
from whimbrel.model.place import Place
from whimbrel.model.proximity import Sighting

__all__ = ["LastPlaces", "PlaceOwner", "sighting_of"]


class PlaceOwner(Protocol):
    """Storage of the last place of each device."""

    def devices(self) -> Iterable[str]:
        """Return the devices that have a place."""

    def last(self, device: str) -> Sighting | None:
        """Return the last place of a device; None if it has none."""

    def restore(self, places: Mapping[str, Sighting]) -> None:
        """Restore the last places."""


class LastPlaces:
    """The rows of the places in *owner*, as a part of a node."""

    kinds = frozenset({"place"})

    def __init__(self, owner: PlaceOwner) -> None:
        self._owner = owner

    def keys(self) -> Iterator[Key]:
        """Yield the keys of all rows."""
        yield from (("place", device) for device in self._owner.devices())

    def row(self, key: Key) -> bytes | None:
        """Return the row of a device; None if it has no place."""
        seen = self._owner.last(str(key[1]))
        if seen is None:
            return None
        return cbor2.dumps([seen.seq, seen.reported_at, seen.place.latitude, seen.place.longitude])

    def restore(self, rows: Mapping[Key, bytes]) -> None:
        """Restore the places from *rows*."""
        self._owner.restore({str(device): sighting_of(value) for (_, device), value in rows.items()})


def sighting_of(row: bytes) -> Sighting:
    """Decode the last place of a device from its row."""
    seq, reported_at, latitude, longitude = cbor2.loads(row)
    return Sighting(seq, reported_at, Place(latitude, longitude))
