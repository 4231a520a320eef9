"""Running a daemon from the command line: until SIGTERM, SIGINT or its own end."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Coroutine, Mapping

import typer

__all__ = ["print_json", "quiet_bumble", "run_until_signal"]


def print_json(line: Mapping[str, object]) -> None:
    """Print one line of JSON and flush it, because a reader of the pipe waits for it."""
    typer.echo(json.dumps(line, ensure_ascii=False))


def quiet_bumble() -> None:
    """Keep Bumble's own log off the terminal; errors that matter to a user are raised as ours."""
    logging.getLogger("bumble").setLevel(logging.CRITICAL)


def run_until_signal(serve: Callable[[asyncio.Event], Coroutine[None, None, None]]) -> None:
    """Run *serve* with an event that SIGTERM and SIGINT set."""

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await serve(stop)

    asyncio.run(main())
