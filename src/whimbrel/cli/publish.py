"""``whimbrel publish``: send messages to a broker; and the options that ``whimbrel subscribe`` has too.

Rule: a password never stands in an argument, where other processes and the shell's history could see it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.lines import MAX_LINE_BYTES
from whimbrel.cli.passwords import Insecure, KeyFile, Keys, keys_from
from whimbrel.cli.user import _password_from as password_from
from whimbrel.errors import MalformedLineError

if TYPE_CHECKING:  # asyncio and the wire need not be loaded for other commands
    from whimbrel.client import Client, Join, ReasonCode

    _Send = Callable[[Client, bytes], Coroutine[object, object, None]]

__all__ = ["ClientId", "Host", "Mqtt", "PasswordFile", "Port", "User", "client_for", "publish", "run"]

_AT_A_TIME = 64
"""Lines that wait for their acknowledgement at a time."""

Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where the broker is.")]
Port = Annotated[int, typer.Option("--port", min=1, max=65_535, help="Its port for MQTT.")]
ClientId = Annotated[
    str, typer.Option("--client-id", metavar="ID", help="Who we are; if not given, the broker makes up a name.")
]
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="The user to connect as.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help="The user's password is the one line of FILE; - is input."),
]
Mqtt = Annotated[str, typer.Option("--mqtt", metavar="5|3.1.1", help="The version of MQTT to speak.")]


def publish(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic, e.g. ward/3/bed/4.")],
    body: Annotated[str | None, typer.Argument(metavar="BODY", help="The message; empty if not given.")] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Send what is in FILE; - is standard input.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Send each line of standard input as a message.")] = False,
    host: Host = "127.0.0.1",
    port: Port = 1883,
    qos: Annotated[int, typer.Option("--qos", min=0, max=2, help="The quality of service.")] = 0,
    retain: Annotated[bool, typer.Option("--retain", help="Have the broker keep it for later subscribers.")] = False,
    expiry: Annotated[
        int | None, typer.Option("--expiry", metavar="S", min=0, help="Seconds after which nobody wants it.")
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property", metavar="K=V", help="A user property, which filters see as an attribute; repeatable."
        ),
    ] = None,
    keys: Keys = None,
    key_file: KeyFile = None,
    insecure: Insecure = None,
    client_id: ClientId = "",
    user: User = None,
    password_file: PasswordFile = None,
    mqtt: Mqtt = "5",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what became of it, as JSON, one object a line.")
    ] = False,
) -> None:
    """Publish a message, or many, and wait until the broker has accepted them.

    With --qos 1 or 2 the broker's answer is waited for; with --qos 0 there is none. A BODY that is a JSON object can
    be selected by content: see `whimbrel subscribe --filter`. With keys, only subscriptions with keys that match get
    it. Exits 1 if the broker cannot be reached or refuses.

    Example: whimbrel publish ward/3/bed/4 '{"temperature": 39.2}' --qos 1
    """
    if sum((body is not None, file is not None, lines)) > 1:
        raise typer.BadParameter("BODY, --file and --lines exclude each other")
    given = [_pair(text) for text in properties or ()]
    if mqtt != "5" and (given or expiry is not None or insecure is not None):
        raise typer.BadParameter("--property, --expiry, --insecure and --secure need MQTT 5")
    own_keys = keys_from(keys, key_file)
    # MQTT 3.1.1 has no place for the keys of one message; those of the connection are for every message.
    shared_keys, own_keys = ((), own_keys) if mqtt == "5" else (own_keys, ())
    client = client_for(
        host, port, client_id=client_id, user=user, password_file=password_file, mqtt=mqtt, keys=shared_keys
    )

    async def send(connected: Client, payload: bytes) -> None:
        code = await connected.publish(
            topic, payload, qos=qos, retain=retain, expiry_s=expiry, user=given, keys=own_keys, insecure=insecure
        )
        if as_json:
            typer.echo(json.dumps(_outcome(topic, code, len(payload)), ensure_ascii=False))

    run(_send_lines(client, send) if lines else _send_one(client, send, _body(body, file)))


def client_for(
    host: str,
    port: int,
    *,
    client_id: str,
    user: str | None,
    password_file: Path | None,
    mqtt: str,
    session_expiry_s: int = 0,
    is_lasting: bool = False,
    join: Sequence[Join] = (),
    keys: Sequence[str] = (),
) -> Client:
    """Return the client that the options ask for; one that *is_lasting* comes back when its connection is lost."""
    from whimbrel.client import Backoff, Client  # see above

    if mqtt not in {"5", "3.1.1"}:
        raise typer.BadParameter(f"--mqtt: found {mqtt!r}, allowed is 5 or 3.1.1")
    if password_file is not None and user is None:
        raise typer.BadParameter("--password-file needs --user")
    return Client(
        host,
        port,
        client_id=client_id,
        version=5 if mqtt == "5" else 4,
        username=user,
        password=None if password_file is None else password_from(password_file),
        session_expiry_s=session_expiry_s,
        reconnect=Backoff(most_s=10.0) if is_lasting else None,
        told=lambda sentence: typer.echo(sentence, err=True),
        join=join,
        keys=keys,
    )


def run(work: Coroutine[object, object, None], *, timeout_s: float | None = None) -> None:
    """Do *work*; exit 1 if the broker refuses or cannot be reached, or if it takes longer than *timeout_s*."""
    from whimbrel.client import ClientError  # see above

    async def bounded() -> None:
        async with asyncio.timeout(timeout_s):
            await work

    try:
        asyncio.run(bounded())
    except TimeoutError:
        typer.echo(f"error: not done after {timeout_s:g} s", err=True)
        raise typer.Exit(1) from None
    except ClientError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


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
    """Yield the lines of standard input, which a thread of its own waits for: pings must not."""
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
