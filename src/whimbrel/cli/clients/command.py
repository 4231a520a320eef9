"""``whimbrel clients``: the clients of a broker, for operators."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from whimbrel.cli.options.connection import run
from whimbrel.cli.options.groups import with_option_groups
from whimbrel.cli.session.connection import AskingConnection
from whimbrel.model.clock import format_time

if TYPE_CHECKING:  # other commands need not load asyncio and MQTT
    from whimbrel.client import Clients, ClientSummary

__all__ = ["app"]

_T = TypeVar("_T")
app = typer.Typer(
    help="List, show and disconnect the clients of a broker; the rights file says who may.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text; a client a line.")]
ClientId = Annotated[str, typer.Argument(metavar="CLIENT_ID", help="The client's identifier.")]


@app.command("list")
@with_option_groups()
def list_(
    *,
    connected: Annotated[bool, typer.Option("--connected", help="Only clients that are connected now.")] = False,
    connection: AskingConnection,
    as_json: Json = False,
) -> None:
    """Print the clients that the broker knows, connected or away, sorted by identifier.

    Needs the right "operate" on the topic $whimbrel/clients/list in the rights file. Exits 1 if the broker cannot be
    reached or refuses.

    Example: whimbrel clients list --connected --user operator
    """

    async def work(clients: Clients) -> None:
        async for each in clients.list(connected=connected):
            typer.echo(json.dumps(each._asdict(), ensure_ascii=False) if as_json else _line(each))

    _ask(connection, work)


def _line(client: ClientSummary) -> str:
    where = client.address if client.connected else "away"
    who = "" if client.user is None else f" of {client.user}"
    count = f"{client.subscriptions} subscription{'' if client.subscriptions == 1 else 's'}"
    return f"{client.client}{who}  {where}, {count}, {client.held} held"


def _fact(name: str, value: object) -> str:
    """Return one line about a client, in words, without True, None or []."""
    if name.endswith("_at") and isinstance(value, int):
        value = format_time(value)
    words, unit = (name.removesuffix("_s"), " s") if name.endswith("_s") else (name, "")
    return f"{words.replace('_', ' ')}: {_plain(value)}{unit if value is not None else ''}"


def _plain(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case None | []:
            return "none"
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value)


@app.command()
@with_option_groups()
def show(client_id: ClientId, *, connection: AskingConnection, as_json: Json = False) -> None:
    """Print the broker's record of one client: its connection, subscriptions, and what is held for it.

    Needs the right "operate" on the topic $whimbrel/clients/show in the rights file.

    Example: whimbrel clients show ward-3-panel --user operator
    """
    found = dict(_ask(connection, lambda clients: clients.show(client_id)))
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    filters = found.pop("filters", None)
    link = found.pop("connection", None)
    for name, value in (found | (link if isinstance(link, dict) else {})).items():
        typer.echo(_fact(name, value))
    for each in filters if isinstance(filters, list) else ():
        told = " ".join(
            f"{name}={_plain(value)}" for name, value in each.items() if name != "topic" and value not in (None, "", [])
        )
        typer.echo(f"subscribed to {each.get('topic')}  {told}")


@app.command()
@with_option_groups()
def disconnect(client_id: ClientId, *, connection: AskingConnection, as_json: Json = False) -> None:
    """Close the connection of a client; its session stays, and its will is published (reason code 0x98).

    To keep the client out, remove its user (`whimbrel user remove`, `whimbrel reload`) or change the rights. Needs the
    right "operate" on the topic $whimbrel/clients/disconnect in the rights file.

    Example: whimbrel clients disconnect ward-3-panel --user operator
    """
    was_connected = _ask(connection, lambda clients: clients.disconnect(client_id))
    if as_json:
        typer.echo(json.dumps({"client": client_id, "disconnected": was_connected}, ensure_ascii=False))
    else:
        typer.echo(f"{client_id}: {'disconnected' if was_connected else 'it was not connected'}")


def _ask(connection: AskingConnection, work: Callable[[Clients], Awaitable[_T]]) -> _T:
    answers: list[_T] = []

    async def ask() -> None:
        async with connection.client_of_its_own() as client:
            answers.append(await work(client.clients))

    run(ask())
    return answers[0]
