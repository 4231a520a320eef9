"""Tokens: proofs of a device's membership in a group, which a stranger can verify (Huang, 2.3).

The thesis calls signing "encrypting with a private key"; here it is done with Ed25519. A *device token* is a device's
signature over its address; a *group token* is the owner's signature over that device token, an epoch and an expiry.
Two things are added. The signatures are separated by domain, so that one can never stand for another. And a member
answers a fresh challenge with its device key: in the thesis, any device that has overheard a token can replay it.

Rule: a token is bound to an address, a device key, a group, an epoch and an expiry; any other bit is refused.
Rule: a new group key revokes every token of the old one. A higher epoch under the same key revokes the lower ones
wherever it has been seen, so that one member can be left out without a new name for the group.
Rule: errors name the check that failed, never the content of the token.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import Enum

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from whimbrel.errors import InvalidInputError, InvalidValueError, description_of
from whimbrel.model.bounds import INT64_MAX, whole
from whimbrel.model.clock import is_alive
from whimbrel.rendezvous.events import KEY_BYTES, Address, GroupKey, address_from, address_to_bytes
from whimbrel.rendezvous.wire import CHALLENGE_BYTES

__all__ = [
    "MAX_EPOCH",
    "SEED_BYTES",
    "DeviceKeys",
    "GroupOwner",
    "Membership",
    "TokenError",
    "TokenFault",
    "check_answer",
    "check_device_token",
    "check_group_token",
    "device_key_of",
]

SEED_BYTES = 32
MAX_EPOCH = 2**32 - 1

_VERSION = 1
_DEVICE = struct.Struct(">B6s32s64s")
_GROUP = struct.Struct(">B6s32sIq64s64s")
_SIGNATURE_BYTES = 64
_OF_DEVICE = b"whimbrel rendezvous: device token 1\0"
_OF_GROUP = b"whimbrel rendezvous: group token 1\0"
_OF_ANSWER = b"whimbrel rendezvous: answer 1\0"


class TokenFault(Enum):
    """The check that a token or an answer failed."""

    MALFORMED = "it has not the form of a token"
    WRONG_ADDRESS = "it was issued to another address"
    WRONG_GROUP = "the owner of this group did not sign it"
    WRONG_DEVICE = "this device's key did not sign it"
    OLD_EPOCH = "the owner has revoked tokens of its epoch"
    EXPIRED = "its time is over"
    WRONG_ANSWER = "the challenge was not answered with this device's key"


class TokenError(InvalidInputError):
    """A proof of membership was refused. Reaction: try the next common group, or do not match."""

    def __init__(self, fault: TokenFault) -> None:
        super().__init__(fault)
        self.fault = fault

    def __str__(self) -> str:
        return f"membership refused: {self.fault.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A checked group token: the key, at the address, is a member until the expiry."""

    address: Address
    device_key: bytes = field(repr=False)
    epoch: int
    expires_at: int


class DeviceKeys:
    """A device's own pair of keys; *seed* is the secret, from a generator fit for secrets."""

    def __init__(self, seed: bytes) -> None:
        self._private = _private(seed)
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def token(self, address: Address) -> bytes:
        """Return the device token: the address, signed (Figure 2-11)."""
        where = address_to_bytes(address)
        return _DEVICE.pack(_VERSION, where, self.public, self._private.sign(_OF_DEVICE + where + self.public))

    def answer(self, challenge: bytes, *, group: GroupKey, address: Address, controller: Address) -> bytes:
        """Return the answer to *challenge*: good for this controller, group and address only."""
        return self._private.sign(_challenge_message(challenge, group, address, controller))


class GroupOwner:
    """The owner of a group: the one device that may admit members (2.3). It signs its own token, too."""

    def __init__(self, seed: bytes, *, epoch: int = 1) -> None:
        self._private = _private(seed)
        self.epoch = whole("epoch", epoch, 0, MAX_EPOCH)
        self.public = GroupKey(self._private.public_key().public_bytes_raw())

    def admit(self, device_token: bytes, *, device_key: bytes, peer: Address, expires_at: int) -> bytes:
        """Return a group token for the device that shows *device_token* and is connected from *peer*.

        The owner decrypts the token and compares it with the device it is speaking to (2.3): a token that was
        overheard gets another device nothing.
        """
        whole("expires_at", expires_at, 0, INT64_MAX)
        signature = check_device_token(device_token, device_key=device_key, address=peer)
        where = address_to_bytes(peer)
        unsigned = _GROUP.pack(_VERSION, where, device_key, self.epoch, expires_at, signature, b"")
        return unsigned[:-_SIGNATURE_BYTES] + self._private.sign(_signed_by_group(self.public, unsigned))


def device_key_of(token: bytes) -> bytes:
    """Return the public key that a device token names; whether the token is good is not checked."""
    if len(token) != _DEVICE.size or token[0] != _VERSION:
        raise TokenError(TokenFault.MALFORMED)
    return bytes(_DEVICE.unpack(token)[2])


def check_device_token(token: bytes, *, device_key: bytes, address: Address) -> bytes:
    """Return the signature in a device token that *device_key* made for *address*, or raise ``TokenError``."""
    if len(token) != _DEVICE.size or token[0] != _VERSION:
        raise TokenError(TokenFault.MALFORMED)
    _, where, key, signature = _DEVICE.unpack(token)
    if address_from(where) != address:
        raise TokenError(TokenFault.WRONG_ADDRESS)
    if key != device_key:
        raise TokenError(TokenFault.WRONG_DEVICE)
    _check(key, signature, _OF_DEVICE + where + key, TokenFault.WRONG_DEVICE)
    return bytes(signature)


def check_group_token(token: bytes, *, group: GroupKey, address: Address, now: int, least_epoch: int = 0) -> Membership:
    """Return the membership that *token* proves for the device at *address*, or raise ``TokenError`` (Figure 2-12)."""
    if len(token) != _GROUP.size or token[0] != _VERSION:
        raise TokenError(TokenFault.MALFORMED)
    _, where, key, epoch, expires_at, device_signature, owner_signature = _GROUP.unpack(token)
    if address_from(where) != address:
        raise TokenError(TokenFault.WRONG_ADDRESS)
    _check(group, owner_signature, _signed_by_group(group, token), TokenFault.WRONG_GROUP)
    _check(key, device_signature, _OF_DEVICE + where + key, TokenFault.WRONG_DEVICE)
    if epoch < least_epoch:
        raise TokenError(TokenFault.OLD_EPOCH)
    if not is_alive(expires_at, now=now):
        raise TokenError(TokenFault.EXPIRED)
    return Membership(address=address, device_key=key, epoch=epoch, expires_at=expires_at)


def check_answer(
    answer: bytes, *, challenge: bytes, device_key: bytes, group: GroupKey, address: Address, controller: Address
) -> None:
    """Raise ``TokenError`` unless *device_key* answered this very challenge, here, for this group and address."""
    _check(device_key, answer, _challenge_message(challenge, group, address, controller), TokenFault.WRONG_ANSWER)


def _private(seed: bytes) -> Ed25519PrivateKey:
    if type(seed) is not bytes or len(seed) != SEED_BYTES:
        raise InvalidValueError("seed of a key", description_of(seed), f"{SEED_BYTES} bytes")
    return Ed25519PrivateKey.from_private_bytes(seed)


def _signed_by_group(group: bytes, token: bytes) -> bytes:
    """Return the bytes that the owner signs: all of *token* except the owner's signature, for this group."""
    return _OF_GROUP + group + token[:-_SIGNATURE_BYTES]


def _challenge_message(challenge: bytes, group: bytes, address: Address, controller: Address) -> bytes:
    if len(challenge) != CHALLENGE_BYTES or len(group) != KEY_BYTES:
        raise TokenError(TokenFault.MALFORMED)
    return _OF_ANSWER + challenge + group + address_to_bytes(address) + address_to_bytes(controller)


def _check(key: bytes, signature: bytes, signed: bytes, fault: TokenFault) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except (InvalidSignature, ValueError):  # a key that is not a point of the curve verifies nothing
        raise TokenError(fault) from None
