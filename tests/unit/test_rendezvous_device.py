"""The device's end, joined to a controller in memory: Figure 4-6, matches, losses, proofs (Huang, 4.1.1, 4.1.6)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.rendezvous_rig import ALICE, BOB, CAROL, CONTROLLER, PHONE

from whimbrel.errors import InvalidValueError
from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller import Command, Connected, Controller, Disconnected, Found, Said
from whimbrel.rendezvous.controller.commands import Connect, Disconnect, Park, Send, Unpark
from whimbrel.rendezvous.device import PUBLISHER, SUBSCRIBER, Device, DeviceState, Step, diagram
from whimbrel.rendezvous.device import commands as d
from whimbrel.rendezvous.device.states import ImpossibleStepError, next_state
from whimbrel.rendezvous.events import Address, EventId, Subscription
from whimbrel.rendezvous.tokens import DeviceKeys, GroupOwner
from whimbrel.rendezvous.wire import encode

FAMILY = GroupOwner(b"f" * 32)


def member(who: Address, name: str, *owners: GroupOwner, **more: object) -> Device:
    """Return a device that can prove its groups."""
    keys = DeviceKeys(who.encode().ljust(32, b"."))
    token = keys.token(who)
    tokens = {each.public: each.admit(token, device_key=keys.public, peer=who, expires_at=10**15) for each in owners}
    return Device(address=who, name=name, device_class=PHONE, keys=keys, tokens=tokens, **more)  # type: ignore[arg-type]  # so


class Room:
    """A controller and devices in one room, with a perfect and instant radio; *deaf* pairs cannot hear each other."""

    def __init__(self, *devices: Device, deaf: set[frozenset[Address]] | None = None) -> None:
        self.core = Controller(address=CONTROLLER, nonce_key=b"k" * 32)
        self.devices = {each.address: each for each in devices}
        self.deaf = deaf or set()
        self.now = 0
        self.done: dict[Address, list[d.DeviceCommand]] = {each.address: [] for each in devices}
        self._work: deque[tuple[Device | None, Sequence[object]]] = deque()
        self.control(self.core.timer(now=0))

    def want(self, who: Address, commands: list[d.DeviceCommand]) -> None:
        """Do what a device commands, and all that follows."""
        self._work.append((self.devices[who], commands))
        self.run()

    def control(self, commands: list[Command]) -> None:
        """Do what the controller commands, and all that follows."""
        self._work.append((None, commands))
        self.run()

    def lose(self, who: Address) -> None:
        """Break the connection of a device."""
        self.happen(who, d.LostController())
        self.control(self.core.receive(Disconnected(who), now=self.now))

    def happen(self, who: Address, happened: d.DeviceInput) -> None:
        """Let something happen to a device."""
        self._work.append((self.devices[who], self.devices[who].receive(happened, now=self.now)))

    def wait(self, seconds: float) -> None:
        """Let time pass, timer by timer."""
        end = self.now + round(seconds * 1_000_000)
        while True:
            due = [each for each in (self.core.next_due, *(one.next_due for one in self.devices.values())) if each]
            if not due or min(due) > end:
                break
            self.now = min(due)
            self.control(self.core.timer(now=self.now))
            for who, device in self.devices.items():
                self.want(who, device.timer(now=self.now))
        self.now = end

    def run(self) -> None:
        """Perform everything that is left to do."""
        while self._work or self.core.is_busy:
            if not self._work:
                self._work.append((None, self.core.timer(now=self.now)))
            device, commands = self._work.popleft()
            for command in commands:
                if device is None:
                    self._perform(command)
                else:
                    self.done[device.address].append(command)  # type: ignore[arg-type]  # a device's
                    self._perform_for(device, command)

    def _perform(self, command: object) -> None:
        match command:
            case Send(who, message):
                self.happen(who, d.Heard(encode(message)))
            case Park(who):
                self.happen(who, d.WasParked())
            case Unpark(who):
                self.happen(who, d.WasWoken())
            case Disconnect(who):
                self.happen(who, d.LostController())
            case Connect(who, _):
                self.happen(who, d.JoinedController(CONTROLLER, is_caller=False))
                self._work.append((None, self.core.receive(Connected(address=who, is_caller=False), now=self.now)))
            case _:
                pass

    def _perform_for(self, device: Device, command: object) -> None:
        who = device.address
        match command:
            case d.Inquire(True):
                self.happen(who, d.FoundController(address=CONTROLLER, clock_offset=1))
            case d.PageController():
                self._work.append((None, self.core.receive(Connected(address=who), now=self.now)))
                self.happen(who, d.JoinedController(CONTROLLER))
            case d.Say(message):
                self._work.append((None, self.core.receive(Said(who, encode(message)), now=self.now)))
            case d.PagePeer(peer, _, _):
                is_heard = frozenset({who, peer}) not in self.deaf
                self.happen(who, d.PageEnded(peer, is_heard))
                if is_heard:
                    self.happen(peer, d.Paged(who))
            case d.LeaveController():
                self.lose(who)
            case _:
                pass

    def list_introductions(self, who: Address) -> list[Address]:
        """Return the devices that *who* was connected to."""
        return [each.address for each in self.done[who] if isinstance(each, d.Introduced)]


def test_two_devices_find_each_other_though_they_were_never_there_at_once_scanning() -> None:
    """Asynchronous discovery (chapter 3): one publishes and sleeps, the other comes an hour's part later."""
    room = Room(Device(address=ALICE, name="Alice"), Device(address=BOB, name="Bob", device_class=PHONE))
    room.want(BOB, room.devices[BOB].publish())
    assert room.devices[BOB].publisher is DeviceState.PARKED
    room.wait(500)
    room.want(ALICE, room.devices[ALICE].subscribe(Subscription(name="bob")))
    assert room.list_introductions(ALICE) == [BOB]
    assert room.list_introductions(BOB) == [ALICE]
    assert not room.devices[ALICE].wishes.all
    assert not room.devices[BOB].wishes.all


def test_a_published_device_is_not_discoverable() -> None:
    """No anonymous attack on a device that wants to be available (chapter 3): its scans are off while it sleeps."""
    room = Room(Device(address=BOB, name="Bob"))
    room.want(BOB, room.devices[BOB].publish())
    scans = [each for each in room.done[BOB] if isinstance(each, d.SetScans)]
    assert scans[-1] == d.SetScans(has_inquiry_scan=False, has_page_scan=False)


def test_a_publisher_listens_for_pages_only_while_it_is_matched() -> None:
    """From the wake-up until it is paged or has waited MIN_TIMEOUT, if that is what it is set to."""
    bob = Device(address=BOB, name="Bob", page_timeout_us=2_560_000)
    room = Room(Device(address=ALICE, name="Alice"), bob, deaf={frozenset({ALICE, BOB})})
    room.want(BOB, room.devices[BOB].publish())
    room.want(ALICE, room.devices[ALICE].subscribe(Subscription()))
    scans = [each.has_page_scan for each in room.done[BOB] if isinstance(each, d.SetScans)]
    assert scans[-1] is True
    assert room.devices[BOB].publisher is DeviceState.PAGE_SCAN
    room.wait(2.55)
    assert room.devices[BOB].publisher is DeviceState.PAGE_SCAN
    room.wait(0.02)
    scans = [each.has_page_scan for each in room.done[BOB] if isinstance(each, d.SetScans)]
    assert scans[-1] is False
    assert room.devices[BOB].publisher is DeviceState.PARKED


def test_devices_that_cannot_hear_each_other_do_not_go_round_for_ever() -> None:
    """Both renew after the page failed; the controller remembers the pair (4.1.3)."""
    room = Room(Device(address=ALICE, name="Alice"), Device(address=BOB, name="Bob"), deaf={frozenset({ALICE, BOB})})
    room.want(BOB, room.devices[BOB].publish(is_lasting=True))
    room.want(ALICE, room.devices[ALICE].subscribe(Subscription(), is_lasting=True))
    room.wait(60)
    assert sum(isinstance(each, d.PagePeer) for each in room.done[ALICE]) == 1
    assert len(room.core.open_events()) == 2


def test_a_discoverable_device_is_served_without_knowing_what_a_controller_is() -> None:
    """It is heard, published and parked; its user did nothing (4.1.1)."""
    room = Room(Device(address=BOB, name="Bob", is_discoverable=True), Device(address=ALICE, name="Alice"))
    assert room.devices[BOB].publisher is DeviceState.INQUIRY_SCAN
    room.control(room.core.receive(Found(address=BOB, clock_offset=3, name="Bob", device_class=0), now=0))
    assert room.devices[BOB].publisher is DeviceState.PARKED
    assert [wish.id for wish in room.devices[BOB].wishes.all] == ["P1"]
    room.want(ALICE, room.devices[ALICE].subscribe(Subscription(name="Bob")))
    assert room.list_introductions(BOB) == [ALICE]


@pytest.mark.parametrize("is_discoverable", [True, False])
def test_a_device_that_loses_the_controller_is_again_as_it_was(*, is_discoverable: bool) -> None:
    """The discoverable device that leaves the room is discoverable again (4.1.6)."""
    device = Device(address=BOB, name="Bob", is_discoverable=is_discoverable)
    room = Room(device)
    room.want(BOB, device.publish())
    device.wishes.end(device.wishes.all[0])
    room.lose(BOB)
    assert room.done[BOB][-1] == d.SetScans(is_discoverable, is_discoverable)
    assert device.publisher is (DeviceState.INQUIRY_SCAN if is_discoverable else DeviceState.DISCONNECTED)
    assert device.subscriber is DeviceState.DISCONNECTED


def test_after_an_unwished_loss_everything_is_renewed_by_identifier() -> None:
    """The device sends identifiers, not events (5.4.1)."""
    device = Device(address=BOB, name="Bob")
    room = Room(device)
    room.want(BOB, device.publish())
    room.want(BOB, device.subscribe(Subscription(name="Alice")))
    room.lose(BOB)
    said = [each.message for each in room.done[BOB] if isinstance(each, d.Say)]
    assert said[-2:] == [m.Renew(EventId("P1")), m.Renew(EventId("S1"))]
    assert {record.id for record in room.core.open_events()} == {"P1", "S1"}


def test_what_the_controller_has_forgotten_is_submitted_again() -> None:
    """A renewal that is refused as unknown is followed by the event itself."""
    device = Device(address=BOB, name="Bob")
    room = Room(device)
    room.want(BOB, device.publish())
    room.core = Controller(address=CONTROLLER, nonce_key=b"k" * 32)  # the controller was restarted
    room.lose(BOB)
    assert [record.id for record in room.core.open_events()] == ["P1"]
    said = [type(each.message) for each in room.done[BOB] if isinstance(each, d.Say)]
    assert said == [m.Publish, m.Renew, m.Publish]


def test_a_lasting_wish_is_renewed_when_it_expires() -> None:
    """Another is given up, and its user told."""
    lasting, other = Device(address=BOB, name="Bob"), Device(address=CAROL, name="Carol")
    room = Room(lasting, other)
    room.want(BOB, lasting.publish(is_lasting=True))
    room.want(CAROL, other.publish())
    room.wait(601)
    assert [record.owner for record in room.core.open_events()] == [BOB]
    assert d.Tell(what="expired", id=EventId("P2")) in room.done[CAROL]


def test_friends_find_each_other_and_strangers_learn_nothing() -> None:
    """Restricted availability (chapter 3), end to end with keys, tokens and challenges."""
    alice, bob, carol = member(ALICE, "Alice", FAMILY), member(BOB, "Bob", FAMILY), member(CAROL, "Carol")
    room = Room(alice, bob, carol)
    room.want(BOB, bob.publish(keys=(FAMILY.public,)))
    room.want(CAROL, carol.subscribe(Subscription(keys=(FAMILY.public,))))
    assert room.list_introductions(CAROL) == []
    room.want(ALICE, alice.subscribe(Subscription(keys=(FAMILY.public,))))
    assert room.list_introductions(ALICE) == [BOB]


def test_a_device_proves_no_group_that_it_has_not_named() -> None:
    """A curious controller must not learn a device's groups by asking for each."""
    device = member(BOB, "Bob", FAMILY)
    device.receive(d.JoinedController(CONTROLLER), now=0)
    asked = m.Ask(group=FAMILY.public, challenge=b"n" * 32)
    (said,) = device.receive(d.Heard(encode(asked)), now=0)
    assert isinstance(said, d.Say)
    assert isinstance(said.message, m.Proof)
    assert said.message.token is None


def test_a_device_answers_no_challenge_about_a_group_that_it_has_not_named() -> None:
    """Not even if the controller says that it knows the token: the answer alone would prove a membership."""
    device = member(BOB, "Bob", FAMILY)
    device.receive(d.JoinedController(CONTROLLER), now=0)
    asked = m.Ask(group=FAMILY.public, challenge=b"n" * 32, wants_token=False)
    (said,) = device.receive(d.Heard(encode(asked)), now=0)
    assert isinstance(said, d.Say)
    assert isinstance(said.message, m.Proof)
    assert said.message.answer == bytes(64)


def test_friends_only_stays_friends_only_after_a_loss_though_the_controller_had_published_the_device() -> None:
    """The controller published Bob to everybody; Bob then chose his friends, and that must hold when he returns."""
    bob = member(BOB, "Bob", FAMILY, is_discoverable=True)
    room = Room(bob)
    room.control(room.core.receive(Found(address=BOB, clock_offset=1, name="Bob", device_class=PHONE), now=0))
    assert [record.is_indirect for record in room.core.open_events()] == [True]
    room.want(BOB, bob.publish(keys=(FAMILY.public,), is_lasting=True))
    assert [record.event.keys for record in room.core.open_events()] == [(FAMILY.public,)]
    room.control(room.core.receive(Disconnected(BOB), now=room.now))
    room.now += 40_000_000  # by now the controller has forgotten what could be renewed
    room.happen(BOB, d.LostController())
    room.run()
    assert [record.event.keys for record in room.core.open_events()] == [(FAMILY.public,)]


def test_a_second_controller_is_a_device_like_any_other() -> None:
    """A stranger that calls itself a controller and pages a device must neither end it nor take it over."""
    bob = Device(address=BOB, name="Bob", is_discoverable=True)
    bob.receive(d.JoinedController(CONTROLLER, is_caller=False), now=0)
    assert bob.receive(d.JoinedController(CAROL, is_caller=False), now=0) == []
    assert bob.controller == CONTROLLER
    bob.receive(d.JoinedController(CONTROLLER, is_caller=False), now=0)  # the loss before it went unnoticed
    assert (bob.subscriber, bob.publisher) == (DeviceState.ACTIVE, DeviceState.ACTIVE)


def test_answers_that_a_lost_connection_owed_are_not_awaited_after_it() -> None:
    """Otherwise the identifier of one wish would be written down beside another."""
    alice = Device(address=ALICE, name="Alice")
    alice.receive(d.JoinedController(CONTROLLER), now=0)
    alice.subscribe(Subscription(name="one"))
    alice.receive(d.LostController(), now=0)
    alice.receive(d.JoinedController(CONTROLLER), now=0)
    alice.receive(d.Heard(encode(m.Accepted(EventId("S1")))), now=0)
    alice.subscribe(Subscription(name="two"))
    alice.receive(d.Heard(encode(m.Accepted(EventId("S2")))), now=0)
    assert [wish.id for wish in alice.wishes.all] == ["S1", "S2"]


def listening(*, is_discoverable: bool = False) -> Device:
    """Return a publisher that was told of a match and waits for its page."""
    bob = Device(address=BOB, name="Bob", is_discoverable=is_discoverable)
    bob.receive(d.JoinedController(CONTROLLER), now=0)
    bob.publish()
    bob.receive(d.Heard(encode(m.Accepted(EventId("P1")))), now=0)
    commands = bob.receive(d.Heard(encode(m.WakeUp(EventId("P1")))), now=0)
    assert d.SetScans(has_inquiry_scan=False, has_page_scan=True) in commands
    return bob


def test_neither_sleep_nor_the_loss_of_the_controller_ends_the_wait_for_a_page() -> None:
    """The subscriber pages now; the scan ends with the page or its time, whatever the controller says."""
    still = d.SetScans(has_inquiry_scan=False, has_page_scan=True)
    assert listening().receive(d.Heard(encode(m.Sleep())), now=1) == [still]
    lost = listening(is_discoverable=True).receive(d.LostController(), now=1)
    assert not [each for each in lost if isinstance(each, d.SetScans)]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_discoverable_device_is_shown_again_only_when_it_has_left_the_controller(*, is_lost: bool) -> None:
    """While the controller speaks for it, nobody else may discover it (chapter 3)."""
    bob = listening(is_discoverable=True)
    if is_lost:
        bob.receive(d.LostController(), now=1)
    ended = bob.timer(now=10_000_000)
    assert d.SetScans(has_inquiry_scan=is_lost, has_page_scan=is_lost) in ended


def test_a_wish_is_paged_for_once_at_a_time() -> None:
    """A controller that tells of match after match must not fill a device's radio with pages."""
    alice = Device(address=ALICE, name="Alice")
    alice.receive(d.JoinedController(CONTROLLER), now=0)
    alice.subscribe(Subscription())
    alice.receive(d.Heard(encode(m.Accepted(EventId("S1")))), now=0)
    said = [
        alice.receive(d.Heard(encode(m.Matched(id=EventId("S1"), address=who, clock_offset=0))), now=0)
        for who in (BOB, CAROL)
    ]
    assert [[type(each) for each in commands] for commands in said] == [[d.Say, d.PagePeer], [d.Say]]


def test_several_matches_are_listed_to_the_user() -> None:
    """It may then subscribe with a narrower template."""
    people = [Device(address=BOB, name="Bob"), Device(address=CAROL, name="Carol")]
    alice = Device(address=ALICE, name="Alice")
    room = Room(alice, *people)
    for each in people:
        room.want(each.address, each.publish())
    room.want(ALICE, alice.subscribe(Subscription()))
    (told,) = [each for each in room.done[ALICE] if isinstance(each, d.Tell) and each.what == "listed"]
    assert [each.name for each in told.listed] == ["Bob", "Carol"]
    room.want(ALICE, alice.subscribe(Subscription(name="carol")))
    assert room.list_introductions(ALICE) == [CAROL]


def test_a_device_may_publish_and_seek_at_once() -> None:
    """Two small machines share one connection (H14)."""
    alice, bob = Device(address=ALICE, name="Alice"), Device(address=BOB, name="Bob")
    room = Room(alice, bob)
    for each in (alice, bob):
        room.want(each.address, each.publish())
    room.want(ALICE, alice.subscribe(Subscription(name="Bob")))
    assert room.list_introductions(ALICE) == [BOB]
    assert alice.publisher is DeviceState.PARKED
    assert [record.owner for record in room.core.open_events()] == [ALICE]


def test_what_is_withdrawn_is_gone() -> None:
    """Unpublish and unsubscribe, at any time (4.1.1)."""
    device = Device(address=BOB, name="Bob")
    room = Room(device)
    room.want(BOB, device.publish())
    room.want(BOB, device.withdraw(device.wishes.all[0]))
    assert not room.core.open_events()
    assert room.done[BOB][-2:-1] == [d.Tell(what="removed", id=EventId("P1"))]


def test_a_page_time_out_below_the_minimum_is_refused() -> None:
    """The other party must have its turn (5.3)."""
    with pytest.raises(InvalidValueError, match="page_timeout_us"):
        Device(address=BOB, name="Bob", page_timeout_us=2_559_999)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_any_bytes_from_a_controller_are_survived(words: list[bytes]) -> None:
    """A device trusts no controller with its life."""
    device = Device(address=BOB, name="Bob")
    device.receive(d.JoinedController(CONTROLLER), now=0)
    for data in words:
        device.receive(d.Heard(data), now=0)


# -- Figure 4-6 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "state"),
    [
        ([Step.CONNECT], DeviceState.ACTIVE),
        ([Step.CONNECT, Step.PARK], DeviceState.PARKED),
        ([Step.CONNECT, Step.MATCH], DeviceState.PAGE),
        ([Step.CONNECT, Step.PARK, Step.WAKE, Step.MATCH, Step.PAGED], DeviceState.PARKED),
        ([Step.CONNECT, Step.PARK, Step.LOSE], DeviceState.DISCONNECTED),
    ],
)
def test_figure_4_6_the_subscriber(path: list[Step], state: DeviceState) -> None:
    """Disconnected, active, parked, page."""
    found = DeviceState.DISCONNECTED
    for step in path:
        found = next_state(SUBSCRIBER, found, step)
    assert found is state


@pytest.mark.parametrize(
    ("path", "state"),
    [
        ([Step.SHOW, Step.HEARD], DeviceState.ACTIVE),
        ([Step.CONNECT, Step.PARK], DeviceState.PARKED),
        ([Step.SHOW, Step.HEARD, Step.MATCH], DeviceState.PAGE_SCAN),
        ([Step.CONNECT, Step.PARK, Step.WAKE, Step.MATCH, Step.PAGED], DeviceState.PARKED),
        ([Step.SHOW, Step.HEARD, Step.PARK, Step.LOSE, Step.SHOW], DeviceState.INQUIRY_SCAN),
    ],
)
def test_figure_4_6_the_publisher(path: list[Step], state: DeviceState) -> None:
    """Disconnected, inquiry scan, active, parked, page scan."""
    found = DeviceState.DISCONNECTED
    for step in path:
        found = next_state(PUBLISHER, found, step)
    assert found is state


def test_figure_4_6_has_the_states_of_the_thesis() -> None:
    """Four for a subscriber, five for a publisher; and the one that stands for park where a radio has none."""
    assert len({state for pair in SUBSCRIBER for state in (pair[0], SUBSCRIBER[pair])} - {DeviceState.RELEASED}) == 4
    assert len({state for pair in PUBLISHER for state in (pair[0], PUBLISHER[pair])} - {DeviceState.RELEASED}) == 5


def test_a_step_that_is_not_in_the_table_is_refused() -> None:
    """The table is the machine."""
    with pytest.raises(ImpossibleStepError, match="a device that is parked cannot take the step"):
        next_state(PUBLISHER, DeviceState.PARKED, Step.MATCH)


def test_the_diagram_is_drawn_from_the_table() -> None:
    """Every transition that leads elsewhere is an arrow."""
    text = diagram(PUBLISHER)
    assert "    parked --> active: is woken" in text
    assert text.count("-->") == 1 + sum(state is not following for (state, _), following in PUBLISHER.items())
