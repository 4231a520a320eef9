"""The six requirements of chapter 3, each shown over the simulated radio."""

from __future__ import annotations

from tests.unit.rendezvous_rig import ALICE, BOB, CAROL, address

from whimbrel.rendezvous.controller import NoteKind
from whimbrel.rendezvous.device import Device, DeviceState
from whimbrel.rendezvous.device.commands import Heard, JoinedController, LostController, Tell
from whimbrel.rendezvous.events import Address, EventId, Subscription
from whimbrel.rendezvous.messages import Accepted, WakeUp
from whimbrel.rendezvous.nodes import DeviceNode
from whimbrel.rendezvous.radio.interface import InquiryResult, LinkMade, RadioEvent
from whimbrel.rendezvous.tokens import DeviceKeys, GroupOwner
from whimbrel.rendezvous.wire import encode
from whimbrel.sim.hall import Hall

SECOND = 1_000_000
CROWD = [address(400 + number) for number in range(5)]


def shown(hall: Hall, who: Address, name: str) -> DeviceNode:
    """Bring a discoverable device."""
    return hall.add(Device(address=who, name=name, is_discoverable=True), is_shown=True)


def inquirer(hall: Hall, who: Address) -> list[RadioEvent]:
    """Bring a radio without our layer that inquires all the time; return what it hears."""
    heard: list[RadioEvent] = []
    radio = hall.air.add(who, name="plain")
    radio.handler = lambda event, _now: heard.append(event)
    radio.inquire(is_on=True)
    return heard


def test_requirement_1_no_worse_than_plain_discovery() -> None:
    """What an inquiry would have found, an empty template lists: the same devices, address, name and class.

    And no more than that: no clock offset, so a listed device cannot be paged from the list.
    """
    plain = Hall(seed=2)
    for number, who in enumerate(CROWD):
        radio = plain.air.add(who, name=f"device {number}", device_class=number)
        radio.set_scans(inquiry=True, page=False)
    heard = [event for event in _inquire(plain) if isinstance(event, InquiryResult)]
    found = {(event.address, event.name, event.device_class) for event in heard if event.address in CROWD}

    hall = Hall(seed=2)
    for number, who in enumerate(CROWD):
        device = Device(address=who, name=f"device {number}", device_class=number, is_discoverable=True)
        hall.add(device, is_shown=True)
    hall.air.run(60 * SECOND)
    alice = hall.add(Device(address=ALICE, name="Alice"))
    alice.do(alice.core.subscribe(Subscription()))
    hall.air.run(40 * SECOND)
    (told,) = [each for each, _ in hall.told[ALICE] if isinstance(each, Tell) and each.what == "listed"]
    assert {(each.address, each.name, each.device_class) for each in told.listed} == found
    assert len(found) == len(CROWD)


def _inquire(hall: Hall) -> list[RadioEvent]:
    heard = inquirer(hall, ALICE)
    hall.air.run(15 * SECOND)
    return heard


def test_requirement_2_no_anonymous_attack_on_a_published_device() -> None:
    """Neither inquiry nor page reaches a device that sleeps until its match comes."""
    hall = Hall()
    bob = shown(hall, BOB, "Bob")
    hall.air.run(30 * SECOND)
    assert bob.core.publisher is DeviceState.PARKED
    heard = inquirer(hall, address(99))
    attacker = hall.air.radio(address(99))
    assert attacker is not None
    attacker.page(BOB, None, timeout_us=5_120_000)
    hall.air.run(30 * SECOND)
    assert BOB not in {event.address for event in heard if isinstance(event, InquiryResult)}
    assert not [event for event in heard if isinstance(event, LinkMade)]


def test_requirement_3_less_is_sent_on_average() -> None:
    """Among ten who inquire, a discoverable device answers all day; a published one answers nobody.

    This counts answers; joules are the lab's (H50).
    """
    answers = []
    for is_served in (False, True):
        hall = Hall(seed=7)
        if is_served:
            shown(hall, BOB, "Bob")
            hall.air.run(30 * SECOND)
        else:
            hall.air.add(BOB, name="Bob").set_scans(inquiry=True, page=False)
        ears = [inquirer(hall, address(500 + number)) for number in range(10)]
        hall.air.run(60 * SECOND)
        answers.append(
            sum(isinstance(event, InquiryResult) and event.address == BOB for heard in ears for event in heard)
        )
    plain, served = answers
    assert plain > 40
    assert served == 0


def test_requirement_4_discovery_is_asynchronous() -> None:
    """The publisher came nine minutes before the subscriber, and has slept since."""
    hall = Hall()
    bob = hall.add(Device(address=BOB, name="Bob"))
    bob.do(bob.core.publish())
    hall.air.run(540 * SECOND)
    alice = hall.add(Device(address=ALICE, name="Alice"))
    alice.do(alice.core.subscribe(Subscription(name="BOB")))
    hall.air.run(40 * SECOND)
    assert [who for who, _ in hall.list_introductions(ALICE)] == [BOB]


def test_requirement_5_availability_can_be_restricted() -> None:
    """A friend finds Bob; a stranger who claims the same group does not, and learns nothing of him."""
    family = GroupOwner(b"f" * 32)

    def member(who: Address, name: str, *owners: GroupOwner) -> Device:
        keys = DeviceKeys(who.encode().ljust(32, b"."))
        tokens = {
            each.public: each.admit(keys.token(who), device_key=keys.public, peer=who, expires_at=10**15)
            for each in owners
        }
        return Device(address=who, name=name, keys=keys, tokens=tokens)

    hall = Hall()
    bob, alice, carol = (
        hall.add(each) for each in (member(BOB, "Bob", family), member(ALICE, "Alice", family), member(CAROL, "Carol"))
    )
    bob.do(bob.core.publish(keys=(family.public,)))
    hall.air.run(30 * SECOND)
    carol.do(carol.core.subscribe(Subscription(keys=(family.public,))))
    hall.air.run(60 * SECOND)
    assert {each.what for each, _ in hall.told[CAROL] if isinstance(each, Tell)} == {"accepted"}
    alice.do(alice.core.subscribe(Subscription(keys=(family.public,))))
    hall.air.run(60 * SECOND)
    assert [who for who, _ in hall.list_introductions(ALICE)] == [BOB]
    assert hall.list_introductions(CAROL) == []


def test_requirement_6_no_inconsistent_data_persists() -> None:
    """Bob left without a word: after the supervision time-out nothing of him is left, and nobody pages him."""
    hall = Hall()
    bob = hall.add(Device(address=BOB, name="Bob"))
    bob.do(bob.core.publish())
    hall.air.run(30 * SECOND)
    radio = hall.air.radio(BOB)
    assert radio is not None
    radio.move((99, 0))
    hall.air.run(21 * SECOND)
    assert hall.controller.core.sizes()["events"] == 0
    alice = hall.add(Device(address=ALICE, name="Alice"))
    alice.do(alice.core.subscribe(Subscription(name="Bob")))
    hall.air.run(40 * SECOND)
    assert [note.kind for note, _ in hall.notes] == [NoteKind.OPENED, NoteKind.FLUSHED, NoteKind.OPENED]


def test_a_device_that_listens_and_looks_for_the_controller_does_both_in_time() -> None:
    """Two things may be due at different times; whichever comes first, the other must not be forgotten."""
    hall = Hall()
    node = hall.add(Device(address=BOB, name="Bob"))
    device, radio = node.core, hall.air.radio(BOB)
    assert radio is not None
    radio.move((99, 0))  # nobody is near: no event of the radio comes to its help
    device.receive(JoinedController(CROWD[0]), now=0)
    node.do(device.publish(is_lasting=True))
    node.do(device.receive(Heard(encode(Accepted(EventId("P1")))), now=0))
    node.do(device.receive(Heard(encode(WakeUp(EventId("P1")))), now=0))
    hall.air.run(5 * SECOND)
    for _ in range(4):  # the controller is lost, and then its page is not answered: it waits longer and longer
        node.do(device.receive(LostController(), now=hall.air.now))
    dues = [device.next_due]
    hall.air.run(60 * SECOND)
    assert [*dues, device.next_due] == [5_120_000, None]
    stations = hall.air.baseband().stations[radio.number]
    assert (stations.is_page_scanning, stations.inquiring is not None) == (False, True)
