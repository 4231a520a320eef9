"""Traffic: a recorded trace of vehicles that SUMO drove through a grid of signalled streets; it ships with Whimbrel.

``tools/make_vehicle_trace.py`` made it (301 vehicles, 700 seconds, one position per second), with a network from
netgenerate. Reading the trace does not need SUMO.

Rule: the file has positions in decimetres: the first of each vehicle, then the difference to each next second.
Rule: a file is read as a trace or refused with our error; its size is checked before it is read.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.sim.mobility.streets import StreetGrid
from whimbrel.sim.mobility.walks import Walks

__all__ = ["STREETS", "TRACE", "read_traffic", "recorded_drives", "write_traffic"]

TRACE = Path(__file__).with_name("traffic.trace")
STREETS = StreetGrid(blocks=6, block_m=250.0)
"""The streets of the trace, with the junctions at which its traffic lights stand."""
_MAX_BYTES = 16 << 20
_MAX_POSITIONS = 50_000_000
_DECIMETRES = 10.0


def recorded_drives(vehicles: int, seconds: float, *, path: Path = TRACE) -> Walks:
    """Return the drives of the first *vehicles* vehicles, *seconds* long."""
    places = read_traffic(path)
    known, recorded_s = places.shape[0], places.shape[1] - 1
    if vehicles > known:
        raise InvalidValueError("vehicles", vehicles, f"at most the {known} of the trace")
    if seconds > recorded_s:
        raise InvalidValueError("seconds", seconds, f"at most the {recorded_s} of the trace")
    times = np.arange(int(np.ceil(seconds)) + 1, dtype=np.float64)
    found = places[:vehicles, : len(times)]
    return Walks(
        seconds=seconds,
        first=np.arange(vehicles + 1, dtype=np.int64) * len(times),
        time=np.tile(times, vehicles),
        x=np.ascontiguousarray(found[:, :, 0]).reshape(-1),
        y=np.ascontiguousarray(found[:, :, 1]).reshape(-1),
    )


def write_traffic(places: NDArray[np.float64], path: Path) -> None:
    """Write positions, indexed by vehicle, second and axis: a line of JSON, then the compressed differences."""
    vehicles, seconds, _ = places.shape
    steps = np.diff(np.rint(places * _DECIMETRES).astype(np.int32), axis=1, prepend=0).transpose(2, 0, 1)
    body = zlib.compress(steps.astype("<i2").tobytes(), 9)
    head = json.dumps({"vehicles": vehicles, "seconds": seconds, "unit": "dm", "by": "SUMO"})
    path.write_bytes(head.encode() + b"\n" + body)


def read_traffic(path: Path) -> NDArray[np.float64]:
    """Read the positions in the file at *path*, in metres, indexed by vehicle, second and axis."""
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise InvalidValueError(f"bytes of {path.name}", size, f"at most {_MAX_BYTES}")
    head, _, body = path.read_bytes().partition(b"\n")
    try:
        told = json.loads(head)
        vehicles, seconds = int(told["vehicles"]), int(told["seconds"])
        if not (vehicles > 0 and seconds > 0 and vehicles * seconds <= _MAX_POSITIONS):
            raise ValueError(f"{vehicles} vehicles for {seconds} s")
        wanted = 2 * vehicles * seconds * 2
        reader = zlib.decompressobj()
        flat = reader.decompress(body, wanted + 1)
        if len(flat) != wanted or not reader.eof:
            raise ValueError(f"{len(flat)} bytes instead of {wanted}")
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        raise InvalidValueError(f"trace {path.name}", Phrase(str(error)), "one that write_traffic made") from None
    steps = np.frombuffer(flat, "<i2").reshape(2, vehicles, seconds)
    return np.cumsum(steps, axis=2, dtype=np.int64).transpose(1, 2, 0) / _DECIMETRES
