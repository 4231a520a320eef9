"""``whimbrel campus way-server``, ``admin`` and ``key``: the gates of a campus, its plan and its key."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from whimbrel.cli.campus.options import NodeOptions, RunOptions
from whimbrel.cli.options.groups import with_option_groups
from whimbrel.cli.options.values import seconds_between

__all__ = ["admin", "key", "way_server"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """Options for the way to the broker; None: not given."""

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

    def given(self) -> dict[str, object]:
        """Return the options that were given, by name."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found.items()
            if value is not None
        }


@with_option_groups()
def way_server(
    *,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The name of this gate; unlike all others.")
    ] = None,
    campus_key: Annotated[
        str | None, typer.Option("--campus-key", metavar="FILE", help="The secret key of the campus; see `campus key`.")
    ] = None,
    previous_key: Annotated[
        str | None, typer.Option("--previous-key", metavar="FILE", help="The key before: it names the new one.")
    ] = None,
    previous_until: Annotated[
        str | None, typer.Option("--previous-until", metavar="TIME", help="When the key before retires, in ISO 8601.")
    ] = None,
    clock: Annotated[
        str | None, typer.Option("--clock", metavar="admin|own", help="Whose time it tells; else that of the admin.")
    ] = None,
    census_s: Annotated[
        float | None,
        typer.Option("--census", metavar="TIME", parser=seconds_between(0.1), help="How often to look for news; 5 s."),
    ] = None,
    options: NodeOptions,
    broker: BrokerOptions,
    run: RunOptions,
) -> None:
    """Run a way-server at a gate: control data and the time for whom it meets, a census for the broker.

    Exits 2 if a setting, a file or the interface cannot be used. A broker that is away is waited for.

    Example: whimbrel campus way-server --name north --campus-key campus.key --host broker.example --interface wlan0
    """
    from whimbrel.carry.backbone.settings import WayServerSettings  # daemons' parts, which others need not load
    from whimbrel.carry.backbone.way_server_service import WayServerService
    from whimbrel.carry.daemon.service import stop_at_signals
    from whimbrel.carry.daemon.settings import read_settings
    from whimbrel.cli.process.log_lines import set_up_logging

    own = {
        "name": name,
        "campus_key": campus_key,
        "previous_key": previous_key,
        "previous_until": previous_until,
        "clock": clock,
        "census_s": census_s,
    }
    run.check()
    set_up_logging(run.log_format, "info")
    given = {**options.given(), **broker.given(), **own}
    service = WayServerService(read_settings(WayServerSettings, run.config, given))

    async def serve() -> None:
        stop = asyncio.Event()
        stop_at_signals(stop)
        await service.run(stop)

    try:
        service.open()
        asyncio.run(serve())
    finally:
        service.close()


@with_option_groups()
def admin(
    *,
    data: Annotated[
        str | None, typer.Option("--data", metavar="DIR", help="Where versions and ids are kept; else campus-admin.")
    ] = None,
    topics: Annotated[
        str | None,
        typer.Option("--topics", metavar="FILE", help="Names of topics, one per line, an id before it or not."),
    ] = None,
    copies: Annotated[
        int | None, typer.Option("--copies", metavar="L", help="Copies while nobody was met and there is no plan; 8.")
    ] = None,
    window_s: Annotated[
        float | None,
        typer.Option("--window", metavar="TIME", parser=seconds_between(1), help="How long a user counts; else 1 h."),
    ] = None,
    every_s: Annotated[
        float | None,
        typer.Option(
            "--every", metavar="TIME", parser=seconds_between(0.1), help="The least time between versions; 1 m."
        ),
    ] = None,
    broker: BrokerOptions,
    run: RunOptions,
) -> None:
    """Run the administrative server: one plan and one time for all way-servers, through the broker.

    The plan is the broker's ($SYS/broker/replicas) where a pipeline made one, else computed here from the censuses.

    Example: whimbrel campus admin --topics topics.txt --host broker.example
    """
    from whimbrel.carry.backbone.admin_service import AdminService  # see above
    from whimbrel.carry.backbone.settings import AdminSettings
    from whimbrel.carry.daemon.service import stop_at_signals
    from whimbrel.carry.daemon.settings import read_settings
    from whimbrel.cli.process.log_lines import set_up_logging

    run.check()
    set_up_logging(run.log_format, "info")
    own = {"data": data, "topics": topics, "copies": copies, "window_s": window_s, "every_s": every_s}
    service = AdminService(read_settings(AdminSettings, run.config, {**broker.given(), **own}))

    async def serve() -> None:
        stop = asyncio.Event()
        stop_at_signals(stop)
        await service.run(stop)

    try:
        service.open()
        asyncio.run(serve())
    finally:
        service.close()


def key(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file of the secret key; made if it does not exist.")
    ],
) -> None:
    """Make a secret key in FILE, which only its owner can read, or read it; print the public key.

    Way-servers have the secret (--campus-key), nodes the public key (--key).

    Example: whimbrel campus key campus.key
    """
    from whimbrel.carry.daemon.settings import signer_of  # see above
    from whimbrel.carry.signatures import SEED_BYTES

    if not file.exists():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(os.urandom(SEED_BYTES).hex() + "\n")
    typer.echo(signer_of(file).public.hex())
