"""Options that the commands of ``whimbrel nearby`` share: those of a node and of a broker."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options.connection import Connection, PasswordFile, Port, User
from whimbrel.cli.options.values import seconds_between

if TYPE_CHECKING:  # other commands need not load sockets
    from whimbrel.client import Client

__all__ = ["BrokerOptions", "Count", "NodeOptions", "Relay", "Type"]

Type = Annotated[str, typer.Argument(metavar="TYPE", help="Event type, by its name in the vocabulary.")]
Relay = Annotated[bool, typer.Option("--relay/--no-relay", help="Whether to repeat frames for others.")]
Count = Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="Stop after N events.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Identity and place of a node, and the settings that all nodes of its deployment share."""

    vocabulary: Annotated[
        Path,
        typer.Option(
            "--vocabulary", metavar="FILE", help='JSON: {"traffic light": {"status": "string"}}; all nodes share it.'
        ),
    ]
    name: Annotated[str, typer.Option("--name", metavar="NODE", help="Who we are; unlike every other node.")]
    interface: Annotated[str, typer.Option("--interface", metavar="NAME", help="The network interface.")]
    udp_port: Annotated[
        int, typer.Option("--udp-port", min=1, max=65_535, help="The UDP port that all nodes share.")
    ] = 27_302
    place: Annotated[str | None, typer.Option("--place", metavar="LAT,LON", help="Where we are, if we stand.")] = None
    fixes: Annotated[
        Path | None,
        typer.Option(
            "--fixes", metavar="FILE", help='Where we are going: JSON lines {"at_s": 0, "place": "53.34,-6.25"}.'
        ),
    ] = None
    gpsd: Annotated[str | None, typer.Option("--gpsd", metavar="HOST[:PORT]", help="Ask a gpsd where we are.")] = None
    fix_within: Annotated[
        float,
        typer.Option(
            "--fix-within", metavar="TIME", parser=seconds_between(0.1), help="How long to wait for gpsd's first fix."
        ),
    ] = 30.0
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", metavar="TIME", parser=seconds_between(0.1), help="Stop after so long; else at an interrupt."
        ),
    ] = None
    cell_m: Annotated[int, typer.Option("--cell-m", metavar="M", help="The side of a cell; all nodes share it.")] = 500
    max_radius_m: Annotated[
        float, typer.Option("--max-radius", metavar="M", help="The largest area to announce or believe; shared, too.")
    ] = 5_000.0
    trust: Annotated[
        list[str] | None,
        typer.Option(
            "--trust", metavar="HEX[@TIME]", help="Believe only this public key, until the ISO 8601 TIME; repeatable."
        ),
    ] = None
    signed_age: Annotated[
        float,
        typer.Option(
            "--signed-age",
            metavar="TIME",
            parser=seconds_between(1, 86_400),
            help="Refuse signed frames that are older; so far may clocks differ.",
        ),
    ] = 60.0
    has_clock: Annotated[
        bool,
        typer.Option("--clock/--no-clock", help="Whether our clock is set; without one we cannot refuse old frames."),
    ] = True
    reach: Annotated[
        Path | None,
        typer.Option(
            "--reach", metavar="FILE", help='Pretend a radio: JSON of the nodes each node hears, {"car": ["light"]}.'
        ),
    ] = None
    loss: Annotated[float, typer.Option("--loss", metavar="P", min=0, max=1, help="Pretend a radio: lose frames.")] = (
        0.0
    )
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            metavar="DIR",
            help="Where we count our starts, on which our numbers depend; else a folder of the user's state.",
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """The broker to pass events on to, if any."""

    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="A broker that knows of events outside their area.")
    ] = None
    port: Port = 1_883
    user: User = None
    password_file: PasswordFile = None

    def connect(self, client_id: str) -> AbstractAsyncContextManager[Client | None]:
        """Return the connection to the broker, or an empty context without a broker."""
        if self.host is None:
            return nullcontext()
        found = Connection(host=self.host, port=self.port, user=self.user, password_file=self.password_file)
        return found.client(client_id)
