"""``whimbrel rendezvous air``: simulated Bluetooth radios, to try controllers and devices without hardware."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options.values import seconds_between
from whimbrel.cli.rendezvous.running import print_json, quiet_bumble, run_until_signal
from whimbrel.errors import InvalidValueError, MissingDependencyError

if TYPE_CHECKING:  # Bumble is an extra
    from whimbrel.rendezvous.radio.bumble.air.server import RadioSpec

__all__ = ["air"]

_RADIO = re.compile(r"(?P<address>[0-9A-Fa-f:-]+)(@(?P<x>-?[0-9.]+),(?P<y>-?[0-9.]+))?")


def air(
    radios: Annotated[
        list[str],
        typer.Argument(metavar="RADIO…", help="ADDRESS or ADDRESS@X,Y, in metres; radios hear each other within 10 m."),
    ],
    *,
    supervision: Annotated[
        float,
        typer.Option(
            "--supervision",
            metavar="TIME",
            parser=seconds_between(0.1, 41),
            help="When a connection to a dead process is lost.",
        ),
    ] = 2.0,
) -> None:
    """Offer Bluetooth radios that exist only in software, each on a TCP port of 127.0.0.1, until SIGTERM.

    One line of JSON per radio has the --transport for a controller or a device. The radios inquire, page, connect and
    pair as in the standard, in milliseconds instead of seconds; a radio is on the air while a program uses it.

    Example: whimbrel rendezvous air 02:00:00:00:00:01 02:00:00:00:00:02@3,4
    """
    specs = [_read(text) for text in radios]

    async def serve(stop: asyncio.Event) -> None:
        from whimbrel.rendezvous.radio.bumble.air.server import AirServer

        quiet_bumble()
        server = AirServer(supervision_s=supervision)
        for spec in specs:
            print_json({"what": "radio", "address": spec.address, "transport": await server.offer(spec)})
        await stop.wait()
        await server.close()

    run_until_signal(serve)


def _read(text: str) -> RadioSpec:
    from whimbrel.rendezvous.events import read_address

    try:
        from whimbrel.rendezvous.radio.bumble.air.server import RadioSpec
    except ImportError:
        remedy = "install it with: pip install 'whimbrel[radio]'"
        raise MissingDependencyError("the air in software", "Bumble", remedy) from None
    found = _RADIO.fullmatch(text)
    if found is None:
        raise InvalidValueError("RADIO", text, "an address such as 02:00:00:00:00:01, with @X,Y behind it or not")
    try:
        place = (float(found["x"] or 0), float(found["y"] or 0))
    except ValueError:
        raise InvalidValueError("RADIO", text, "metres behind the @, such as @3,4") from None
    return RadioSpec(address=read_address(found["address"]), place=place)
