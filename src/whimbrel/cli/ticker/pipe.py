"""The tickertape in a pipe: prints a line for each message, and sends each line of input to its group."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator

import typer

from whimbrel.cli.ticker.channel import Channel
from whimbrel.cli.ticker.message import TickerMessage, read_line
from whimbrel.errors import InvalidValueError

__all__ = ["line_of", "talk"]

_READ_BYTES = 65_536
_MAX_LINE_BYTES = 65_536


def line_of(message: TickerMessage, *, as_json: bool) -> str:
    """Return *message* as one line."""
    return json.dumps(message.attributes(), ensure_ascii=False) if as_json else str(message)


async def talk(channel: Channel, *, count: int | None, as_json: bool) -> None:
    """Print messages as they arrive, and send lines of input, until *count* messages were printed."""
    saying = asyncio.create_task(_say(channel))
    printing = asyncio.create_task(_print(channel, count, as_json=as_json))
    try:
        await asyncio.wait([saying, printing], return_when=asyncio.FIRST_COMPLETED)
        if saying.done():
            saying.result()  # an error ends everything; the end of the input does not end the listening
        await printing
    finally:
        for task in (saying, printing):
            task.cancel()
        await asyncio.gather(saying, printing, return_exceptions=True)


async def _print(channel: Channel, count: int | None, *, as_json: bool) -> None:
    printed = 0
    async for message in channel.messages():
        typer.echo(line_of(message, as_json=as_json))
        printed += 1
        if printed == count:
            return


async def _say(channel: Channel) -> None:
    async for line in _lines():
        if line.strip():
            try:
                group, text = read_line(line)
            except InvalidValueError as error:
                typer.echo(f"error: {error}", err=True)  # one bad line does not end the conversation
            else:
                await channel.send(group, text)


async def _lines() -> AsyncIterator[str]:
    """Yield the lines of standard input.

    A thread waits for them, because files and terminals cannot be awaited. The thread reads the descriptor, not
    ``sys.stdin``, whose lock it would still hold when the interpreter ends.
    """
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[bytes](1)
    descriptor = sys.stdin.fileno()

    def read() -> None:
        data = b"."
        while data:
            try:
                data = os.read(descriptor, _READ_BYTES)
            except OSError:
                data = b""
            try:
                asyncio.run_coroutine_threadsafe(queue.put(data), loop).result()
            except RuntimeError:  # the loop is closed, so nobody reads the queue
                return

    threading.Thread(target=read, daemon=True).start()
    rest = b""
    while data := await queue.get():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
        rest = rest[:_MAX_LINE_BYTES]  # a line that is longer than any message may be cut
    yield rest.decode(errors="replace")
