"""Dumb devices (5.4.4) over the simulated radio, in both orders of arrival, message for message against the text.

``D`` is the dumb device, ``S`` the smart one that it is paired with, ``C`` the controller.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from tests.unit.rendezvous_rig import ALICE, BOB, CAROL, DAVE, Rig, publication, sent
from tests.unit.rendezvous_tap import Tap

from whimbrel.errors import InvalidValueError
from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller import (
    Authenticated,
    Connected,
    Controller,
    DumbPair,
    NoteKind,
    Overheard,
    PairState,
    Parameters,
)
from whimbrel.rendezvous.controller.commands import Authenticate, Disconnect, Note, Park, SwitchRole, UseAddress
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.device.commands import Introduced
from whimbrel.rendezvous.events import Address, EventId, Subscription
from whimbrel.rendezvous.journal import attributes_of, subject_of
from whimbrel.rendezvous.nodes import ControllerNode, DeviceNode
from whimbrel.rendezvous.radio.simulated.air import Air
from whimbrel.rendezvous.refusals import Refusal
from whimbrel.rendezvous.stand_in import StandIn
from whimbrel.rendezvous.tokens import GroupOwner
from whimbrel.sim.hall import Hall
from whimbrel.sim.rendezvous.headset import Headset, HeadsetFact

SECOND = 1_000_000
SMART, DUMB = BOB, DAVE
PAIR = DumbPair(dumb=DUMB, smart=SMART)
P1 = EventId("P1")
PINS = ("0000", "")
"""The Jabra headset's and the Microsoft mouse's (5.4.4)."""


@dataclass
class World:
    """A hall with one pair, and what its radios do."""

    hall: Hall
    headset: Headset
    tap: Tap

    def smart(self, *, is_discoverable: bool = False, is_lasting: bool = False) -> DeviceNode:
        """Let the smart device come and publish, or be discoverable."""
        device = Device(address=SMART, name="phone", is_discoverable=is_discoverable)
        node = self.hall.add(device, is_shown=is_discoverable)
        if not is_discoverable:
            node.do(device.publish(is_lasting=is_lasting))
        return node

    def state(self) -> PairState:
        """Return where the controller takes the smart device to be."""
        return self.hall.controller.core.pair_states(now=self.hall.now())[SMART]


@pytest.fixture(params=PINS, ids=["0000", "blank"])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    """Make a hall with a controller that knows the pair; nobody has come yet."""
    hall = Hall(3, pairs=[DumbPair(dumb=DUMB, smart=SMART, pin=request.param)])
    tap = Tap(monkeypatch, hall, {SMART: "S", DUMB: "D"})
    return World(hall, Headset(hall.air, DUMB, smart=SMART, pin=request.param), tap)


def since(lines: list[str], first: str) -> list[str]:
    """Return *lines* from *first* on."""
    return lines[lines.index(first) :]


JOINED = [
    "S inquires",
    "S hears C",
    "S pages C",
    "C as S ignores",  # from now on it is here, and awake
    "S connects C",
    "S says to C publish",
    "C is master of S",
    "C says to S accepted",
]


def test_smart_first_the_controller_hears_the_page_and_wakes_the_smart_device(world: World) -> None:
    """5.4.4: it is parked and put to sleep, the controller scans on its page channel, hears the page and wakes it.

    *The dumb device then directly pages the smart device and connects*; a role switch makes the smart one master.
    """
    world.smart()
    world.hall.air.run(60 * SECOND)
    asleep = since(world.tap.lines, "S inquires")
    assert asleep[: len(JOINED)] == JOINED
    assert set(asleep[len(JOINED) :]) == {
        "C says to S sleep",
        "C parks S",
        "C as S listens",
        "S scans off",
    }
    world.headset.switch_on()
    world.hall.air.run(20 * SECOND)
    assert since(world.tap.lines, "D pages S") == [
        "D pages S",
        "C hears a page for S",
        "C unparks S",
        "C says to S wake up",
        "C as S ignores",
        "S says to C noted",
        "S scans page",
        "C parks S",
        "S scans off",  # it is connected
        "D connects S",
        "S is master of D",
    ]
    assert world.hall.list_introductions(SMART)[0][0] == DUMB
    assert not world.hall.controller.core.open_events(), "the answered publication is removed"


def test_dumb_first_the_controller_answers_in_the_smart_devices_place_and_lets_go(world: World) -> None:
    """5.4.4: it hears the page, responds with the smart device's address, role switch, parks the dumb one.

    *Until a smart device matching the BT_ADDR arrives. At that time […] it disconnects from the dumb device and ignores
    its pages long enough for the dumb device to page and connect to the smart device.*
    """
    world.headset.switch_on()
    world.hall.air.run(60 * SECOND)
    assert since(world.tap.lines, "D pages S") == [
        "D pages S",
        "C answers D as S",
        "D connects S",
        "C is master of D",
        "D accepts the PIN of C",
        "C parks D",
    ]
    assert world.headset.is_connected
    assert world.headset.pages() == 1, "it has paged once, and sleeps since"
    world.smart()
    world.hall.air.run(20 * SECOND)
    assert since(world.tap.lines, "C says to S accepted") == [
        "C says to S accepted",
        "C says to S wake up",
        "D is disconnected",
        "D pages S",
        "S says to C noted",
        "S scans page",
        "C parks S",
        "S scans off",  # it is connected
        "D connects S",
        "S is master of D",
    ]
    assert world.hall.list_introductions(SMART)[0][0] == DUMB
    assert not world.hall.controller.core.open_events(), "the answered publication is removed"


def test_dumb_first_a_discoverable_smart_device_is_not_connected_to(world: World) -> None:
    """5.4.4: *the controller does not need to connect to the discoverable smart device*; it only lets the other go."""
    world.headset.switch_on()
    world.hall.air.run(30 * SECOND)
    world.smart(is_discoverable=True)
    world.hall.air.run(4 * SECOND)
    assert since(world.tap.lines, "C hears S") == [
        "C hears S",
        "C as S ignores",
        "D is disconnected",
        "D pages S",
        "D connects S",
        "S is master of D",
    ]
    assert world.hall.list_introductions(SMART)[0][0] == DUMB


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_smart_first", [True, False])
def test_both_orders_of_arrival_end_in_the_real_connection(seed: int, *, is_smart_first: bool) -> None:
    """Whatever the clocks are, and the dumb device is never left with the controller."""
    hall = Hall(seed, pairs=[PAIR])
    headset = Headset(hall.air, DUMB, smart=SMART)
    device = Device(address=SMART, name="phone")

    def come(*, is_smart: bool) -> None:
        if is_smart:
            hall.add(device).do(device.publish(is_lasting=True))
        else:
            headset.switch_on()

    come(is_smart=is_smart_first)
    hall.air.run(40 * SECOND)
    come(is_smart=not is_smart_first)
    hall.air.run(40 * SECOND)
    assert [who for who, _ in hall.list_introductions(SMART)][:1] == [DUMB]
    assert headset.is_connected
    assert hall.air.link(DUMB, SMART) is not None
    assert hall.air.link(DUMB, hall.controller.core.address) is None


def test_pages_are_ignored_for_at_least_2_56_s(world: World) -> None:
    """Two and a half seconds are the longest page (5.3); what is set lower is refused."""
    world.smart()
    world.hall.air.run(30 * SECOND)
    world.headset.switch_on()
    while world.state() is not PairState.YIELDING:
        world.hall.air.run(10_000)
    begun = world.hall.now()
    while world.state() is PairState.YIELDING:
        world.hall.air.run(10_000)
    assert world.hall.now() - begun >= 2_560_000 - 20_000
    with pytest.raises(InvalidValueError, match="ignore_us"):
        Parameters(ignore_us=2_559_999)


def test_a_smart_device_that_did_not_hear_its_headset_is_woken_again_at_the_next_page() -> None:
    """The headset was carried out of range while it paged, and came back: nothing is stuck."""
    hall = Hall(5, pairs=[PAIR])
    headset = Headset(hall.air, DUMB, smart=SMART)
    device = Device(address=SMART, name="phone")
    hall.add(device).do(device.publish(is_lasting=True))
    hall.air.run(30 * SECOND)
    headset.switch_on()
    while hall.controller.core.pair_states(now=hall.now())[SMART] is not PairState.YIELDING:
        hall.air.run(10_000)
    headset.radio.move((50.0, 0.0))
    hall.air.run(30 * SECOND)
    assert not headset.is_connected
    headset.radio.move((0.0, 0.0))
    hall.air.run(40 * SECOND)
    assert [who for who, _ in hall.list_introductions(SMART)] == [DUMB]


def test_a_wrong_pin_holds_nothing() -> None:
    """The maker's PIN was configured wrong: the headset hangs up and goes on looking, and the log says so."""
    hall = Hall(3, pairs=[DumbPair(dumb=DUMB, smart=SMART, pin="1234")])
    headset = Headset(hall.air, DUMB, smart=SMART, pin="0000")
    headset.switch_on()
    hall.air.run(10 * SECOND)
    assert not any(each.fact is HeadsetFact.PARKED for each in headset.facts)
    assert "refused: PIN" in {note.detail for note, _ in hall.notes}


def test_a_stranger_that_pages_the_smart_devices_address_is_refused() -> None:
    """What the controller answers in another's name it answers for the paired device only."""
    hall = Hall(3, pairs=[PAIR])
    stranger = Headset(hall.air, CAROL, smart=SMART)
    stranger.switch_on()
    hall.air.run(5 * SECOND)
    assert not stranger.is_connected or stranger.facts[-1].fact is HeadsetFact.LOST
    refused = [note for note, _ in hall.notes if note.detail == "refused: not paired"]
    assert {(note.address, note.other_address) for note in refused} == {(SMART, CAROL)}


def test_a_headset_that_is_switched_off_leaves_nothing_behind(world: World) -> None:
    """Held, then off: the smart device that comes later is published like any other."""
    world.headset.switch_on()
    world.hall.air.run(20 * SECOND)
    world.headset.switch_off()
    world.hall.air.run(30 * SECOND)
    world.smart(is_lasting=True)
    world.hall.air.run(30 * SECOND)
    assert [record.owner for record in world.hall.controller.core.open_events()] == [SMART]
    assert world.state() is PairState.ASLEEP


def test_two_dumb_devices_of_one_phone_are_held_and_let_go_one_after_the_other() -> None:
    """A headset and a mouse: let go at once, they would page on one channel and collide for ever (Figure 4-9)."""
    hall = Hall(3, pairs=[PAIR, DumbPair(dumb=CAROL, smart=SMART, pin="")])
    dumb = [Headset(hall.air, DUMB, smart=SMART), Headset(hall.air, CAROL, smart=SMART, pin="")]
    for each in dumb:
        each.switch_on()
        hall.air.run(20 * SECOND)
    assert all(each.is_connected for each in dumb)
    device = Device(address=SMART, name="phone")
    hall.add(device).do(device.publish(is_lasting=True))
    hall.air.run(60 * SECOND)
    assert {who for who, _ in hall.list_introductions(SMART)} == {DUMB, CAROL}


# -- the core alone ----------------------------------------------------------------------------------------------------


def rig(pairs: tuple[DumbPair, ...] = (PAIR,)) -> Rig:
    """Return a controller with dumb devices, and no radio."""
    found = Rig()
    found.core = Controller(address=found.core.address, nonce_key=b"k" * 32, pairs=pairs)
    found.commands = found.core.timer(now=0)
    return found


def take(driven: Rig, happened: Connected | Overheard | Authenticated) -> list[object]:
    """Let something happen that only a radio with extra hardware reports."""
    return [each for each in driven.core.receive(happened, now=driven.now) if not isinstance(each, Note)]


def test_the_controller_answers_pages_of_the_absent_from_the_start() -> None:
    """No clock is known, so it goes through all page scan frequencies (5.4.4)."""
    assert [each for each in rig().commands if isinstance(each, UseAddress)] == [
        UseAddress(SMART, StandIn.ANSWER, None)
    ]


def test_a_dumb_device_that_was_answered_is_authenticated_and_parked() -> None:
    """Role switch, PIN, park: in this order (5.4.4)."""
    driven = rig()
    caught = take(driven, Connected(address=DUMB, has_layer=False, as_address=SMART))
    assert caught == [SwitchRole(DUMB), Authenticate(DUMB, "0000")]
    assert take(driven, Authenticated(DUMB, is_accepted=True)) == [Park(DUMB)]


def test_a_dumb_device_that_never_answers_its_pin_is_disconnected() -> None:
    """Nothing waits for ever."""
    driven = rig()
    take(driven, Connected(address=DUMB, has_layer=False, as_address=SMART))
    driven.now = 2_560_000
    assert Disconnect(DUMB, Refusal.SILENT) in driven.core.timer(now=driven.now)


def test_a_held_dumb_device_is_not_idle() -> None:
    """It has no event, and stays for as long as its smart device is away."""
    driven = rig()
    take(driven, Connected(address=DUMB, has_layer=False, as_address=SMART))
    take(driven, Authenticated(DUMB, is_accepted=True))
    driven.now = 3_600 * SECOND
    assert not [each for each in driven.core.timer(now=driven.now) if isinstance(each, Disconnect)]


def test_the_sleeping_smart_devices_clock_is_used() -> None:
    """The controller has its FHS: it listens where the smart device itself would."""
    driven = rig()
    driven.publish(SMART)
    listening = [each for each in driven.commands if isinstance(each, UseAddress)]
    assert listening[-1] == UseAddress(SMART, StandIn.LISTEN, publication(SMART).clock_offset)


def test_a_page_wakes_the_smart_device_once() -> None:
    """Each ID of a train is heard; one wake-up follows, and the next only after it has published again."""
    driven = rig()
    driven.publish(SMART)
    first = take(driven, Overheard(SMART))
    assert m.WakeUp(P1) in [each.message for each in first if hasattr(each, "message")]
    assert take(driven, Overheard(SMART)) == []


def test_a_subscriber_comes_before_a_held_dumb_device() -> None:
    """A match is a match: the headset stays held, and its turn comes at the next publication."""
    driven = rig()
    take(driven, Connected(address=DUMB, has_layer=False, as_address=SMART))
    take(driven, Authenticated(DUMB, is_accepted=True))
    driven.subscribe(ALICE, name="Bob")
    driven.publish(SMART)
    assert any(isinstance(each, m.Matched) for each in sent(driven.commands, ALICE))
    assert not [each for each in driven.commands if isinstance(each, Disconnect)]


def test_a_smart_device_that_does_not_note_that_it_listens_is_taken_for_gone() -> None:
    """Like any device that is silent after it was told of a match."""
    driven = rig()
    driven.is_noting = False
    driven.publish(SMART)
    take(driven, Overheard(SMART))
    driven.now = 2_560_000
    assert Disconnect(SMART, Refusal.SILENT) in driven.core.timer(now=driven.now)


def test_the_use_of_an_address_is_a_fact_even_where_the_publication_is_restricted() -> None:
    """The smart device is named, because its address is in use; the event is not."""
    owner = GroupOwner(b"f" * 32)
    driven = rig()
    driven.publish(SMART, keys=(owner.public,))
    facts = [*driven.core.receive(Overheard(SMART), now=driven.now)]
    (heard,) = [each for each in facts if isinstance(each, Note) and each.detail == "heard"]
    assert subject_of(heard) == "rendezvous/stand-in"
    assert attributes_of(heard) == {"device": SMART, "detail": "heard"}


def test_every_use_of_another_address_is_written(world: World) -> None:
    """From the first page that could be answered to the last: nothing is done in another's name in silence."""
    world.headset.switch_on()
    world.hall.air.run(30 * SECOND)
    world.smart()
    world.hall.air.run(20 * SECOND)
    used = [note for note, _ in world.hall.notes if note.kind is NoteKind.STAND_IN]
    assert [(note.detail, note.other_address) for note in used] == [
        ("answers", None),
        ("holds", DUMB),
        ("ignores", None),
        ("lets go", DUMB),
        ("confirmed", None),
    ]
    assert {note.address for note in used} == {SMART}


def test_pairs_that_cannot_be_are_refused() -> None:
    """A dumb device has one partner, which is no dumb device; park is needed; and an ordinary radio will not do."""
    with pytest.raises(InvalidValueError, match="another address"):
        DumbPair(dumb=DUMB, smart=DUMB)
    for pairs in (
        (PAIR, DumbPair(dumb=DUMB, smart=ALICE)),
        (PAIR, DumbPair(dumb=ALICE, smart=DUMB)),
        tuple(DumbPair(dumb=Address(f"00:00:00:00:01:{n:02X}"), smart=SMART) for n in range(65)),
    ):
        with pytest.raises(InvalidValueError):
            Controller(address=ALICE, nonce_key=b"k" * 32, pairs=pairs)
    with pytest.raises(InvalidValueError, match="has_park"):
        Controller(Parameters(has_park=False), address=ALICE, nonce_key=b"k" * 32, pairs=(PAIR,))


def test_a_radio_without_the_hardware_is_refused() -> None:
    """The shell checks it: no core command can be lost on a radio that cannot do it."""
    air = Air(Random(1))

    class Ordinary:
        """What Bumble offers: everything but another's address."""

        def __init__(self) -> None:
            self._radio = air.add(ALICE, name="plain")

        def __getattr__(self, name: str) -> object:
            if name in {"stand_in", "authenticate"}:
                raise AttributeError(name)
            return getattr(self._radio, name)

    core = Controller(address=ALICE, nonce_key=b"k" * 32, pairs=(PAIR,))
    with pytest.raises(InvalidValueError, match="only the simulated radio"):
        ControllerNode(core, Ordinary(), air, now=lambda: 0)  # type: ignore[arg-type]  # as a caller without types


def test_without_pairs_nothing_changes() -> None:
    """A controller that knows no dumb devices never touches another's address."""
    hall = Hall(3)
    bob = hall.add(Device(address=BOB, name="Bob"))
    bob.do(bob.core.publish())
    alice = hall.add(Device(address=ALICE, name="Alice"))
    alice.do(alice.core.subscribe(Subscription(name="Bob")))
    hall.air.run(40 * SECOND)
    assert [each for each, _ in hall.told[BOB] if isinstance(each, Introduced)]
    assert not [note for note, _ in hall.notes if note.kind is NoteKind.STAND_IN]
