"""``whimbrel nearby announce``: a producer that publishes each line of its input as an event."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.nearby.node import Role, run_node
from whimbrel.cli.nearby.options import NodeOptions, Relay, Type
from whimbrel.cli.nearby.printing import report_note, say
from whimbrel.cli.options.groups import with_option_groups
from whimbrel.cli.options.lines import MAX_LINE_BYTES
from whimbrel.cli.options.values import read_seconds

if TYPE_CHECKING:  # other commands need not load sockets
    from whimbrel.nearby.transport.daemon import NearbyDaemon

__all__ = ["announce"]


@with_option_groups()
def announce(
    event_type: Type,
    *,
    radius: Annotated[float, typer.Option("--radius", metavar="M", help="How far around us events are good.")],
    deadline: Annotated[
        float, typer.Option("--deadline", metavar="TIME", parser=read_seconds, help="How long until an event is late.")
    ] = 1.0,
    hops: Annotated[int, typer.Option("--hops", min=0, help="How often a frame may be repeated.")] = 2,
    members: Annotated[
        int, typer.Option("--members", metavar="N", min=0, help="Publish nothing before the group has N members.")
    ] = 0,
    centre: Annotated[
        str | None,
        typer.Option("--centre", metavar="LAT,LON", help="The middle of the area, if it is not where we are."),
    ] = None,
    moves: Annotated[bool, typer.Option("--moves", help="Let the area move along with us.")] = False,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Sign with the 64 hexadecimal digits in FILE.")
    ] = None,
    relay: Relay = True,
    node: NodeOptions,
) -> None:
    """Announce an event type around us, and publish each line of input as an event.

    A line is a JSON object of the parameters. Prints how late an event can be, and then reports about receivers
    (members); ends with the input, or after --seconds.

    Example: whimbrel nearby announce 'traffic light' --vocabulary words.json --name light --place 53.3438,-6.2546
    --radius 200 --interface wlan0
    """
    is_settled = False

    def settle() -> None:
        nonlocal is_settled
        is_settled = True

    async def work(daemon: NearbyDaemon, stack: AsyncExitStack) -> None:
        del stack
        from whimbrel.model.clock import microseconds
        from whimbrel.model.place import Place
        from whimbrel.nearby.transport.daemon import monotonic_us

        prediction, outputs = daemon.node.announce(
            event_type,
            radius_m=radius,
            deadline_us=microseconds(deadline),
            hops=hops,
            moves=moves,
            centre=None if centre is None else Place.parse(centre),
            now=monotonic_us(),
        )
        daemon.perform(outputs)
        asyncio.get_running_loop().call_later(daemon.node.deployment.silence_us / 1e6, settle)
        late_ms = prediction.worst_us / 1e3
        say(
            {"announced": event_type, "late_ms": late_ms, "percentile": prediction.percentile},
            f"announced {event_type}: {prediction.percentile:g} % of events arrive within {late_ms:g} ms",
            as_json=node.as_json,
        )
        while len(daemon.node.members(event_type)) < members:  # noqa: ASYNC110 # a view has no event to wait for
            await asyncio.sleep(0.05)
        async for line in _lines_of_input():
            event, outputs = daemon.node.publish(event_type, _values_of(line), now=monotonic_us())
            daemon.perform(outputs)
            size = len(daemon.node.members(event_type))
            said = {"published": str(event.id), "number": event.number, "members": size}
            say(said, f"published event {event.number} to {size} members", as_json=node.as_json)
        await asyncio.sleep(deadline)
        daemon.perform(daemon.node.unannounce(event_type, now=monotonic_us()))

    role = Role(is_relay=relay, key=key)
    run_node(node, role, work, note=lambda note: report_note(note, as_json=node.as_json, is_settled=is_settled))


async def _lines_of_input() -> AsyncIterator[bytes]:
    """Yield the lines of standard input as they arrive."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes](maxsize=64)

    # A buffer of our own: Python aborts if it ends while a thread waits in the buffer of ``sys.stdin``.
    source = os.fdopen(sys.stdin.fileno(), "rb", closefd=False)

    def read() -> None:
        with suppress(RuntimeError):  # the loop ended before the input
            while line := source.readline(MAX_LINE_BYTES):
                asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()
            asyncio.run_coroutine_threadsafe(lines.put(b""), loop).result()

    threading.Thread(target=read, daemon=True).start()
    while line := await lines.get():
        if line.strip():
            yield line


def _values_of(line: bytes) -> dict[str, object]:
    """Return the event's parameters, by name, from a line of input: a JSON object."""
    from whimbrel.model.json_body import read_json

    return {str(name): value for name, value in read_json(line.rstrip(b"\r\n")).items()}
