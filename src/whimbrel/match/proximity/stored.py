"""Storage of the proximity index: its state as flat arrays for the matcher's file, and its restoration from them.

Rule: every number from a file is checked, and the grids are built again from the places. Kernels follow the numbers in
a grid without a bounds check, and places are easier to check than a stored grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.match.index.texts import Texts
from whimbrel.match.proximity.index import ProximityIndex, Wanted
from whimbrel.match.proximity.tables import (
    ANY,
    AROUND,
    CIRCLE,
    CORNER_RADIX,
    CORNERS,
    IS_SOURCE,
    KIND,
    PLAIN,
    POLYGON,
    REPORTED_AT,
    SESSION,
    STALE,
    UNPLACED,
)
from whimbrel.model.bounds import INT64_MAX, real, whole
from whimbrel.model.place import MAX_RADIUS_M
from whimbrel.model.polygon import MAX_CORNERS, MIN_CORNERS

__all__ = ["SAVED", "read", "state_arrays"]

_SHAPED, _OF_A_SESSION = frozenset({CIRCLE, POLYGON, AROUND}), frozenset({PLAIN, AROUND})
_NAMED = ("session_bytes", "session_start", "device_bytes", "device_start")
SAVED = ("handles", "wanted", "spots", "corner_counts", "corners", "members", "places", "seen", *_NAMED)
"""Names of the arrays that ``state_arrays`` returns."""


def state_arrays(index: ProximityIndex) -> dict[str, Any]:
    """Return the whole state of *index* as flat arrays."""
    t, where = index.tables, index.where
    handles = np.flatnonzero(t.wanted[:, KIND] != UNPLACED)
    shaped = np.where(t.wanted[handles, KIND] == POLYGON, t.wanted[handles, CORNERS], 0)
    firsts, counts = np.divmod(shaped, CORNER_RADIX)
    corners = [t.corners[first : first + n] for first, n in zip(firsts, counts, strict=True)]
    devices = len(where.device_numbers)
    found = {
        "handles": handles,
        "wanted": t.wanted[handles][:, [KIND, SESSION, STALE, IS_SOURCE]],
        "spots": t.spots[handles, :3],
        "corner_counts": counts,
        "corners": np.concatenate([np.empty((0, 2)), *corners]),
        "members": np.array([*where.pairs()], np.int64),
        "places": t.devices[:devices, :2],
        "seen": t.seen[:devices, REPORTED_AT],
    }
    for name, numbers in (("session", where.session_numbers), ("device", where.device_numbers)):
        texts = Texts.from_strings(numbers.names()).arrays()
        found |= {f"{name}_bytes": texts["text_bytes"], f"{name}_start": texts["text_start"]}
    return {name: np.ascontiguousarray(array).reshape(-1) for name, array in found.items()}


def read(arrays: Mapping[str, Any], *, handles: int) -> ProximityIndex:
    """Restore the index from the *arrays* of ``state_arrays``; every handle must be below *handles*."""
    index = ProximityIndex()
    sessions, devices = _names(arrays, "session"), _names(arrays, "device")
    for session, device in _rows(arrays, "members", np.int64, 2).tolist():
        index.join(_name_at("session", sessions, session), _name_at("device", devices, device))
    own = _rows(arrays, "handles", np.int64, 1)[:, 0].tolist()
    counts = _rows(arrays, "corner_counts", np.int64, 1)[:, 0].tolist()
    corners, used = _rows(arrays, "corners", np.float64, 2), 0
    wanted, spots = _rows(arrays, "wanted", np.int64, 4).tolist(), _rows(arrays, "spots", np.float64, 3).tolist()
    for handle, count, (kind, session, stale_us, is_source), spot in zip(own, counts, wanted, spots, strict=True):
        flat = corners[used : used + whole("corners", count, 0, CORNER_RADIX)].tolist()
        used += count
        whole("kind", kind, PLAIN, ANY)
        row = Wanted(
            kind=kind,
            shape=_corners(flat) if kind == POLYGON else _circle(*spot) if kind in _SHAPED else None,
            session=None if session == -1 and kind not in _OF_A_SESSION else _name_at("session", sessions, session),
            stale_us=whole("stale_us", stale_us, 0, INT64_MAX),
            is_source=whole("is_source", is_source, 0, int(kind in _SHAPED)) == 1,
        )
        whole("handle", handle, 0, handles - 1)
        index.remove(handle)  # an invalid file may have a handle twice
        index.put_row(handle, row)
    places, seen = _rows(arrays, "places", np.float64, 2), _rows(arrays, "seen", np.int64, 1)[:, 0]
    if not places.shape[0] == seen.size == len(devices):
        raise InvalidValueError("places", places.shape[0], f"{len(devices)}, one for each device")
    somewhere = np.flatnonzero(~np.isnan(places[:, 0]))
    numbers = np.array([index.device(devices[at]) for at in somewhere.tolist()], np.int64)
    index.move_many(numbers, places[somewhere], seen[somewhere])
    return index


def _circle(latitude: float, longitude: float, radius_m: float) -> tuple[float, float, float]:
    found = real("latitude", latitude, -90, 90), real("longitude", longitude, -180, 180)
    return (*found, real("radius_m", radius_m, 0, MAX_RADIUS_M))


def _corners(flat: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
    """Check the corners of a polygon and return them; longitudes may lie beyond 180 degrees."""
    whole("corners", len(flat), MIN_CORNERS, MAX_CORNERS)
    for longitude, latitude in flat:
        real("longitude of a corner", longitude, -540, 540)
        real("latitude of a corner", latitude, -90, 90)
    return flat


def _names(arrays: Mapping[str, Any], what: str) -> list[str]:
    texts = Texts.of(arrays[f"{what}_bytes"], arrays[f"{what}_start"])
    return [texts[at] for at in range(len(texts))]


def _name_at(what: str, names: Sequence[str], number: int) -> str:
    return names[whole(what, number, 0, len(names) - 1)]


def _rows(arrays: Mapping[str, Any], name: str, kind: Any, width: int) -> Any:
    found = arrays[name]
    if found.dtype != kind or found.size % width:
        raise InvalidValueError(name, Phrase(f"{found.size} of {found.dtype}"), f"rows of {width} of {np.dtype(kind)}")
    return found.reshape(-1, width)
