"""``whimbrel rendezvous status``: shows the facts in a controller's log, and the addresses that it uses for others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options.values import read_log

if TYPE_CHECKING:  # other commands need not load logs
    from whimbrel.rendezvous.daemon.status import ControllerStatus

__all__ = ["status"]


def status(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", parser=read_log, help="The controller's log, as --log names it.")
    ],
    *,
    node: Annotated[
        str, typer.Option("--node", metavar="NODE", help="The controller's name in the log.")
    ] = "controller",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Print the facts that a controller has logged, and each address of another device that it has used.

    A controller uses another device's address only for dumb devices: headsets and mice, which page one device whether
    it is present or not. It *answers* for a device that is away, *listens* for one that sleeps, and otherwise *ignores*
    its pages.

    Example: whimbrel rendezvous status hall
    """
    from whimbrel.log.reader import read
    from whimbrel.rendezvous.daemon.status import status_of

    found = status_of(read(directory, node))
    if as_json:
        typer.echo(json.dumps(_json_of(found), ensure_ascii=False))
    else:
        _print(found)


def _json_of(found: ControllerStatus) -> dict[str, object]:
    from whimbrel.model.clock import format_time

    uses = [
        {
            "address": address,
            "does": use.does,
            "since": format_time(use.since),
            "holds": sorted(use.holds),
            "in_use": use.is_in_use,
            "woken": use.woken,
            "held": use.held,
            "refused": use.refused,
        }
        for address, use in found.addresses.items()
    ]
    last = None if found.last_at is None else format_time(found.last_at)
    return {"facts": found.facts, "last": last, "addresses_of_others": uses}


def _print(found: ControllerStatus) -> None:
    from whimbrel.model.clock import format_time

    if found.last_at is None:
        typer.echo("no facts of a controller")
        return
    counts = "  ".join(f"{kind} {count}" for kind, count in found.facts.items())
    typer.echo(f"{counts}; the last at {format_time(found.last_at)}")
    for address, use in found.addresses.items():
        held = f", holds {', '.join(sorted(use.holds))}" if use.holds else ""
        typer.echo(f"pages for {address}: {use.does}, since {format_time(use.since)}{held}")
        typer.echo(f"    woke it {use.woken} times, held a dumb device {use.held} times, refused {use.refused} devices")
