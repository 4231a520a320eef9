"""Fixes: the places of a node over time, from a file of fixes or from gpsd.

Rule: a file of fixes is JSON lines, ``{"at_s": 0, "place": "53.34,-6.25"}``; between two the node moves straight, after
the last it stands. Times count from the start of the node. Rows of ``reports``, written by ``whimbrel sim``, are
accepted as well: those of the device with the node's name, with times from the first report of any device on.
Rule: gpsd is queried over TCP (port 2947) in its JSON protocol; a report without a position (no satellites) means no
fix. If gpsd closes the connection or sends anything but JSON, ``GpsdError`` is raised.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from pathlib import Path

from whimbrel.errors import InvalidInputError, InvalidValueError, MalformedBodyError, MalformedLineError
from whimbrel.model.bounds import real
from whimbrel.model.clock import parse_time, seconds
from whimbrel.model.json_body import read_json
from whimbrel.model.place import Place

__all__ = ["Fix", "GpsdError", "fixes_along", "fixes_from_gpsd", "place_at", "read_fixes"]

Fix = tuple[float, Place]
"""Seconds since the start, and the place at that time."""

_MAX_FIXES = 1_000_000
_MAX_LINE = 65_536
_MODE_2D = 2


class GpsdError(InvalidInputError):
    """The position daemon cannot be used. Reaction: start it, or give another source of places."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where, self.reason = where, reason

    def __str__(self) -> str:
        return f"gpsd at {self.where}: {self.reason}"


def read_fixes(path: Path, *, device: str = "") -> list[Fix]:
    """Return the fixes in the JSON lines at *path*; from reports, only those of *device*."""
    found: list[Fix] = []
    begun_us: int | None = None
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = read_json(line.rstrip(b"\r\n"))
                if "table" in row:
                    reported_at = _reported_at(row)
                    begun_us = reported_at if begun_us is None else begun_us
                    if row.get("device") != device or row.get("place") is None:
                        continue
                    fix = seconds(reported_at - begun_us), _place(row.get("place"))
                else:
                    fix = real("at_s", row.get("at_s"), 0, 1e9), _place(row.get("place"))
                if found and fix[0] <= found[-1][0]:
                    raise InvalidValueError("time of a fix", fix[0], f"more than {found[-1][0]:g} s")
            except MalformedBodyError as error:
                raise MalformedLineError(str(path), number, error.column or 1, error.reason) from None
            except InvalidInputError as error:
                raise MalformedLineError(str(path), number, 1, str(error)) from None
            found.append(fix)
            if len(found) > _MAX_FIXES:
                raise MalformedLineError(str(path), number, 1, f"more than the {_MAX_FIXES} fixes allowed")
    if not found:
        allowed = f"at least one line of at_s and place, or a report of {device!r}"
        raise InvalidValueError(f"fixes in {path}", None, allowed)
    return found


def _reported_at(row: Mapping[str, object]) -> int:
    text = row.get("reported_at")
    if not isinstance(text, str):
        raise InvalidValueError("reported_at", text, "a time as text")
    return parse_time(text)


def _place(value: object) -> Place:
    if isinstance(value, str):
        return Place.parse(value)
    if not isinstance(value, Mapping):
        raise InvalidValueError("place", value, "a text such as 53.34,-6.25, or latitude and longitude")
    return Place(value.get("latitude"), value.get("longitude"))  # type: ignore[arg-type] # it checks


def place_at(fixes: list[Fix], at_s: float) -> Place:
    """Return the place at *at_s* of a node that moves straight from fix to fix."""
    if at_s <= fixes[0][0]:
        return fixes[0][1]
    for (begin_s, here), (end_s, there) in pairwise(fixes):
        if at_s < end_s:
            done = (at_s - begin_s) / (end_s - begin_s)
            return Place(
                here.latitude + done * (there.latitude - here.latitude),
                here.longitude + done * (there.longitude - here.longitude),
            )
    return fixes[-1][1]


async def fixes_along(fixes: list[Fix], *, every_s: float = 0.5) -> AsyncIterator[Place | None]:
    """Yield the place every *every_s* seconds from now on, until the last fix is reached."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        at_s = loop.time() - began
        yield place_at(fixes, at_s)
        if at_s >= fixes[-1][0]:
            return
        await asyncio.sleep(every_s)


async def fixes_from_gpsd(host: str, port: int) -> AsyncIterator[Place | None]:
    """Yield the places that gpsd reports; ``None`` while it has no fix."""
    where = f"{host}:{port}"
    try:
        reader, writer = await asyncio.open_connection(host, port, limit=_MAX_LINE)
    except OSError as error:
        raise GpsdError(where, error.strerror or str(error)) from None
    try:
        writer.write(b'?WATCH={"enable":true,"json":true};\n')
        while line := await reader.readline():
            for place in _places(line, where):
                yield place
        raise GpsdError(where, "the connection ended")
    except (ValueError, OSError) as error:
        raise GpsdError(where, str(error)) from None
    finally:
        writer.close()


def _places(line: bytes, where: str) -> list[Place | None]:
    """Return the place in a line of gpsd as a list: ``[None]`` without a fix, empty if it is another kind of report."""
    try:
        report = json.loads(line)
    except ValueError:
        raise GpsdError(where, f"found {line[:40]!r}, allowed is JSON") from None
    if not isinstance(report, dict) or report.get("class") != "TPV":
        return []
    mode, latitude, longitude = report.get("mode"), report.get("lat"), report.get("lon")
    if not isinstance(mode, int) or mode < _MODE_2D or latitude is None or longitude is None:
        return [None]
    return [Place(latitude, longitude)]
