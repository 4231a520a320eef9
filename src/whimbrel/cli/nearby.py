"""``whimbrel nearby``: events around the place they come from, with no server anywhere."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.nearby_node import NodeSetup, lines_of_input, run_node, values_of
from whimbrel.errors import InvalidValueError

if TYPE_CHECKING:  # sockets need not be loaded for other commands
    from whimbrel.nearby.frames.values import Frame
    from whimbrel.nearby.group.outputs import Deliver, Note
    from whimbrel.nearby.transport.daemon import NearbyDaemon

__all__ = ["app"]

app = typer.Typer(
    help="Events around the place they come from, with no server anywhere (STEAM's proximity groups).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Type = Annotated[str, typer.Argument(metavar="TYPE", help="The event type, as the vocabulary has it.")]
Words = Annotated[
    Path,
    typer.Option(
        "--vocabulary", metavar="FILE", help='JSON: {"traffic light": {"status": "string"}}; all nodes share it.'
    ),
]
Name = Annotated[str, typer.Option("--name", metavar="NODE", help="Who we are; unlike every other node.")]
Interface = Annotated[str, typer.Option("--interface", metavar="NAME", help="The network interface.")]
UdpPort = Annotated[int, typer.Option("--udp-port", min=1, max=65_535, help="The UDP port that all nodes share.")]
At = Annotated[str | None, typer.Option("--place", metavar="LAT,LON", help="Where we are, if we stand.")]
Fixes = Annotated[
    Path | None,
    typer.Option("--fixes", metavar="FILE", help='Where we are going: JSON lines {"at_s": 0, "place": "53.34,-6.25"}.'),
]
Gpsd = Annotated[str | None, typer.Option("--gpsd", metavar="HOST[:PORT]", help="Ask a gpsd where we are.")]
Relay = Annotated[bool, typer.Option("--relay/--no-relay", help="Whether to repeat frames for others.")]
Seconds = Annotated[
    float | None, typer.Option("--seconds", metavar="S", min=0.1, help="Stop after so long; else at an interrupt.")
]
CellM = Annotated[int, typer.Option("--cell-m", metavar="M", help="The side of a cell; all nodes share it.")]
Trust = Annotated[
    list[str] | None, typer.Option("--trust", metavar="HEX", help="Believe only this public key; repeatable.")
]
ReachFile = Annotated[
    Path | None,
    typer.Option("--reach", metavar="FILE", help='Pretend a radio: JSON of whom each node hears, {"car": ["light"]}.'),
]
Loss = Annotated[float, typer.Option("--loss", metavar="P", min=0, max=1, help="Pretend a radio: lose frames.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


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
        _say(
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
            _say(said, f"published event {event.number} to {size} members", as_json=as_json)
        await asyncio.sleep(deadline)
        daemon.perform(daemon.node.unannounce(event_type, now=monotonic_us()))

    run_node(setup, work, note=lambda note: _report(note, as_json=as_json))


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
        _print_event(found, as_json=as_json)
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
    run_node(setup, work, deliver=deliver, note=lambda note: _report(note, as_json=as_json))


@app.command()
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
            from whimbrel.cli.publish import client_for

            client = await stack.enter_async_context(
                client_for(host, port, client_id=name, user=user, password_file=password_file, mqtt="5")
            )
        for _ in range(count or sys.maxsize):
            found = await heard.get()
            _print_event(found, as_json=as_json)
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
    run_node(setup, work, deliver=deliver, note=lambda note: _report(note, as_json=as_json))


@app.command()
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
            _say(said, text + f"{beacon.view.size} members", as_json=as_json)
        if not beacons:
            _say({"groups": 0}, "no groups here", as_json=as_json)

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


# -- what is printed ---------------------------------------------------------------------------------------------------


def _print_event(found: Deliver, *, as_json: bool) -> None:
    event = found.event
    seen = {each: value.hex() if isinstance(value, bytes) else value for each, value in found.attributes.items()}
    said = {"event": str(event.id), "type": event.subject, "attributes": seen, "left_ms": found.left_us / 1e3}
    text = json.dumps(
        {each: round(value, 1) if isinstance(value, float) else value for each, value in seen.items()},
        ensure_ascii=False,
    )
    _say(said, f"{event.subject} {event.origin} {text}", as_json=as_json)


def _report(note: Note, *, as_json: bool) -> None:
    """Print what matters to people; a contradiction of vocabularies ends the command."""
    from whimbrel.nearby.group.outputs import NoteKind

    group = note.group
    if note.kind is NoteKind.CONTRADICTED:
        raise InvalidValueError(
            f"vocabulary of {note.member}", f"another meaning of {group.subject!r}", "one meaning for each event type"
        )
    said = {"note": note.kind.value, "producer": group.producer, "type": group.subject}
    more = {"number": note.number, "member": note.member, "count": note.count}
    if note.kind not in {NoteKind.PROPAGATED, NoteKind.DISCARDED}:
        who = note.member or group.producer
        typer_text = f"{note.kind.value}: {group.subject} {who}" + (f" ({note.count})" if note.count != 1 else "")
        _say({**said, **more}, typer_text, as_json=as_json, err=True)


def _say(said: dict[str, object], text: str, *, as_json: bool, err: bool = False) -> None:
    typer.echo(json.dumps(said, ensure_ascii=False) if as_json else text, err=err)
    (sys.stderr if err else sys.stdout).flush()
