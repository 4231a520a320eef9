"""``whimbrel rendezvous controller``: a controller on a real Bluetooth adapter, as a daemon."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from whimbrel.cli.rendezvous.running import print_json, run_until_signal

__all__ = ["controller"]


def controller(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings as TOML; options stand above it.")
    ] = None,
    transport: Annotated[
        str | None,
        typer.Option(
            "--transport", metavar="ADAPTER", help="The adapter: usb:0, hci-socket:0, or another transport of Bumble."
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="DIR", help="Its own log of facts; see `whimbrel log show`.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="How it calls itself; begins with whimbrel-controller."),
    ] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help="Its name in the log.")] = None,
    metrics: Annotated[
        int | None,
        typer.Option("--metrics", metavar="PORT", min=0, max=65_535, help="Serve metrics on this port of 127.0.0.1."),
    ] = None,
    dumb: Annotated[
        list[str] | None,
        typer.Option(
            "--dumb",
            metavar="DUMB=SMART",
            help="Refused: only the simulated radio can stand in for a smart device; see `rendezvous simulate`.",
        ),
    ] = None,
) -> None:
    """Run a controller: always inquiring and discoverable, it introduces devices until SIGTERM.

    It stores its facts in a log of its own, and reports them to a broker if the settings file names one ([broker]:
    host, port, user, password_file, prefix). Real radios have no park mode: a device with an open request (event) is
    released, and paged when there is a message for it. Exits 2 if the adapter is missing or lacks a needed function.

    Example: whimbrel rendezvous controller --transport usb:0 --log /var/lib/whimbrel/hall
    """
    from whimbrel.rendezvous.daemon.controller import ControllerDaemon
    from whimbrel.rendezvous.daemon.settings import read_settings

    given = {
        "transport": transport,
        "log": log,
        "name": name,
        "node": node,
        "metrics_port": metrics,
        "dumb": dumb or None,
    }
    settings = read_settings(config, given)
    daemon = ControllerDaemon(settings, told=lambda line: typer.echo(line, err=True))

    async def serve(stop: asyncio.Event) -> None:
        await daemon.serve(
            stop,
            ready=lambda address: print_json(
                {"what": "ready", "address": address, "name": settings.name, "metrics_port": daemon.metrics_port}
            ),
        )
        print_json({"what": "stopped", "facts": dict(daemon.facts)})

    run_until_signal(serve)
