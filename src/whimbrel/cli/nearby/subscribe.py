"""``whimbrel nearby subscribe``: a consumer, near its producers or, through a broker, far from them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.nearby.node import Role, run_node
from whimbrel.cli.nearby.options import BrokerOptions, Count, NodeOptions, Relay, Type
from whimbrel.cli.nearby.printing import print_event, report_note
from whimbrel.cli.options.groups import with_option_groups

if TYPE_CHECKING:  # other commands need not load sockets
    from whimbrel.client import Client
    from whimbrel.nearby.far_events import FarEvents
    from whimbrel.nearby.group.outputs import Deliver
    from whimbrel.nearby.transport.daemon import NearbyDaemon

__all__ = ["subscribe"]


@with_option_groups()
def subscribe(
    event_type: Type,
    *,
    content: Annotated[
        str | None,
        typer.Option(
            "--filter", metavar="FILTER", help="A content filter, e.g. 'approaching == 1'; it never leaves us."
        ),
    ] = None,
    near: Annotated[
        str | None, typer.Option("--near", metavar="LAT,LON,M", help="Only events from inside this circle.")
    ] = None,
    count: Count = None,
    relay: Relay = True,
    broker: BrokerOptions,
    node: NodeOptions,
) -> None:
    """Print the events of a type wherever we come near.

    A filter may use the event's parameters and values of our own: distance_m, approaching, heading_difference and
    speed. Ends after --seconds, or after --count events. With --host also prints, wherever we are, the events that
    `whimbrel nearby listen` published on that broker; an event that comes both ways is printed once.

    Example: whimbrel nearby subscribe 'traffic light' --vocabulary words.json --name car --fixes drive.jsonl
    --filter 'approaching == 1' --interface wlan0
    """
    from whimbrel.model.place import Area
    from whimbrel.nearby.group.subscriptions import NearbySubscription

    wanted = NearbySubscription(
        subject=event_type, filter_text=content, near=None if near is None else Area.parse(near)
    )
    enough, taken = asyncio.Event(), 0
    far: FarEvents | None = None

    def deliver(found: Deliver) -> None:
        if far is None or far.is_first(found.event.id):
            show(found)

    def show(found: Deliver) -> None:
        nonlocal taken
        if count is not None and taken >= count:
            return
        taken += 1
        print_event(found, as_json=node.as_json)
        if taken == count:
            enough.set()

    async def work(daemon: NearbyDaemon, stack: AsyncExitStack) -> None:
        nonlocal far
        client = await stack.enter_async_context(broker.connect(node.name))
        waits: list[asyncio.Future[object]] = [asyncio.ensure_future(enough.wait())]
        if client is not None:
            from whimbrel.nearby.far_events import FarEvents
            from whimbrel.nearby.listening import subject_of

            here = daemon.node
            far = FarEvents(vocabulary=here.vocabulary, subscriptions=(wanted,), motion=here.motion)
            await client.subscribe(subject_of(event_type), qos=1)
            waits.append(asyncio.ensure_future(take_far(client, far)))
        for each in waits:
            stack.callback(each.cancel)
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()

    async def take_far(client: Client, events: FarEvents) -> None:
        from whimbrel.model.clock import SystemClock

        async for message in client.messages():
            found = events.receive(event_type, message.payload, at=SystemClock().now())
            if found is not None:
                show(found)

    role = Role(is_relay=relay, subscriptions=(wanted,))
    run_node(node, role, work, deliver=deliver, note=lambda note: report_note(note, as_json=node.as_json))
