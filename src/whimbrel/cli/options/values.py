"""Readers of option values that several commands share; errors name what was found and what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import typer

from whimbrel.log.layout import FORMAT_FILE

__all__ = ["read_folder", "read_log", "read_seconds", "read_whole_seconds", "seconds_between"]

_LONGEST_S = 1e9
_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?) ?(|ms|s|m|h|d|w)")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def read_folder(text: str | Path) -> Path:
    """Return *text* as a local folder; a URL is refused, because it would become a folder named ``s3:``."""
    plain = str(text).removeprefix("file://")
    found = _URL.match(plain)
    if found is not None:
        raise typer.BadParameter(
            f"found {str(text)!r}, a URL of {found[1]}; allowed is a folder that this machine sees"
        )
    return Path(plain)


def read_log(text: str | Path) -> Path:
    """Return the path of the log at *text*: a log's directory, or a broker's ``--data`` folder with a log in it."""
    path = read_folder(text)
    below = path / "log"
    return below if not (path / FORMAT_FILE).is_file() and (below / FORMAT_FILE).is_file() else path


def read_seconds(text: str | float) -> float:
    """Return the seconds in *text*: a number from 0 on, alone or with a unit, as in 90s, 15m, 1.5h or 7d."""
    found = _DURATION.fullmatch(str(text).strip())
    seconds = math.nan if found is None else float(found[1]) * _UNITS_S[found[2]]
    if not 0 <= seconds <= _LONGEST_S:
        reason = f"{text!r} is no duration: write a number of seconds, or one with ms, s, m, h or d, such as 90s or 15m"
        raise typer.BadParameter(reason)
    return seconds


def read_whole_seconds(text: str | float) -> int:
    """Return the seconds in *text*, which must be whole, as MQTT requires."""
    seconds = read_seconds(text)
    if not seconds.is_integer():
        raise typer.BadParameter(f"{text!r} is {seconds:g} s; allowed are whole seconds")
    return int(seconds)


def seconds_between(low: float, high: float = _LONGEST_S) -> Callable[[str | float], float]:
    """Return a function that reads a duration from *low* to *high* seconds."""

    def read(text: str | float) -> float:
        seconds = read_seconds(text)
        if not low <= seconds <= high:
            raise typer.BadParameter(f"{text!r} is out of range: allowed is {low:g} s to {high:g} s")
        return seconds

    return read
