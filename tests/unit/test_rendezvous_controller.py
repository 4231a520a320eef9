"""The controller, case by case: chapter 4 of the thesis, its figures message by message, and its limits."""

from __future__ import annotations

import pytest
from tests.unit.rendezvous_rig import (
    ALICE,
    BOB,
    CAROL,
    CONTROLLER,
    DAVE,
    PHONE,
    PRINTER,
    SECOND,
    Rig,
    address,
    notes,
    publication,
    refusals,
    script,
    sent,
)

from whimbrel.errors import InvalidValueError
from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller import Connected, Controller, Disconnected, NoteKind, Parameters, Said
from whimbrel.rendezvous.controller.arrivals import ArrivalQueue
from whimbrel.rendezvous.controller.caches import TimedCache
from whimbrel.rendezvous.controller.commands import Connect, Disconnect, Park, Poll, SetConnectable
from whimbrel.rendezvous.controller.openings import Record, Stage
from whimbrel.rendezvous.controller.parameters import MIN_TIMEOUT_US, PAGE_TIMEOUT_US, REASONS
from whimbrel.rendezvous.events import EventId, GroupKey, Kind, Subscription
from whimbrel.rendezvous.refusals import Refusal
from whimbrel.rendezvous.wire import MAX_REQUEST_BYTES, encode

P1, P2, S1, S2 = (EventId(each) for each in ("P1", "P2", "S1", "S2"))

# -- figures 4-2 to 4-5, message by message --------------------------------------------------------------------------


def test_figure_4_2_a_direct_publication() -> None:
    """The device connects, the roles are switched, it publishes, gets an identifier, is parked with its scans off."""
    rig = Rig()
    assert script([*rig.connect(BOB), *rig.say(BOB, m.Publish(publication()))]) == [
        "SwitchRole P",
        "→P Accepted P1",
        "→P Sleep",
        "park P",
    ]


def test_figure_4_2_an_indirect_publication() -> None:
    """The controller finds the device, pages it, publishes for it, and gives it the identifier; it stays master."""
    rig = Rig()
    found = rig.find(BOB)
    assert [each for each in found if isinstance(each, Connect)] == [Connect(BOB, 77)]
    assert script(rig.connect(BOB, is_caller=False)) == ["→P Accepted P1", "→P Sleep", "park P"]
    assert sent(rig.commands, BOB) == [m.Accepted(P1, is_indirect=True)]


def test_an_indirect_publication_tells_no_more_than_inquiry_does() -> None:
    """Address, clock offset, name and class; never keys, so it is never restricted (4.1.1)."""
    rig = Rig()
    rig.find(BOB)
    (record,) = rig.core.open_events()
    assert record.event == publication()
    assert not record.event.is_restricted


def test_figure_4_3_a_subscription() -> None:
    """Only the device may begin; it gets its identifier and is parked."""
    rig = Rig()
    assert script([*rig.connect(ALICE), *rig.say(ALICE, m.Subscribe(Subscription(name="Bob")))]) == [
        "SwitchRole S",
        "→S Accepted S1",
        "→S Sleep",
        "park S",
    ]


@pytest.mark.parametrize("is_direct", [True, False])
def test_figure_4_4_the_publication_is_first(*, is_direct: bool) -> None:
    """The publisher is woken to listen, the subscriber is not parked but told how to page it; then both are parked."""
    rig = Rig()
    if is_direct:
        rig.publish(BOB)
    else:
        rig.find(BOB)
        rig.connect(BOB, is_caller=False)
    rig.connect(ALICE)
    done = rig.say(ALICE, m.Subscribe(Subscription(name="bob")))
    assert script(done) == [
        "→S Accepted S1",
        "unpark P",
        "→S Matched S1",
        "→P WakeUp P1",
        "park P",
        "park S",
    ]
    assert sent(done, ALICE)[-1] == m.Matched(id=S1, address=BOB, clock_offset=77)
    assert rig.core.sizes()["events"] == 0


def test_figure_4_5_the_subscription_is_first_and_the_publication_direct() -> None:
    """The parked subscriber is woken, and both are told."""
    rig = Rig()
    rig.subscribe(ALICE, name="Bob")
    rig.connect(BOB)
    done = rig.say(BOB, m.Publish(publication()))
    assert script(done)[:4] == ["→P Accepted P1", "unpark S", "→S Matched S1", "→P WakeUp P1"]
    assert {"park S", "park P"} <= set(script(done))


def test_figure_4_5_the_subscription_is_first_and_the_publication_indirect() -> None:
    """No connection to the publisher and no wake-up: it is scanning anyway, so only the subscriber is told."""
    rig = Rig()
    rig.subscribe(ALICE, name="Bob")
    assert script(rig.find(BOB)) == ["unpark S", "→S Matched S1", "park S"]
    assert not sent(rig.commands, BOB)
    assert not [each for each in rig.commands if isinstance(each, Connect)]


def test_both_parties_are_awaited_before_both_events_are_erased() -> None:
    """The controller notifies both and waits for both (5.3); until then neither can be matched again."""
    rig = Rig(is_noting=False)
    rig.publish(BOB)
    rig.subscribe(ALICE)
    assert rig.core.sizes()["events"] == 2
    rig.say(BOB, m.Noted(P1))
    assert not notes(rig.commands, NoteKind.NOTIFIED)
    done = rig.say(ALICE, m.Noted(S1))
    assert notes(done, NoteKind.NOTIFIED)[0].detail == "confirmed"
    assert rig.core.sizes()["events"] == 0
    assert script(done) == ["park P", "park S"]


def test_a_device_that_does_not_note_its_match_is_taken_for_gone() -> None:
    """Otherwise its seat would be held for ever; the other side keeps what it was told (best effort, 4.1.3)."""
    rig = Rig(is_noting=False)
    rig.publish(BOB)
    rig.subscribe(ALICE)
    rig.say(ALICE, m.Noted(S1))
    done = rig.wait(2.56)
    assert "disconnect P SILENT" in script(done)
    assert notes(done, NoteKind.NOTIFIED)[0].detail == "unconfirmed by publisher"
    assert rig.core.sizes()["events"] == 0


def test_an_indirect_publication_of_a_device_that_cannot_be_reached_is_dropped() -> None:
    """A publication whose device is not there would send a subscriber paging in vain (chapter 3)."""
    rig = Rig()
    rig.find(BOB)
    assert rig.open() == {"P1"}
    assert notes(rig.leave(BOB), NoteKind.FLUSHED)[0].detail == "not reached"
    rig.find(CAROL)
    assert not notes(rig.wait(20.47), NoteKind.FLUSHED)
    assert notes(rig.wait(0.01), NoteKind.FLUSHED)[0].detail == "not reached"
    assert not rig.open()


def test_a_device_without_our_layer_is_published_parked_and_told_nothing() -> None:
    """It need not know what a controller is (4.1)."""
    rig = Rig()
    rig.find(BOB)
    assert script(rig.connect(BOB, is_caller=False, has_layer=False)) == ["park P"]
    done = rig.subscribe(ALICE)
    assert isinstance(sent(done, ALICE)[-1], m.Matched)
    assert not sent(rig.commands, BOB)


def test_a_device_that_was_just_introduced_is_not_published_again_while_it_is_paged() -> None:
    """It still answers inquiries; a second subscriber would page it on the same channel (4.1.3)."""
    rig = Rig()
    rig.subscribe(ALICE, name="Bob")
    rig.subscribe(CAROL, device_class=PHONE)
    rig.find(BOB)
    assert not rig.find(BOB)
    rig.wait(PAGE_TIMEOUT_US / SECOND - 0.01)
    assert not rig.find(BOB)
    rig.wait(0.01)
    assert sent(rig.find(BOB), CAROL) == [m.Matched(id=S2, address=BOB, clock_offset=77)]


def test_a_device_that_publishes_itself_replaces_what_was_published_for_it() -> None:
    """The controller spoke for it without being asked; it may restrict itself to friends now."""
    rig = Rig()
    rig.find(BOB)
    rig.connect(BOB, is_caller=False)
    rig.publish(BOB, name="Robert")
    assert [record.event for record in rig.core.open_events()] == [publication(name="Robert")]


# -- validity, 4.1.2 ---------------------------------------------------------------------------------------------------


def test_a_device_has_one_publication() -> None:
    """Two could be matched at once, and two pages collide on one channel (Figure 4-9)."""
    rig = Rig()
    rig.publish(BOB)
    assert refusals(rig.publish(BOB, name="other"), BOB) == [Refusal.SECOND_PUBLICATION.code]


def test_a_repeated_subscription_is_refused_whatever_the_case_of_its_letters() -> None:
    """It would be matched twice with one device."""
    rig = Rig()
    rig.subscribe(ALICE, name="Bob")
    assert refusals(rig.subscribe(ALICE, name="BOB"), ALICE) == [Refusal.REPEATED_SUBSCRIPTION.code]
    assert not refusals(rig.subscribe(CAROL, name="Bob"), CAROL)


def test_a_device_has_at_most_seven_subscriptions() -> None:
    """4.1.2 says six and argues with seven twice: the number of slaves a subscriber can be master of. So seven."""
    rig = Rig()
    for number in range(7):
        assert not refusals(rig.subscribe(ALICE, name=str(number)), ALICE)
    assert refusals(rig.subscribe(ALICE, name="8"), ALICE) == [Refusal.TOO_MANY_SUBSCRIPTIONS.code]
    rig.say(ALICE, m.Unsubscribe(S1))
    assert not refusals(rig.subscribe(ALICE, name="8"), ALICE)


def test_a_publication_of_another_address_is_refused() -> None:
    """A device may say where it is, not where another is."""
    rig = Rig()
    rig.connect(BOB)
    assert refusals(rig.say(BOB, m.Publish(publication(CAROL))), BOB) == [Refusal.FOREIGN_ADDRESS.code]


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xa0", b"\x00" * 1_000])
def test_bytes_that_are_no_message_are_refused_with_code_and_reason(data: bytes) -> None:
    """Any bytes may come from a device."""
    rig = Rig()
    rig.connect(BOB)
    done = rig.core.receive(Said(BOB, data), now=0)
    (refused,) = sent(done, BOB)
    assert isinstance(refused, m.Refused)
    assert refused.code == Refusal.MALFORMED.code
    assert refused.reason


@pytest.mark.parametrize("message", [m.Accepted(P1), m.Noted(P1), m.Join(token=b"", device_key=bytes(32))])
def test_a_message_out_of_place_is_refused(message: m.Message) -> None:
    """What the controller says, and answers to nothing, are no requests."""
    rig = Rig()
    rig.connect(BOB)
    assert refusals(rig.say(BOB, message), BOB) == [Refusal.UNEXPECTED.code]


def test_words_of_a_device_that_is_not_connected_are_ignored() -> None:
    """There is nobody to answer."""
    rig = Rig()
    assert rig.say(BOB, m.Publish(publication())) == []


def test_every_refusal_has_a_code_of_its_own() -> None:
    """Codes are stable and are looked up in the docs."""
    assert len({each.code for each in Refusal}) == len(Refusal)


# -- matching, 4.1.3 ---------------------------------------------------------------------------------------------------


def test_no_match_leaves_the_trigger_open() -> None:
    """It waits for its counterpart until it expires."""
    rig = Rig()
    rig.publish(BOB)
    rig.subscribe(ALICE, name="Nobody")
    assert rig.open() == {"P1", "S1"}


def test_an_exact_match_erases_both() -> None:
    """The subscriber has what it sought; the publisher publishes again if it wants to stay available."""
    rig = Rig()
    rig.publish(BOB)
    rig.subscribe(ALICE, name="Bob")
    assert not rig.open()
    assert notes(rig.commands, NoteKind.MATCHED)[0].other_id == "S1"


def test_figure_4_11_the_oldest_of_several_subscriptions_is_answered() -> None:
    """Oldest by arrival, not by what is left of its time to live: a renewal does not make it younger."""
    rig = Rig()
    rig.subscribe(ALICE, name="Bob")
    rig.subscribe(CAROL, device_class=PHONE)
    rig.say(ALICE, m.Renew(S1))
    done = rig.publish(BOB)
    assert sent(done, ALICE) == [m.Matched(id=S1, address=BOB, clock_offset=77)]
    assert not sent(done, CAROL)
    assert rig.open() == {"S2"}


def test_figure_4_12_several_publications_are_listed_without_paging_information() -> None:
    """The subscription is erased, the publications stay, no publisher is woken."""
    rig = Rig()
    rig.publish(BOB)
    rig.publish(CAROL, name="Carol")
    done = rig.subscribe(ALICE, device_class=PHONE)
    listed = (
        m.Listed(address=BOB, name="Bob", device_class=PHONE),
        m.Listed(address=CAROL, name="Carol", device_class=PHONE),
    )
    assert sent(done, ALICE)[-1] == m.Matches(id=S1, publications=listed)
    assert rig.open() == {"P1", "P2"}
    assert not sent(done, BOB)
    assert not sent(done, CAROL)
    assert notes(done, NoteKind.LISTED)[0].count == 2


def test_a_narrower_subscription_follows_a_list() -> None:
    """That is what the list is for (4.1.3)."""
    rig = Rig()
    rig.publish(BOB)
    rig.publish(CAROL, name="Carol")
    rig.subscribe(ALICE)
    assert sent(rig.subscribe(ALICE, name="carol"), ALICE)[-1] == m.Matched(id=S2, address=CAROL, clock_offset=77)


def test_all_null_lists_every_unrestricted_publication() -> None:
    """Plain inquiry as a special case (5.1)."""
    rig = Rig()
    for number in range(16, 26):
        rig.publish(address(number), name=str(number))
    (matches,) = [each for each in sent(rig.subscribe(ALICE), ALICE) if isinstance(each, m.Matches)]
    assert len(matches.publications) == 10


def test_all_null_with_exactly_one_publication_is_an_exact_match() -> None:
    """It differs from an inquiry, which would not connect (H29)."""
    rig = Rig()
    rig.publish(BOB)
    assert isinstance(sent(rig.subscribe(ALICE), ALICE)[-1], m.Matched)


def test_a_device_is_never_matched_with_itself() -> None:
    """It may publish and seek at once."""
    rig = Rig()
    rig.publish(BOB)
    rig.subscribe(BOB)
    assert rig.open() == {"P1", "S1"}


def test_a_pair_that_was_matched_lately_is_not_matched_again() -> None:
    """Two devices that hear the controller but not each other would go round for ever (4.1.3)."""
    rig = Rig()
    for _ in range(3):
        rig.publish(BOB)
        rig.subscribe(ALICE, name="bob")
        rig.wait(1)
        for record in rig.core.open_events():
            kind = m.Unpublish if record.id[0] == "P" else m.Unsubscribe
            rig.say(record.owner, kind(record.id))
    assert len(notes(rig.commands, NoteKind.MATCHED)) == 1


def test_a_hit_gives_a_remembered_pair_its_whole_time_again() -> None:
    """As long as both keep trying they keep failing; after two minutes of rest they may try again."""
    rig = Rig()
    rig.publish(BOB)
    rig.subscribe(ALICE)
    for _ in range(3):
        rig.wait(100)
        rig.publish(BOB)
        rig.subscribe(ALICE)
        rig.leave(ALICE)
        rig.leave(BOB)
    assert len(notes(rig.commands, NoteKind.MATCHED)) == 1
    rig.wait(120)
    rig.publish(BOB)
    rig.subscribe(ALICE)
    assert len(notes(rig.commands, NoteKind.MATCHED)) == 2


def test_remembered_pairs_are_taken_out_before_matches_are_counted() -> None:
    """Of two publications one was tried already: the other is an exact match, not a list of two."""
    rig = Rig()
    rig.publish(BOB)
    rig.subscribe(ALICE)
    rig.publish(BOB)
    rig.publish(CAROL, name="Carol")
    assert sent(rig.subscribe(ALICE), ALICE)[-1] == m.Matched(id=S2, address=CAROL, clock_offset=77)
    assert rig.open() == {"P2"}


# -- identifiers, 4.1.4 ------------------------------------------------------------------------------------------------


def test_identifiers_count_from_one_for_each_kind() -> None:
    """A publication and a subscription may have the same number; the code of the kind tells them apart."""
    rig = Rig()
    rig.publish(BOB, name="x")
    rig.subscribe(ALICE, name="y")
    rig.subscribe(ALICE, name="z")
    assert rig.open() == {"P1", "S1", "S2"}


def test_identifiers_wrap_and_skip_those_open_or_remembered() -> None:
    """Otherwise ``renew`` could revive a stranger's event."""
    rig = Rig(Parameters(max_number=3))
    rig.subscribe(ALICE, name="1")
    rig.subscribe(ALICE, name="2")
    rig.subscribe(CAROL, name="3")
    rig.leave(CAROL)  # S3 is in the removed cache
    rig.say(ALICE, m.Unsubscribe(S2))
    rig.subscribe(ALICE, name="4")
    assert rig.open() == {"S1", "S2"}
    assert refusals(rig.subscribe(ALICE, name="5"), ALICE) == [Refusal.NO_IDENTIFIER.code]
    rig.wait(33.28)
    rig.subscribe(ALICE, name="5")
    assert rig.open() == {"S1", "S2", "S3"}


# -- expiry, disconnection, renewal: 4.1.5, 4.1.6, 5.4.1 ---------------------------------------------------------------


def test_an_open_event_expires_with_notice() -> None:
    """Alive iff ``now < expires_at``; the parked device is woken to be told."""
    rig = Rig()
    rig.publish(BOB)
    assert not sent(rig.wait(599.999999), BOB)
    done = rig.wait(0.000001)
    assert sent(done, BOB) == [m.Expired(P1)]
    assert script(done)[:4] == ["unpark P", "→P Expired P1", "→P Sleep", "park P"]
    assert not rig.open()


def test_an_expired_event_is_renewed_by_its_identifier() -> None:
    """The device need not send it again (5.4.1)."""
    rig = Rig()
    rig.publish(BOB)
    rig.wait(600)
    assert sent(rig.say(BOB, m.Renew(P1)), BOB) == [m.Accepted(P1)]
    assert rig.open() == {"P1"}


def test_a_disconnection_flushes_every_event_of_the_device() -> None:
    """Inconsistent data must not persist (chapter 3)."""
    rig = Rig()
    rig.publish(BOB)
    rig.subscribe(BOB, name="Alice")
    done = rig.leave(BOB)
    assert {note.id for note in notes(done, NoteKind.FLUSHED)} == {"P1", "S1"}
    assert not rig.open()
    assert isinstance(sent(rig.subscribe(ALICE), ALICE)[-1], m.Accepted)


def test_a_device_that_is_back_in_time_renews_what_was_flushed() -> None:
    """33.28 s is the longest way back: inquiry and page."""
    rig = Rig()
    rig.subscribe(ALICE, name="Bob")
    rig.leave(ALICE)
    rig.wait(33.27)
    rig.connect(ALICE)
    assert sent(rig.say(ALICE, m.Renew(S1)), ALICE) == [m.Accepted(S1)]
    assert isinstance(sent(rig.publish(BOB), ALICE)[-1], m.Matched)


def test_a_device_that_is_back_too_late_cannot_renew() -> None:
    """The cache forgets; the device submits its event again."""
    rig = Rig()
    rig.subscribe(ALICE, name="Bob")
    rig.leave(ALICE)
    rig.wait(33.28)
    rig.connect(ALICE)
    assert refusals(rig.say(ALICE, m.Renew(S1)), ALICE) == [Refusal.UNKNOWN_EVENT.code]


def test_an_answered_event_can_be_renewed_too() -> None:
    """The page timed out, the device tries again with another subscriber (5.4.1)."""
    rig = Rig()
    rig.publish(BOB)
    rig.subscribe(ALICE)
    rig.say(BOB, m.Renew(P1))
    assert rig.open() == {"P1"}
    assert isinstance(sent(rig.subscribe(CAROL), CAROL)[-1], m.Matched)


def test_nobody_renews_or_removes_the_event_of_another() -> None:
    """An identifier is easy to guess."""
    rig = Rig()
    rig.publish(BOB)
    rig.subscribe(CAROL, name="Nobody")
    rig.leave(CAROL)
    rig.connect(ALICE)
    for message in (m.Unpublish(P1), m.Renew(P1), m.Renew(S1), m.Unsubscribe(P1)):
        assert refusals(rig.say(ALICE, message), ALICE) == [Refusal.UNKNOWN_EVENT.code]
    assert rig.open() == {"P1"}


def test_a_renewed_event_is_held_to_the_same_rules() -> None:
    """Otherwise ``renew`` would be a way to a second publication."""
    rig = Rig()
    rig.publish(BOB)
    rig.leave(BOB)
    rig.connect(BOB)
    rig.publish(BOB, name="Robert")
    assert refusals(rig.say(BOB, m.Renew(P1)), BOB) == [Refusal.SECOND_PUBLICATION.code]


def test_a_removed_event_is_gone_for_good() -> None:
    """Its device asked so; it is not renewed from the cache."""
    rig = Rig()
    rig.publish(BOB)
    assert sent(rig.say(BOB, m.Unpublish(P1)), BOB) == [m.Removed(P1)]
    assert refusals(rig.say(BOB, m.Renew(P1)), BOB) == [Refusal.UNKNOWN_EVENT.code]


# -- priorities and bounded work: 5.4.2 --------------------------------------------------------------------------------


def test_a_disconnection_comes_before_a_match_of_the_same_instant() -> None:
    """Obsolete events are removed before a match is made."""
    rig = Rig()
    rig.publish(BOB)
    rig.connect(ALICE)
    wish = Said(ALICE, b"\xa1gmessageisubscribe")
    done = rig.core.take([wish, Disconnected(BOB)], now=0)
    assert not notes(done, NoteKind.MATCHED)


def test_an_explicit_removal_comes_before_an_expiry_of_the_same_instant() -> None:
    """A command of the device is more important than declaring its event expired."""
    rig = Rig()
    rig.publish(BOB)
    rig.now = 600_000_000
    done = rig.say(BOB, m.Unpublish(P1))
    assert sent(done, BOB) == [m.Removed(P1)]


def test_a_storm_of_disconnections_does_not_starve_matching() -> None:
    """Two hundred devices leave at once; the trigger of the same instant is decided in the same round."""
    rig = Rig(Parameters(work=2))
    crowd = [address(number) for number in range(256, 456)]
    for each in crowd:
        rig.publish(each, name=each)
    rig.publish(BOB)
    rig.connect(ALICE)
    storm = [Disconnected(each) for each in crowd]
    done = rig.core.take([*storm, Said(ALICE, b"\xa1gmessageisubscribe")], now=0)
    assert sent(done, ALICE)[-1] == m.Matched(id=S1, address=BOB, clock_offset=77)
    assert len(notes(done, NoteKind.FLUSHED)) == 2
    assert rig.core.is_busy


def test_a_flooding_device_is_disconnected_and_starves_nobody() -> None:
    """Ten messages a second and four seconds' worth at once; the rest is not even read (4.2)."""
    rig = Rig()
    rig.publish(BOB)
    rig.connect(CAROL)
    rig.connect(ALICE)
    flood = [Said(CAROL, b"\xff")] * 10_000
    done = rig.core.take([*flood, Said(ALICE, b"\xa1gmessageisubscribe")], now=0)
    assert len(sent(done, CAROL)) == 40
    assert "disconnect C TOO_FAST" in script(done)
    assert isinstance(sent(done, ALICE)[-1], m.Matched)


def test_work_of_a_round_is_bounded_and_the_rest_is_done_in_the_next() -> None:
    """``is_busy`` tells the shell that there is more."""
    core = Controller(Parameters(work=1), address=CONTROLLER, nonce_key=bytes(32))
    core.receive(Connected(address=ALICE), now=0)
    words = [Said(ALICE, b"\xa2gmessageisubscribednamea" + bytes([65 + number])) for number in range(3)]
    core.take(words, now=0)
    assert (len(core.open_events()), core.is_busy) == (1, True)
    core.timer(now=0)
    core.timer(now=0)
    assert (len(core.open_events()), core.is_busy) == (3, False)


# -- seats: 4.1, 2.1.3 -------------------------------------------------------------------------------------------------


def test_the_controller_is_connectable_only_with_a_free_seat() -> None:
    """Seven active, 255 parked, one seat kept to wake somebody with."""
    rig = Rig(Parameters(max_parked=3))
    assert SetConnectable(True) in rig.commands
    for number in range(16, 24):
        rig.connect(address(number))
    assert len(rig.core._state.piconet.active) <= 7
    rig.connect(address(24))
    assert rig.commands[-1] == SetConnectable(False)
    assert rig.connect(address(25)) == [Disconnect(address(25), Refusal.NO_ROOM)]
    rig.leave(address(24))
    assert rig.commands[-1] == SetConnectable(True)


def test_the_longest_active_device_makes_room() -> None:
    """Devices that connect and say nothing must not hold all seats."""
    rig = Rig()
    for number in range(16, 22):
        rig.connect(address(number))
    assert not [each for each in rig.commands if isinstance(each, Park)]
    rig.connect(address(22))
    assert [each for each in rig.commands if isinstance(each, Park)] == [Park(address(16))]


def test_two_hundred_and_sixty_one_devices_are_served() -> None:
    """7 active and 255 parked addresses, one of the active ones kept free."""
    rig = Rig()
    for number in range(256, 256 + 261):
        rig.publish(address(number), name=str(number))
    assert rig.core.sizes()["devices"] == 261
    assert len(rig.open()) == 261
    assert rig.connect(address(999))[0] == Disconnect(address(999), Refusal.NO_ROOM)


def test_parked_devices_are_polled() -> None:
    """Otherwise one that wants to renew, add or remove an event could not say so (4.1.1)."""
    rig = Rig()
    rig.publish(BOB)
    assert Poll(7) in rig.wait(10.24)
    assert sent(rig.say(BOB, m.Unpublish(P1)), BOB) == [m.Removed(P1)]
    rig.leave(BOB)
    assert not [each for each in rig.wait(60) if isinstance(each, Poll)]


def test_idle_devices_are_disconnected() -> None:
    """The thesis assumes there are none (4.2); we do not (H49)."""
    rig = Rig()
    rig.connect(ALICE)
    rig.publish(BOB)
    rig.wait(59.9)
    assert "disconnect S IDLE" not in script(rig.commands)
    assert "disconnect S IDLE" in script(rig.wait(0.1))
    assert rig.open() == {"P1"}
    rig.say(BOB, m.Unpublish(P1))
    assert "disconnect P IDLE" in script(rig.wait(60))
    assert rig.core.sizes()["devices"] == 0


def test_a_device_that_connects_again_without_having_left_is_flushed_first() -> None:
    """Its radio may have lost the connection before ours noticed."""
    rig = Rig()
    rig.publish(BOB)
    done = rig.connect(BOB)
    assert notes(done, NoteKind.FLUSHED)
    assert sent(rig.say(BOB, m.Renew(P1)), BOB) == [m.Accepted(P1)]


def test_another_controller_is_not_published() -> None:
    """Its name states its role."""
    rig = Rig()
    assert not rig.find(DAVE, name="whimbrel-controller at the door")


# -- parameters: 5.3 ---------------------------------------------------------------------------------------------------


def test_every_parameter_has_a_reason_and_the_value_of_the_thesis() -> None:
    """5.3 argues for each; so does the table."""
    parameters = Parameters()
    assert {name for name, _, _ in parameters.explain()} == set(REASONS)
    assert parameters.page_timeout_us == PAGE_TIMEOUT_US == 2 * MIN_TIMEOUT_US == 5_120_000
    assert parameters.removed_ttl_us == 33_280_000 < parameters.event_ttl_us == 600_000_000
    assert parameters.pair_ttl_us == 120_000_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"page_timeout_us": 2_559_999},
        {"max_active": 8},
        {"max_parked": 256},
        {"max_subscriptions": 8},
        {"removed_ttl_us": 600_000_000},
        {"work": 0},
        {"name": ""},
    ],
)
def test_a_parameter_that_would_break_a_promise_is_refused(wrong: dict[str, object]) -> None:
    """The standard and the thesis draw the lines."""
    with pytest.raises(InvalidValueError, match=next(iter(wrong))):
        Parameters(**wrong)  # type: ignore[arg-type]  # the point


def test_a_printer_is_found_by_its_class() -> None:
    """Class is compared as a number, exactly."""
    rig = Rig()
    rig.publish(BOB, name="Laser", device_class=PRINTER)
    rig.publish(CAROL, name="Carol")
    assert sent(rig.subscribe(ALICE, device_class=PRINTER), ALICE)[-1] == m.Matched(id=S1, address=BOB, clock_offset=77)


def test_two_queues_look_up_both_heads_at_once_and_keep_what_they_found_up_to_date() -> None:
    """What the younger head found early is dropped when it leaves and completed by what opens meanwhile (5.4.2)."""

    def record(kind: Kind, seq: int, *, is_open: bool = False) -> Record:
        event = publication() if kind is Kind.PUBLICATION else Subscription()
        owner = BOB if kind is Kind.PUBLICATION else ALICE
        stage = Stage.OPEN if is_open else Stage.QUEUED
        return Record(EventId(f"{kind.value}{seq}"), owner, event, seq, kind, stage=stage)

    gone, late, kept = (record(Kind.SUBSCRIPTION, seq, is_open=True) for seq in (1, 2, 3))
    older, younger = record(Kind.SUBSCRIPTION, 4), record(Kind.PUBLICATION, 5)
    looked_up: list[Record] = []

    def look_up(trigger: Record) -> list[Record]:
        looked_up.append(trigger)
        return [gone, kept] if trigger is younger else []

    queue = ArrivalQueue(look_up, has_two=True)
    queue.push(older)
    queue.push(younger)
    assert queue.head() == (older, [])
    assert looked_up == [younger, older]
    gone.stage = Stage.GONE
    queue.add_candidate(late)  # it waited for proofs while a younger one was opened: the oldest comes first
    queue.pop(older)
    assert queue.head() == (younger, [late, kept])
    assert looked_up == [younger, older]


# -- what a hostile or unlucky radio brings ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["\0", "x" * 249, "\ud800"])
def test_a_device_whose_name_is_no_name_is_not_published_and_ends_nothing(name: str) -> None:
    """Names come from strangers' radios; one that cannot be told to others must not stop the controller."""
    rig = Rig()
    assert rig.find(BOB, name=name) == []
    assert rig.find(CAROL, device_class=2**24) == []
    assert rig.find(ALICE)
    assert rig.core.sizes()["strangers"] == 1


def test_a_request_is_refused_before_it_is_parsed_if_it_is_longer_than_any_request() -> None:
    """A list of matches is long, a request never: 120 kB of small values cost 18 ms of the controller's time."""
    rig = Rig()
    rig.connect(BOB)
    largest = publication(name="n" * 248, keys=tuple(GroupKey(bytes([each]) * 32) for each in range(16)))
    assert len(encode(m.Publish(largest))) < MAX_REQUEST_BYTES
    assert not refusals(rig.say(BOB, m.Publish(largest)), BOB)
    (refused,) = sent(rig.core.receive(Said(BOB, b"\x80" * (MAX_REQUEST_BYTES + 1)), now=0), BOB)
    assert isinstance(refused, m.Refused)
    assert refused.reason == f"a request of {MAX_REQUEST_BYTES + 1} bytes; allowed are {MAX_REQUEST_BYTES}"


def test_a_renewed_publication_replaces_what_was_published_for_the_device_meanwhile() -> None:
    """It was lost, was discoverable again and was found; its own words count, and it may have had friends only."""
    rig = Rig()
    restricted = (GroupKey(b"f" * 32),)
    rig.publish(BOB, keys=restricted)
    rig.leave(BOB)
    rig.find(BOB)
    rig.connect(BOB, is_caller=False)
    assert sent(rig.say(BOB, m.Renew(P1)), BOB) == [m.Accepted(P1)]
    assert [(record.id, record.event.keys) for record in rig.core.open_events()] == [(P1, restricted)]


@pytest.mark.parametrize("again", [m.Publish(publication()), m.Renew(P1)])
def test_a_publisher_that_noted_its_match_may_publish_again_though_the_subscriber_is_silent(again: m.Message) -> None:
    """It was paged already; otherwise a subscriber that never notes could keep it from being found by others."""
    rig = Rig(is_noting=False)
    rig.publish(BOB)
    rig.subscribe(ALICE)
    assert refusals(rig.say(BOB, again), BOB)  # it has not even said that it knows of the match
    rig.say(BOB, m.Noted(P1))
    assert not refusals(rig.say(BOB, again), BOB)
    assert len(rig.open()) == 1
    assert "disconnect S SILENT" in script(rig.wait(2.56))
    assert notes(rig.commands, NoteKind.NOTIFIED)[0].detail == "unconfirmed by subscriber"
    assert len(rig.open()) == 1
    assert isinstance(sent(rig.subscribe(CAROL), CAROL)[-1], m.Matched)


# -- single decisions, each of which a changed line would break unseen -------------------------------------------------


def test_answers_hold_at_most_six_seats_and_the_next_match_waits() -> None:
    """One seat stays free for a device that comes; a match is made as soon as two seats are free again."""
    rig = Rig(is_noting=False)
    pairs = [(address(100 + number), address(200 + number)) for number in range(4)]
    for publisher, subscriber in pairs:
        rig.publish(publisher, name=publisher)
        rig.subscribe(subscriber, name=publisher)
    assert len(notes(rig.commands, NoteKind.MATCHED)) == 3
    assert rig.core.sizes()["active"] <= 7
    other = Rig(is_noting=False)
    for publisher, subscriber in pairs[:3]:
        other.publish(publisher, name=publisher)
        other.subscribe(subscriber, name=publisher)
    other.subscribe(ALICE, name="Bob")
    assert not notes(other.find(BOB), NoteKind.MATCHED)  # it needs one seat, and that would be the seventh
    rig.say(pairs[0][0], m.Noted(P1))
    done = rig.say(pairs[0][1], m.Noted(S1))
    assert [note.other_id for note in notes(done, NoteKind.MATCHED)] == ["S4"]


def test_an_event_is_removed_by_its_own_kind_of_request_and_not_while_it_is_answered() -> None:
    """``unpublish`` of a subscription is a slip, and what was answered cannot be taken back."""
    rig = Rig(is_noting=False)
    rig.subscribe(ALICE, name="Nobody")
    assert refusals(rig.say(ALICE, m.Unpublish(S1)), ALICE) == [Refusal.UNKNOWN_EVENT.code]
    rig.publish(BOB)
    rig.subscribe(ALICE, name="Bob")
    assert refusals(rig.say(BOB, m.Unpublish(P1)), BOB) == [Refusal.UNKNOWN_EVENT.code]
    assert rig.core.sizes()["events"] == 3


def test_a_renewed_event_that_is_removed_stays_removed() -> None:
    """It was in the cache of removed events before it was renewed; its device then removed it for good."""
    rig = Rig()
    rig.publish(BOB)
    rig.leave(BOB)
    rig.connect(BOB)
    rig.say(BOB, m.Renew(P1))
    rig.say(BOB, m.Unpublish(P1))
    assert refusals(rig.say(BOB, m.Renew(P1)), BOB) == [Refusal.UNKNOWN_EVENT.code]


def test_renewing_an_open_event_gives_it_its_whole_time_and_others_expire_before_it() -> None:
    """``renew`` spares the device a second publication, and must not keep another event alive."""
    rig = Rig()
    rig.publish(BOB)
    rig.wait(1)
    rig.subscribe(ALICE, name="Nobody")
    rig.wait(299)
    assert sent(rig.say(BOB, m.Renew(P1)), BOB) == [m.Accepted(P1)]
    assert [note.id for note in notes(rig.wait(301), NoteKind.EXPIRED)] == [S1]
    assert not notes(rig.wait(298.9), NoteKind.EXPIRED)
    assert [note.id for note in notes(rig.wait(0.1), NoteKind.EXPIRED)] == [P1]


def test_a_renewed_indirect_publication_still_gives_way_to_the_devices_own() -> None:
    """The controller made it; the identifier that the device sent does not make it the device's own words."""
    rig = Rig()
    rig.find(BOB)
    rig.connect(BOB, is_caller=False)
    rig.leave(BOB)
    rig.connect(BOB)
    assert sent(rig.say(BOB, m.Renew(P1)), BOB) == [m.Accepted(P1)]
    assert not refusals(rig.publish(BOB, name="Robert"), BOB)
    assert [record.event.name for record in rig.core.open_events()] == ["Robert"]


def test_a_renewed_indirect_publication_of_a_device_that_is_gone_is_not_matched() -> None:
    """One that was just found need not be connected; one that was here and left must not be introduced."""
    rig = Rig(Parameters(work=1))
    rig.subscribe(ALICE, name="Bob", device_class=PRINTER)
    rig.find(BOB)
    rig.connect(BOB, is_caller=False)
    rig.leave(BOB)
    rig.subscribe(ALICE, name="Bob")
    rig.connect(CAROL)
    rig.connect(BOB)
    renew = Said(BOB, encode(m.Renew(P1)))
    done = rig.core.take([renew, Disconnected(CAROL), Disconnected(BOB)], now=rig.now)
    while rig.core.is_busy:
        done += rig.core.timer(now=rig.now)
    assert not notes(done, NoteKind.MATCHED)


def test_a_device_that_leaves_while_it_is_answered_is_noted_once() -> None:
    """The answer ends without its word; its event is not flushed besides."""
    rig = Rig(is_noting=False)
    rig.publish(BOB)
    rig.subscribe(ALICE)
    rig.leave(BOB)
    rig.say(ALICE, m.Noted(S1))
    found = [(note.kind, note.detail) for note in notes(rig.commands)]
    assert found[1:] == [(NoteKind.MATCHED, None), (NoteKind.NOTIFIED, "unconfirmed by publisher")]
    assert rig.core.sizes()["events"] == 0


def test_nothing_is_left_to_do_when_everybody_has_left() -> None:
    """No timer wakes a controller that has no device."""
    rig = Rig()
    rig.connect(ALICE)
    rig.publish(BOB)
    rig.leave(ALICE)
    rig.leave(BOB)
    assert rig.core.next_due is None


def test_strangers_are_bounded_by_the_seats() -> None:
    """A radio that answers inquiries under a thousand addresses must not fill the controller's memory."""
    rig = Rig()
    for number in range(1_000, 1_400):
        rig.find(address(number), name=str(number))
    assert rig.core.sizes()["strangers"] == rig.core.sizes()["events"] == Parameters().max_members


def test_expiries_of_one_instant_are_cleaned_a_round_at_a_time() -> None:
    """Cleaning is bounded like every other concern, so that a match of the same instant does not wait for it."""
    rig = Rig(Parameters(work=2))
    for number in range(100, 106):
        rig.publish(address(number), name=str(number))
    rig.now += 600_000_000
    expired = [len(notes(rig.core.timer(now=rig.now), NoteKind.EXPIRED)) for _ in range(4)]
    assert expired == [2, 2, 2, 0]


def test_strangers_that_are_not_reached_make_room_for_others() -> None:
    """Otherwise a few hundred passers-by would end indirect publication for ever."""
    rig = Rig(Parameters(max_parked=1))
    for number in range(1_000, 1_020):
        assert rig.find(address(number), name=str(number))
        rig.leave(address(number))
    assert rig.core.sizes()["strangers"] == 0


def test_what_is_remembered_is_forgotten_when_its_time_is_over() -> None:
    """A cache that is only bounded would hold what is dead for ever."""
    rig = Rig()
    rig.publish(BOB)
    rig.subscribe(ALICE)
    sizes = rig.core.sizes()
    assert (sizes["pairs"], sizes["removed"]) == (1, 2)
    rig.wait(120)
    sizes = rig.core.sizes()
    assert (sizes["pairs"], sizes["removed"]) == (0, 0)


def test_a_cache_keeps_its_newest_entries_and_lets_them_die_in_time() -> None:
    """Alive iff ``now < expires_at``; a full cache gives up what was put or touched longest ago."""
    cache: TimedCache[str, int] = TimedCache(10, 2)
    cache.put("a", 1, now=0)
    assert (cache.get("a", now=9), cache.get("a", now=10), cache.touch("a", now=10)) == (1, None, None)
    cache.put("b", 2, now=1)
    cache.touch("a", now=2)
    cache.put("c", 3, now=3)
    assert list(cache) == ["a", "c"]
    assert (cache.get("a", now=11), cache.clean(now=12, work=9), list(cache)) == (1, 1, ["c"])


def test_a_device_that_was_quiet_for_long_may_not_flood_afterwards() -> None:
    """What it may say at once is four seconds' worth, however long it has been silent."""
    rig = Rig()
    rig.publish(BOB)
    rig.wait(500)
    done = rig.core.take([Said(BOB, b"\xff")] * 1_000, now=rig.now)
    assert len(sent(done, BOB)) == 40
    assert "disconnect P TOO_FAST" in script(done)
