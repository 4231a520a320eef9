"""Tokens: every way to be no member is refused, and says which way without saying what was in the token."""

from __future__ import annotations

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous import tokens
from whimbrel.rendezvous.controller import Parameters
from whimbrel.rendezvous.controller.proofs.members import Members
from whimbrel.rendezvous.events import Address, GroupKey
from whimbrel.rendezvous.tokens import (
    DeviceKeys,
    GroupOwner,
    TokenError,
    TokenFault,
    check_answer,
    check_device_token,
    check_group_token,
)
from whimbrel.rendezvous.wire import SIGNATURE_BYTES, decode, encode

ALICE, BOB, CONTROLLER = (Address(f"00:00:00:00:00:0{digit}") for digit in "AB1")
ALICES, BOBS = DeviceKeys(b"a" * 32), DeviceKeys(b"b" * 32)
CAROLS_GROUP, STRANGERS_GROUP = GroupOwner(b"c" * 32), GroupOwner(b"s" * 32)
EXPIRY = 1_000
CHALLENGE = b"n" * 32


def group_token(owner: GroupOwner = CAROLS_GROUP, address: Address = ALICE, keys: DeviceKeys = ALICES) -> bytes:
    """Return the token that *owner* gives to the device at *address* (Figure 2-11)."""
    return owner.admit(keys.token(address), device_key=keys.public, peer=address, expires_at=EXPIRY)


def fault_of(token: bytes, address: Address = ALICE, *, now: int = 0, least_epoch: int = 0) -> TokenFault:
    """Return why *token* is refused from *address*."""
    with pytest.raises(TokenError) as caught:
        check_group_token(token, group=CAROLS_GROUP.public, address=address, now=now, least_epoch=least_epoch)
    return caught.value.fault


def test_a_member_is_verified_by_anyone() -> None:
    """Figure 2-12: group token, device token, address."""
    found = check_group_token(group_token(), group=CAROLS_GROUP.public, address=ALICE, now=EXPIRY - 1)
    assert (found.address, found.device_key, found.epoch) == (ALICE, ALICES.public, 1)


def test_figure_2_11_a_device_joins_a_group_message_by_message() -> None:
    """Device token and key to the owner, who compares them with its peer; a group token back, which is checked."""
    asked = decode(encode(m.Join(token=ALICES.token(ALICE), device_key=ALICES.public)))
    assert isinstance(asked, m.Join)
    token = CAROLS_GROUP.admit(asked.token, device_key=asked.device_key, peer=ALICE, expires_at=EXPIRY)
    issued = decode(encode(m.GroupTokenIssued(token)))
    assert isinstance(issued, m.GroupTokenIssued)
    found = check_group_token(issued.token, group=CAROLS_GROUP.public, address=ALICE, now=0)
    assert found.device_key == ALICES.public  # so it was the owner: the device finds its own token inside


def test_figure_2_12_a_membership_is_verified_message_by_message() -> None:
    """Ask, then token and answer to the challenge; the address must be that of the peer."""
    asked = decode(encode(m.Ask(group=CAROLS_GROUP.public, challenge=CHALLENGE)))
    assert isinstance(asked, m.Ask)
    answer = ALICES.answer(asked.challenge, group=asked.group, address=ALICE, controller=CONTROLLER)
    proof = m.Proof(
        group=asked.group, challenge=asked.challenge, device_key=ALICES.public, answer=answer, token=group_token()
    )
    told = decode(encode(proof))
    assert isinstance(told, m.Proof)
    members = Members(Parameters())
    members.check(told, asked, address=ALICE, controller=CONTROLLER, now=0)
    with pytest.raises(TokenError):
        members.check(told, asked, address=BOB, controller=CONTROLLER, now=0)


def test_the_owner_is_a_member_of_its_own_group() -> None:
    """Its token is signed by itself like any other."""
    carol = DeviceKeys(b"k" * 32)
    own = CAROLS_GROUP.admit(carol.token(BOB), device_key=carol.public, peer=BOB, expires_at=EXPIRY)
    assert check_group_token(own, group=CAROLS_GROUP.public, address=BOB, now=0).device_key == carol.public


def test_an_owner_cannot_make_a_member_of_a_device_that_did_not_ask() -> None:
    """The device token inside is checked, too: the device's own key must have signed its address (Figure 2-12)."""
    token = bytearray(group_token())
    token[-2 * SIGNATURE_BYTES] ^= 1  # the first byte of the device's signature
    signed = tokens._signed_by_group(CAROLS_GROUP.public, bytes(token))
    forged = bytes(token[:-SIGNATURE_BYTES]) + CAROLS_GROUP._private.sign(signed)
    assert fault_of(forged) is TokenFault.WRONG_DEVICE


def test_a_token_from_another_address_is_refused() -> None:
    """A captured token is worth nothing elsewhere."""
    assert fault_of(group_token(), address=BOB) is TokenFault.WRONG_ADDRESS


def test_a_token_of_a_strangers_group_is_refused() -> None:
    """Any device may own a group; that makes it no member of another."""
    assert fault_of(group_token(owner=STRANGERS_GROUP)) is TokenFault.WRONG_GROUP


def test_a_token_of_an_old_epoch_is_refused() -> None:
    """The owner left a member out and gave all others new tokens."""
    assert fault_of(group_token(), least_epoch=2) is TokenFault.OLD_EPOCH


def test_new_group_keys_revoke_every_token() -> None:
    """As in the thesis: the old tokens are signed by a key that no list names any more (5.4.1)."""
    renewed = GroupOwner(b"d" * 32, epoch=2)
    with pytest.raises(TokenError) as caught:
        check_group_token(group_token(), group=renewed.public, address=ALICE, now=0)
    assert caught.value.fault is TokenFault.WRONG_GROUP


def test_a_token_is_alive_only_before_its_expiry() -> None:
    """Alive iff ``now < expires_at``, here as everywhere."""
    assert fault_of(group_token(), now=EXPIRY) is TokenFault.EXPIRED


def test_every_flipped_bit_of_a_token_is_refused() -> None:
    """Version, address, key, epoch, expiry, both signatures: nothing in it is free."""
    token = group_token()
    for bit in range(len(token) * 8):
        flipped = bytearray(token)
        flipped[bit // 8] ^= 1 << bit % 8
        fault_of(bytes(flipped))


@pytest.mark.parametrize("token", [b"", b"\1", b"\1" * 178, b"\1" * 179, b"\0" * 179, b"\1" * 180])
def test_bytes_that_are_no_token_are_refused(token: bytes) -> None:
    """Any bytes, our error; a zero key is no point of the curve."""
    assert fault_of(token) in {TokenFault.MALFORMED, TokenFault.WRONG_ADDRESS}


def test_the_owner_admits_only_the_device_it_is_connected_to() -> None:
    """Otherwise an overheard device token would buy a membership."""
    with pytest.raises(TokenError) as caught:
        CAROLS_GROUP.admit(ALICES.token(ALICE), device_key=ALICES.public, peer=BOB, expires_at=EXPIRY)
    assert caught.value.fault is TokenFault.WRONG_ADDRESS
    with pytest.raises(TokenError) as caught:
        CAROLS_GROUP.admit(ALICES.token(ALICE), device_key=BOBS.public, peer=ALICE, expires_at=EXPIRY)
    assert caught.value.fault is TokenFault.WRONG_DEVICE


def test_every_flipped_bit_of_a_device_token_is_refused() -> None:
    """What the owner signs must be what the device signed."""
    token = ALICES.token(ALICE)
    for bit in range(len(token) * 8):
        flipped = bytearray(token)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(TokenError):
            check_device_token(bytes(flipped), device_key=ALICES.public, address=ALICE)


def test_an_answer_is_good_for_one_challenge_group_address_and_controller() -> None:
    """A replayed answer, or one that was relayed to another controller, proves nothing."""
    group = CAROLS_GROUP.public
    answer = ALICES.answer(CHALLENGE, group=group, address=ALICE, controller=CONTROLLER)
    right = {"challenge": CHALLENGE, "device_key": ALICES.public, "group": group, "address": ALICE}
    check_answer(answer, **right, controller=CONTROLLER)  # type: ignore[arg-type]  # a table of arguments
    for name, wrong in {
        "challenge": b"m" * 32,
        "device_key": BOBS.public,
        "group": STRANGERS_GROUP.public,
        "address": BOB,
        "controller": BOB,
    }.items():
        with pytest.raises(TokenError):
            check_answer(answer, **{**right, "controller": CONTROLLER, name: wrong})  # type: ignore[arg-type]  # so


def test_one_signature_never_stands_for_another() -> None:
    """Domains separate them: a challenge made to look like an address is still no device token."""
    answer = ALICES.answer(CHALLENGE, group=CAROLS_GROUP.public, address=ALICE, controller=CONTROLLER)
    token = ALICES.token(ALICE)
    with pytest.raises(TokenError):
        check_device_token(token[:-64] + answer, device_key=ALICES.public, address=ALICE)


def test_no_error_and_no_repr_shows_a_secret() -> None:
    """Whoever reads the log must not become a member by it."""
    seed = b"\x5a" * 32
    keys = DeviceKeys(seed)
    membership = check_group_token(group_token(), group=CAROLS_GROUP.public, address=ALICE, now=0)
    with pytest.raises(InvalidValueError) as caught:
        DeviceKeys(seed + b"!")
    for shown in (repr(keys), repr(membership), str(caught.value), str(TokenError(TokenFault.WRONG_GROUP))):
        assert "ZZZZ" not in shown
        assert ALICES.public.hex() not in shown
        assert repr(ALICES.public) not in shown


def test_a_group_key_that_is_no_key_matches_nothing() -> None:
    """A list of keys is from outside: 32 bytes that are no point of the curve are refused, not raised."""
    with pytest.raises(TokenError) as caught:
        check_group_token(group_token(), group=GroupKey(b"\xff" * 32), address=ALICE, now=0)
    assert caught.value.fault is TokenFault.WRONG_GROUP
