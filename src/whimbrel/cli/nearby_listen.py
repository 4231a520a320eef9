"""``whimbrel nearby listen`` and ``status``: what is on the air here, and the way out of the area."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.nearby_node import NodeSetup, run_node
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
    UdpPort,
    Words,
    print_event,
    report_note,
    say,
)

if TYPE_CHECKING:  # sockets need not be loaded for other commands
    from whimbrel.nearby.frames.values import Frame
    from whimbrel.nearby.group.outputs import Deliver
    from whimbrel.nearby.transport.daemon import NearbyDaemon

__all__ = ["listen", "status"]


def listen(
    *,
    vocabulary: Words,
    name: Name,
    log: Annotated[Path | None, typer.Option("--log", metavar="DIR", help="Append what is heard to this log.")] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="Publish what is heard on the broker there.")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65_535, help="The broker's port for MQTT.")] = 1_883,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="The user to connect as.")] = None,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", metavar="FILE", help="The user's password is the line of FILE.")
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
    """Listen in to every type of the vocabulary, and let it out of the area: to a log, or to a broker.

    On the broker an event appears under nearby/TYPE, with place, radius and the time to its deadline in the body.

    Example: whimbrel nearby listen --vocabulary words.json --name post --place 53.3438,-6.2546 --log street
    --interface wlan0
    """
    heard: asyncio.Queue[Deliver] = asyncio.Queue(maxsize=10_000)

    def deliver(found: Deliver) -> None:
        with suppress(asyncio.QueueFull):
            heard.put_nowait(found)

    async def work(daemon: NearbyDaemon, stack: AsyncExitStack) -> None:
        del daemon
        from whimbrel.model.clock import SystemClock

        kept = client = None
        if log is not None:
            from whimbrel.log.writer import LogWriter

            kept = stack.enter_context(LogWriter(log, name))
        if host is not None:
            from whimbrel.cli.options.connection import Connection

            client = await stack.enter_async_context(
                Connection(host=host, port=port, user=user, password_file=password_file).client(name)
            )
        for _ in range(count or sys.maxsize):
            found = await heard.get()
            print_event(found, as_json=as_json)
            if kept is not None:
                from whimbrel.nearby.listening import append_event

                append_event(kept, found, at=SystemClock().now())
            if client is not None:
                from whimbrel.nearby.listening import publish_event

                await publish_event(client, found)

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
        subscribes_all=True,
    )
    run_node(setup, work, deliver=deliver, note=lambda note: report_note(note, as_json=as_json))


def status(
    *,
    vocabulary: Words,
    name: Name = "status",
    interface: Interface,
    udp_port: UdpPort = 27_302,
    place: At = None,
    fixes: Fixes = None,
    gpsd: Gpsd = None,
    seconds: Seconds = 3.0,
    cell_m: CellM = 500,
    trust: Trust = None,
    reach: ReachFile = None,
    loss: Loss = 0.0,
    as_json: AsJson = False,
) -> None:
    """Listen for a while and print which groups are around this place: producer, area, members."""
    from whimbrel.model.place import distance_m
    from whimbrel.nearby.frames.values import Beacon

    beacons: dict[tuple[str, str], Beacon] = {}

    def hear(frame: Frame) -> None:
        if isinstance(frame, Beacon) and len(beacons) < 10_000:
            beacons[frame.group] = frame

    async def work(daemon: NearbyDaemon, stack: AsyncExitStack) -> None:
        del stack
        await asyncio.sleep(seconds or 3.0)
        here = daemon.node.motion.place
        for (producer, subject), beacon in sorted(beacons.items()):
            away_m = None if here is None else round(distance_m(here, beacon.area.centre), 1)
            said = {
                "producer": producer,
                "type": subject,
                "radius_m": beacon.area.radius_m,
                "moves": beacon.moves,
                "members": beacon.view.size,
                "distance_m": away_m,
                "signed": beacon.key is not None,
            }
            text = f"{subject} by {producer}: {away_m} m away, good for {beacon.area.radius_m:g} m, "
            say(said, text + f"{beacon.view.size} members", as_json=as_json)
        if not beacons:
            say({"groups": 0}, "no groups here", as_json=as_json)

    setup = NodeSetup(
        vocabulary=vocabulary,
        name=name,
        interface=interface,
        udp_port=udp_port,
        place=place,
        fixes=fixes,
        gpsd=gpsd,
        relays=False,
        seconds=None,
        cell_m=cell_m,
        trust=tuple(trust or ()),
        reach=reach,
        loss=loss,
        hears_all=True,
    )
    run_node(setup, work, hear=hear)
