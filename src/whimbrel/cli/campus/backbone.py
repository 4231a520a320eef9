"""``whimbrel campus way-server``, ``admin`` and ``key``: relays at the gates of a campus, its plan, and its key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from whimbrel.cli.campus.options import AdminOptions, BrokerOptions, GateOptions, NodeOptions, RunOptions
from whimbrel.cli.options.groups import with_option_groups

__all__ = ["admin", "key", "way_server"]


@with_option_groups()
def way_server(
    *,
    gate: GateOptions,
    options: NodeOptions,
    broker: BrokerOptions,
    run: RunOptions,
) -> None:
    """Run a way-server at a gate: it gives topics and time to nodes that pass, and a census to the broker.

    Exits 2 if a setting, a file or the interface cannot be used, or the broker refuses the user. If the broker is away,
    the way-server waits for it.

    Example: whimbrel campus way-server --name north --campus-key campus.key --host broker.example --interface wlan0
    """
    from whimbrel.carry.backbone.settings import WayServerSettings  # daemons' parts, which other commands need not load
    from whimbrel.carry.backbone.way_server_service import WayServerService
    from whimbrel.carry.daemon.service import run_service
    from whimbrel.carry.daemon.settings import read_settings
    from whimbrel.cli.process.log_lines import set_up_logging

    run.check()
    set_up_logging(run.log_format, "info")
    given = {**options.options_given(), **broker.options_given(), **gate.options_given()}
    run_service(WayServerService(read_settings(WayServerSettings, run.config, given)))


@with_option_groups()
def admin(
    *,
    own: AdminOptions,
    broker: BrokerOptions,
    run: RunOptions,
) -> None:
    """Run the administrative server: one plan of copies and one time for all way-servers, through the broker.

    The plan is the broker's ($SYS/broker/replicas) if a pipeline made one, else it is computed here from the censuses.
    Exits 2 if a setting or a file cannot be used, or the broker refuses the user. If the broker is away, the
    server waits.

    Example: whimbrel campus admin --topics topics.txt --host broker.example
    """
    from whimbrel.carry.backbone.admin_service import AdminService  # see above
    from whimbrel.carry.backbone.settings import AdminSettings
    from whimbrel.carry.daemon.service import run_service
    from whimbrel.carry.daemon.settings import read_settings
    from whimbrel.cli.process.log_lines import set_up_logging

    run.check()
    set_up_logging(run.log_format, "info")
    run_service(
        AdminService(read_settings(AdminSettings, run.config, {**broker.options_given(), **own.options_given()}))
    )


def key(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file of the secret key; made if it does not exist.")
    ],
) -> None:
    """Make a secret key in FILE, which only its owner can read, or read it; print the public key.

    Way-servers get the secret key (--campus-key), nodes the public key (--key).

    Example: whimbrel campus key campus.key
    """
    from whimbrel.carry.daemon.settings import signer_of  # see above
    from whimbrel.carry.signatures import SEED_BYTES

    if not file.exists():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(os.urandom(SEED_BYTES).hex() + "\n")
    typer.echo(signer_of(file).public.hex())
