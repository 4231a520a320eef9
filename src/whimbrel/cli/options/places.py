"""Options of places: where a message is published, and from where messages are wanted."""

from __future__ import annotations

from typing import Annotated

import typer

from whimbrel.cli.options.values import read_seconds
from whimbrel.model.near import parse_near
from whimbrel.model.place import Place

__all__ = ["Near", "OwnPlace", "Stale", "read_near", "read_place"]


def read_place(text: str) -> str:
    """Return *text* if it is a place ``LAT,LON``; else raise ``InvalidValueError``."""
    Place.parse(text)
    return text


def read_near(text: str) -> str:
    """Return *text* if it is an area that may limit a subscription (``near``); else raise ``InvalidValueError``."""
    parse_near(text)
    return text


Near = Annotated[
    str | None,
    typer.Option(
        "--near",
        metavar="NEAR",
        parser=read_near,
        help="Only messages published there: LAT,LON,M; LAT,LON;LAT,LON;LAT,LON and so on; M from us; or any.",
    ),
]
Stale = Annotated[
    float | None,
    typer.Option("--stale", metavar="TIME", parser=read_seconds, help="Ignore positions older than this; default 2m."),
]
OwnPlace = Annotated[
    str | None,
    typer.Option(
        "--place", metavar="LAT,LON", parser=read_place, help="Where we are: reported now and every 30 seconds."
    ),
]
