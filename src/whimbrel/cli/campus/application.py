"""``whimbrel campus topics``, ``publish``, ``subscribe`` and ``status``: applications of a node of this machine."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.campus.options import Data, Json
from whimbrel.cli.options.values import seconds_between

if TYPE_CHECKING:  # other commands need not load asyncio's parts
    from whimbrel.carry.application import CampusSample

__all__ = ["publish", "status", "subscribe", "topics"]

DEFAULT_DATA = Path("campus-data")
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of a topic.")]


def topics(
    *,
    data: Data = DEFAULT_DATA,
    mine: Annotated[bool, typer.Option("--mine", help="Only those to which this node subscribes.")] = False,
    as_json: Json = False,
) -> None:
    """Print the topics that this node knows: id, number of subscribers, planned number of copies, and name.

    Example: whimbrel campus topics
    """
    from whimbrel.carry.application import Campus  # see above

    async def ask() -> None:
        async with Campus(data) as campus:
            own = set(await campus.mine())
            for each in await campus.topics():
                if mine and each.name not in own:
                    continue
                said = {
                    "id": each.id,
                    "name": each.name,
                    "subscribers": each.subscribers,
                    "copies": each.copies,
                    "mine": each.name in own,
                }
                plan = "no plan" if each.copies is None else f"{each.subscribers} subscribers, {each.copies} copies"
                mark = " (mine)" if each.name in own else ""
                _say(said, f"{each.id:#06x}  {each.name}: {plan}{mark}", as_json=as_json)

    asyncio.run(ask())


def publish(
    topic: Topic,
    body: Annotated[str, typer.Argument(metavar="TEXT", help="The sample; - is standard input.")],
    *,
    ttl: Annotated[
        float | None,
        typer.Option("--ttl", metavar="TIME", parser=seconds_between(0.001), help="Nobody wants it after so long."),
    ] = None,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """Publish a sample of at most 1,024 bytes through the node of this machine; it is on disk when the command returns.

    Prints its id, and how many copies of it all nodes together will carry: L by the plan, else by the node's --copies.

    Example: whimbrel campus publish lunch 'pasta in the east hall'
    """
    from whimbrel.carry.application import Campus  # see above
    from whimbrel.carry.hello import MAX_BODY_BYTES
    from whimbrel.errors import InvalidValueError, Phrase

    text = sys.stdin.buffer.read(MAX_BODY_BYTES + 1) if body == "-" else body.encode()
    if body == "-" and len(text) > MAX_BODY_BYTES:  # the node would name the number of bytes that were read
        found = Phrase(f"more than {MAX_BODY_BYTES}")
        raise InvalidValueError("bytes of a sample's body", found, f"an integer from 0 to {MAX_BODY_BYTES}")

    async def send() -> None:
        async with Campus(data) as campus:
            sample = await campus.publish(topic, text, ttl_s=ttl)
        said = {
            "published": sample.id,
            "topic": topic,
            "copies": sample.copies,
            "subscribers": sample.subscribers,
        }
        _say(said, f"published {sample.id} on {topic}: {_copies_of(sample)}", as_json=as_json)

    asyncio.run(send())


def subscribe(
    topic: Annotated[list[str], typer.Argument(metavar="TOPIC…", help="Names of topics.")],
    *,
    count: Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="Stop after N samples.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="TIME", parser=seconds_between(0.1), help="Stop after so long."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Subscribe no more, and print nothing.")] = False,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """Subscribe the node of this machine, for good, and print the newest sample of each topic, then each new one.

    The node stays subscribed when this command ends; --remove ends the subscription.

    Example: whimbrel campus subscribe lunch
    """
    from whimbrel.carry.application import Campus  # see above

    async def take() -> None:
        async with Campus(data) as campus:
            if remove:
                for each in topic:
                    await campus.unsubscribe(each)
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds), campus.samples(*topic) as samples:
                    taken = 0
                    async for sample in samples:
                        _print_sample(sample, as_json=as_json)
                        taken += 1
                        if taken == count:
                            return

    asyncio.run(take())


def status(*, data: Data = DEFAULT_DATA, as_json: Json = False) -> None:
    """Print the state of the node of this machine (neighbours in reach, clock, control data, memory, refusals).

    Exits 2 if no node runs.

    Example: whimbrel campus status
    """
    from whimbrel.carry.application import Campus  # see above
    from whimbrel.carry.daemon.status import status_lines

    async def ask() -> None:
        async with Campus(data) as campus:
            found = await campus.status()
        _say(found, "\n".join(status_lines(found)), as_json=as_json)

    asyncio.run(ask())


def _copies_of(sample: CampusSample) -> str:
    """Return in words how many copies of a published sample stay here and go to others, and why."""
    copies = sample.copies or 1
    others = "none" if copies == 1 else f"{copies - 1:,}"
    source = "no plan for this topic: --copies of the node decides"
    if sample.subscribers is not None:
        source = f"by the plan for {_count_of(sample.subscribers, 'subscriber')}"
    return f"{_count_of(copies, 'copy', 'copies')}, 1 stays here and {others} for other nodes ({source})"


def _count_of(count: int, one: str, several: str = "") -> str:
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def _print_sample(sample: CampusSample, *, as_json: bool) -> None:
    said = {
        "topic": sample.topic,
        "sample": sample.id,
        "text": sample.text,
        "publisher": sample.publisher,
        "unsynchronised": sample.is_unsynchronised,
    }
    mark = " (unsynchronised)" if sample.is_unsynchronised else ""
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in sample.text)
    _say(said, f"{sample.topic} {shown}{mark}", as_json=as_json)


def _say(said: object, text: str, *, as_json: bool) -> None:
    typer.echo(json.dumps(said, ensure_ascii=False) if as_json else text)
    sys.stdout.flush()
