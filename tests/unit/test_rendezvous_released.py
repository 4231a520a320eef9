"""Without park: devices are released and paged, over the simulated radio and message by message."""

from __future__ import annotations

import pytest
from tests.unit.rendezvous_rig import ALICE, BOB, CAROL, Member, Rig, address, notes, script, sent

from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller import NoteKind, Parameters
from whimbrel.rendezvous.controller.commands import Connect, Release
from whimbrel.rendezvous.device import Device, DeviceState
from whimbrel.rendezvous.device.commands import Introduced, Tell
from whimbrel.rendezvous.events import Address, EventId, Subscription
from whimbrel.rendezvous.nodes import DeviceNode
from whimbrel.rendezvous.radio.interface import InquiryResult, LinkMade, PageFailed, RadioEvent
from whimbrel.rendezvous.radio.simulated.air import SimulatedRadio
from whimbrel.rendezvous.tokens import GroupOwner
from whimbrel.sim.hall import Hall

SECOND = 1_000_000
NO_PARK = Parameters(has_park=False, max_parked=0)
FAMILY = GroupOwner(b"f" * 32)


def hall(seed: int = 1, parameters: Parameters = NO_PARK) -> Hall:
    """Return a hall whose radios have no park."""
    return Hall(seed=seed, parameters=parameters)


def offer(place: Hall, who: Address = BOB, name: str = "Bob", *, is_lasting: bool = False) -> DeviceNode:
    """Bring a device that publishes."""
    node = place.add(Device(address=who, name=name))
    node.do(node.core.publish(is_lasting=is_lasting))
    return node


def seek(place: Hall, who: Address = ALICE, name: str = "Bob", *, is_lasting: bool = False) -> DeviceNode:
    """Bring a device that seeks another by name."""
    node = place.add(Device(address=who, name=who))
    node.do(node.core.subscribe(Subscription(name=name), is_lasting=is_lasting))
    return node


def told(place: Hall, who: Address) -> list[str]:
    """Return what the user of a device was told."""
    return [each.what if isinstance(each, Tell) else type(each).__name__ for each, _ in place.told[who]]


def radio_of(place: Hall, who: Address) -> SimulatedRadio:
    """Return the radio at an address."""
    radio = place.air.radio(who)
    assert radio is not None
    return radio


def state_of(node: DeviceNode) -> DeviceState:
    """Return where a publisher is."""
    return node.core.publisher


def link_count(place: Hall) -> int:
    """Return how many connections there are."""
    return len(place.air._links)


def pages_of(place: Hall) -> list[tuple[int, str, Address, Address]]:
    """Write down every page from now on: when it begins or ends, who pages, and whom."""
    lines: list[tuple[int, str, Address, Address]] = []
    for radio in place.air._radios:
        _watch(place, radio, lines)
    return lines


def _watch(place: Hall, radio: SimulatedRadio, lines: list[tuple[int, str, Address, Address]]) -> None:
    page, handler = radio.page, radio.handler

    def paged(who: Address, clock_offset: int | None, *, timeout_us: int) -> None:
        lines.append((place.now(), "begin", radio.address, who))
        page(who, clock_offset, timeout_us=timeout_us)

    def happened(event: RadioEvent, now: int) -> None:
        if isinstance(event, PageFailed) or (isinstance(event, LinkMade) and event.is_caller):
            lines.append((now, "end", radio.address, event.address))
        handler(event, now)

    radio.page, radio.handler = paged, happened  # type: ignore[assignment, method-assign]  # a tap


# -- message by message ------------------------------------------------------------------------------------------------


def test_a_device_whose_event_is_open_is_released() -> None:
    """Disconnected, with a word of how long it is to wait for the next page."""
    rig = Rig(NO_PARK)
    done = rig.publish()
    assert script(done) == ["→P Accepted P1", "→P Released", "Release P"]
    assert rig.open() == {"P1"}
    assert sent(done, BOB)[-1] == m.Released(NO_PARK.patience_us)


def test_at_a_match_the_subscriber_alone_is_paged_and_told_whom_to_page() -> None:
    """The indirect case of Figure 4-5, though the publisher came first."""
    rig = Rig(NO_PARK)
    rig.publish()
    done = rig.subscribe(name="bob")
    assert [type(each) for each in sent(done, ALICE)] == [m.Accepted, m.Matched]
    assert sent(done, BOB) == []
    assert not [each for each in done if isinstance(each, Connect)]


def test_a_released_subscriber_is_paged_and_told_when_it_is_connected() -> None:
    """Nothing is said to a device that is not connected."""
    rig = Rig(NO_PARK)
    rig.subscribe(name="bob")
    done = rig.publish()
    assert [each.address for each in done if isinstance(each, Connect)] == [ALICE]
    assert sent(done, ALICE) == []
    done = rig.connect(ALICE, is_caller=False)
    assert [type(each) for each in sent(done, ALICE)] == [m.Matched]
    assert notes(done, NoteKind.NOTIFIED)


def test_a_subscriber_that_does_not_answer_two_pages_is_gone_and_its_match_undone() -> None:
    """The publication waits for the next one; nobody was told of the match."""
    rig = Rig(NO_PARK)
    rig.subscribe(name="bob")
    rig.publish()
    assert [each.address for each in rig.miss(ALICE) if isinstance(each, Connect)] == [ALICE]
    done = rig.miss(ALICE)
    assert [(each.kind, each.id) for each in notes(done)] == [(NoteKind.FLUSHED, "S1"), (NoteKind.OPENED, "P1")]
    rig.wait(1)
    assert rig.open() == {"P1"}
    done = rig.subscribe(CAROL, name="bob")
    assert [type(each) for each in sent(done, CAROL)] == [m.Accepted, m.Matched]


def test_a_pair_whose_match_was_undone_is_matched_when_the_subscriber_is_back() -> None:
    """It never met: the cache of matched pairs must not keep it apart."""
    rig = Rig(NO_PARK)
    rig.subscribe(name="bob")
    rig.publish()
    rig.miss(ALICE)
    rig.miss(ALICE)
    rig.connect(ALICE)
    done = rig.say(ALICE, m.Renew(EventId("S1")))
    assert [type(each) for each in sent(done, ALICE)] == [m.Accepted, m.Matched]


def test_a_publisher_that_nobody_reached_is_told_afterwards() -> None:
    """It listened all the time and cannot know that its publication is answered."""
    rig = Rig(NO_PARK)
    rig.publish()
    rig.subscribe(name="bob")
    done = rig.wait(5.2)
    assert [each.address for each in done if isinstance(each, Connect)] == [BOB]
    assert sent(rig.connect(BOB, is_caller=False), BOB) == [m.Answered(sent(rig.commands, BOB)[0].id)]  # type: ignore[union-attr]  # it was accepted


@pytest.mark.parametrize("parameters", [NO_PARK, Parameters()])
def test_a_match_waits_for_the_page_that_hides_its_publisher(parameters: Parameters) -> None:
    """The controller found Bob and pages him; only when he is connected, or was not reached, is Alice told to page."""
    for is_reached in (True, False):
        rig = Rig(parameters)
        assert [each.address for each in rig.find(BOB) if isinstance(each, Connect)] == [BOB]
        assert [type(each) for each in sent(rig.subscribe(name="bob"), ALICE)] == [m.Accepted]
        done = rig.connect(BOB, is_caller=False) if is_reached else rig.miss(BOB)
        assert [type(each) for each in sent(done, ALICE)] == [m.Matched]
        assert [type(each) for each in sent(done, BOB)] == ([m.Accepted, m.WakeUp] if is_reached else [])
        assert notes(done, NoteKind.NOTIFIED)


def test_a_release_and_a_word_that_cross_lose_nothing() -> None:
    """What a device says while it is being released is ignored; it says it again on a page of its own."""
    rig = Rig(NO_PARK)
    rig.publish()
    assert rig.say(BOB, m.Subscribe(Subscription(name="carol"))) == []
    done = rig.connect(BOB)
    assert not [each for each in done if isinstance(each, Release)]  # it may speak first
    done = rig.say(BOB, m.Subscribe(Subscription(name="carol")))
    assert script(done)[-3:] == ["→P Accepted S1", "→P Released", "Release P"]
    assert rig.open() == {"P1", "S1"}


# -- over the radio ----------------------------------------------------------------------------------------------------


def test_two_devices_meet_without_park_in_both_orders_of_arrival() -> None:
    """And between arrival and match neither is connected to anything."""
    for is_publisher_first in (True, False):
        place = hall()
        first, second = (offer, seek) if is_publisher_first else (seek, offer)
        early = first(place)
        place.air.run(30 * SECOND)
        assert link_count(place) == 0
        state = early.core.publisher if is_publisher_first else early.core.subscriber
        assert state is DeviceState.RELEASED
        second(place)
        place.air.run(60 * SECOND)
        assert [who for who, _ in place.list_introductions(ALICE)] == [BOB]
        assert [who for who, _ in place.list_introductions(BOB)] == [ALICE]


def test_controller_and_subscriber_never_page_the_publisher_at_the_same_time() -> None:
    """Figure 4-9 without park: over many meetings, with presence pages every ten seconds."""
    for seed in range(6):
        place = hall(seed, Parameters(has_park=False, presence_us=10 * SECOND))
        offer(place, is_lasting=True)
        place.air.run(seed * 3 * SECOND + 20 * SECOND)
        for number in range(3):
            seek(place, address(40 + number), is_lasting=True)
        lines = pages_of(place)
        place.air.run(200 * SECOND)
        going: set[Address] = set()
        for _, what, who, whom in lines:
            if whom != BOB:
                continue
            if what == "begin":
                assert not going, f"{who} pages Bob while {going} do"
                going.add(who)
            else:
                going.discard(who)
        assert len({who for who, _ in place.list_introductions(BOB)}) >= 2


def test_a_published_device_is_connectable_and_never_discoverable() -> None:
    """Its exposure is the time in which it can be paged; park has none."""
    seconds = []
    for parameters in (NO_PARK, Parameters()):
        place = hall(parameters=parameters)
        bob = offer(place)
        heard: list[RadioEvent] = []
        plain = place.air.add(address(99), name="plain")
        plain.handler = lambda event, _now, heard=heard: heard.append(event)  # type: ignore[misc]  # bound now
        plain.inquire(is_on=True)
        place.air.run(300 * SECOND)
        assert BOB not in {each.address for each in heard if isinstance(each, InquiryResult)}
        seconds.append(bob.exposure.seconds(place.now()))
    released, parked = seconds
    assert released["discoverable_s"] == parked["discoverable_s"] == parked["connectable_s"] == 0
    assert 280 < released["connectable_s"] < 300


def test_a_device_that_walked_away_is_listed_no_longer_than_the_bound() -> None:
    """One alone for 65.12 s; many that go at once, as the docs say."""
    for crowd in (1, 10):
        place = hall()
        for number in range(crowd):
            offer(place, address(60 + number), f"device {number}")
        place.air.run(90 * SECOND)
        assert len(place.controller.core.open_events()) == crowd
        for number in range(crowd):
            radio_of(place, address(60 + number)).move((99, 0))
        gone_at = place.now()
        while place.controller.core.open_events():
            place.air.run(SECOND)
        assert place.now() - gone_at <= 60 * SECOND + crowd * 5_120_000 + SECOND <= NO_PARK.stale_us
        assert place.controller.core.sizes()["devices"] == 0


def test_a_device_that_stays_is_paged_and_stays_listed() -> None:
    """Ten presence pages later it is still there, and was told nothing."""
    place = hall()
    offer(place)
    place.air.run(590 * SECOND)
    assert told(place, BOB) == ["accepted"]
    assert [record.owner for record in place.controller.core.open_events()] == [BOB]


def test_devices_notice_that_the_controller_is_gone_and_look_for_it() -> None:
    """No page came for as long as the controller had said."""
    place = hall()
    bob = offer(place, is_lasting=True)
    place.air.run(30 * SECOND)
    controller = radio_of(place, place.controller.core.address)
    controller.move((99, 0))
    place.air.run(NO_PARK.patience_us + 10 * SECOND)
    assert state_of(bob) is DeviceState.DISCONNECTED
    assert place.air.baseband().stations[radio_of(place, BOB).number].inquiring is not None
    controller.move((0, 0))
    place.air.run(60 * SECOND)
    assert state_of(bob) is DeviceState.RELEASED
    assert [record.owner for record in place.controller.core.open_events()] == [BOB]


def test_a_released_device_says_more_without_an_inquiry() -> None:
    """It knows the controller's address and clock: a page of its own, and it is released again."""
    place = hall()
    bob = offer(place)
    place.air.run(30 * SECOND)
    bob.do(bob.core.subscribe(Subscription(name="Carol")))
    place.air.run(5 * SECOND)
    assert told(place, BOB) == ["accepted", "accepted"]
    assert bob.core.subscriber is bob.core.publisher is DeviceState.RELEASED
    assert link_count(place) == 0
    (wish,) = [wish for wish in bob.core.wishes.all if wish.id == "S1"]
    bob.do(bob.core.withdraw(wish))
    place.air.run(5 * SECOND)
    assert {record.id for record in place.controller.core.open_events()} == {"P1"}


def test_a_match_that_cannot_hear_the_publisher_leaves_it_published() -> None:
    """Bob is out of Alice's range, both are in the controller's; a lasting publication is renewed by itself."""
    place = hall()
    bob = place.add(Device(address=BOB, name="Bob"), place=(9, 0))
    bob.do(bob.core.publish(is_lasting=True))
    place.air.run(30 * SECOND)
    alice = place.add(Device(address=ALICE, name="Alice"), place=(-9, 0))
    alice.do(alice.core.subscribe(Subscription(name="Bob"), is_lasting=True))
    place.air.run(80 * SECOND)
    matched = [note for note, _ in place.notes if note.kind is NoteKind.MATCHED]
    assert len(matched) == 1  # and not again while the pair is remembered
    assert "not reached" in told(place, ALICE)
    assert "answered" in told(place, BOB)
    assert {record.owner for record in place.controller.core.open_events()} == {ALICE, BOB}


def test_friends_are_paged_both_and_prove_their_group_without_park() -> None:
    """Where proofs are needed from both, both are connected when the match is told."""
    place = hall(3)
    for who, name in ((BOB, "Bob"), (ALICE, "Alice")):
        member = Member(who, FAMILY)
        node = place.add(Device(address=who, name=name, keys=member.keys, tokens=member.tokens))
        wanted = Subscription(name="Bob", keys=(FAMILY.public,))
        keys = (FAMILY.public,)
        node.do(node.core.publish(keys=keys) if who == BOB else node.core.subscribe(wanted))
        place.air.run(30 * SECOND)
    assert [who for who, _ in place.list_introductions(ALICE)] == [BOB]
    assert isinstance(place.told[BOB][-1][0], Introduced)


def test_a_hall_of_thirty_devices_is_served_without_park() -> None:
    """Fifteen pairs within three minutes, by one radio that pages one device at a time."""
    place = hall(5)
    for number in range(15):
        offer(place, address(200 + number), f"p{number}")
        seek(place, address(300 + number), f"p{number}", is_lasting=True)
    place.air.run(180 * SECOND)
    met = [place.list_introductions(address(300 + number)) for number in range(15)]
    assert all(met), [len(each) for each in met]
