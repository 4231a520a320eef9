"""``whimbrel subscribe``: print what a broker has to say."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options import read_seconds
from whimbrel.cli.publish import ClientId, Host, Mqtt, PasswordFile, Port, User, client_for, run
from whimbrel.language.filters import parse

if TYPE_CHECKING:  # asyncio and the wire need not be loaded for other commands
    from whimbrel.client import Client, Message

__all__ = ["subscribe"]


def subscribe(
    topic_filters: Annotated[
        list[str], typer.Argument(metavar="TOPIC_FILTER", help="What to subscribe to, e.g. 'ward/+/bed/#'.")
    ],
    *,
    filter_text: Annotated[
        str | None, typer.Option("--filter", metavar="EXPR", help="Only messages whose content EXPR selects.")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 1883,
    qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="The highest quality of service wanted.")] = 1,
    ttl: Annotated[
        int | None, typer.Option("--ttl", metavar="S", min=0, help="How long messages are kept while we are away.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", metavar="N", min=0, help="How many messages are kept while we are away.")
    ] = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Tells subscriptions to one topic apart.")] = "",
    session_expiry: Annotated[
        int, typer.Option("--session-expiry", metavar="S", min=0, help="How long we may be away; needs --client-id.")
    ] = 0,
    client_id: ClientId = "",
    user: User = None,
    password_file: PasswordFile = None,
    mqtt: Mqtt = "5",
    count: Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="Stop after N messages.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="S", parser=read_seconds, help="Stop after S seconds, with exit code 1."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON objects, one a line.")] = False,
) -> None:
    """Subscribe, and print topic and body of each message, one a line, until stopped.

    A message is acknowledged after it was printed. With --client-id and --session-expiry the broker keeps messages
    while this command does not run. A connection that is lost is made again. Exits 0 after --count messages, 1 when
    --timeout is over before, or if the broker cannot be reached or refuses.

    Example: whimbrel subscribe 'ward/+/bed/#' --filter 'temperature > 38.5' --qos 1
    """
    if filter_text is not None:
        parse(filter_text)  # a mistake in it is shown with its place, before anything is sent
    if session_expiry and not client_id:
        raise typer.BadParameter("--session-expiry needs --client-id, or the session could not be found again")
    if mqtt != "5" and (ttl is not None or most is not None or name or session_expiry):
        raise typer.BadParameter("--ttl, --max, --name and --session-expiry need MQTT 5")
    client = client_for(
        host, port, client_id=client_id, user=user, password_file=password_file, mqtt=mqtt,
        session_expiry_s=session_expiry, is_lasting=True,
    )  # fmt: skip

    async def listen() -> None:
        async with client:
            for topic_filter in topic_filters:
                await client.subscribe(topic_filter, qos, filter=filter_text, ttl_s=ttl, max=most, name=name)
            await _print_all(client, count, as_json=as_json)

    run(listen(), timeout_s=timeout)


async def _print_all(client: Client, count: int | None, *, as_json: bool) -> None:
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
    try:
        fields["body"] = message.payload.decode()
    except UnicodeDecodeError:
        fields |= {"body": base64.b64encode(message.payload).decode(), "encoding": "base64"}
    fields |= {"qos": message.qos, "retain": message.retain, "properties": _properties(message)}
    return json.dumps(fields, ensure_ascii=False)


def _properties(message: Message) -> dict[str, object]:
    """Return the properties by the names of the specification; user properties are pairs, for they may repeat."""
    from whimbrel.mqtt.properties import Property  # see above

    found: dict[str, object] = {}
    for which, value in message.properties.once():
        if which is not Property.TOPIC_ALIAS:  # says how it was sent, not what
            found[which.name.lower()] = base64.b64encode(value).decode() if isinstance(value, bytes) else value
    if message.user:
        found["user"] = [list(pair) for pair in message.user]
    return found
