"""Attackers around a device that wants to be found for ten minutes, with plain Bluetooth and with a controller.

- bluejacking (2.1.4): inquires every half minute, pages every device that answers, and sends each a message;
- bluesnarfing: knows the victim's address from another day, and pages it every half minute;
- a tracker: inquires all the time, and logs each address that answers;
- an insider: a tracker that subscribes to everything every minute, as any device may;
- a thief: has copied a friend's group token, and shows it from its own address or from the friend's;
- an impostor: pages a phone that is paired with a headset, and claims to be that headset (5.4.4).

Rule: the settings and the seed decide everything.
"""

from __future__ import annotations

import time
from enum import Enum
from random import Random

from whimbrel.errors import InvalidValueError
from whimbrel.model.clock import US_PER_S
from whimbrel.rendezvous.controller import DumbPair, Parameters
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.device.commands import Tell
from whimbrel.rendezvous.events import Address, GroupKey, Subscription
from whimbrel.rendezvous.exposure import Exposure
from whimbrel.rendezvous.radio.interface import InquiryResult, LinkMade, RadioEvent
from whimbrel.rendezvous.radio.simulated.air import Air, SimulatedRadio
from whimbrel.rendezvous.tokens import DeviceKeys, GroupOwner, TokenError, check_group_token
from whimbrel.sim.hall import Hall
from whimbrel.sim.rendezvous.discovery import INQUIRY_US, PAGE_US, PlainSeeker, Search, add_device, address
from whimbrel.sim.rendezvous.pairs import System

__all__ = ["Attack", "play_attack", "play_thief"]

_EVERY_US = 30 * US_PER_S
_ASKS_US = 60 * US_PER_S
_YEAR_US = 365 * 86_400 * US_PER_S
_VICTIM, _FRIEND, _ATTACKER, _HEADSET = (address(number) for number in (2, 3, 0x66, 4))
_OTHERS = (address(5), address(6))
_LIMIT_US = 180 * US_PER_S


class Attack(Enum):
    """Kinds of attack."""

    BLUEJACKING = "bluejacking"
    BLUESNARFING = "bluesnarfing"
    TRACKER = "a tracker that inquires"
    INSIDER = "a tracker that subscribes"
    IMPOSTOR = "an impostor of a headset"


class _Attacker:
    """An attacker's radio; *known* is an address that it has learnt on another day."""

    def __init__(self, air: Air, attack: Attack, known: Address, random: Random) -> None:
        self._air, self._known = air, known
        self.attempts = 0
        self.reached: list[Address] = []
        """Addresses that it was connected to, one entry per connection."""
        self.heard: list[Address] = []
        """Addresses that answered its inquiries, one entry per answer."""
        self._found: dict[Address, int] = {}
        self.radio: SimulatedRadio = air.add(_ATTACKER, name="attacker", has_layer=False)
        self.radio.handler = self._handle
        begins_us = random.randrange(_EVERY_US)  # not in step with other periodic devices
        match attack:
            case Attack.BLUEJACKING:
                air.after(begins_us, self._inquire)
            case Attack.BLUESNARFING | Attack.IMPOSTOR:
                air.after(begins_us, self._page_known)
            case Attack.TRACKER:
                self.attempts = 1
                air.after(begins_us, lambda: self.radio.inquire(is_on=True))
            case Attack.INSIDER:
                raise InvalidValueError("attack", attack.value, "an attack by radio")

    def _inquire(self) -> None:
        self.attempts += 1
        self._found.clear()
        self.radio.inquire(is_on=True)
        self._air.after(INQUIRY_US, self._page_all)
        self._air.after(_EVERY_US, self._inquire)

    def _page_all(self) -> None:
        self.radio.inquire(is_on=False)
        for who, offset in self._found.items():
            self.radio.page(who, offset, timeout_us=PAGE_US)

    def _page_known(self) -> None:
        self.attempts += 1
        self.radio.page(self._known, self.radio.clock_offset_of(self._known), timeout_us=PAGE_US)
        self._air.after(_EVERY_US, self._page_known)

    def _handle(self, event: RadioEvent, _now: int) -> None:
        match event:
            case InquiryResult(address=found):
                self.heard.append(found)
                self._found[found] = event.clock_offset
            case LinkMade(found, is_caller=True):
                self.reached.append(found)
                self.radio.send(found, b"you have been bluejacked")
                self._air.after(US_PER_S, lambda: self.radio.disconnect(found))
            case _:
                pass


def play_attack(
    *,
    attack: str,
    system: str,
    seed: int,
    seconds: float = 600.0,
    is_restricted: bool = False,
    has_headset: bool = False,
) -> dict[str, object]:
    """Simulate a device that is available for *seconds*, until its seeker arrives, beside an attacker.

    With *is_restricted* it publishes to members of its group. With *has_headset* the controller stands in for it.
    """
    begun = time.process_time()
    kind, how = Attack(attack), System(system)
    if how is System.PLAIN:
        row = _plain(kind, seconds, seed)
    else:
        row = _simulate_controller(kind, how, seconds, seed, is_restricted=is_restricted, has_headset=has_headset)
    settings = {
        "attack": attack,
        "system": system,
        "is_restricted": is_restricted,
        "has_headset": has_headset,
        "seconds": seconds,
        "seed": seed,
    }
    return {"kind": "attack", **settings, **row, "core_s": time.process_time() - begun}


def _plain(attack: Attack, seconds: float, seed: int) -> dict[str, object]:
    air = Air(Random(f"attack {seed}"))  # reproducible from the seed
    victim = air.add(_VICTIM, name="victim")
    exposure = Exposure(air.now)
    exposure.set_scans(inquiry=True, page=True, now=air.now)
    victim.set_scans(inquiry=True, page=True)
    attacker = _Attacker(air, attack, _VICTIM, Random(f"attacker {seed}"))
    air.run(round(seconds * US_PER_S))
    met: list[int] = []
    friend = air.add(_FRIEND, name="friend")
    PlainSeeker(air, friend, _VICTIM, Search(is_whole=False), met.append).begin()
    while not met and air.now < round(seconds * US_PER_S) + _LIMIT_US:
        air.run(100_000)
    return _report(attacker, exposure, air.now, is_met=bool(met))


def _simulate_controller(
    attack: Attack, how: System, seconds: float, seed: int, *, is_restricted: bool, has_headset: bool
) -> dict[str, object]:
    pairs = [DumbPair(dumb=_HEADSET, smart=_VICTIM)] if has_headset else []
    hall = Hall(seed, Parameters(has_park=how is not System.RELEASE), pairs=pairs)
    owner = GroupOwner(b"o" * 32)
    keys: tuple[GroupKey, ...] = (owner.public,) if is_restricted else ()
    devices = [_member(_VICTIM, "victim", owner, is_discoverable=how is System.FOUND)]
    devices += [_member(who, f"other {who}", owner) for who in (_OTHERS if attack is Attack.INSIDER else ())]
    for device in devices:
        is_shown = how is System.FOUND and device.address == _VICTIM
        node = add_device(hall, device, is_shown=is_shown)
        if not is_shown:
            node.do(device.publish(keys=keys, is_lasting=True))
    attacker = _Insider(hall, owner) if attack is Attack.INSIDER else _radio_attacker(hall, attack, seed)
    hall.air.run(round(seconds * US_PER_S))
    friend = _member(_FRIEND, "friend", owner)
    add_device(hall, friend).do(friend.subscribe(Subscription(name="victim", keys=keys), is_lasting=True))
    while not hall.list_introductions(_FRIEND) and hall.now() < round(seconds * US_PER_S) + _LIMIT_US:
        hall.air.run(100_000)
    return _report(attacker, hall.nodes[_VICTIM].exposure, hall.now(), is_met=bool(hall.list_introductions(_FRIEND)))


def _radio_attacker(hall: Hall, attack: Attack, seed: int) -> _Attacker:
    return _Attacker(hall.air, attack, _VICTIM, Random(f"attacker {seed}"))


class _Insider:
    """A tracker that subscribes at the controller to everything, and names the group whose members it wants to see."""

    def __init__(self, hall: Hall, owner: GroupOwner) -> None:
        self._hall = hall
        self._wanted = Subscription(keys=(owner.public,))
        keys = DeviceKeys(b"i" * 32)
        self.attempts = 0
        self.reached: list[Address] = []
        self.heard: list[Address] = []
        self._device = Device(address=_ATTACKER, name="insider", keys=keys)
        self._node = hall.add(self._device, on_told=self._hear)
        hall.air.after(30 * US_PER_S, self._ask)

    def _ask(self) -> None:
        self.attempts += 1
        if not self._device.wishes.all:
            self._node.do(self._device.subscribe(self._wanted))
        self._hall.air.after(_ASKS_US, self._ask)

    def _hear(self, told: object, _now: int) -> None:
        if isinstance(told, Tell) and told.what == "listed":
            self.heard += [each.address for each in told.listed]


def _member(who: Address, name: str, owner: GroupOwner, *, is_discoverable: bool = False) -> Device:
    keys = DeviceKeys(who.encode().ljust(32, b"."))
    token = owner.admit(keys.token(who), device_key=keys.public, peer=who, expires_at=_YEAR_US)
    return Device(address=who, name=name, keys=keys, tokens={owner.public: token}, is_discoverable=is_discoverable)


def _report(attacker: _Attacker | _Insider, exposure: Exposure, now: int, *, is_met: bool) -> dict[str, object]:
    return {
        **exposure.seconds(now),
        "attempts": attacker.attempts,
        "reached": attacker.reached.count(_VICTIM),
        "seen": attacker.heard.count(_VICTIM),
        "is_met": is_met,
    }


def play_thief(*, is_address_forged: bool, seed: int) -> dict[str, object]:
    """Simulate a thief that shows a group token, copied from a friend's radio traffic, and subscribes to the group.

    ``thesis_admits`` is the result of the check of section 2.3 alone, which has no challenge: the token fits the
    address.
    """
    begun = time.process_time()
    hall = Hall(seed)
    owner = GroupOwner(b"o" * 32)
    victim = _member(_VICTIM, "victim", owner)
    add_device(hall, victim).do(victim.publish(keys=(owner.public,), is_lasting=True))
    friend_keys = DeviceKeys(_FRIEND.encode().ljust(32, b"."))
    stolen = owner.admit(friend_keys.token(_FRIEND), device_key=friend_keys.public, peer=_FRIEND, expires_at=_YEAR_US)
    hall.air.run(30 * US_PER_S)
    who = _FRIEND if is_address_forged else _ATTACKER
    thief = Device(address=who, name="thief", keys=DeviceKeys(b"t" * 32), tokens={owner.public: stolen})
    add_device(hall, thief).do(thief.subscribe(Subscription(keys=(owner.public,)), is_lasting=True))
    hall.air.run(120 * US_PER_S)
    try:
        check_group_token(stolen, group=owner.public, address=who, now=hall.now())
        thesis_admits = True
    except TokenError:
        thesis_admits = False
    told = [each for each, _ in hall.told[who] if isinstance(each, Tell)]
    return {
        "kind": "thief",
        "is_address_forged": is_address_forged,
        "seed": seed,
        "introduced": len(hall.list_introductions(who)),
        "listed": sum(len(each.listed) for each in told),
        "refused_proofs": hall.controller.core.refused_proofs(),
        "thesis_admits": thesis_admits,
        **hall.nodes[_VICTIM].exposure.seconds(hall.now()),
        "core_s": time.process_time() - begun,
    }
