"""``whimbrel reload`` and ``whimbrel status``: an operator's requests to a broker that runs on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["reload", "status"]

Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="The data folder of the broker.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
DEFAULT_DATA = Path("whimbrel-data")


def reload(*, data: Data = DEFAULT_DATA) -> None:
    """Make a broker read its users, rights, certificates and log level again, as SIGHUP does.

    If a file cannot be used, all settings stay unchanged. Connections of users who were removed, or have another
    password now, are closed; no other connection is. Exits 1 if the broker refuses, 2 if none runs.

    Example: whimbrel reload --data whimbrel-data
    """
    typer.echo(_ask(data, "reload").get("done"))


def status(*, data: Data = DEFAULT_DATA, as_json: Json = False) -> None:
    """Print the state of a broker on this machine, as SIGUSR1 writes it to its log.

    Rates are those of the last minute. Exits 2 if no broker runs.

    Example: whimbrel status --data whimbrel-data
    """
    from whimbrel.broker.shell.operate.status_text import (
        status_text,
    )  # the broker's parts, which other commands need not load

    found = _ask(data, "status").get("status")
    assert isinstance(found, dict)
    typer.echo(json.dumps(found, ensure_ascii=False) if as_json else status_text(found))


def _ask(data: Path, name: str) -> dict[str, object]:
    from whimbrel.broker.shell.operate.asking import ask_broker  # see above

    answer = ask_broker(data, name)
    if answer.get("ok") is not True:
        typer.echo(f"error: {answer.get('reason')}", err=True)
        raise typer.Exit(1)
    return dict(answer)
