"""One scenario on every radio: the same messages in the same order, apart from a table of differences.

Bob publishes for his family and Dave is discoverable; Alice, of the family, seeks Bob and then Dave. Alice and Bob
verify each other, talk and part. The simulated radio plays it with park and without; Bumble's stack on the air in
software.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

import pytest
from tests.unit.rendezvous_rig import ALICE, BOB, CAROL, DAVE, Member

from whimbrel.rendezvous.controller import Note, NoteKind, Parameters
from whimbrel.rendezvous.daemon.air_hall import AirHall
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.device.admission import admit_everyone
from whimbrel.rendezvous.device.commands import DeviceCommand, Introduced, Tell, Verified
from whimbrel.rendezvous.events import Address, Subscription
from whimbrel.rendezvous.nodes import DeviceNode
from whimbrel.rendezvous.radio.interface import Radio
from whimbrel.rendezvous.tokens import GroupOwner
from whimbrel.rendezvous.wire import decode, name_of
from whimbrel.sim.hall import Hall

SECOND = 1_000_000
LONG_US = 3_600 * SECOND
CONTROLLER = Address("02:00:00:00:00:01")
NAMES = {CONTROLLER: "C", ALICE: "Alice", BOB: "Bob", CAROL: "Carol", DAVE: "Dave"}
FAMILY = GroupOwner(b"f" * 32)
FOREVER = 2**60

Told = Introduced | Verified | Tell


class World(Protocol):
    """A hall on some radio."""

    said: dict[str, list[str]]
    """What each said to each, in order: ``Bob → C``."""

    @property
    def notes(self) -> list[Note]:
        """The controller's facts."""
        ...

    def told(self, who: Address) -> list[Told]:
        """Return what the user of a device was told."""
        ...

    def add(self, device: Device, *, is_shown: bool = False) -> DeviceNode:
        """Bring a device."""
        ...

    def do(self, node: DeviceNode, work: Callable[[DeviceNode], list[DeviceCommand] | None]) -> None:
        """Have a device do something."""
        ...

    def until(self, is_so: Callable[[], bool]) -> None:
        """Let time pass until something is so, and until all is quiet again."""
        ...

    def close(self) -> None:
        """End it."""
        ...


def tap(radio: Radio, said: dict[str, list[str]]) -> None:
    """Write down what a radio sends."""
    send = radio.send

    def sent(address: Address, data: bytes) -> None:
        said[f"{NAMES[radio.address]} → {NAMES[address]}"].append(name_of(decode(data)))
        send(address, data)

    radio.send = sent  # type: ignore[method-assign]  # a tap


class SimulatedWorld:
    """The simulated radio; time is moved by hand."""

    def __init__(self, *, has_park: bool) -> None:
        self.said: dict[str, list[str]] = defaultdict(list)
        parameters = Parameters(has_park=has_park, presence_us=LONG_US, idle_us=LONG_US)
        self._hall = Hall(seed=2, parameters=parameters)
        radio = self._hall.air.radio(self._hall.controller.core.address)
        assert radio is not None
        tap(radio, self.said)

    @property
    def notes(self) -> list[Note]:
        """The controller's facts."""
        return [note for note, _ in self._hall.notes]

    def told(self, who: Address) -> list[Told]:
        """Return what the user of a device was told."""
        return [each for each, _ in self._hall.told[who]]

    def add(self, device: Device, *, is_shown: bool = False) -> DeviceNode:
        """Bring a device."""
        node = self._hall.add(device, is_shown=is_shown)
        radio = self._hall.air.radio(device.address)
        assert radio is not None
        tap(radio, self.said)
        return node

    def do(self, node: DeviceNode, work: Callable[[DeviceNode], list[DeviceCommand] | None]) -> None:
        """Have a device do something."""
        node.do(work(node) or [])

    def until(self, is_so: Callable[[], bool]) -> None:
        """Let time pass until something is so, and until all is quiet again."""
        for _ in range(120):
            if is_so():
                break
            self._hall.air.run(SECOND // 4)
        assert is_so()
        self._hall.air.run(3 * SECOND)

    def close(self) -> None:
        """Nothing is open."""


class BumbleWorld:
    """Bumble's stack on the air in software; time passes by itself."""

    def __init__(self) -> None:
        self.said: dict[str, list[str]] = defaultdict(list)
        self._loop = asyncio.new_event_loop()
        parameters = Parameters(has_park=False, presence_us=LONG_US, idle_us=LONG_US)
        self._hall = AirHall(CONTROLLER, parameters)
        self._hall.watch = lambda radio: tap(radio, self.said)
        self._loop.run_until_complete(self._hall.open())

    @property
    def notes(self) -> list[Note]:
        """The controller's facts."""
        return self._hall.notes

    def told(self, who: Address) -> list[Told]:
        """Return what the user of a device was told."""
        return list(self._hall.told[who])

    def add(self, device: Device, *, is_shown: bool = False) -> DeviceNode:
        """Bring a device."""
        return self._loop.run_until_complete(self._hall.add(device, is_shown=is_shown))

    def do(self, node: DeviceNode, work: Callable[[DeviceNode], list[DeviceCommand] | None]) -> None:
        """Have a device do something."""

        async def act() -> None:  # inside the loop
            node.do(work(node) or [])

        self._loop.run_until_complete(act())

    def until(self, is_so: Callable[[], bool]) -> None:
        """Let time pass until something is so, and until all is quiet again."""

        async def wait() -> None:
            assert await self._hall.until(is_so)
            before = -1
            while before != (now := sum(map(len, self.said.values()))):
                before = now
                await asyncio.sleep(0.3)

        self._loop.run_until_complete(wait())

    def close(self) -> None:
        """End it."""
        self._loop.run_until_complete(self._hall.close())
        self._loop.close()


def member(who: Address, name: str, *, is_shown: bool = False) -> Device:
    """Return a device of the family."""
    made = Member(who, FAMILY, expires_at=FOREVER)
    return Device(
        address=who,
        name=name,
        keys=made.keys,
        tokens=made.tokens,
        is_discoverable=is_shown,
        nonce_key=who.encode().ljust(32, b"n"),
    )


def play(world: World) -> None:
    """Play the scenario."""

    def count(kind: NoteKind) -> int:
        return sum(note.kind is kind for note in world.notes)

    def met(who: Address) -> int:
        return sum(isinstance(each, Introduced) for each in world.told(who))

    def has_verified(who: Address) -> bool:
        return any(isinstance(each, Verified) for each in world.told(who))

    def heard(who: Address) -> list[bytes]:
        return [each.data for each in world.told(who) if isinstance(each, Tell) and each.what == "data"]

    bob = world.add(member(BOB, "Bob"))
    world.do(bob, lambda node: node.core.publish(keys=(FAMILY.public,), is_lasting=True))
    world.until(lambda: count(NoteKind.OPENED) == 1)
    world.add(Device(address=DAVE, name="Dave", is_discoverable=True), is_shown=True)
    world.until(lambda: count(NoteKind.OPENED) == 2)
    alice = world.add(member(ALICE, "Alice"))
    world.do(alice, lambda node: node.core.subscribe(Subscription(name="BOB", keys=(FAMILY.public,))))
    world.until(lambda: has_verified(ALICE) and has_verified(BOB) and count(NoteKind.OPENED) == 3)
    world.do(alice, lambda node: node.talk(BOB, b"hello"))
    world.until(lambda: heard(BOB) == [b"hello"])
    world.do(bob, lambda node: node.talk(ALICE, b"x" * 3_000))
    world.until(lambda: heard(ALICE) == [b"x" * 3_000])
    world.do(alice, lambda node: node.hang_up(BOB))
    world.do(alice, lambda node: node.core.subscribe(Subscription(name="Dave")))
    world.until(lambda: met(ALICE) == 2 and met(DAVE) == 1)


WORLDS: dict[str, Callable[[], World]] = {
    "simulated, with park": lambda: SimulatedWorld(has_park=True),
    "simulated, without park": lambda: SimulatedWorld(has_park=False),
    "Bumble": BumbleWorld,
}
PARK_DIFFERS = {
    "C → Bob": "a parked device is told to sleep, a released one that it is; both are woken for their proofs",
    "C → Dave": "a parked publisher is woken and told of its match; a released one listens anyway",
    "Dave → C": "who is told of a match says that it has noted it",
}
"""Where the messages with park differ from those without, and why."""


@pytest.fixture(scope="module")
def said() -> dict[str, dict[str, list[str]]]:
    """Return what was said to whom on each radio."""
    found = {}
    for name, made in WORLDS.items():
        world = made()
        try:
            play(world)
        finally:
            world.close()
        found[name] = dict(world.said)
    return found


def test_the_same_messages_in_the_same_order_on_both_radios(said: dict[str, dict[str, list[str]]]) -> None:
    """What the simulator shows is what a real stack does."""
    assert said["Bumble"] == said["simulated, without park"]
    assert said["Bumble"]["Alice → Bob"] == ["ask", "proof", "data"]
    assert said["Bumble"]["C → Alice"] == ["accepted", "ask", "matched", "accepted", "matched"]


def test_with_park_the_messages_differ_where_the_table_says(said: dict[str, dict[str, list[str]]]) -> None:
    """Each difference has a reason, and no reason is left without a difference."""
    park, none = said["simulated, with park"], said["simulated, without park"]
    assert {who for who in {*park, *none} if park.get(who) != none.get(who)} == PARK_DIFFERS.keys()


def test_a_device_joins_a_group_over_the_real_stack_and_a_third_verifies_it() -> None:
    """Figures 2-11 and 2-12 over L2CAP: Carol owns the family and is gone when Bob verifies Alice."""
    world = BumbleWorld()
    kept: dict[Address, bytes] = {}
    try:
        owner = Device(address=CAROL, name="Carol", keys=Member(CAROL).keys, owner=FAMILY, admission=admit_everyone)
        carol = world.add(owner)
        world.do(carol, lambda node: node.core.publish())
        world.until(lambda: len(world.notes) == 1)
        newcomer = Member(ALICE)
        alice = world.add(Device(address=ALICE, name="Alice", keys=newcomer.keys, nonce_key=b"a" * 32))
        alice._keep_token = lambda _group, token: kept.update({ALICE: token})
        world.do(alice, lambda node: node.core.subscribe(Subscription(name="Carol")))
        world.until(lambda: any(isinstance(each, Introduced) for each in world.told(ALICE)))
        now = world._hall._clock.now()
        world.do(alice, lambda node: node.core.join(CAROL, FAMILY.public, now=now))
        world.until(lambda: "joined" in [each.what for each in world.told(ALICE) if isinstance(each, Tell)])
        world.do(carol, lambda node: node.hang_up(ALICE))
        bob = world.add(member(BOB, "Bob"))
        world.do(alice, lambda node: node.core.publish(keys=(FAMILY.public,)))
        world.do(bob, lambda node: node.core.subscribe(Subscription(name="Alice", keys=(FAMILY.public,))))
        world.until(lambda: any(isinstance(each, Verified) for each in world.told(BOB)))
    finally:
        world.close()
    assert [each.address for each in world.told(BOB) if isinstance(each, Verified)] == [ALICE]
    assert "Bob → Carol" not in world.said
    assert kept.keys() == {ALICE}
