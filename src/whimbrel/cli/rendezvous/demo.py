"""``whimbrel rendezvous demo``: three devices and a controller, on the simulated radio or on Bumble's stack."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.rendezvous.running import quiet_bumble
from whimbrel.errors import InvalidValueError, MissingDependencyError
from whimbrel.model.clock import US_PER_S

if TYPE_CHECKING:  # other commands need load neither radio
    from whimbrel.rendezvous.controller import Note
    from whimbrel.rendezvous.device import Device
    from whimbrel.rendezvous.device.commands import Introduced, Tell, Verified
    from whimbrel.rendezvous.events import Address, Subscription

__all__ = ["demo"]

_RADIOS = ("simulated", "air")
_NAMES = {"02:00:00:00:00:0B": "Bob", "02:00:00:00:00:0C": "Carol", "02:00:00:00:00:0A": "Alice"}
_CONTROLLER = "02:00:00:00:00:01"
_DONE = 2
"""Number of meetings when the demo is done: Alice meets Bob, and then Carol."""


def demo(
    *,
    radio: Annotated[
        str,
        typer.Option(
            "--radio",
            metavar="RADIO",
            help="simulated (the standard's timing, in no time) or air (a real stack, in software).",
        ),
    ] = "simulated",
    park: Annotated[bool, typer.Option("--park", help="With the simulated radio: park as in 2004.")] = False,
) -> None:
    """Demonstrate a controller with three devices: Bob publishes, inquiry finds Carol, and Alice seeks Bob and Carol.

    Exits 1 if they did not meet.

    Example: whimbrel rendezvous demo
    """
    if radio not in _RADIOS:
        raise InvalidValueError("--radio", radio, " or ".join(_RADIOS))
    if park and radio != "simulated":
        raise InvalidValueError("--park", found=True, allowed="--radio simulated: real radios have no park")
    meetings = asyncio.run(_on_air()) if radio == "air" else _simulate(park=park)
    typer.echo(f"{meetings} of {_DONE} meetings")
    if meetings < _DONE:
        raise typer.Exit(1)


def _simulate(*, park: bool) -> int:
    from whimbrel.rendezvous.controller import Parameters
    from whimbrel.sim.hall import Hall

    hall = Hall(parameters=Parameters(has_park=park))
    bob, carol, alice = _devices()
    offered = hall.add(bob)
    offered.do(bob.publish())
    hall.add(carol, is_shown=True)
    hall.air.run(30 * US_PER_S)
    seeking = hall.add(alice)
    for name in ("Bob", "Carol"):
        seeking.do(alice.subscribe(_seek(name)))
        hall.air.run(30 * US_PER_S)
    told = {who: [(each, now) for each, now in hall.told[who]] for who in hall.told}
    lines = [(now, _fact(note)) for note, now in hall.notes]
    lines += [(now, _describe(who, each)) for who, all_told in told.items() for each, now in all_told]
    for now, line in sorted(lines, key=lambda each: each[0]):
        typer.echo(f"{now / US_PER_S:7.2f} s  {line}")
    exposures = {who: hall.nodes[who].exposure.seconds(hall.now()) for who in hall.nodes}
    _print_exposure(exposures)
    return len(hall.list_introductions(alice.address))


async def _on_air() -> int:
    from whimbrel.rendezvous.device.commands import Introduced
    from whimbrel.rendezvous.events import Address

    try:
        from whimbrel.rendezvous.daemon.air_hall import AirHall
    except ImportError:
        remedy = "install it with: pip install 'whimbrel[radio]'"
        raise MissingDependencyError("the air in software", "Bumble", remedy) from None
    quiet_bumble()
    hall = AirHall(Address(_CONTROLLER))
    seen = 0

    def show() -> None:
        nonlocal seen
        for note in hall.notes[seen:]:
            typer.echo(_fact(note))
        seen = len(hall.notes)

    await hall.open()
    bob, carol, alice = _devices()
    try:
        offered = await hall.add(bob)
        offered.do(bob.publish())
        await hall.add(carol, is_shown=True)
        await hall.until(lambda: len(hall.notes) >= len((bob, carol)))
        seeking = await hall.add(alice)
        for count, name in enumerate(("Bob", "Carol"), 1):
            show()
            seeking.do(alice.subscribe(_seek(name)))

            def has_met(count: int = count) -> bool:
                return sum(isinstance(each, Introduced) for each in hall.told[alice.address]) >= count

            await hall.until(has_met, limit_s=30.0)
        show()
        for who, all_told in hall.told.items():
            for each in all_told:
                typer.echo(_describe(who, each))
        met = sum(isinstance(each, Introduced) for each in hall.told[alice.address])
        _print_exposure({who: hall.exposure(who) for who in hall.told})
    finally:
        await hall.close()
    return met


def _devices() -> Iterable[Device]:
    from whimbrel.rendezvous.device import Device
    from whimbrel.rendezvous.events import Address

    return [Device(address=Address(who), name=name, is_discoverable=name == "Carol") for who, name in _NAMES.items()]


def _seek(name: str) -> Subscription:
    from whimbrel.rendezvous.events import Subscription

    return Subscription(name=name)


def _fact(note: Note) -> str:
    detail = f" ({note.detail})" if note.detail else ""
    other = f" and {note.other_id}" if note.other_id else ""
    return f"controller: {note.kind.value} {note.id}{other}{detail}"


def _describe(who: Address, told: Introduced | Verified | Tell) -> str:
    from whimbrel.rendezvous.device.commands import Introduced, Tell

    name = _NAMES.get(who, who)
    if isinstance(told, Introduced):
        other = _NAMES.get(told.address, told.address)
        return f"{name}: {'paged' if told.is_caller else 'was paged by'} {other}, and is connected"
    if isinstance(told, Tell):
        return f"{name}: is told {told.what}{'' if told.id is None else ' ' + told.id}"
    return f"{name}: verified {told.address}"


def _print_exposure(exposures: dict[Address, dict[str, float]]) -> None:
    for who, seconds in exposures.items():
        found, paged = seconds["discoverable_s"], seconds["connectable_s"]
        typer.echo(f"{_NAMES.get(who, who)}: discoverable for {found:.1f} s, connectable for {paged:.1f} s")
