"""``whimbrel subscribe``: prints the messages of a broker."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options.connection import ClientId, Connection, run
from whimbrel.cli.options.groups import with_option_groups
from whimbrel.cli.options.passwords import Insecure, KeyFile, Keys, SessionPasswordFile, keys_from, session_password
from whimbrel.cli.options.places import Near, OwnPlace, Stale
from whimbrel.cli.options.values import read_seconds, read_whole_seconds
from whimbrel.language.filters import parse

if TYPE_CHECKING:  # other commands need not load asyncio and MQTT
    from whimbrel.client import Client, Join, Message

__all__ = ["print_all", "subscribe"]


@with_option_groups()
def subscribe(
    topic_filters: Annotated[
        list[str], typer.Argument(metavar="TOPIC_FILTER", help="What to subscribe to, e.g. 'ward/+/bed/#'.")
    ],
    *,
    filter_text: Annotated[
        str | None, typer.Option("--filter", metavar="EXPR", help="Only messages whose content EXPR selects.")
    ] = None,
    connection: Connection,
    qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="The highest quality of service wanted.")] = 1,
    ttl: Annotated[
        int | None,
        typer.Option(
            "--ttl", metavar="TIME", parser=read_whole_seconds, help="How long messages are kept while we are away: 1h."
        ),
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", metavar="N", min=0, help="How many messages are kept while we are away.")
    ] = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Tells subscriptions to one topic apart.")] = "",
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="AGO|ID",
            help="First what the log has: of 90s, 15m, 24h, 7d, or what came after node:seq.",
        ),
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option(
            "--join", metavar="SESSION", help="Join a named session and subscribe there; needs --client-id. Repeatable."
        ),
    ] = None,
    modify: Annotated[
        bool, typer.Option("--modify", help="With --join: change the session's subscription if its options differ.")
    ] = False,
    session_password_file: SessionPasswordFile = None,
    near: Near = None,
    stale: Stale = None,
    place: OwnPlace = None,
    keys: Keys = None,
    key_file: KeyFile = None,
    insecure: Insecure = None,
    session_expiry: Annotated[
        int,
        typer.Option(
            "--session-expiry",
            metavar="TIME",
            parser=read_whole_seconds,
            help="How long we may be away: 7d; needs --client-id.",
        ),
    ] = 0,
    client_id: ClientId = "",
    count: Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="Stop after N messages.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="TIME", parser=read_seconds, help="Stop after TIME, with exit code 1."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON objects, one per line.")] = False,
) -> None:
    """Subscribe, and print topic and body of each message, one per line, until stopped.

    A message is acknowledged after it was printed. With --client-id and --session-expiry the broker keeps messages
    while this command does not run. With --join the subscription is made in a named session, the first of several, for
    all its devices. With --since the broker's log comes first, and --json shows the id of each message, from which
    another --since continues. With --near only messages that were published near enough come, and with --place the
    broker knows where we are. A lost connection is made again. Exits 0 after --count messages, 1 when --timeout is over
    before, or if the broker cannot be reached or refuses.

    Example: whimbrel subscribe 'ward/+/bed/#' --filter 'temperature > 38.5' --qos 1
    """
    if filter_text is not None:
        parse(filter_text)  # show an error in the filter with its position, before anything is sent
    from whimbrel.client.interest import Interest  # other commands need not load asyncio and MQTT

    for topic_filter in topic_filters:
        Interest(topic_filter=topic_filter)
    if session_expiry and not client_id:
        raise typer.BadParameter("--session-expiry needs --client-id, or the session could not be found again")
    if join and not client_id:
        raise typer.BadParameter("--join needs --client-id: a session knows its devices by name, and keeps for them")
    if not connection.is_v5 and session_expiry:
        raise typer.BadParameter("--session-expiry needs MQTT 5")
    if not connection.is_v5 and not join and (ttl is not None or most is not None or name or insecure is not None):
        raise typer.BadParameter("--ttl, --max, --name, --insecure and --secure need MQTT 5, or --join")
    if not connection.is_v5 and not join and stale is not None:
        raise typer.BadParameter("--stale needs MQTT 5, or --join")
    if since is not None and (join or not connection.is_v5):
        raise typer.BadParameter("--since needs MQTT 5, and no --join: it is for this client alone")
    own_keys = keys_from(keys, key_file)
    # SUBSCRIBE of MQTT 3.1.1 has no keys; the keys of the connection apply to every subscription.
    shared_keys, own_keys = ((), own_keys) if connection.is_v5 or join else (own_keys, ())
    joins = _joins(join or [], session_password_file)
    client = connection.client(
        client_id, session_expiry_s=session_expiry, is_lasting=True, join=joins, keys=shared_keys, place=place
    )

    async def listen() -> None:
        async with client:
            for topic_filter in topic_filters:
                await client.subscribe(
                    topic_filter, qos, filter=filter_text, ttl_s=ttl, max=most, name=name, keys=own_keys,
                    insecure=insecure, near=near, stale_s=stale, since=since, modify=modify,
                )  # fmt: skip
            if place is not None:  # the broker must have it before the next command is typed
                await client.report(place=place)
            if sys.stderr.isatty():  # a person must know when to type the next command
                typer.echo(f"subscribed to {', '.join(topic_filters)}; Ctrl-C ends", err=True)
            await print_all(client, count, as_json=as_json)

    run(listen(), timeout_s=timeout)


def _joins(sessions: list[str], password_file: Path | None) -> list[Join]:
    if not sessions:
        return []
    from whimbrel.client import Join  # see above

    password = session_password(", ".join(sessions), password_file)
    return [Join(session, password) for session in sessions]


async def print_all(client: Client, count: int | None, *, as_json: bool) -> None:
    """Print the messages of *client* as they arrive, *count* of them if given."""
    printed = 0
    async for message in client.messages():
        typer.echo(_line(message, as_json=as_json))
        printed += 1
        if printed == count:
            return


def _line(message: Message, *, as_json: bool) -> str:
    if not as_json:
        return f"{message.topic} {message.payload.decode(errors='backslashreplace')}"
    fields: dict[str, object] = {"topic": message.topic}
    if message.id is not None:
        fields["id"] = message.id
    try:
        fields["body"] = message.payload.decode()
    except UnicodeDecodeError:
        fields |= {"body": base64.b64encode(message.payload).decode(), "encoding": "base64"}
    fields |= {"qos": message.qos, "retain": message.retain, "properties": _properties(message)}
    return json.dumps(fields, ensure_ascii=False)


def _properties(message: Message) -> dict[str, object]:
    """Return the properties under the names of the specification; user properties are pairs, as they may repeat."""
    from whimbrel.mqtt.properties import Property  # see above

    found: dict[str, object] = {}
    for which, value in message.properties.once():
        if which is not Property.TOPIC_ALIAS:  # the alias is part of the transfer, not of the message
            found[which.name.lower()] = base64.b64encode(value).decode() if isinstance(value, bytes) else value
    if message.user:
        found["user"] = [list(pair) for pair in message.user]
    return found
