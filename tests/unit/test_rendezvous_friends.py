"""Restricted publications: who is asked for what, in which order, and who learns of them (Huang, 4.1.3, 5.4.1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.rendezvous_rig import (
    ALICE,
    BOB,
    CAROL,
    CONTROLLER,
    DAVE,
    Member,
    Rig,
    address,
    notes,
    refusals,
    script,
    sent,
)

from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller import NoteKind, Parameters
from whimbrel.rendezvous.controller.commands import KeepEpoch, Send
from whimbrel.rendezvous.controller.openings import OpenIndex, Record
from whimbrel.rendezvous.controller.proofs.members import Members
from whimbrel.rendezvous.refusals import Refusal
from whimbrel.rendezvous.tokens import GroupOwner, TokenError

FAMILY, WORK, CLUB = GroupOwner(b"f" * 32), GroupOwner(b"w" * 32), GroupOwner(b"c" * 32)


def rig_of(*members: Member, is_noting: bool = True) -> Rig:
    """Return a controller whose devices can prove what they are."""
    rig = Rig(is_noting=is_noting)
    rig.members = {each.address: each for each in members}
    return rig


def test_a_member_unlocks_a_restricted_publication() -> None:
    """Both parties are verified, then both are told."""
    alice, bob = Member(ALICE, FAMILY), Member(BOB, FAMILY)
    rig = rig_of(alice, bob)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.connect(ALICE)
    done = rig.subscribe(ALICE, keys=(FAMILY.public,))
    assert script(done) == [
        "→S Accepted S1",
        "unpark P",
        "→P Ask",
        "→S Ask",
        "→S Matched S1",
        "→P WakeUp P1",
        "park P",
        "park S",
    ]
    assert notes(rig.commands, NoteKind.MATCHED)


def test_a_stranger_learns_nothing_of_a_restricted_publication() -> None:
    """Not even that it is there: no match, no list, no question."""
    rig = rig_of(Member(BOB, FAMILY))
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.publish(CAROL, name="Carol")
    done = rig.subscribe(ALICE, name="Bob")
    assert [type(each) for each in sent(done, ALICE)] == [m.Accepted]
    assert isinstance(sent(rig.subscribe(ALICE), ALICE)[-1], m.Matched)  # Carol only


def test_a_claim_without_a_token_unlocks_nothing() -> None:
    """Any device can claim to be in a group (4.1.3)."""
    rig = rig_of(Member(ALICE), Member(BOB, FAMILY))
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    assert rig.open() == {"P1", "S1"}
    assert rig.core.refused_proofs() == {"malformed": 1}


def test_a_publisher_that_is_no_member_itself_is_not_matched() -> None:
    """The controller verifies both (4.1.2)."""
    rig = rig_of(Member(ALICE, FAMILY), Member(BOB))
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    assert rig.open() == {"P1", "S1"}


def test_the_first_common_verified_group_unlocks() -> None:
    """One of several doors: the next is tried only if this one does not open."""
    alice, bob = Member(ALICE, WORK, CLUB), Member(BOB, FAMILY, WORK, CLUB)
    rig = rig_of(alice, bob)
    rig.publish(BOB, keys=(FAMILY.public, WORK.public, CLUB.public))
    rig.subscribe(ALICE, keys=(CLUB.public, WORK.public, FAMILY.public))
    assert [asked.group for asked in alice.asked] == [FAMILY.public, WORK.public]
    assert not rig.open()


def test_nobody_is_asked_where_attributes_differ() -> None:
    """Attributes are compared before keys, so no token is asked for in vain."""
    alice, bob = Member(ALICE, FAMILY), Member(BOB, FAMILY)
    rig = rig_of(alice, bob)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, name="Carol", keys=(FAMILY.public,))
    assert not alice.asked
    assert not bob.asked


def test_nobody_is_asked_for_an_unrestricted_publication() -> None:
    """NULL in common: no verification (4.1.3)."""
    alice = Member(ALICE, FAMILY)
    rig = rig_of(alice)
    rig.publish(BOB)
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    assert not alice.asked
    assert not rig.open()


def test_a_silent_device_fails_the_match() -> None:
    """And is taken for gone, so that it cannot hold a seat."""
    alice, bob = Member(ALICE, FAMILY), Member(BOB, FAMILY)
    bob.is_silent = True
    rig = rig_of(alice, bob)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    done = rig.wait(2.56)
    assert "disconnect P SILENT" in script(done)
    assert rig.open() == {"S1"}
    assert not notes(rig.commands, NoteKind.MATCHED)


def test_other_matches_go_on_while_a_proof_is_awaited() -> None:
    """A silent pair must not hold up everybody else."""
    alice, bob = Member(ALICE, FAMILY), Member(BOB, FAMILY)
    alice.is_silent = bob.is_silent = True
    rig = rig_of(alice, bob)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, name="bob", keys=(FAMILY.public,))
    rig.publish(CAROL, name="Carol")
    assert isinstance(sent(rig.subscribe(DAVE, name="carol"), DAVE)[-1], m.Matched)


def test_what_opens_while_a_proof_is_awaited_is_found_when_it_ends() -> None:
    """The trigger was not open meanwhile; the match must not be lost."""
    alice, bob = Member(ALICE, FAMILY), Member(BOB, FAMILY)
    bob.is_silent = True
    rig = rig_of(alice, bob)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    rig.publish(CAROL, name="Carol")
    assert isinstance(sent(rig.wait(2.56), ALICE)[-1], m.Matched)


def test_a_restricted_publication_answers_its_oldest_friend() -> None:
    """Figure 4-11 with keys: the oldest subscription that proves a group, whoever came before it."""
    rig = rig_of(Member(ALICE), Member(CAROL, FAMILY), Member(DAVE, FAMILY), Member(BOB, FAMILY))
    for who in (ALICE, CAROL, DAVE):
        rig.subscribe(who, keys=(FAMILY.public,))
    done = rig.publish(BOB, keys=(FAMILY.public,))
    assert isinstance(sent(rig.commands, CAROL)[-1], m.Matched)
    assert rig.open() == {"S1", "S3"}
    assert notes(done, NoteKind.MATCHED)


def test_a_list_holds_the_publications_whose_groups_were_proven() -> None:
    """Figure 4-12 with keys."""
    rig = rig_of(Member(ALICE, FAMILY), Member(BOB, FAMILY), Member(CAROL, FAMILY), Member(DAVE, WORK))
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.publish(CAROL, name="Carol", keys=(WORK.public, FAMILY.public))
    rig.publish(DAVE, name="Dave", keys=(WORK.public,))
    rig.publish(address(99), name="Eve")
    done = rig.subscribe(ALICE, keys=(FAMILY.public,))
    (matches,) = [each for each in sent(rig.commands, ALICE) if isinstance(each, m.Matches)]
    assert [each.name for each in matches.publications] == ["Bob", "Carol", "Eve"]
    assert notes(done, NoteKind.LISTED)


def test_the_list_of_members_spares_the_token_never_the_challenge() -> None:
    """5.4.1, with the proof of possession that the thesis lacks."""
    alice, bob, carol = Member(ALICE, FAMILY), Member(BOB, FAMILY), Member(CAROL, FAMILY)
    rig = rig_of(alice, bob, carol)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(CAROL, keys=(FAMILY.public,))
    assert [asked.wants_token for asked in bob.asked] == [True, False]
    assert len({asked.challenge for asked in bob.asked + alice.asked + carol.asked}) == 4
    assert not rig.open()


def test_each_look_at_the_list_of_members_resets_its_time() -> None:
    """Ten minutes from the last look, not from the first."""
    bob, friends = Member(BOB, FAMILY), [Member(address(number), FAMILY) for number in range(50, 53)]
    rig = rig_of(bob, *friends)
    for friend, pause in zip(friends, (400, 400, 600), strict=True):
        rig.publish(BOB, keys=(FAMILY.public,))
        rig.subscribe(friend.address, keys=(FAMILY.public,))
        rig.wait(pause)
    assert [asked.wants_token for asked in bob.asked] == [True, False, False]
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.members[CAROL] = Member(CAROL, FAMILY)
    rig.subscribe(CAROL, keys=(FAMILY.public,))
    assert bob.asked[-1].wants_token


def test_a_replayed_proof_is_refused() -> None:
    """Whoever heard token and answer once has nothing: the challenge is new each time."""
    alice, bob = Member(ALICE, FAMILY), Member(BOB, FAMILY)
    rig = rig_of(alice, bob)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    overheard = alice.answer(alice.asked[0])

    class Thief(Member):
        def answer(self, asked: m.Ask) -> m.Proof | None:
            self.asked.append(asked)
            assert overheard is not None
            return replace(overheard, challenge=asked.challenge)

    rig.leave(ALICE)
    rig.members[ALICE] = Thief(ALICE)
    rig.publish(BOB, keys=(FAMILY.public,), name="again")
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    assert len(notes(rig.commands, NoteKind.MATCHED)) == 1
    assert rig.core.refused_proofs() == {"wrong_answer": 1}


def test_every_flipped_bit_of_a_proof_is_refused() -> None:
    """Group, device key, token, answer: nothing in it is free."""
    bob = Member(BOB, FAMILY)
    asked = m.Ask(group=FAMILY.public, challenge=b"n" * 32)
    proof = bob.answer(asked)
    assert proof is not None
    assert proof.token is not None
    members = Members(Parameters())
    members.check(proof, asked, address=BOB, controller=CONTROLLER, now=0)
    for field in ("device_key", "token", "answer"):
        whole = getattr(proof, field)
        for bit in range(0, 8 * len(whole), 5):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            changed = replace(proof, **{field: bytes(flipped)})  # type: ignore[arg-type]  # a field of bytes
            with pytest.raises(TokenError):
                members.check(changed, asked, address=BOB, controller=CONTROLLER, now=0)


def test_a_higher_epoch_revokes_remembered_members_of_the_lower() -> None:
    """The owner gave everybody but Alice a new token."""
    later = GroupOwner(b"f" * 32, epoch=2)
    alice, bob, carol = Member(ALICE, FAMILY), Member(BOB, FAMILY), Member(CAROL, later)
    rig = rig_of(alice, bob, carol)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    rig.members[BOB] = Member(BOB, later)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.leave(BOB)
    rig.connect(BOB)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.publish(CAROL, name="Carol", keys=(FAMILY.public,))
    rig.subscribe(BOB, name="carol", keys=(FAMILY.public,))
    matched = len(notes(rig.commands, NoteKind.MATCHED))
    rig.publish(CAROL, name="Carol", keys=(FAMILY.public,))
    rig.subscribe(ALICE, name="carol", keys=(FAMILY.public,))
    assert len(notes(rig.commands, NoteKind.MATCHED)) == matched
    assert "old_epoch" in rig.core.refused_proofs()


def test_a_token_that_expires_while_it_is_remembered_is_asked_for_again() -> None:
    """The list of members never outlives the token."""
    bob = Member(BOB, FAMILY, expires_at=60_000_000)
    alice, carol = Member(ALICE, FAMILY), Member(CAROL, FAMILY)
    rig = rig_of(alice, bob, carol)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    rig.wait(60)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(CAROL, keys=(FAMILY.public,))
    assert rig.core.refused_proofs() == {"expired": 1}
    assert len(notes(rig.commands, NoteKind.MATCHED)) == 1


def test_a_proof_that_was_not_asked_for_is_refused() -> None:
    """Nobody gets on the list of members by talking."""
    alice = Member(ALICE, FAMILY)
    rig = rig_of(alice)
    rig.connect(ALICE)
    proof = alice.answer(m.Ask(group=FAMILY.public, challenge=b"n" * 32))
    assert proof is not None
    assert refusals(rig.say(ALICE, proof), ALICE) == [Refusal.UNEXPECTED.code]


def test_a_device_that_leaves_while_it_is_asked_fails_the_match_only() -> None:
    """The other event stays open."""
    alice, bob = Member(ALICE, FAMILY), Member(BOB, FAMILY)
    alice.is_silent = bob.is_silent = True
    rig = rig_of(alice, bob)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    rig.leave(BOB)
    assert rig.open() == {"S1"}
    rig.leave(ALICE)
    assert rig.core.sizes()["verifying"] == 0


def test_an_event_that_is_removed_while_it_is_verified_is_gone() -> None:
    """An explicit removal ends the conversation about it."""
    alice, bob = Member(ALICE, FAMILY), Member(BOB, FAMILY)
    bob.is_silent = True
    rig = rig_of(alice, bob)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    rig.say(ALICE, m.Unsubscribe(rig.core._state.subscriptions_of(ALICE)[0].id))
    assert rig.core.sizes()["verifying"] == 0
    assert "disconnect P SILENT" not in script(rig.wait(10))


def test_facts_for_the_log_name_no_device_of_a_restricted_publication() -> None:
    """Whoever may read the log is no member of the group; keys and tokens are in no fact at all."""
    rig = rig_of(Member(ALICE, FAMILY), Member(BOB, FAMILY))
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    found = notes(rig.commands)
    assert {note.kind for note in found} == {NoteKind.OPENED, NoteKind.MATCHED, NoteKind.NOTIFIED}
    assert all(note.address is None and note.other_address is None for note in found)
    assert FAMILY.public.hex() not in repr(rig.commands)
    assert repr(FAMILY.public)[2:-1] not in repr(rig.commands)


def test_a_device_that_is_silent_about_itself_is_matched_with_nobody() -> None:
    """It would be told of another publication and dropped at once, and that publisher would listen in vain."""
    alice, bob = Member(ALICE, FAMILY), Member(BOB, FAMILY)
    alice.is_silent = True
    rig = rig_of(alice, bob)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    rig.publish(CAROL, name="Carol")
    assert "disconnect S SILENT" in script(rig.wait(2.56))
    assert not notes(rig.commands, NoteKind.MATCHED)
    assert rig.open() == {"P1", "P2"}


def test_triggers_that_wait_for_proofs_cost_a_round_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two questions at a time; a crowd that waits behind them must not be looked up again at every word."""
    rig = Rig()
    crowd = [address(number) for number in range(1_000, 1_060)]
    for who in crowd[:30]:
        rig.publish(who, name=who, keys=(FAMILY.public,))
    looked_up: list[Record] = []
    candidates = OpenIndex.candidates

    def counted(index: OpenIndex, trigger: Record) -> list[Record]:
        looked_up.append(trigger)
        return candidates(index, trigger)

    monkeypatch.setattr(OpenIndex, "candidates", counted)
    for who in crowd[30:]:
        rig.subscribe(who, keys=(FAMILY.public,))
    assert rig.core.sizes()["verifying"] == 30
    assert len(looked_up) <= 2 * 30
    looked_up.clear()
    rig.wait(1)
    assert not looked_up


def test_a_remembered_member_that_fails_its_challenge_is_asked_for_its_token_again() -> None:
    """Its address may have been taken over; what was verified before is worth nothing now."""
    alice, bob, carol = Member(ALICE, FAMILY), Member(BOB, FAMILY), Member(CAROL, FAMILY)
    rig = rig_of(alice, bob, carol)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    thief = rig.members[BOB] = Member(BOB, seed=b"another key")
    rig.publish(BOB, keys=(FAMILY.public,))
    for who in (CAROL, ALICE):
        rig.subscribe(who, name="bob", keys=(FAMILY.public,))
    assert [asked.wants_token for asked in thief.asked] == [False, True]
    assert len(notes(rig.commands, NoteKind.MATCHED)) == 1


def test_questions_hold_four_seats_and_a_device_that_holds_one_may_be_asked_by_two_triggers() -> None:
    """Conversations hold seats: those about membership four of seven, so that a match without tokens finds two."""
    crowd = [Member(address(number), FAMILY) for number in range(100, 108)]
    for member in crowd:
        member.is_silent = True
    rig = rig_of(*crowd)
    for number, member in enumerate(crowd):
        name = f"pair {number // 2}"
        if number % 2:
            rig.subscribe(member.address, name=name, keys=(FAMILY.public,))
        else:
            rig.publish(member.address, name=name, keys=(FAMILY.public,))
    assert [len(member.asked) for member in crowd] == [1, 1, 1, 1, 0, 0, 0, 0]
    rig = rig_of(*(bob_and_friends := [Member(who, FAMILY) for who in (BOB, ALICE, CAROL)]))
    for member in bob_and_friends:
        member.is_silent = True
    rig.publish(BOB, keys=(FAMILY.public,))
    for who in (ALICE, CAROL):
        rig.subscribe(who, keys=(FAMILY.public,))
    assert [len(member.asked) for member in bob_and_friends] == [2, 1, 1]


def test_a_subscription_that_names_groups_is_hidden_in_the_log_though_the_publication_is_open() -> None:
    """Which groups a device says to be in is its own affair, and so is whom it met."""
    rig = rig_of(Member(ALICE, FAMILY))
    rig.publish(BOB)
    done = rig.subscribe(ALICE, keys=(FAMILY.public,))
    (matched,) = notes(done, NoteKind.MATCHED)
    assert (matched.id, matched.address, matched.other_address) == ("P1", None, None)


def test_epochs_of_groups_are_remembered_within_a_bound() -> None:
    """Anybody may own groups without number, and show them one after the other."""
    members = Members(Parameters(remembered=2))
    for number in range(5):
        owner = GroupOwner(bytes([number]) * 32)
        asked = m.Ask(group=owner.public, challenge=b"n" * 32)
        proof = Member(BOB, owner).answer(asked)
        assert proof is not None
        members.check(proof, asked, address=BOB, controller=CONTROLLER, now=0)
    assert (len(members), len(members._epochs)) == (2, 2)


def test_a_proof_of_one_group_opens_no_door_of_another() -> None:
    """Alice proves the family before Bob fails it; of work, which Bob proves, she must prove her membership anew."""
    alice, bob = Member(ALICE, FAMILY), Member(BOB, WORK)
    rig = Rig()
    rig.publish(BOB, keys=(FAMILY.public, WORK.public))
    rig.subscribe(ALICE, keys=(FAMILY.public, WORK.public))
    for group in (FAMILY.public, WORK.public):
        for member in (alice, bob):
            asked = [
                each.message
                for each in rig.commands
                if isinstance(each, Send) and each.address == member.address and isinstance(each.message, m.Ask)
            ][-1]
            assert asked.group == group
            proof = member.answer(asked)
            assert proof is not None
            rig.say(member.address, proof)
            if group == WORK.public and member is alice:
                break  # no group is left
    assert not notes(rig.commands, NoteKind.MATCHED)
    assert rig.open() == {"P1", "S1"}


def test_a_device_that_is_being_asked_by_one_trigger_keeps_no_other_waiting() -> None:
    """A crowd could keep a device busy with questions of its own; what others ask of it does not wait for these."""
    silent = [Member(address(number), FAMILY) for number in (101, 102, 103, 104)]
    for member in silent:
        member.is_silent = True
    rig = rig_of(*silent, Member(ALICE, FAMILY), Member(BOB, FAMILY))
    for number, member in enumerate(silent):
        rig.publish(member.address, name=f"silent {number}", keys=(FAMILY.public,))
    rig.subscribe(ALICE, name="Bob", keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    assert [len(each.asked) for each in silent] == [1, 1, 1, 0]
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.wait(2.56)
    (matched,) = notes(rig.commands, NoteKind.MATCHED)
    assert (matched.id, matched.other_id) == ("P5", "S1")


def test_triggers_that_wait_for_seats_are_served_in_turn() -> None:
    """A list of many silent publishers is asked for beside the pair of another trigger, not before it."""
    silent = [Member(address(number), FAMILY) for number in range(100, 120)]
    for member in silent:
        member.is_silent = True
    rig = rig_of(*silent, *(Member(who, FAMILY) for who in (ALICE, BOB, CAROL)))
    for member in silent:
        rig.publish(member.address, name="silent", keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(CAROL, name="bob", keys=(FAMILY.public,))
    assert not notes(rig.commands, NoteKind.MATCHED)
    rig.wait(2.56)
    assert notes(rig.commands, NoteKind.MATCHED)


def test_an_older_subscriber_that_answers_in_time_comes_before_a_younger_one_that_answers_sooner() -> None:
    """The subscription that waited longest is answered (4.1.3); the next is asked when half of its time is over."""
    alice, bob, carol = Member(ALICE, FAMILY), Member(BOB, FAMILY), Member(CAROL, FAMILY)
    rig = rig_of(bob, carol)
    for who in (ALICE, CAROL):
        rig.subscribe(who, keys=(FAMILY.public,))
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.wait(1.27)
    assert not carol.asked
    rig.wait(0.01)
    assert len(carol.asked) == 1
    rig.wait(1)
    ((asked, _),) = rig.asked[ALICE]
    proof = alice.answer(asked)
    assert proof is not None
    rig.say(ALICE, proof)
    (matched,) = notes(rig.commands, NoteKind.MATCHED)
    assert matched.other_id == "S1"


def test_a_list_says_that_a_device_left_before_it_proved_its_group() -> None:
    """Who reads the list can subscribe again; the log says it, too."""
    quiet = Member(DAVE, FAMILY)
    quiet.is_silent = True
    rig = rig_of(Member(ALICE, FAMILY), Member(BOB, FAMILY), Member(CAROL, FAMILY), quiet)
    for who in (BOB, CAROL, DAVE):
        rig.publish(who, name=who, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    rig.wait(2.56)
    (matches,) = [each for each in sent(rig.commands, ALICE) if isinstance(each, m.Matches)]
    assert ([each.address for each in matches.publications], matches.is_complete) == ([BOB, CAROL], False)
    (listed,) = notes(rig.commands, NoteKind.LISTED)
    assert listed.detail == "incomplete"


def test_the_highest_epoch_of_a_group_is_kept_before_the_match_that_showed_it() -> None:
    """A controller that starts again with what was kept refuses tokens that were revoked before."""
    later = GroupOwner(b"f" * 32, epoch=7)
    rig = rig_of(Member(ALICE, later), Member(BOB, later))
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    kept = [each for each in rig.commands if isinstance(each, KeepEpoch)]
    assert kept == [KeepEpoch(FAMILY.public, 7)]
    (matched,) = notes(rig.commands, NoteKind.MATCHED)
    assert rig.commands.index(kept[0]) < rig.commands.index(matched)
    again = Rig(epochs={each.group: each.epoch for each in kept})
    again.members = {each.address: each for each in (Member(ALICE, FAMILY), Member(BOB, later))}
    again.publish(BOB, keys=(FAMILY.public,))
    again.subscribe(ALICE, keys=(FAMILY.public,))
    assert again.core.refused_proofs() == {"old_epoch": 1}
    assert again.open() == {"P1", "S1"}


def test_a_look_at_the_list_of_members_resets_its_time_even_if_no_answer_comes() -> None:
    """The time counts from the last look, not from the last proof (5.4.1)."""
    bob, friends = Member(BOB, FAMILY), [Member(who, FAMILY) for who in (ALICE, CAROL, DAVE)]
    rig = rig_of(bob, *friends)
    for friend, pause in zip(friends, (400, 500, 0), strict=True):
        bob.is_silent = friend.address == CAROL
        rig.publish(BOB, keys=(FAMILY.public,))
        rig.subscribe(friend.address, name="bob", keys=(FAMILY.public,))
        rig.wait(pause)
    assert [asked.wants_token for asked in bob.asked] == [True, False, False]


def test_silent_and_lying_older_subscribers_do_not_keep_friends_apart() -> None:
    """Three are silent and three lie; the friend behind them is matched as soon as each had its time to answer."""
    strangers = [Member(address(number)) for number in range(100, 106)]
    for member in strangers[::2]:
        member.is_silent = True
    rig = rig_of(*strangers, Member(ALICE, FAMILY), Member(BOB, FAMILY))
    for who in (*(each.address for each in strangers), ALICE):
        rig.subscribe(who, keys=(FAMILY.public,))
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.wait(10)
    (matched,) = notes(rig.commands, NoteKind.MATCHED)
    assert (matched.id, matched.other_id) == ("P1", "S7")


def test_a_device_that_had_less_than_its_time_to_answer_is_not_dropped() -> None:
    """Two strangers who lie at the last moment use up their own time, never that of an honest device."""
    strangers = [Member(address(number)) for number in (100, 101)]
    alice, bob = Member(ALICE, FAMILY), Member(BOB, FAMILY)
    rig = rig_of(bob)
    for member in (*strangers, alice):
        rig.subscribe(member.address, keys=(FAMILY.public,))
    rig.publish(BOB, keys=(FAMILY.public,))
    for _ in range(60):
        rig.wait(0.1)
        for member, delay in ((strangers[0], 2.5), (strangers[1], 2.5), (alice, 1.0)):
            asks = [(asked, at) for asked, at in rig.asked.get(member.address, []) if rig.now - at >= delay * 1_000_000]
            for asked, _at in asks[len(member.asked) :]:
                proof = member.answer(asked)
                assert proof is not None
                rig.say(member.address, proof)
    assert not [line for line in script(rig.commands) if line.startswith("disconnect")]
    (matched,) = notes(rig.commands, NoteKind.MATCHED)
    assert (matched.id, matched.other_id) == ("P1", "S3")


def test_forty_friends_are_all_listed() -> None:
    """Each friend had its own time to prove its group, so none is left out of the list."""
    friends = [Member(address(number), FAMILY) for number in range(100, 140)]
    rig = Rig()
    for member in friends:
        rig.publish(member.address, name=member.address, keys=(FAMILY.public,))
    alice = Member(ALICE, FAMILY)
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    members = {each.address: each for each in (*friends, alice)}
    for _ in range(400):
        rig.wait(0.1)
        for who, asks in list(rig.asked.items()):
            for asked, at in asks[len(members[who].asked) :]:
                if rig.now - at >= 600_000:
                    proof = members[who].answer(asked)
                    assert proof is not None
                    rig.say(who, proof)
    (matches,) = [each for each in sent(rig.commands, ALICE) if isinstance(each, m.Matches)]
    assert [each.address for each in matches.publications] == [each.address for each in friends]


def test_a_proof_that_answers_an_older_question_is_not_held_against_a_newer_one() -> None:
    """Alice's answer to her first question arrives when she has been asked again; her newer answer counts."""
    alice, bob = Member(ALICE, FAMILY), Member(BOB, FAMILY)
    rig = rig_of(bob)
    rig.publish(BOB, keys=(FAMILY.public,))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    rig.say(ALICE, m.Unsubscribe(rig.core._state.subscriptions_of(ALICE)[0].id))
    rig.subscribe(ALICE, keys=(FAMILY.public,))
    for asked, _ in rig.asked[ALICE]:
        proof = alice.answer(asked)
        assert proof is not None
        rig.say(ALICE, proof)
    assert len(rig.asked[ALICE]) == 2
    assert not rig.core.refused_proofs()
    assert notes(rig.commands, NoteKind.MATCHED)
