"""Groups between people: joining over a connection, and verifying each other, without owner or controller (2.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.unit.rendezvous_rig import ALICE, BOB, CAROL, DAVE, Member

from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.device.admission import Admission, admit_everyone, admit_listed, ask_owner
from whimbrel.rendezvous.device.commands import HeardPeer, Introduced, KeepToken, PageEnded, SayPeer, Tell, Verified
from whimbrel.rendezvous.device.peers import JOIN_US, Peers
from whimbrel.rendezvous.events import Address, GroupKey, Subscription
from whimbrel.rendezvous.nodes import DeviceNode
from whimbrel.rendezvous.refusals import Refusal
from whimbrel.rendezvous.tokens import DeviceKeys, GroupOwner, check_group_token
from whimbrel.rendezvous.wire import encode
from whimbrel.sim.hall import Hall

SECOND = 1_000_000
FAMILY, CLUB = GroupOwner(b"f" * 32), GroupOwner(b"c" * 32)
KEYS = {who: DeviceKeys(who.encode().ljust(32, b".")) for who in (ALICE, BOB, CAROL, DAVE)}
EVERYTHING = pytest.mark.parametrize("admission", [admit_everyone, admit_listed([KEYS[ALICE].public]), ask_owner])


class Town:
    """A hall whose devices keep what they are told."""

    def __init__(self) -> None:
        self.hall = Hall(seed=3)
        self.kept: dict[Address, dict[GroupKey, bytes]] = {}

    def bring(
        self,
        who: Address,
        *,
        owner: GroupOwner | None = None,
        admission: Admission = ask_owner,
        tokens: dict[GroupKey, bytes] | None = None,
        keys: DeviceKeys | None = None,
    ) -> DeviceNode:
        """Bring a device."""
        device = Device(
            address=who,
            name=who,
            keys=keys or KEYS[who],
            tokens=tokens,
            owner=owner,
            admission=admission,
            nonce_key=who.encode().ljust(32, b"n"),
        )
        node = self.hall.add(device)
        node._keep_token = self.kept.setdefault(who, {}).__setitem__
        return node

    def introduce(self, caller: DeviceNode, called: DeviceNode, *keys: GroupKey) -> None:
        """Let the controller introduce two devices, to friends only where groups are named."""
        called.do(called.core.publish(keys=keys))
        caller.do(caller.core.subscribe(Subscription(address=called.core.address, keys=keys)))
        self.run(40)
        assert called.core.address in [who for who, _ in self.hall.list_introductions(caller.core.address)]

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.hall.air.run(self.hall.now() + round(seconds * SECOND))

    def told(self, who: Address, *whats: str) -> list[Tell]:
        """Return what the user of a device was told."""
        return [each for each, _ in self.hall.told[who] if isinstance(each, Tell) and each.what in whats]

    def verified(self, who: Address) -> list[Verified]:
        """Return whom a device has verified."""
        return [each for each, _ in self.hall.told[who] if isinstance(each, Verified)]


@EVERYTHING
def test_a_device_joins_over_the_air_and_a_third_verifies_it_without_the_owner(admission: Admission) -> None:
    """Figures 2-11 and 2-12, with rule, list and prompt: Alice joins Carol's group, Bob of that group verifies her."""
    town = Town()
    carol = town.bring(CAROL, owner=FAMILY, admission=admission)
    alice = town.bring(ALICE)
    town.introduce(alice, carol)
    alice.do(alice.core.join(CAROL, FAMILY.public, now=town.hall.now()))
    town.run(1)
    if admission is ask_owner:
        (asked,) = town.told(CAROL, "asks to join")
        assert (asked.address, KEYS[ALICE].public.hex() in (asked.reason or "")) == (ALICE, True)
        assert not town.kept[ALICE]
        carol.do(carol.core.admit(ALICE, is_admitted=True, now=town.hall.now()))
        town.run(1)
    assert [each.address for each in town.told(ALICE, "joined")] == [CAROL]
    assert set(town.kept[ALICE]) == {FAMILY.public}

    carol.do(carol.core.leave())
    bob = town.bring(BOB, tokens=Member(BOB, FAMILY).tokens, keys=Member(BOB).keys)
    town.introduce(alice, bob, FAMILY.public)
    town.run(3)
    for who, other in ((ALICE, BOB), (BOB, ALICE)):
        (found,) = town.verified(who)
        assert (found.address, found.group, found.skips_authentication) == (other, FAMILY.public, True)


def test_an_owner_is_told_once_whom_its_list_kept_out() -> None:
    """A friend with a new key is not on the list: the owner would wonder why she never came."""
    town = Town()
    carol = town.bring(CAROL, owner=FAMILY, admission=admit_listed([KEYS[ALICE].public]))
    bob = town.bring(BOB)
    town.introduce(bob, carol)
    for _ in range(3):
        bob.do(bob.core.join(CAROL, FAMILY.public, now=town.hall.now()))
        town.run(1)
    (told,) = town.told(CAROL, "kept out")
    assert (told.address, KEYS[BOB].public.hex() in (told.reason or "")) == (BOB, True)
    assert not town.kept[BOB]


def test_who_is_in_no_group_of_a_publisher_is_told_so_by_nobody() -> None:
    """A device that asks about a group which it is not shown gets what proves nothing."""
    town = Town()
    bob = town.bring(BOB, tokens=Member(BOB, FAMILY).tokens, keys=Member(BOB).keys)
    alice = town.bring(ALICE)
    town.introduce(alice, bob)
    alice.do(alice.core.verify(BOB, FAMILY.public, now=town.hall.now()))
    town.run(3)
    assert not town.verified(ALICE)
    assert [each.address for each in town.told(ALICE, "not verified")] == [BOB]


def test_a_device_that_is_no_member_verifies_another_but_does_not_skip_authentication() -> None:
    """Membership can be verified by any other device (2.3); only members of one group trust each other for it."""
    alice, bob = Peer(ALICE), Peer(BOB, FAMILY)
    talk(alice, bob)
    bob.device._peers._peers[ALICE].shown.add(FAMILY.public)
    bob.device._peers._peers[ALICE].is_verified = True
    said = alice.device.verify(BOB, FAMILY.public, now=0)
    talk(alice, bob, said)
    (found,) = [each for each in alice.told if isinstance(each, Verified)]
    assert (found.address, found.skips_authentication) == (BOB, False)


class Peer:
    """A device without a radio."""

    def __init__(self, who: Address, *owners: GroupOwner, member: Member | None = None) -> None:
        member = member or Member(who, *owners)
        self.address = who
        self.device = Device(
            address=who, name=who, keys=member.keys, tokens=member.tokens, nonce_key=who.encode().ljust(32, b"n")
        )
        self.told: list[object] = []

    @property
    def peers(self) -> Peers:
        """What it has to do with other devices."""
        return self.device._peers


def talk(
    caller: Peer,
    called: Peer,
    said: Sequence[object] | None = None,
    *,
    groups: tuple[GroupKey, ...] = (),
    change: Callable[[m.Message], m.Message] = lambda message: message,
    now: int = 0,
) -> None:
    """Connect two devices unless they speak already, and carry what they say; *change* is what the air makes of it."""
    waiting: list[tuple[Peer, Peer, object]] = [(caller, called, each) for each in said or ()]
    if said is None:
        waiting += [
            (caller, called, each) for each in caller.peers.connect(called.address, groups, is_caller=True, now=now)
        ]
        waiting += [
            (called, caller, each) for each in called.peers.connect(caller.address, groups, is_caller=False, now=now)
        ]
    while waiting:
        speaker, listener, each = waiting.pop(0)
        if not isinstance(each, SayPeer):
            speaker.told.append(each)
            continue
        heard = listener.device.receive(HeardPeer(speaker.address, encode(change(each.message))), now=now)
        waiting += [(listener, speaker, answer) for answer in heard]


def outcome(peer: Peer) -> str:
    """Return what a device came to think of the other."""
    return "verified" if any(isinstance(each, Verified) for each in peer.told) else "not verified"


@pytest.mark.parametrize("is_caller", [True, False])
@pytest.mark.parametrize("kind", ["forged", "expired", "copied", "from a forged address", "of an older epoch"])
def test_a_token_that_is_not_its_own_verifies_nobody(kind: str, *, is_caller: bool) -> None:
    """Whoever shows it, caller or called: forged, expired, copied, or with the address of its owner."""
    honest, other = Member(BOB, FAMILY), Member(ALICE, FAMILY)
    if kind == "forged":
        other.tokens[FAMILY.public] = Member(ALICE, CLUB).tokens[CLUB.public]
    elif kind == "expired":
        other = Member(ALICE, FAMILY, expires_at=1_000)
    elif kind == "copied":
        other.tokens = honest.tokens
    elif kind == "from a forged address":
        thief = Member(ALICE, seed=b"thief")
        thief.tokens = other.tokens
        other = thief
    else:
        honest = Member(BOB, GroupOwner(b"f" * 32, epoch=2))
    bob, alice = Peer(BOB, member=honest), Peer(ALICE, member=other)
    pair = (alice, bob) if is_caller else (bob, alice)
    talk(*pair, groups=(FAMILY.public,), now=1_000)
    assert outcome(bob) == "not verified"


def test_a_stranger_that_pages_in_the_place_of_a_friend_is_shown_no_proof() -> None:
    """Who was paged proves after who paged: the address of a friend can be forged, its key cannot."""
    bob, stranger = Peer(BOB, FAMILY), Peer(ALICE, CLUB)
    shown: list[m.Proof] = []

    def watch(message: m.Message) -> m.Message:
        if isinstance(message, m.Proof) and message.token is not None:
            shown.append(message)
        return message

    talk(stranger, bob, groups=(FAMILY.public,), change=watch)
    assert not shown
    friend = Peer(ALICE, FAMILY)
    talk(friend, Peer(BOB, FAMILY), groups=(FAMILY.public,), change=watch)
    assert len(shown) == 2


def test_one_common_group_is_enough_in_whatever_order_they_are_named() -> None:
    """Both name both groups, in opposite orders; the first that both prove verifies."""
    groups = (CLUB.public, FAMILY.public)
    alice, bob = Peer(ALICE, FAMILY), Peer(BOB, FAMILY, CLUB)
    talk(alice, bob, groups=groups)
    assert (outcome(alice), outcome(bob)) == ("verified", "verified")


def test_a_peer_that_is_silent_is_not_verified() -> None:
    """Nobody waits for ever."""
    alice, bob = Peer(ALICE, FAMILY), Peer(BOB, FAMILY)
    alice.peers.connect(bob.address, (FAMILY.public,), is_caller=True, now=0)
    assert alice.device.next_due == 2_560_000
    (told,) = alice.device.timer(now=2_560_000)
    assert isinstance(told, Tell)
    assert (told.what, told.address) == ("not verified", BOB)
    assert alice.device.next_due is None


def joined(answer: Callable[[m.Join], m.Message] | None, *, now: int = 0) -> list[object]:
    """Return what becomes of Alice's wish to join Carol's group, to which Carol says *answer*."""
    alice = Peer(ALICE)
    alice.device.receive(PageEnded(CAROL, is_connected=True), now=now)
    (said,) = alice.device.join(CAROL, FAMILY.public, now=now)
    assert isinstance(said, SayPeer)
    assert isinstance(said.message, m.Join)
    if answer is None:
        return list(alice.device.timer(now=now + JOIN_US))
    return list(alice.device.receive(HeardPeer(CAROL, encode(answer(said.message))), now=now))


def issue(owner: GroupOwner, *, expires_at: int = 10**12) -> Callable[[m.Join], m.Message]:
    """Return an owner that admits everybody."""
    return lambda join: m.GroupTokenIssued(
        owner.admit(join.token, device_key=join.device_key, peer=ALICE, expires_at=expires_at)
    )


def test_a_group_token_is_checked_before_it_is_kept() -> None:
    """From the owner, for this device, not expired; else nothing is kept, and its user is told."""
    kept, told = joined(issue(FAMILY))
    assert isinstance(kept, KeepToken)
    assert kept.group == FAMILY.public
    assert isinstance(told, Tell)
    assert told.what == "joined"
    bobs = m.GroupTokenIssued(Member(BOB, FAMILY).tokens[FAMILY.public])
    no = m.Refused(request="join", code=Refusal.NOT_ADMITTED.code, reason=Refusal.NOT_ADMITTED.reason)
    for answer in (issue(CLUB), issue(FAMILY, expires_at=0), lambda _join: bobs, lambda _join: no, None):
        (refused,) = joined(answer)
        assert isinstance(refused, Tell)
        assert refused.what == "not admitted"


def test_who_owns_no_group_or_does_not_admit_says_so() -> None:
    """And a device whose token is another's is refused before anybody is asked."""
    asked: list[Address] = []

    def refuse(address: Address, _device_key: bytes) -> bool | None:
        asked.append(address)
        return False

    alice = Member(ALICE)
    join = m.Join(token=alice.keys.token(ALICE), device_key=alice.keys.public)
    copied = m.Join(token=Member(BOB).keys.token(BOB), device_key=Member(BOB).keys.public)
    for owner, message, code in ((None, join, 3114), (FAMILY, join, 3115), (FAMILY, copied, 3116)):
        carol = Device(address=CAROL, name="Carol", keys=KEYS[CAROL], owner=owner, admission=refuse)
        carol.receive(PageEnded(ALICE, is_connected=True), now=0)
        said, *told = carol.receive(HeardPeer(ALICE, encode(message)), now=0)
        assert isinstance(said, SayPeer)
        assert isinstance(said.message, m.Refused)
        assert said.message.code == code
        assert [each.what for each in told if isinstance(each, Tell)] == ["kept out"] * (code == 3115)
    assert asked == [ALICE]


def test_an_owner_is_asked_once_about_a_device_that_asks_again_and_again() -> None:
    """A prompt is a person's time; who was refused is refused until it connects anew."""
    carol = Device(address=CAROL, name="Carol", keys=KEYS[CAROL], owner=FAMILY)
    (introduced,) = carol.receive(PageEnded(ALICE, is_connected=True), now=0)
    assert isinstance(introduced, Introduced)
    alice = Member(ALICE)
    join = HeardPeer(ALICE, encode(m.Join(token=alice.keys.token(ALICE), device_key=alice.keys.public)))
    told = [each for _ in range(3) for each in carol.receive(join, now=0)]
    assert [type(each) for each in told] == [Tell]
    assert len(carol.admit(ALICE, is_admitted=False, now=0)) == 1
    assert not carol.admit(ALICE, is_admitted=True, now=0)
    assert [type(each) for each in carol.receive(join, now=0)] == [SayPeer]


def test_an_owner_admits_the_key_that_it_was_shown_and_no_later_one() -> None:
    """A stranger at Alice's address shows her token, which is no secret, and then its own while the owner thinks."""
    carol = Device(address=CAROL, name="Carol", keys=KEYS[CAROL], owner=FAMILY)
    carol.receive(PageEnded(ALICE, is_connected=True), now=0)
    shown, other = (DeviceKeys(letter * 32) for letter in (b"a", b"x"))
    for keys in (shown, other):
        join = m.Join(token=keys.token(ALICE), device_key=keys.public)
        carol.receive(HeardPeer(ALICE, encode(join)), now=0)
    said, _ = carol.admit(ALICE, is_admitted=True, now=0)
    assert isinstance(said, SayPeer)
    assert isinstance(said.message, m.GroupTokenIssued)
    member = check_group_token(said.message.token, group=FAMILY.public, address=ALICE, now=0)
    assert member.device_key == shown.public


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, encode(m.Sleep()), encode(m.GroupTokenIssued(b"x"))])
def test_any_bytes_of_a_peer_are_told_and_change_nothing(data: bytes) -> None:
    """A peer is a stranger."""
    alice = Peer(ALICE, FAMILY)
    alice.device.receive(PageEnded(BOB, is_connected=True), now=0)
    (told,) = alice.device.receive(HeardPeer(BOB, data), now=0)
    assert isinstance(told, Tell)
    assert told.what in {"malformed", "unexpected"}
