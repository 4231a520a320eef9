"""Readers of option values that several commands share; a bad one names what was found and what is allowed."""

from __future__ import annotations

import math
import re
from pathlib import Path

import typer

from whimbrel.log.layout import FORMAT_FILE

__all__ = ["read_folder", "read_log", "read_seconds"]

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
    """Return the seconds that *text* names: a number from 0 on."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= 1e9:
        raise typer.BadParameter(f"found {text!r}, allowed is a number of seconds from 0 to 1000000000")
    return seconds
