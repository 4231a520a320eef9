"""``whimbrel nearby``: events around the place they come from, without any server."""

from __future__ import annotations

import typer

from whimbrel.cli.nearby.announce import announce
from whimbrel.cli.nearby.listen import listen
from whimbrel.cli.nearby.status import status
from whimbrel.cli.nearby.subscribe import subscribe

__all__ = ["app"]

app = typer.Typer(
    help="Events around the place they come from, with no server anywhere (STEAM's proximity groups).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for _command in (announce, subscribe, listen, status):
    app.command()(_command)
