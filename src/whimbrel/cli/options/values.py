"""Readers of option values that several commands share; a bad one names what was found and what is allowed."""

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
    """Return the folder of this machine that *text* names; a URL is refused, it would become a folder ``s3:``."""
    plain = str(text).removeprefix("file://")
    found = _URL.match(plain)
    if found is not None:
        raise typer.BadParameter(
            f"found {str(text)!r}, a URL of {found[1]}; allowed is a folder that this machine sees"
        )
    return Path(plain)


def read_log(text: str | Path) -> Path:
    """Return the log that *text* names: a directory, or the one that a broker keeps below its ``--data``."""
    path = read_folder(text)
    below = path / "log"
    return below if not (path / FORMAT_FILE).is_file() and (below / FORMAT_FILE).is_file() else path


def read_seconds(text: str | float) -> float:
    """Return the seconds that *text* names: a number from 0 on, alone or with a unit, as in 90s, 15m, 1.5h or 7d."""
    found = _DURATION.fullmatch(str(text).strip())
    seconds = math.nan if found is None else float(found[1]) * _UNITS_S[found[2]]
    if not 0 <= seconds <= _LONGEST_S:
        reason = f"{text!r} is no duration: write a number of seconds, or one with ms, s, m, h or d, such as 90s or 15m"
        raise typer.BadParameter(reason)
    return seconds


def read_whole_seconds(text: str | float) -> int:
    """Return the seconds that *text* names, where the wire has whole ones only."""
    seconds = read_seconds(text)
    if not seconds.is_integer():
        raise typer.BadParameter(f"{text!r} is {seconds:g} s; allowed are whole seconds")
    return int(seconds)


def seconds_between(low: float, high: float = _LONGEST_S) -> Callable[[str | float], float]:
    """Return what reads a duration from *low* to *high* seconds."""

    def read(text: str | float) -> float:
        seconds = read_seconds(text)
        if not low <= seconds <= high:
            raise typer.BadParameter(f"{text!r} is out of range: allowed is {low:g} s to {high:g} s")
        return seconds

    return read
