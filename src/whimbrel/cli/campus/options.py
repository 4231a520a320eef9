"""Options that the daemons of ``whimbrel campus`` share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from whimbrel.cli.options.values import seconds_between
from whimbrel.errors import InvalidValueError

__all__ = ["AdminOptions", "BrokerOptions", "Data", "GateOptions", "Json", "NodeOptions", "RunOptions"]

Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="The data folder of a campus node that runs on this machine.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of every daemon: its settings file, and the format of its log lines."""

    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="TOML with the names of these options; they go before it."),
    ] = None
    log_format: Annotated[
        str, typer.Option("--log-format", metavar="text|json", help="How log lines are written to standard error.")
    ] = "text"

    def check(self) -> None:
        """Raise ``InvalidValueError`` if the format of log lines is unknown."""
        if self.log_format not in {"text", "json"}:
            raise InvalidValueError("--log-format", self.log_format, "text or json")


TopicsFile = Annotated[
    str | None,
    typer.Option("--topics", metavar="FILE", help="Names of topics, one per line, an id before it or not."),
]

MetricsPort = Annotated[
    int | None, typer.Option("--metrics-port", min=0, max=65_535, help="/metrics and /healthz on loopback.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions:
    """Options named like settings; None means not given."""

    def options_given(self) -> dict[str, object]:
        """Return the options that were given, by name."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found.items()
            if value is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions(GivenOptions):
    """Options of a node, named like the fields of ``NodeSettings``."""

    data: Annotated[
        str | None, typer.Option("--data", metavar="DIR", help="Where memory and log are kept; else campus-data.")
    ] = None
    interface: Annotated[
        str | None,
        typer.Option("--interface", metavar="NAME", help="The network interface; needed where there are several."),
    ] = None
    udp_port: Annotated[
        int | None, typer.Option("--udp-port", min=1, max=65_535, help="The UDP port of Hellos, which all nodes share.")
    ] = None
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HEX", help="The address of this node; else drawn once, and kept."),
    ] = None
    topics: TopicsFile = None
    places: Annotated[
        int | None, typer.Option("--places", metavar="N", help="Samples of others and our own to carry; else 10.")
    ] = None
    copies: Annotated[
        int | None, typer.Option("--copies", metavar="L", help="Copies of a sample of a topic without a plan; else 8.")
    ] = None
    hello_s: Annotated[
        float | None,
        typer.Option("--hello", metavar="TIME", parser=seconds_between(0.01), help="The period of Hello; else 1 s."),
    ] = None
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="link|802.15.4", help="Frames of 1,232 bytes, or of 88 for small radios."),
    ] = None
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="HEX", help="A public key of the campus: it has way-servers; repeatable."),
    ] = None
    sign: Annotated[
        str | None, typer.Option("--sign", metavar="FILE", help="Sign what we publish with the secret key in FILE.")
    ] = None
    publisher: Annotated[
        list[str] | None,
        typer.Option("--publisher", metavar="HEX", help="Take only samples that this key signed; repeatable."),
    ] = None
    shows_retrieved: Annotated[
        bool | None,
        typer.Option("--show-retrieved/--hide-retrieved", help="Whether to offer what we retrieved to subscribers."),
    ] = None
    reach: Annotated[
        str | None,
        typer.Option("--reach", metavar="FILE", help="Pretend a radio: JSON of the addresses each address hears."),
    ] = None
    metrics_port: MetricsPort = None
    log_bytes: Annotated[
        int | None, typer.Option("--log-bytes", metavar="N", help="About the most that our own log takes; 0: no log.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions(GivenOptions):
    """Options for the connection to the broker, shared by way-servers and the administrative server."""

    host: Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="The broker; else 127.0.0.1.")] = None
    port: Annotated[int | None, typer.Option("--port", min=1, max=65_535, help="Its port; else 1883, or 8883.")] = None
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="The user to connect as.")] = None
    password_file: Annotated[
        str | None, typer.Option("--password-file", metavar="FILE", help="The password is the first line of FILE.")
    ] = None
    tls_ca: Annotated[
        str | None, typer.Option("--tls-ca", metavar="FILE", help="Speak TLS: who signs the broker's certificate.")
    ] = None
    bridge: Annotated[
        list[str] | None,
        typer.Option("--bridge", metavar="TOPIC", help="Exchange samples with campus/TOPIC on the broker; repeatable."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions(GivenOptions):
    """Options of a way-server, besides those of a node and of the connection to the broker."""

    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The name of this gate; unlike all others.")
    ] = None
    campus_key: Annotated[
        str | None, typer.Option("--campus-key", metavar="FILE", help="The secret key of the campus; see `campus key`.")
    ] = None
    previous_key: Annotated[
        str | None, typer.Option("--previous-key", metavar="FILE", help="The key before: it names the new one.")
    ] = None
    previous_until: Annotated[
        str | None, typer.Option("--previous-until", metavar="TIME", help="When the key before retires, in ISO 8601.")
    ] = None
    clock: Annotated[
        str | None, typer.Option("--clock", metavar="admin|own", help="Whose time it tells; else that of the admin.")
    ] = None
    census_s: Annotated[
        float | None,
        typer.Option("--census", metavar="TIME", parser=seconds_between(0.1), help="How often to look for news; 5 s."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions(GivenOptions):
    """Options of the administrative server, besides those of the connection to the broker."""

    data: Annotated[
        str | None, typer.Option("--data", metavar="DIR", help="Where versions and ids are kept; else campus-admin.")
    ] = None
    topics: TopicsFile = None
    copies: Annotated[
        int | None, typer.Option("--copies", metavar="L", help="Copies while nobody was met and there is no plan; 8.")
    ] = None
    window_s: Annotated[
        float | None,
        typer.Option("--window", metavar="TIME", parser=seconds_between(1), help="How long a user counts; else 1 h."),
    ] = None
    every_s: Annotated[
        float | None,
        typer.Option(
            "--every", metavar="TIME", parser=seconds_between(0.1), help="The least time between versions; 1 m."
        ),
    ] = None
    metrics_port: MetricsPort = None
