"""The node behind ``whimbrel nearby``: makes a daemon from options, and runs it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeAlias

import typer

from whimbrel.cli.nearby.options import NodeOptions
from whimbrel.errors import InvalidValueError, Phrase, WhimbrelError

if TYPE_CHECKING:  # other commands need not load sockets
    from whimbrel.model.place import Place
    from whimbrel.nearby.frames.values import Frame
    from whimbrel.nearby.group.outputs import Deliver, Note
    from whimbrel.nearby.group.subscriptions import NearbySubscription
    from whimbrel.nearby.transport.daemon import NearbyDaemon

    Work: TypeAlias = Callable[[NearbyDaemon, AsyncExitStack], Awaitable[None]]

__all__ = ["Role", "run_node"]

_GPSD_PORT = 2_947
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The part of a node that its command decides: which event types it receives, and whether it relays."""

    is_relay: bool = True
    key: Path | None = None
    subscriptions: tuple[NearbySubscription, ...] = ()
    subscribes_all: bool = False
    """Whether the node subscribes to every type of the vocabulary."""
    hears_all: bool = False
    """Whether the node receives the frames of every type without subscribing."""


def run_node(
    options: NodeOptions,
    role: Role,
    work: Work,
    *,
    deliver: Callable[[Deliver], None] = lambda _: None,
    note: Callable[[Note], None] = lambda _: None,
    hear: Callable[[Frame], None] = lambda _: None,
) -> None:
    """Run a node until *work* is done or fails, the time is over, or *note* raises one of our errors.

    Ctrl-C also ends it, as does a gpsd that gives no position, or no more. *note* is called with each report of the
    node about itself or a group. Exits 1 if a broker refuses or cannot be reached.
    """
    from whimbrel.client import ClientError  # see above

    failed: asyncio.Queue[WhimbrelError] = asyncio.Queue()

    def on_note(each: Note) -> None:
        try:
            note(each)
        except WhimbrelError as error:  # this is a callback of the loop, where an exception would only be logged
            failed.put_nowait(error)

    places = _places(options)
    try:
        with suppress(KeyboardInterrupt), ExitStack() as stack:
            daemon = _daemon(options, role, stack, deliver=deliver, note=on_note, hear=hear)
            asyncio.run(_serve(options, daemon, places, work, failed))
    except ClientError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _daemon(
    options: NodeOptions,
    role: Role,
    stack: ExitStack,
    *,
    deliver: Callable[[Deliver], None],
    note: Callable[[Note], None],
    hear: Callable[[Frame], None],
) -> NearbyDaemon:
    from whimbrel.model.clock import microseconds
    from whimbrel.model.json_body import read_json
    from whimbrel.nearby.deployment import Deployment
    from whimbrel.nearby.frames.signatures import SEED_BYTES, Signer
    from whimbrel.nearby.group.subscriptions import NearbySubscription
    from whimbrel.nearby.node import Node
    from whimbrel.nearby.transport.daemon import NearbyDaemon, Reach
    from whimbrel.nearby.transport.multicast import MulticastSocket
    from whimbrel.nearby.transport.starts import count_start, first_seq_of, state_folder
    from whimbrel.nearby.vocabulary import Vocabulary

    words = Vocabulary.of({str(each): value for each, value in read_json(_bytes(options.vocabulary)).items()})
    seed = None if role.key is None else _bytes(role.key).decode("ascii", "replace").strip()
    node = Node(
        options.name,
        vocabulary=words,
        deployment=Deployment(
            cell_m=options.cell_m, max_radius_m=options.max_radius_m, signed_age_us=microseconds(options.signed_age)
        ),
        first_seq=0 if role.hears_all else first_seq_of(count_start(options.name, options.state or state_folder())),
        relays=role.is_relay,
        signer=None if seed is None else Signer(_hexadecimal("key", seed)),
        # A member without a key signs its joins with a key for this run only, which cannot identify it later.
        member_signer=Signer(os.urandom(SEED_BYTES)) if seed is None else None,
        trusted=dict(map(_trusted_key, options.trust or ())) or None,
    )
    wanted = role.subscriptions
    if role.subscribes_all:
        wanted = tuple(NearbySubscription(subject=each) for each in words.names)
    for each in wanted:
        node.subscribe(each)
    link = MulticastSocket(options.interface, port=options.udp_port)
    stack.callback(link.close)
    random = Random(options.name)  # decides which frames a simulated radio loses
    return NearbyDaemon(
        node,
        link,
        subjects=words.names if role.hears_all else tuple(each.subject for each in wanted),
        is_relay=role.is_relay,
        has_clock=options.has_clock,
        reach=Reach(options.name, path=options.reach, loss=options.loss, random=random),
        deliver=deliver,
        note=note,
        hear=hear,
    )


async def _serve(
    options: NodeOptions,
    daemon: NearbyDaemon,
    places: AsyncIterator[Place | None],
    work: Work,
    failed: asyncio.Queue[WhimbrelError],
) -> None:
    from whimbrel.nearby.transport.daemon import monotonic_us

    daemon.node.move(await _first_fix(places, options), now=monotonic_us())
    await daemon.open()
    async with AsyncExitStack() as stack:
        stack.callback(daemon.close)

        async def fail() -> None:
            raise await failed.get()

        async def do_work() -> None:
            await work(daemon, stack)

        following, working, failing = (
            asyncio.ensure_future(each) for each in (daemon.follow(places), do_work(), fail())
        )
        for each in (following, working, failing):
            stack.callback(each.cancel)
        awaited = {working, failing, *([following] if options.gpsd else [])}
        done, _ = await asyncio.wait(awaited, timeout=options.seconds, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()


async def _first_fix(places: AsyncIterator[Place | None], options: NodeOptions) -> Place:
    """Return the first position; wait for it a limited time, because a receiver in a cellar never has one."""
    from whimbrel.nearby.transport.fixes import GpsdError

    with suppress(TimeoutError):
        async with asyncio.timeout(options.fix_within):
            async for place in places:
                if place is not None:
                    return place
    reason = f"no fix within {options.fix_within:g} s; wait under an open sky, or give --place or --fixes"
    raise GpsdError(str(options.gpsd), reason)


def _places(options: NodeOptions) -> AsyncIterator[Place | None]:
    """Return the node's positions, from --place, --fixes or --gpsd; refuse bad input before the node runs."""
    from whimbrel.model.place import Place
    from whimbrel.nearby.transport.fixes import fixes_along, fixes_from_gpsd, read_fixes

    if sum(each is not None for each in (options.place, options.fixes, options.gpsd)) != 1:
        sentence = "Where is this node? Give one of --place, --fixes and --gpsd"
        raise InvalidValueError("place of this node", None, "one of --place, --fixes and --gpsd", sentence)
    if options.place is not None:
        return fixes_along([(0.0, Place.parse(options.place))])
    if options.fixes is not None:
        return fixes_along(read_fixes(options.fixes, device=options.name))
    host, _, port = (options.gpsd or "").partition(":")
    if port and not (port.isdecimal() and int(port) <= _MAX_PORT):
        raise InvalidValueError("port of gpsd", port, f"a number up to {_MAX_PORT}")
    return fixes_from_gpsd(host, int(port or _GPSD_PORT))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidValueError("file", str(path), f"one that can be read ({error.strerror})") from None


def _trusted_key(text: str) -> tuple[bytes, int | None]:
    """Return the public key in *text*, and the expiry time after ``@`` if there is one."""
    from whimbrel.model.clock import parse_time

    key, at, time = text.partition("@")
    return _hexadecimal("--trust", key), parse_time(time) if at else None


def _hexadecimal(what: str, text: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise InvalidValueError(what, Phrase(f"{len(text)} characters"), "64 hexadecimal digits")
    return found
