"""Friends among strangers who are silent or lie, over the simulated radio; and a controller that starts again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.rendezvous_rig import ALICE, BOB, CAROL, Member, address

from whimbrel.errors import InvalidValueError
from whimbrel.rendezvous.controller import NoteKind
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.device.commands import Tell
from whimbrel.rendezvous.epochs import EpochFile
from whimbrel.rendezvous.events import Address, GroupKey, Subscription
from whimbrel.rendezvous.nodes import DeviceNode
from whimbrel.rendezvous.tokens import GroupOwner
from whimbrel.sim.hall import Hall

SECOND = 1_000_000
FAMILY, CLUB = GroupOwner(b"f" * 32), GroupOwner(b"c" * 32)
FRIENDS = Subscription(keys=(FAMILY.public,))


def friend(hall: Hall, who: Address, owner: GroupOwner = FAMILY) -> DeviceNode:
    """Bring a member of the family."""
    member = Member(who, owner)
    return hall.add(Device(address=who, name=who, keys=member.keys, tokens=member.tokens))


def stranger(hall: Hall, who: Address, *, is_silent: bool) -> DeviceNode:
    """Bring a device that names the family and is no member: it says nothing, or shows a token of another group."""
    member = Member(who, CLUB)
    tokens = {FAMILY.public: member.tokens[CLUB.public]}
    return hall.add(Device(address=who, name=who, keys=None if is_silent else member.keys, tokens=tokens))


@pytest.mark.parametrize("seed", range(3))
def test_friends_meet_within_ten_seconds_behind_silent_and_lying_subscribers(seed: int) -> None:
    """Three are silent and three lie, and all of them sought the family before Alice did."""
    hall = Hall(seed=seed)
    for number in range(6):
        node = stranger(hall, address(100 + number), is_silent=number % 2 == 0)
        node.do(node.core.subscribe(FRIENDS, is_lasting=True))
    hall.air.run(40 * SECOND)
    alice, bob = friend(hall, ALICE), friend(hall, BOB)
    alice.do(alice.core.subscribe(FRIENDS))
    bob.do(bob.core.subscribe(Subscription(name="nobody")))  # so that Bob is with the controller
    hall.air.run(hall.now() + 40 * SECOND)
    began = hall.now()
    assert {record.owner for record in hall.controller.core.open_events()} >= {address(100 + n) for n in range(6)}
    bob.do(bob.core.publish(keys=(FAMILY.public,)))
    hall.air.run(began + 10 * SECOND)
    ((met, _at),) = hall.list_introductions(ALICE)
    assert met == BOB


def test_forty_friends_are_all_listed_over_the_air() -> None:
    """None is left out, and the list says that it is whole."""
    hall = Hall(seed=4)
    crowd = [address(200 + number) for number in range(40)]
    for who in crowd:
        node = friend(hall, who)
        node.do(node.core.publish(keys=(FAMILY.public,)))
    hall.air.run(90 * SECOND)
    assert len(hall.controller.core.open_events()) == 40
    alice = friend(hall, ALICE)
    alice.do(alice.core.subscribe(FRIENDS))
    hall.air.run(hall.now() + 60 * SECOND)
    (told,) = [each for each, _ in hall.told[ALICE] if isinstance(each, Tell) and each.what == "listed"]
    assert {each.address for each in told.listed} == set(crowd)
    assert told.is_complete


def test_a_controller_that_starts_again_refuses_the_tokens_that_were_revoked_before(tmp_path: Path) -> None:
    """The owner gave everybody but Alice a new token; the highest epoch of the group is in the controller's file."""
    file, later = tmp_path / "epochs", GroupOwner(b"f" * 32, epoch=2)
    for owner, matches in ((later, 1), (FAMILY, 0)):
        hall = Hall(seed=5, epochs=EpochFile(file))
        alice, bob = friend(hall, ALICE, owner), friend(hall, BOB, later)
        bob.do(bob.core.publish(keys=(FAMILY.public,)))
        alice.do(alice.core.subscribe(FRIENDS))
        hall.air.run(30 * SECOND)
        assert [note.kind for note, _ in hall.notes].count(NoteKind.MATCHED) == matches
    assert hall.controller.core.refused_proofs() == {"old_epoch": 1}
    assert file.stat().st_mode & 0o077 == 0


def test_epochs_are_kept_within_a_bound_and_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    """A crash can cut only the line that was being written, and nothing had followed from that."""
    path = tmp_path / "epochs"
    file = EpochFile(path, capacity=2)
    groups = [GroupKey(bytes([number]) * 32) for number in range(4)]
    for epoch in (1, 3, 2):
        for group in groups:
            file.keep(group, epoch)
    assert EpochFile(path, capacity=2).epochs == file.epochs == {groups[2]: 2, groups[3]: 2}
    with path.open("ab") as stream:
        stream.write(b"ab")
    again = EpochFile(path, capacity=2)
    again.keep(groups[3], 9)
    assert EpochFile(path, capacity=2).epochs == {groups[2]: 2, groups[3]: 9}
    assert len(path.read_bytes().splitlines()) <= 4


def test_a_file_of_epochs_that_is_none_is_refused_and_not_shown(tmp_path: Path) -> None:
    """A controller that began without its epochs would accept what was revoked."""
    path = tmp_path / "epochs"
    path.write_text("my bank's password\n", encoding="ascii")
    with pytest.raises(InvalidValueError, match="line 1 of") as refused:
        EpochFile(path)
    assert "bank" not in str(refused.value)


def test_names_are_the_same_whatever_the_case_of_their_letters() -> None:
    """In every alphabet: the capitals of "Straße" are "STRASSE"."""
    hall = Hall(seed=6)
    bob = hall.add(Device(address=BOB, name="Straße"))
    bob.do(bob.core.publish())
    carol = hall.add(Device(address=CAROL, name="Carol"))
    carol.do(carol.core.subscribe(Subscription(name="STRASSE")))
    hall.air.run(30 * SECOND)
    assert [who for who, _ in hall.list_introductions(CAROL)] == [BOB]
