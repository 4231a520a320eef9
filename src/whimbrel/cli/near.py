"""``whimbrel near``: explains how places decide about a notification."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from whimbrel.cli.options.values import read_seconds
from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import real
from whimbrel.model.near import DEFAULT_STALE_US, MAX_NEAR_M, parse_near, parse_stale_us
from whimbrel.model.place import Area, Place
from whimbrel.model.proximity import Sighting, conditions, places_at

__all__ = ["app"]

app = typer.Typer(
    help="Places: which subscriptions hear a notification that is for an area.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_NOW = 0
_NAMES = ("the publication's area", "near, a circle or polygon", "near, a distance from the session")


@app.callback()
def _group() -> None:
    """Keep ``near`` a command group; Typer would merge a single command into it."""


@app.command()
def explain(
    *,
    place: Annotated[
        str | None, typer.Option("--place", metavar="LAT,LON", help="Where the notification is published.")
    ] = None,
    radius: Annotated[
        float | None, typer.Option("--radius", metavar="M", help="Within how many metres it is meant to be heard.")
    ] = None,
    near: Annotated[
        str | None,
        typer.Option(
            "--near",
            metavar="NEAR",
            help="What the subscription says: LAT,LON,M; LAT,LON;LAT,LON;LAT,LON and so on; M; or any.",
        ),
    ] = None,
    stale: Annotated[
        str | None,
        typer.Option("--stale", metavar="TIME", help="Ignore positions older than this; default 2m."),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            metavar="LAT,LON[@S]",
            help="The last place of a device of the session, and how many seconds old it is; may be repeated.",
        ),
    ] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 unless it is heard, for use in scripts.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Print whether a notification reaches a session, and why: the three conditions, one by one.

    No broker is involved: the rules are applied to the given places (docs/explanation/where-is-a-session.md).

    Example: whimbrel near explain --place 52.52,13.405 --near 500 --at 52.521,13.405
    """
    where = None if place is None else Place.parse(place)
    if radius is not None and where is None:
        raise InvalidValueError("radius", radius, "none without a place")
    area = None if where is None or radius is None else Area(where, real("radius", radius, 0, MAX_NEAR_M))
    wanted = None if near is None else parse_near(near)
    stale_us = DEFAULT_STALE_US if stale is None else parse_stale_us(str(read_seconds(stale)))
    sightings = [_sighting(text) for text in at or ()]
    fresh = places_at(sightings, now=_NOW, stale_us=stale_us)
    found = conditions(wanted, fresh, place=where, area=area)
    is_heard = all(each.is_met for each in found)
    too_old = len(sightings) - len(fresh)
    if as_json:
        rows = [
            {"condition": name, "is_met": each.is_met, "reason": each.reason}
            for name, each in zip(_NAMES, found, strict=True)
        ]
        shown = {"heard": is_heard, "places": [str(each) for each in fresh], "stale": too_old, "conditions": rows}
        typer.echo(json.dumps(shown, ensure_ascii=False))
    else:
        typer.echo("heard" if is_heard else "not heard")
        for each in found:
            typer.echo(f"  {'yes' if each.is_met else 'no '}  {each.reason}")
        typer.echo(f"places of the session: {len(fresh)} fresh, {too_old} stale")
    if exit_code and not is_heard:
        raise typer.Exit(1)


def _sighting(text: str) -> Sighting:
    """Parse ``LAT,LON[@S]``: a place that was reported S seconds ago."""
    place, _, age = text.partition("@")
    age_us = parse_stale_us(str(read_seconds(age))) if age else 0
    return Sighting(0, _NOW - age_us, Place.parse(place))
