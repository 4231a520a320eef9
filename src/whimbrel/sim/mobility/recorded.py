"""Recorded walks: positions of devices, read from rows of ``reports`` as ``positions`` writes them.

Rule: between two reports a device walks straight; before its first and after its last it stands still.
Rule: time 0 is the first report of all; metres are those of the plane around the place of that report.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from whimbrel.errors import InvalidInputError, InvalidValueError, MalformedBodyError, MalformedLineError, Phrase
from whimbrel.model.clock import parse_time
from whimbrel.model.json_body import read_json
from whimbrel.model.place import Place, Plane
from whimbrel.sim.mobility.walks import Corner, Walks

__all__ = ["read_walks", "walks_of"]

_MAX_LINE = 100_000
_MAX_DEVICES = 100_000


def read_walks(path: Path) -> Walks:
    """Return the walks in the JSON lines at *path*."""
    with path.open("rb") as lines:
        return walks_of(iter(lambda: lines.readline(_MAX_LINE + 1), b""), source=str(path))


def walks_of(lines: Iterable[bytes], *, source: str) -> Walks:
    """Parse walks from *lines*; ignore rows of other tables and reports without a place."""
    plane: Plane | None = None
    begun_us = last_us = 0
    corners: dict[str, list[Corner]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = _report(line)
        except MalformedBodyError as error:
            raise MalformedLineError(source, number, error.column or 1, error.reason) from None
        except InvalidInputError as error:
            raise MalformedLineError(source, number, 1, str(error)) from None
        if found is None:
            continue
        time_us, device, place = found
        if plane is None:
            plane, begun_us, last_us = Plane(place), time_us, time_us
        if time_us < last_us:
            raise MalformedLineError(source, number, 1, "times must not run backwards")
        last_us = time_us
        point = plane.point(place)
        walk = corners.setdefault(device, [])
        now_s = (time_us - begun_us) / 1e6
        if walk and walk[-1][0] == now_s:
            walk.pop()  # of two reports at one instant, the later line counts
        walk.append((now_s, point.x_m, point.y_m))
        if len(corners) > _MAX_DEVICES:
            raise MalformedLineError(source, number, 1, f"more than the {_MAX_DEVICES} devices allowed")
    if len(corners) < 2 or last_us == begun_us:
        raise InvalidValueError(
            f"positions in {source}", Phrase(f"those of {len(corners)} devices"), "two devices that walk"
        )
    return _walks([corners[device] for device in sorted(corners)], (last_us - begun_us) / 1e6)


def _report(line: bytes) -> tuple[int, str, Place] | None:
    if len(line) > _MAX_LINE:
        raise InvalidValueError("bytes of a line", len(line), f"at most {_MAX_LINE}")
    row = read_json(line.rstrip(b"\r\n"))
    place = row.get("place")
    if row.get("table") != "reports" or place is None:
        return None
    device, reported_at = row.get("device"), row.get("reported_at")
    if not isinstance(device, str) or not isinstance(reported_at, str):
        raise InvalidValueError("device and reported_at", (device, reported_at), "two texts")
    if isinstance(place, str):
        return parse_time(reported_at), device, Place.parse(place)
    if not isinstance(place, dict):
        raise InvalidValueError("place", place, "latitude and longitude")
    return parse_time(reported_at), device, Place(place.get("latitude"), place.get("longitude"))  # type: ignore[arg-type] # it checks


def _walks(found: list[list[Corner]], seconds: float) -> Walks:
    whole = []
    for walk in found:
        _, x, y = walk[0]
        _, last_x, last_y = walk[-1]
        before = [(0.0, x, y)] if walk[0][0] > 0 else []
        whole.append([*before, *walk, *([(seconds, last_x, last_y)] if walk[-1][0] < seconds else [])])
    return Walks.of(whole, seconds=seconds)
