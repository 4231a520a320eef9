"""The last places of devices: their rows, which brokers and workers keep alike."""

from __future__ import annotations

import cbor2

from whimbrel.model.place import Place
from whimbrel.model.proximity import Sighting

__all__ = ["sighting_of", "sighting_row"]


def sighting_row(seen: Sighting) -> list[float]:
    """Return the row of a device that was seen last there."""
    return [seen.seq, seen.reported_at, seen.place.latitude, seen.place.longitude]


def sighting_of(row: bytes) -> Sighting:
    """Return where a device with this encoded row was seen last."""
    seq, reported_at, latitude, longitude = cbor2.loads(row)
    return Sighting(seq, reported_at, Place(latitude, longitude))
