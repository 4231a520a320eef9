"""``whimbrel campus``: people who meet carry samples (short messages), with way-servers or without (Campus++)."""

from __future__ import annotations

import typer

from whimbrel.cli.campus.application import publish, status, subscribe, topics
from whimbrel.cli.campus.backbone import admin, key, way_server
from whimbrel.cli.campus.node import node

__all__ = ["app"]

app = typer.Typer(
    help="Samples carried by people who meet, with way-servers or without (Campus++).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for _command in (node, topics, subscribe, publish, status, way_server, admin, key):
    app.command()(_command)
