"""``whimbrel publish``: send messages to a broker."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.options.connection import ClientId, Connection, run
from whimbrel.cli.options.groups import with_option_groups
from whimbrel.cli.options.lines import MAX_LINE_BYTES
from whimbrel.cli.options.passwords import Insecure, KeyFile, Keys, keys_from
from whimbrel.cli.options.places import read_place
from whimbrel.cli.options.values import read_seconds, read_whole_seconds
from whimbrel.errors import MalformedLineError

if TYPE_CHECKING:  # other commands need not load asyncio and MQTT
    from whimbrel.client import Client, ReasonCode

    _Send = Callable[[Client, bytes], Coroutine[object, object, None]]

__all__ = ["publish"]

_AT_A_TIME = 64
"""Most lines that wait for their acknowledgement at one time."""


@with_option_groups()
def publish(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic, e.g. ward/3/bed/4.")],
    body: Annotated[str | None, typer.Argument(metavar="BODY", help="The message; empty if not given.")] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Send what is in FILE; - is standard input.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Send each line of standard input as a message.")] = False,
    connection: Connection,
    qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="The quality of service.")] = 0,
    retain: Annotated[bool, typer.Option("--retain", help="Have the broker keep it for later subscribers.")] = False,
    expiry: Annotated[
        int | None,
        typer.Option("--expiry", metavar="TIME", parser=read_whole_seconds, help="After how long it expires: 90s, 1h."),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property", metavar="K=V", help="A user property, which filters see as an attribute; repeatable."
        ),
    ] = None,
    place: Annotated[
        str | None, typer.Option("--place", metavar="LAT,LON", parser=read_place, help="Where it is published.")
    ] = None,
    radius: Annotated[
        float | None,
        typer.Option("--radius", metavar="M", min=0, help="Deliver only to sessions within M metres of --place."),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option("--deadline", metavar="TIME", parser=read_seconds, help="From when on a copy is late: 2.5s."),
    ] = None,
    keys: Keys = None,
    key_file: KeyFile = None,
    insecure: Insecure = None,
    client_id: ClientId = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the broker's answers as JSON, one object per line.")
    ] = False,
) -> None:
    """Publish a message, or many, and wait until the broker has accepted them.

    With --qos 1 or 2 the command waits for the broker's answer; with --qos 0 there is none. A BODY that is a JSON
    object can be selected by content: see `whimbrel subscribe --filter`. With keys, only subscriptions with matching
    keys get the message. With --place and --radius, only sessions in that circle get it. Exits 1 if the broker cannot
    be reached or refuses.

    Example: whimbrel publish ward/3/bed/4 '{"temperature": 39.2}' --qos 1
    """
    if sum((body is not None, file is not None, lines)) > 1:
        raise typer.BadParameter("BODY, --file and --lines exclude each other")
    from whimbrel.mqtt.client import check_own_topic  # asyncio and the wire need not be loaded for other commands

    check_own_topic(topic)  # before connecting to a broker
    given = [_pair(text) for text in properties or ()]
    if radius is not None and place is None:
        raise typer.BadParameter("--radius needs --place, the middle of the circle")
    if not connection.is_v5 and (given or expiry is not None or insecure is not None or deadline is not None):
        raise typer.BadParameter("--property, --expiry, --deadline, --insecure and --secure need MQTT 5")
    own_keys = keys_from(keys, key_file)
    # MQTT 3.1.1 has no keys per message; the keys of the connection apply to every message.
    shared_keys, own_keys = ((), own_keys) if connection.is_v5 else (own_keys, ())
    client = connection.client(client_id, keys=shared_keys)

    async def send(connected: Client, payload: bytes) -> None:
        code = await connected.publish(
            topic, payload, qos=qos, retain=retain, expiry_s=expiry, user=given, keys=own_keys, insecure=insecure,
            place=place, radius_m=radius, deadline_s=deadline,
        )  # fmt: skip
        if as_json:
            typer.echo(json.dumps(_outcome(topic, code, len(payload)), ensure_ascii=False))

    run(_send_lines(client, send) if lines else _send_one(client, send, _body(body, file)))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"--property: found {text!r}, allowed is NAME=VALUE")
    return name, value


def _outcome(topic: str, code: ReasonCode, size: int) -> dict[str, object]:
    return {"topic": topic, "bytes": size, "code": int(code), "outcome": code.title}


def _body(body: str | None, file: Path | None) -> bytes:
    if file is None:
        return (body or "").encode()
    return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()


async def _send_one(client: Client, send: _Send, body: bytes) -> None:
    async with client:
        await send(client, body)


async def _send_lines(client: Client, send: _Send) -> None:
    waiting: deque[asyncio.Task[None]] = deque()
    async with client:
        try:
            async for line in _lines():
                waiting.append(asyncio.create_task(send(client, line)))
                while len(waiting) >= _AT_A_TIME or (waiting and waiting[0].done()):
                    await waiting.popleft()
            while waiting:
                await waiting.popleft()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def _lines() -> AsyncIterator[bytes]:
    """Yield the lines of standard input; a thread waits for them, so that pings need not."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes] = asyncio.Queue(_AT_A_TIME)

    def read() -> None:
        line = b"."
        while line:
            line = sys.stdin.buffer.readline(MAX_LINE_BYTES + 1)
            asyncio.run_coroutine_threadsafe(queue.put(line), loop).result()

    threading.Thread(target=read, daemon=True).start()
    number = 0
    while line := await queue.get():
        number += 1
        if len(line) > MAX_LINE_BYTES:
            reason = f"longer than the {MAX_LINE_BYTES} bytes allowed"
            raise MalformedLineError("standard input", number, MAX_LINE_BYTES + 1, reason)
        yield line.rstrip(b"\r\n")
