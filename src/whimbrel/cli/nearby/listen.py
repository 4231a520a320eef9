"""``whimbrel nearby listen``: receives all events here, and passes them on to a log or a broker."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.nearby.node import Role, run_node
from whimbrel.cli.nearby.options import BrokerOptions, Count, NodeOptions, Relay
from whimbrel.cli.nearby.printing import print_event, report_note, say
from whimbrel.cli.options.groups import with_option_groups

if TYPE_CHECKING:  # other commands need not load sockets
    from whimbrel.nearby.group.outputs import Deliver
    from whimbrel.nearby.transport.daemon import NearbyDaemon

__all__ = ["listen"]

_WAITING = 10_000
"""Most events that wait for the disk or the broker."""


@with_option_groups()
def listen(
    *,
    log: Annotated[Path | None, typer.Option("--log", metavar="DIR", help="Append what is heard to this log.")] = None,
    count: Count = None,
    relay: Relay = True,
    broker: BrokerOptions,
    node: NodeOptions,
) -> None:
    """Listen to every type of the vocabulary, and pass the events on: to a log, or to a broker.

    On the broker at --host an event appears under nearby/TYPE, with place, radius, the time to its deadline and the
    deadline itself in the body. Exits 1 if the broker cannot be reached or refuses.

    Example: whimbrel nearby listen --vocabulary words.json --name post --place 53.3438,-6.2546 --log street
    --interface wlan0
    """
    heard: asyncio.Queue[tuple[Deliver, int]] = asyncio.Queue(maxsize=_WAITING)

    def deliver(found: Deliver) -> None:
        from whimbrel.model.clock import SystemClock

        try:
            heard.put_nowait((found, SystemClock().now()))
        except asyncio.QueueFull:
            said: dict[str, object] = {"dropped": str(found.event.id)}
            text = f"dropped: {found.event.id}, because {_WAITING} events wait for the log or the broker"
            say(said, text, as_json=node.as_json, err=True)

    async def work(daemon: NearbyDaemon, stack: AsyncExitStack) -> None:
        del daemon
        from whimbrel.log.writer import LogWriter
        from whimbrel.nearby.listening import append_event, publish_event

        kept = None if log is None else stack.enter_context(LogWriter(log, node.name))
        client = await stack.enter_async_context(broker.connect(node.name))
        for _ in range(count or sys.maxsize):
            found, at = await heard.get()
            print_event(found, as_json=node.as_json)
            if kept is not None:
                append_event(kept, found, at=at)
            if client is not None:
                await publish_event(client, found, at=at)

    role = Role(is_relay=relay, subscribes_all=True)
    run_node(node, role, work, deliver=deliver, note=lambda note: report_note(note, as_json=node.as_json))
