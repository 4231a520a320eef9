"""A hall: one controller, devices that arrive one by one, and the radio between them (Huang's system, simulated).

Rule: the scenario and its seed decide everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from whimbrel.errors import InvalidValueError
from whimbrel.model.bounds import flag, real, whole
from whimbrel.model.clock import US_PER_S
from whimbrel.rendezvous.controller import Controller, DumbPair, Note, NoteKind, Parameters
from whimbrel.rendezvous.controller.dumb import MAX_PAIRS
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.device.commands import Introduced, Tell, Verified
from whimbrel.rendezvous.epochs import EpochFile
from whimbrel.rendezvous.events import Address, Subscription, address_from
from whimbrel.rendezvous.nodes import ControllerNode, DeviceNode
from whimbrel.rendezvous.radio.simulated.air import Air
from whimbrel.rendezvous.tokens import DeviceKeys, GroupOwner
from whimbrel.sim.rendezvous.headset import Headset

__all__ = ["Hall", "HallReport", "HallScenario", "run_hall"]

_FIRST_DEVICE = 0x020000000100
_FIRST_PHONE, _FIRST_HEADSET = 0x020000010000, 0x020000020000
_CONTROLLER = 0x020000000001
_YEAR_US = 365 * 86_400 * US_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class HallScenario:
    """A plan of arrivals: *devices* come in pairs, of which one device publishes and the other seeks it by name."""

    devices: int = 20
    seconds: float = 180.0
    arrivals_s: float = 60.0
    """All devices arrive within this time, at random."""
    friends_only: bool = False
    """Whether publications are restricted to a group of which all devices are members."""
    discoverable: bool = False
    """Whether publishers only make themselves discoverable, and the controller publishes for them."""
    dumb: int = 0
    """Number of headsets, each with a phone that publishes; every second headset arrives before its phone."""
    seed: int = 1

    def __post_init__(self) -> None:
        whole("devices", self.devices, 2, 260)
        real("seconds", self.seconds, 1, 86_400)
        real("arrivals_s", self.arrivals_s, 0, 86_400)
        flag("friends_only", self.friends_only)
        flag("discoverable", self.discoverable)
        whole("dumb", self.dumb, 0, MAX_PAIRS)
        if self.friends_only and self.discoverable:
            sentence = "friends_only and discoverable exclude each other: inquiry tells no groups (4.1.1)"
            raise InvalidValueError("discoverable", found=True, allowed="false", sentence=sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class HallReport:
    """Result of a hall: the connected pairs, their waiting times, and the controller's notes."""

    notes: tuple[tuple[Note, int], ...]
    pairs: int
    connected: int
    waits_s: tuple[float, ...]
    """For each connected pair: seconds from the arrival of the second device to the connection."""
    collisions: int
    dumb_pairs: int = 0
    dumb_connected: int = 0
    """Headsets connected to their phone; a link to the controller as its stand-in does not count."""
    counts: dict[str, int] = field(default_factory=dict)
    refused_proofs: dict[str, int] = field(default_factory=dict)


class Hall:
    """A controller and devices around it; *epochs* survive a restart, *pairs* are headsets with their phones."""

    def __init__(
        self,
        seed: int = 1,
        parameters: Parameters | None = None,
        epochs: EpochFile | None = None,
        pairs: Iterable[DumbPair] = (),
    ) -> None:
        parameters = parameters or Parameters()
        random = Random(f"hall {seed}")
        self.air = Air(random)
        self.notes: list[tuple[Note, int]] = []
        self.nodes: dict[Address, DeviceNode] = {}
        self.told: dict[Address, list[tuple[Introduced | Verified | Tell, int]]] = {}
        address = _address(_CONTROLLER)
        radio = self.air.add(address, name=parameters.name)
        self.controller = ControllerNode(
            Controller(
                parameters,
                address=address,
                nonce_key=random.randbytes(32),
                epochs=None if epochs is None else epochs.epochs,
                pairs=pairs,
            ),
            radio,
            self.air,
            now=self.now,
            note=lambda note, now: self.notes.append((note, now)),
            keep_epoch=(lambda _group, _epoch: None) if epochs is None else epochs.keep,
        )
        radio.handler = self.controller.handle
        self.controller.start()

    def now(self) -> int:
        """Return the simulated time in microseconds."""
        return self.air.now

    def add(
        self,
        device: Device,
        *,
        place: tuple[float, float] = (0.0, 0.0),
        is_shown: bool = False,
        on_told: Callable[[Introduced | Verified | Tell, int], None] = lambda _told, _now: None,
    ) -> DeviceNode:
        """Add *device* to the hall; *is_shown* makes it discoverable. *on_told* gets what the device's user is told."""
        radio = self.air.add(device.address, name=device.name, device_class=device.device_class, place=place)
        told = self.told.setdefault(device.address, [])

        def take(each: Introduced | Verified | Tell, now: int) -> None:
            told.append((each, now))
            on_told(each, now)

        node = DeviceNode(device, radio, self.air, now=self.now, told=take)
        self.nodes[device.address] = node
        radio.handler = node.handle
        if is_shown:
            node.show()
        return node

    def list_introductions(self, who: Address) -> list[tuple[Address, int]]:
        """Return the devices that *who* was connected to, each with the time."""
        return [(each.address, now) for each, now in self.told[who] if isinstance(each, Introduced)]


def run_hall(scenario: HallScenario) -> HallReport:
    """Simulate *scenario* and return its report."""
    random = Random(f"arrivals {scenario.seed}")
    phones = [(_address(_FIRST_HEADSET + number), _address(_FIRST_PHONE + number)) for number in range(scenario.dumb)]
    hall = Hall(scenario.seed, pairs=[DumbPair(dumb=dumb, smart=smart) for dumb, smart in phones])
    group = GroupOwner(random.randbytes(32))
    arrivals: dict[Address, int] = {}
    pairs: list[tuple[Address, Address]] = []
    for number in range(0, scenario.devices - scenario.devices % 2, 2):
        seeker, sought = (_address(_FIRST_DEVICE + number + each) for each in range(2))
        pairs.append((seeker, sought))
        for who in (seeker, sought):
            arrivals[who] = round(random.uniform(0, scenario.arrivals_s) * US_PER_S)
            device = _device(who, group, random, is_shown=scenario.discoverable and who == sought)
            partner = f"device {sought[-5:]}" if who == seeker else None
            hall.air.after(arrivals[who], _arrival(hall, device, scenario, group, partner))
    for number, (dumb, smart) in enumerate(phones):
        come = sorted(round(random.uniform(0, scenario.arrivals_s) * US_PER_S) for _ in range(2))
        _bring_headset(hall, dumb, smart, at=come if number % 2 else come[::-1])
    hall.air.run(round(scenario.seconds * US_PER_S))
    met = {
        pair: [now for who, now in hall.list_introductions(pair[0]) if who == pair[1]]
        for pair in pairs
        if pair[0] in hall.told
    }
    waits = [times[0] - max(arrivals[each] for each in pair) for pair, times in met.items() if times]
    kinds = [note.kind for note, _ in hall.notes]
    return HallReport(
        notes=tuple(hall.notes),
        pairs=len(pairs),
        connected=len(waits),
        waits_s=tuple(wait / US_PER_S for wait in waits),
        collisions=hall.air.collisions,
        dumb_pairs=len(phones),
        dumb_connected=sum(hall.air.link(dumb, smart) is not None for dumb, smart in phones if _is_real(hall, dumb)),
        counts={kind.value: kinds.count(kind) for kind in NoteKind},
        refused_proofs=hall.controller.core.refused_proofs(),
    )


def _arrival(
    hall: Hall, device: Device, scenario: HallScenario, group: GroupOwner, partner: str | None
) -> Callable[[], None]:
    """Return the callback for the arrival of *device*, which seeks *partner*, or waits to be found if that is None."""
    keys = (group.public,) if scenario.friends_only else ()

    def arrive() -> None:
        is_shown = partner is None and scenario.discoverable
        node = hall.add(device, is_shown=is_shown)
        if partner is not None:
            node.do(device.subscribe(Subscription(name=partner, keys=keys), is_lasting=True))
        elif not is_shown:
            node.do(device.publish(keys=keys, is_lasting=True))

    return arrive


def _bring_headset(hall: Hall, dumb: Address, smart: Address, *, at: list[int]) -> None:
    """Schedule the arrival of a headset and of its phone, which publishes, at the two times *at*."""
    phone = Device(address=smart, name=f"phone {smart[-5:]}")
    headset = Headset(hall.air, dumb, smart=smart)
    hall.air.after(at[0], headset.switch_on)
    hall.air.after(at[1], lambda: hall.add(phone).do(phone.publish(is_lasting=True)))


def _is_real(hall: Hall, dumb: Address) -> bool:
    """Return whether the headset at *dumb* is not linked to the controller."""
    return hall.air.link(dumb, hall.controller.core.address) is None


def _device(who: Address, group: GroupOwner, random: Random, *, is_shown: bool) -> Device:
    keys = DeviceKeys(random.randbytes(32))
    token = group.admit(keys.token(who), device_key=keys.public, peer=who, expires_at=_YEAR_US)
    return Device(
        address=who, name=f"device {who[-5:]}", keys=keys, tokens={group.public: token}, is_discoverable=is_shown
    )


def _address(number: int) -> Address:
    return address_from(number.to_bytes(6, "big"))
