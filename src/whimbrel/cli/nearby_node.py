"""The node behind ``whimbrel nearby``: from options to a daemon, and its run."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from whimbrel.cli.options.lines import MAX_LINE_BYTES
from whimbrel.errors import InvalidValueError, WhimbrelError

if TYPE_CHECKING:  # sockets need not be loaded for other commands
    from whimbrel.model.place import Place
    from whimbrel.nearby.frames.values import Frame
    from whimbrel.nearby.group.outputs import Deliver, Note
    from whimbrel.nearby.group.subscriptions import NearbySubscription
    from whimbrel.nearby.transport.daemon import NearbyDaemon

    Work: TypeAlias = Callable[[NearbyDaemon, AsyncExitStack], Awaitable[None]]

__all__ = ["NodeSetup", "lines_of_input", "run_node", "values_of"]

_GPSD_PORT = 2_947
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetup:
    """What the options of a command say of its node."""

    vocabulary: Path
    name: str
    interface: str
    udp_port: int
    place: str | None
    fixes: Path | None
    gpsd: str | None
    relays: bool
    seconds: float | None
    cell_m: int
    trust: tuple[str, ...]
    reach: Path | None
    loss: float
    key: Path | None = None
    subscriptions: tuple[NearbySubscription, ...] = ()
    subscribes_all: bool = False
    """Whether it subscribes to every type of the vocabulary."""
    hears_all: bool = False
    """Whether it hears the frames of every type, and subscribes to none."""


def run_node(
    setup: NodeSetup,
    work: Work,
    *,
    deliver: Callable[[Deliver], None] = lambda _: None,
    note: Callable[[Note], None] = lambda _: None,
    hear: Callable[[Frame], None] = lambda _: None,
) -> None:
    """Run a node until *work* is done, the time is over, or *note* raises an error of ours."""
    failed: asyncio.Queue[WhimbrelError] = asyncio.Queue()

    def noted(each: Note) -> None:
        try:
            note(each)
        except WhimbrelError as error:  # in a callback of the loop, where raising would only be logged
            failed.put_nowait(error)

    places = _places(setup)
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        asyncio.run(_serve(setup, _daemon(setup, stack, deliver, noted, hear), places, work, failed))


def _daemon(
    setup: NodeSetup,
    stack: ExitStack,
    deliver: Callable[[Deliver], None],
    note: Callable[[Note], None],
    hear: Callable[[Frame], None],
) -> NearbyDaemon:
    from whimbrel.model.json_body import read_json
    from whimbrel.nearby.deployment import Deployment
    from whimbrel.nearby.frames.signatures import Signer
    from whimbrel.nearby.group.subscriptions import NearbySubscription
    from whimbrel.nearby.node import Node
    from whimbrel.nearby.transport.daemon import NearbyDaemon, Reach, first_seq
    from whimbrel.nearby.transport.multicast import MulticastSocket
    from whimbrel.nearby.vocabulary import Vocabulary

    words = Vocabulary.of({str(each): value for each, value in read_json(_bytes(setup.vocabulary)).items()})
    seed = None if setup.key is None else _bytes(setup.key).decode("ascii", "replace").strip()
    node = Node(
        setup.name,
        vocabulary=words,
        deployment=Deployment(cell_m=setup.cell_m),
        first_seq=first_seq(),
        relays=setup.relays,
        signer=None if seed is None else Signer(_hexadecimal("key", seed)),
        trusted=frozenset(_hexadecimal("--trust", each) for each in setup.trust) or None,
    )
    wanted = setup.subscriptions
    if setup.subscribes_all:
        wanted = tuple(NearbySubscription(subject=each) for each in words.names)
    for each in wanted:
        node.subscribe(each)
    link = MulticastSocket(setup.interface, port=setup.udp_port)
    stack.callback(link.close)
    random = Random(setup.name)  # which frames a pretended radio loses
    return NearbyDaemon(
        node,
        link,
        subjects=words.names if setup.hears_all else tuple(each.subject for each in wanted),
        is_relay=setup.relays,
        reach=Reach(setup.name, path=setup.reach, loss=setup.loss, random=random),
        deliver=deliver,
        note=note,
        hear=hear,
    )


async def _serve(
    setup: NodeSetup,
    daemon: NearbyDaemon,
    places: AsyncIterator[Place | None],
    work: Work,
    failed: asyncio.Queue[WhimbrelError],
) -> None:
    from whimbrel.nearby.transport.daemon import monotonic_us

    daemon.node.move(await anext(places), now=monotonic_us())
    await daemon.open()
    async with AsyncExitStack() as stack:
        stack.callback(daemon.close)

        async def fail() -> None:
            raise await failed.get()

        async def worked() -> None:
            await work(daemon, stack)

        following, working, failing = (
            asyncio.ensure_future(each) for each in (daemon.follow(places), worked(), fail())
        )
        for each in (following, working, failing):
            stack.callback(each.cancel)
        awaited = {working, failing, *([following] if setup.gpsd else [])}
        done, _ = await asyncio.wait(awaited, timeout=setup.seconds, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()


def _places(setup: NodeSetup) -> AsyncIterator[Place | None]:
    """Return where the node is, from one of three sources; what is wrong with a text or a file is said now."""
    from whimbrel.model.place import Place
    from whimbrel.nearby.transport.fixes import fixes_along, fixes_from_gpsd, read_fixes

    if sum(each is not None for each in (setup.place, setup.fixes, setup.gpsd)) != 1:
        raise InvalidValueError("place of this node", "none, or several", "one of --place, --fixes and --gpsd")
    if setup.place is not None:
        return fixes_along([(0.0, Place.parse(setup.place))])
    if setup.fixes is not None:
        return fixes_along(read_fixes(setup.fixes, device=setup.name))
    host, _, port = (setup.gpsd or "").partition(":")
    if port and not (port.isdecimal() and int(port) <= _MAX_PORT):
        raise InvalidValueError("port of gpsd", port, f"a number up to {_MAX_PORT}")
    return fixes_from_gpsd(host, int(port or _GPSD_PORT))


async def lines_of_input() -> AsyncIterator[bytes]:
    """Yield the lines of standard input as they come."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes](maxsize=64)

    def read() -> None:
        with suppress(RuntimeError):  # the loop ended before the input
            while line := sys.stdin.buffer.readline(MAX_LINE_BYTES):
                asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()
            asyncio.run_coroutine_threadsafe(lines.put(b""), loop).result()

    threading.Thread(target=read, daemon=True).start()
    while line := await lines.get():
        if line.strip():
            yield line


def values_of(line: bytes) -> dict[str, object]:
    """Return the parameters that a line of input spells."""
    from whimbrel.model.json_body import read_json

    return {str(name): value for name, value in read_json(line.rstrip(b"\r\n")).items()}


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidValueError("file", str(path), f"one that can be read ({error.strerror})") from None


def _hexadecimal(what: str, text: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise InvalidValueError(what, f"{len(text)} characters", "64 hexadecimal digits")
    return found
