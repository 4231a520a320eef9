"""Ed25519 signatures: of samples by their publishers, and of control data and the time by the campus."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from whimbrel.carry.hello import Sample
from whimbrel.carry.wire import signed_bytes
from whimbrel.errors import InvalidValueError, description_of

__all__ = ["PUBLIC_BYTES", "SEED_BYTES", "SampleSigner", "is_signature", "is_signed_by"]

SEED_BYTES = PUBLIC_BYTES = 32


class SampleSigner:
    """A pair of keys; *seed* is the secret key, from a cryptographic random generator."""

    def __init__(self, seed: bytes) -> None:
        if type(seed) is not bytes or len(seed) != SEED_BYTES:
            raise InvalidValueError("seed of a key", description_of(seed), f"{SEED_BYTES} bytes")
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def sign(self, sample: Sample) -> Sample:
        """Return *sample* with its signature."""
        return replace(sample, signature=self.sign_bytes(signed_bytes(sample)))

    def sign_bytes(self, data: bytes) -> bytes:
        """Return the signature of *data*, which must begin with a text that names its purpose."""
        return self._private.sign(data)


def is_signed_by(sample: Sample, keys: Iterable[bytes]) -> bool:
    """Return whether the owner of one of the public *keys* signed *sample*."""
    return sample.signature is not None and is_signature(sample.signature, signed_bytes(sample), keys)


def is_signature(signature: bytes, data: bytes, keys: Iterable[bytes]) -> bool:
    """Return whether the owner of one of the public *keys* signed *data*."""
    return any(_is_valid(signature, data, key) for key in keys)


def _is_valid(signature: bytes, data: bytes, key: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):  # ValueError: the key is not a point of the curve
        return False
    return True
