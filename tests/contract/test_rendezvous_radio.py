"""What every radio promises to the shells of the rendezvous; one suite, every radio.

A radio joins by an entry in ``WORLDS``: something that makes radios in reach of each other and lets time pass. The
simulated one moves time by hand; Bumble's stack on the air in software waits, on an air where pages and inquiries end
ten times sooner. What a radio cannot do stands in ``CANNOT``, with the reason, and in the docs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Protocol

import pytest
from tests.unit.rendezvous_rig import ALICE, BOB, CAROL, address

from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.radio.bumble.adapter import Adapter, Limits
from whimbrel.rendezvous.radio.bumble.air.server import AirServer, RadioSpec
from whimbrel.rendezvous.radio.bumble.radio import BumbleRadio, NoParkError
from whimbrel.rendezvous.radio.interface import (
    InquiryResult,
    LinkLost,
    LinkMade,
    PageFailed,
    Parked,
    Radio,
    RadioEvent,
    Received,
    RoleSwitched,
    Unparked,
)
from whimbrel.rendezvous.radio.simulated.air import Air

LONG_US = 5_120_000


class World(Protocol):
    """Radios in reach of each other, and time."""

    def radio(self, who: Address, name: str) -> Radio:
        """Make a radio."""
        ...

    def events(self, who: Address) -> list[RadioEvent]:
        """Return what has happened to a radio so far."""
        ...

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class SimulatedWorld:
    """The air in software."""

    def __init__(self) -> None:
        self._air = Air(Random(11))
        self._events: dict[Address, list[RadioEvent]] = {}

    def radio(self, who: Address, name: str) -> Radio:
        """Make a radio."""
        radio, events = self._air.add(who, name=name, device_class=0x5A020C), self._events.setdefault(who, [])
        radio.handler = lambda event, _now: events.append(event)
        return radio

    def events(self, who: Address) -> list[RadioEvent]:
        """Return what has happened to a radio so far."""
        return self._events[who]

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self._air.run(round(seconds * 1_000_000))

    def close(self) -> None:
        """End it."""


SPEED = 10


class BumbleWorld:
    """Bumble's stack, HCI over TCP on loopback, and Bumble's controllers on the air in software."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._server = AirServer(speed=SPEED)
        self._radios: list[BumbleRadio] = []
        self._events: dict[Address, list[RadioEvent]] = {}
        self.troubles: list[Exception] = []

    def radio(self, who: Address, name: str) -> Radio:
        """Make a radio."""
        return self._loop.run_until_complete(self._radio(who, name))

    async def _radio(self, who: Address, name: str) -> Radio:
        transport = await self._server.offer(RadioSpec(address=who))
        adapter = await Adapter.open(transport, device_name=name, device_class=0x5A020C, limits=Limits(channel_s=1))
        radio = BumbleRadio(adapter, now=lambda: 0, trouble=self.troubles.append)
        events = self._events.setdefault(who, [])
        radio.handler = lambda event, _now: events.append(event)
        self._radios.append(radio)
        return radio

    def events(self, who: Address) -> list[RadioEvent]:
        """Return what has happened to a radio so far; a device is heard in each inquiry, here once is enough."""
        events = self._events[who]
        return [each for n, each in enumerate(events) if not isinstance(each, InquiryResult) or each not in events[:n]]

    def wait(self, seconds: float) -> None:
        """Let time pass, and then until nothing happens any more."""
        self._loop.run_until_complete(self._wait(seconds / SPEED))

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        before = -1
        while before != (now := sum(map(len, self._events.values()))):
            before = now
            await asyncio.sleep(0.15)

    def close(self) -> None:
        """End it."""
        for radio in self._radios:
            self._loop.run_until_complete(radio.close())
        self._loop.run_until_complete(self._server.close())
        self._loop.close()


WORLDS = [SimulatedWorld, BumbleWorld]
CANNOT = {
    ("BumbleWorld", "park"): "there is no park in Bluetooth since version 5.0; a controller releases devices instead",
}
"""What a radio cannot do, by world and feature; a test that needs it asserts the refusal there."""


@pytest.fixture(params=WORLDS, ids=lambda made: made.__name__)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Return each world in turn."""
    made: World = request.param()
    yield made
    made.close()


def can(world: World, feature: str) -> bool:
    """Return whether the radios of *world* have a feature."""
    return (type(world).__name__, feature) not in CANNOT


def linked(world: World) -> tuple[Radio, Radio]:
    """Return Alice, who paged, and Bob, her slave."""
    alice, bob = world.radio(ALICE, "Alice"), world.radio(BOB, "Bob")
    bob.set_scans(inquiry=False, page=True)
    alice.page(BOB, None, timeout_us=LONG_US)
    world.wait(6)
    return alice, bob


def refuse_park(radio: Radio) -> None:
    """Require that a radio without park says so, whatever of it is asked for."""
    for ask in (radio.park, radio.unpark):
        with pytest.raises(NoParkError, match="no park since Bluetooth 5"):
            ask(BOB)
    with pytest.raises(NoParkError, match="has_park = false"):
        radio.poll(seats=1)


def test_an_inquiry_hears_a_discoverable_device(world: World) -> None:
    """Address, clock offset, name and class: what discovery shows."""
    alice, bob = world.radio(ALICE, "Alice"), world.radio(BOB, "Bob")
    bob.set_scans(inquiry=True, page=False)
    alice.inquire(is_on=True)
    world.wait(15)
    found = [event for event in world.events(ALICE) if isinstance(event, InquiryResult)]
    assert {(event.address, event.name, event.device_class) for event in found} == {(BOB, "Bob", 0x5A020C)}
    assert found[0].clock_offset == alice.clock_offset_of(BOB)


def test_an_inquiry_hears_nobody_who_hides(world: World) -> None:
    """Neither a device without inquiry scan nor, after it stopped, anybody."""
    alice, bob = world.radio(ALICE, "Alice"), world.radio(BOB, "Bob")
    bob.set_scans(inquiry=False, page=True)
    alice.inquire(is_on=True)
    world.wait(15)
    alice.inquire(is_on=False)
    bob.set_scans(inquiry=True, page=True)
    world.wait(15)
    assert world.events(ALICE) == []


def test_a_page_makes_a_connection_that_both_are_told_of(world: World) -> None:
    """The pager is master; each learns the other's name."""
    linked(world)
    assert world.events(ALICE) == [LinkMade(BOB, is_caller=True, name="Bob", has_layer=True)]
    assert world.events(BOB) == [LinkMade(ALICE, is_caller=False, name="Alice", has_layer=True)]


def test_a_page_of_a_device_that_does_not_listen_fails_in_time(world: World) -> None:
    """The pager must not wait for ever."""
    alice, bob = world.radio(ALICE, "Alice"), world.radio(BOB, "Bob")
    bob.set_scans(inquiry=True, page=False)
    alice.page(BOB, None, timeout_us=LONG_US)
    alice_too = world.radio(CAROL, "Carol")
    alice_too.page(address(99), 7, timeout_us=LONG_US)
    world.wait(5.5)
    assert world.events(ALICE) == [PageFailed(BOB)]
    assert world.events(CAROL) == [PageFailed(address(99))]


def test_bytes_arrive_whole_and_in_order_both_ways(world: World) -> None:
    """Messages are no stream: each arrives as it was sent."""
    alice, bob = linked(world)
    sent = [bytes([number]) * size for number, size in enumerate((1, 2_000, 17, 70_000, 339))]
    for data in sent:
        alice.send(BOB, data)
        bob.send(ALICE, data)
    world.wait(10)
    for who, other in ((ALICE, BOB), (BOB, ALICE)):
        assert [event for event in world.events(who) if isinstance(event, Received)] == [
            Received(other, data) for data in sent
        ]


def test_roles_can_be_switched(world: World) -> None:
    """The controller becomes master of a device that paged it (4.1)."""
    _, bob = linked(world)
    bob.switch_role(ALICE)
    world.wait(1)
    assert world.events(BOB)[-1] == RoleSwitched(ALICE, is_master=True)
    assert world.events(ALICE)[-1] == RoleSwitched(BOB, is_master=False)


def test_a_parked_slave_is_woken_and_then_hears_its_master(world: World) -> None:
    """Woken at a beacon, before what its master says arrives."""
    alice, _ = linked(world)
    if not can(world, "park"):
        refuse_park(alice)
        return
    alice.park(BOB)
    world.wait(1)
    alice.unpark(BOB)
    alice.send(BOB, b"wake up")
    world.wait(3)
    assert world.events(BOB)[1:] == [Parked(ALICE), Unparked(ALICE), Received(ALICE, b"wake up")]


def test_a_parked_slave_that_has_something_to_say_is_heard_after_a_poll(world: World) -> None:
    """Not before: a parked device cannot transmit (2.1.3)."""
    alice, bob = linked(world)
    if not can(world, "park"):
        refuse_park(alice)
        return
    alice.park(BOB)
    world.wait(1)
    bob.send(ALICE, b"renew")
    world.wait(5)
    assert Received(BOB, b"renew") not in world.events(ALICE)
    alice.poll(seats=1)
    world.wait(3)
    assert world.events(ALICE)[-1] == Received(BOB, b"renew")
    assert world.events(BOB)[-1] == Unparked(ALICE)


def test_waking_an_active_slave_changes_nothing(world: World) -> None:
    """A controller cannot always know whether a device that speaks is still parked."""
    alice, _ = linked(world)
    if not can(world, "park"):
        refuse_park(alice)
        return
    alice.unpark(BOB)
    alice.send(BOB, b"hello")
    world.wait(3)
    assert world.events(BOB)[1:] == [Received(ALICE, b"hello")]


def test_what_a_slave_says_while_it_is_being_parked_is_heard_and_answered(world: World) -> None:
    """Words and park cross on the air; the answer must not wait for ever."""
    alice, bob = linked(world)
    if not can(world, "park"):
        refuse_park(alice)
        return
    bob.send(ALICE, b"publish")
    alice.park(BOB)
    world.wait(1)
    assert world.events(ALICE)[-1] == Received(BOB, b"publish")
    alice.unpark(BOB)
    alice.send(BOB, b"accepted")
    world.wait(3)
    assert world.events(BOB)[-1] == Received(ALICE, b"accepted")


def test_a_closed_connection_is_closed_for_the_other_side_too(world: World) -> None:
    """What is sent afterwards goes nowhere."""
    alice, bob = linked(world)
    alice.disconnect(BOB)
    world.wait(1)
    assert world.events(BOB)[-1] == LinkLost(ALICE)
    bob.send(ALICE, b"still there?")
    world.wait(1)
    assert not [event for event in world.events(ALICE) if isinstance(event, Received)]


def test_a_master_has_at_most_seven_active_slaves(world: World) -> None:
    """Three bits of address; a parked slave makes room (2.1.2)."""
    alice = world.radio(ALICE, "Alice")
    crowd = [address(300 + number) for number in range(8)]
    for who in crowd:
        world.radio(who, who).set_scans(inquiry=False, page=True)
    for who in crowd:
        alice.page(who, None, timeout_us=LONG_US)
        world.wait(6)
    assert sum(isinstance(event, LinkMade) for event in world.events(ALICE)) == 7
    assert world.events(ALICE)[-1] == PageFailed(crowd[-1])
    if can(world, "park"):
        alice.park(crowd[0])
    else:
        alice.disconnect(crowd[0])
        world.wait(1)
    alice.page(crowd[-1], None, timeout_us=LONG_US)
    world.wait(6)
    assert world.events(ALICE)[-1] == LinkMade(crowd[-1], is_caller=True, name=crowd[-1], has_layer=True)


def test_what_a_radio_cannot_do_is_in_the_docs() -> None:
    """One table, with reasons; whoever buys a dongle reads the page, not this file."""
    page = (Path(__file__).parents[2] / "docs/reference/rendezvous.md").read_text(encoding="utf-8")
    for (_, feature), reason in CANNOT.items():
        assert feature in page
        assert reason in page
