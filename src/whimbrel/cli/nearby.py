"""``whimbrel nearby``: events around the place they come from, with no server anywhere."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.nearby_listen import listen, status
from whimbrel.cli.nearby_node import NodeSetup, lines_of_input, run_node, values_of
from whimbrel.cli.nearby_options import (
    AsJson,
    At,
    CellM,
    Fixes,
    Gpsd,
    Interface,
    Loss,
    Name,
    ReachFile,
    Relay,
    Seconds,
    Trust,
    Type,
    UdpPort,
    Words,
    print_event,
    report_note,
    say,
)

if TYPE_CHECKING:  # sockets need not be loaded for other commands
    from whimbrel.nearby.group.outputs import Deliver
    from whimbrel.nearby.transport.daemon import NearbyDaemon

__all__ = ["app"]

app = typer.Typer(
    help="Events around the place they come from, with no server anywhere (STEAM's proximity groups).",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def announce(
    event_type: Type,
    *,
    vocabulary: Words,
    name: Name,
    radius: Annotated[float, typer.Option("--radius", metavar="M", help="How far around us events are good.")],
    deadline: Annotated[float, typer.Option("--deadline", metavar="S", help="Seconds until an event is late.")] = 1.0,
    hops: Annotated[int, typer.Option("--hops", min=0, help="How often a frame may be repeated.")] = 2,
    members: Annotated[
        int, typer.Option("--members", metavar="N", min=0, help="Publish nothing before the group has N members.")
    ] = 0,
    moves: Annotated[bool, typer.Option("--moves", help="Let the area move along with us.")] = False,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Sign with the 64 hexadecimal digits in FILE.")
    ] = None,
    interface: Interface,
    udp_port: UdpPort = 27_302,
    place: At = None,
    fixes: Fixes = None,
    gpsd: Gpsd = None,
    relay: Relay = True,
    seconds: Seconds = None,
    cell_m: CellM = 500,
    trust: Trust = None,
    reach: ReachFile = None,
    loss: Loss = 0.0,
    as_json: AsJson = False,
) -> None:
    """Announce an event type around us, and publish each line of input as an event.

    A line is a JSON object of the parameters. Prints how late an event can be, and then what members report; ends with
    the input, or after --seconds.

    Example: whimbrel nearby announce 'traffic light' --vocabulary words.json --name light --place 53.3438,-6.2546
    --radius 200 --interface wlan0
    """
    setup = NodeSetup(
        vocabulary=vocabulary,
        name=name,
        interface=interface,
        udp_port=udp_port,
        place=place,
        fixes=fixes,
        gpsd=gpsd,
        relays=relay,
        seconds=seconds,
        cell_m=cell_m,
        trust=tuple(trust or ()),
        reach=reach,
        loss=loss,
        key=key,
    )

    async def work(daemon: NearbyDaemon, stack: AsyncExitStack) -> None:
        del stack
        from whimbrel.model.clock import microseconds
        from whimbrel.nearby.transport.daemon import monotonic_us

        prediction, outputs = daemon.node.announce(
            event_type,
            radius_m=radius,
            deadline_us=microseconds(deadline),
            hops=hops,
            moves=moves,
            now=monotonic_us(),
        )
        daemon.perform(outputs)
        late_ms = prediction.worst_us / 1e3
        say(
            {"announced": event_type, "late_ms": late_ms, "percentile": prediction.percentile},
            f"announced {event_type}: {prediction.percentile:g} % of events arrive within {late_ms:g} ms",
            as_json=as_json,
        )
        while len(daemon.node.members(event_type)) < members:  # noqa: ASYNC110 # a view has no event to wait for
            await asyncio.sleep(0.05)
        async for line in lines_of_input():
            event, outputs = daemon.node.publish(event_type, values_of(line), now=monotonic_us())
            daemon.perform(outputs)
            size = len(daemon.node.members(event_type))
            said = {"published": str(event.id), "number": event.number, "members": size}
            say(said, f"published event {event.number} to {size} members", as_json=as_json)
        await asyncio.sleep(deadline)
        daemon.perform(daemon.node.unannounce(event_type, now=monotonic_us()))

    run_node(setup, work, note=lambda note: report_note(note, as_json=as_json))


@app.command()
def subscribe(
    event_type: Type,
    *,
    vocabulary: Words,
    name: Name,
    content: Annotated[
        str | None,
        typer.Option(
            "--filter", metavar="FILTER", help="A content filter, e.g. 'approaching == 1'; it never leaves us."
        ),
    ] = None,
    near: Annotated[
        str | None, typer.Option("--near", metavar="LAT,LON,M", help="Only events from inside this circle.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="Stop after N events.")] = None,
    interface: Interface,
    udp_port: UdpPort = 27_302,
    place: At = None,
    fixes: Fixes = None,
    gpsd: Gpsd = None,
    relay: Relay = True,
    seconds: Seconds = None,
    cell_m: CellM = 500,
    trust: Trust = None,
    reach: ReachFile = None,
    loss: Loss = 0.0,
    as_json: AsJson = False,
) -> None:
    """Print the events of a type wherever we come near.

    A filter may ask about the event's parameters and about ourselves: distance_m, approaching, heading_difference and
    speed. With --seconds ends after so long, with --count after so many events.

    Example: whimbrel nearby subscribe 'traffic light' --vocabulary words.json --name car --fixes drive.jsonl
    --filter 'approaching == 1' --interface wlan0
    """
    from whimbrel.model.place import Area
    from whimbrel.nearby.group.subscriptions import NearbySubscription

    wanted = NearbySubscription(
        subject=event_type, filter_text=content, near=None if near is None else Area.parse(near)
    )
    enough, taken = asyncio.Event(), 0

    def deliver(found: Deliver) -> None:
        nonlocal taken
        if count is not None and taken >= count:
            return
        taken += 1
        print_event(found, as_json=as_json)
        if taken == count:
            enough.set()

    async def work(daemon: NearbyDaemon, stack: AsyncExitStack) -> None:
        del daemon, stack
        await enough.wait()

    setup = NodeSetup(
        vocabulary=vocabulary,
        name=name,
        interface=interface,
        udp_port=udp_port,
        place=place,
        fixes=fixes,
        gpsd=gpsd,
        relays=relay,
        seconds=seconds,
        cell_m=cell_m,
        trust=tuple(trust or ()),
        reach=reach,
        loss=loss,
        subscriptions=(wanted,),
    )
    run_node(setup, work, deliver=deliver, note=lambda note: report_note(note, as_json=as_json))


app.command("listen")(listen)
app.command("status")(status)
