"""Signatures of frames (Ed25519). Any node may announce an ambulance; a receiver believes only signed ones.

Rule: a signature covers all fields that relays do not change, the time of issue included, with a domain prefix that
separates it from every other signature of ours.
Rule: the key that signed an event is a producer's key in the sense of ``match/keys``: a subscription that names the
key's hash and accepts no insecure notifications is delivered nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from whimbrel.errors import InvalidValueError, description_of
from whimbrel.model.keys import NO_KEYS, KeyHashes, Scheme
from whimbrel.nearby.frames.values import Event, Signable
from whimbrel.nearby.frames.wire import signed_bytes

__all__ = ["SEED_BYTES", "Signer", "has_valid_signature", "keys_proven"]

SEED_BYTES = 32
_DOMAIN = b"whimbrel nearby: frame 2\0"
_Signed = TypeVar("_Signed", bound=Signable)


class Signer:
    """A node's own key pair; *seed* is the secret, from a cryptographic random generator."""

    def __init__(self, seed: bytes) -> None:
        if type(seed) is not bytes or len(seed) != SEED_BYTES:
            raise InvalidValueError("seed of a key", description_of(seed), f"{SEED_BYTES} bytes")
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def sign(self, frame: _Signed, *, issued_at: int | None) -> _Signed:
        """Return *frame* with its time of issue (``None`` while the clock is not set), this key and its signature."""
        bare = replace(frame, issued_at=issued_at or 0, key=self.public, signature=None)
        return replace(bare, signature=self._private.sign(_DOMAIN + signed_bytes(bare)))


def has_valid_signature(frame: Signable) -> bool:
    """Return whether the key in *frame* signed it."""
    if frame.key is None or frame.signature is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(frame.key).verify(frame.signature, _DOMAIN + signed_bytes(frame))
    except (InvalidSignature, ValueError):  # a key that is not a point of the curve verifies nothing
        return False
    return True


def keys_proven(frame: Event) -> KeyHashes:
    """Return the key hashes that *frame* proves: those of the key that signed it, if the signature is valid."""
    if frame.key is None or not has_valid_signature(frame):
        return NO_KEYS
    return KeyHashes.of_private(Scheme.PRODUCER, frame.key)
