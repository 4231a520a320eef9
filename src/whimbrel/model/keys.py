"""Keys: hashes that restrict which publications reach which subscribers.

Rule: a private key is hashed at the edge (``fingerprint``) and never stored; log and store hold only hashes.
Rule: a digest has 20 bytes (SHA-1, as in Elvin) or 32 (SHA-256, preferred). The side with the private key carries both
hashes of it, so that it meets a public key of either kind.
Which sets must meet is decided in ``match/keys``, not here.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from whimbrel.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["DIGEST_BYTES", "MAX_KEYS", "NO_KEYS", "OPEN", "KeyHash", "KeyHashes", "Scheme", "Secured", "fingerprint"]

DIGEST_BYTES = frozenset({20, 32})
MAX_KEYS = 256
MAX_PRIVATE_KEY_BYTES = 65_535

_TEXT = re.compile(r"([a-z_]+):([0-9a-fA-F]{40}|[0-9a-fA-F]{64})")


class Scheme(Enum):
    """The side that a key protects; only hashes of equal schemes are compared."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    DUAL_PRODUCER = "dual_producer"
    DUAL_CONSUMER = "dual_consumer"


@dataclass(frozen=True, slots=True)
class KeyHash:
    """The hash of one key under one scheme; its text form is ``scheme:hex``."""

    scheme: Scheme
    digest: bytes

    def __post_init__(self) -> None:
        if type(self.digest) is not bytes or len(self.digest) not in DIGEST_BYTES:
            raise InvalidValueError("digest of a key", self.digest, "20 bytes (SHA-1) or 32 bytes (SHA-256)")

    @classmethod
    def parse(cls, text: str) -> KeyHash:
        """Return the hash with the text form ``scheme:hex``."""
        found = _TEXT.fullmatch(text)
        if found is None or found[1] not in _SCHEMES:
            schemes = ", ".join(_SCHEMES)
            raise InvalidValueError("key hash", text, f"scheme:hex of 40 or 64 digits, the scheme one of {schemes}")
        return cls(_SCHEMES[found[1]], bytes.fromhex(found[2]))

    def __str__(self) -> str:
        return f"{self.scheme.value}:{self.digest.hex()}"


@dataclass(frozen=True, slots=True)
class KeyHashes:
    """The set of key hashes of a notification, a subscription or a connection."""

    hashes: frozenset[KeyHash] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "hashes", frozenset(self.hashes))
        if len(self.hashes) > MAX_KEYS:
            raise InvalidValueError("keys", len(self.hashes), f"at most {MAX_KEYS} hashes")

    @classmethod
    def parse(cls, texts: Iterable[str]) -> KeyHashes:
        """Return the set of the hashes in *texts*, each ``scheme:hex``."""
        return cls(frozenset(map(KeyHash.parse, texts)))

    @classmethod
    def of_private(cls, scheme: Scheme, private_key: bytes) -> KeyHashes:
        """Return the hashes that the holder of *private_key* carries: both hashes of the key, never the key itself."""
        return cls(frozenset(KeyHash(scheme, digest) for digest in fingerprint(private_key)))

    def texts(self) -> tuple[str, ...]:
        """Return the sorted text forms, so that equal sets print the same."""
        return tuple(sorted(map(str, self.hashes)))

    def digests(self, scheme: Scheme) -> frozenset[bytes]:
        """Return the digests under *scheme*."""
        return frozenset(each.digest for each in self.hashes if each.scheme is scheme)

    def __or__(self, other: KeyHashes) -> KeyHashes:
        return KeyHashes(self.hashes | other.hashes)

    def __contains__(self, item: KeyHash) -> bool:
        return item in self.hashes

    def __iter__(self) -> Iterator[KeyHash]:
        return iter(self.hashes)

    def __len__(self) -> int:
        return len(self.hashes)


NO_KEYS = KeyHashes()

_SCHEMES = {scheme.value: scheme for scheme in Scheme}


class Secured(NamedTuple):
    """The keys of a notification, and whether it may be delivered to subscriptions without matching keys."""

    keys: KeyHashes
    deliver_insecure: bool


OPEN = Secured(NO_KEYS, deliver_insecure=True)
"""The value of nearly every notification: no keys."""


def fingerprint(private_key: bytes) -> tuple[bytes, bytes]:
    """Return the public keys of *private_key*: its SHA-256, which we prefer, and its SHA-1, as in Elvin."""
    if not 1 <= len(private_key) <= MAX_PRIVATE_KEY_BYTES:
        size = f"{len(private_key)} bytes"  # the size only: an error must not show a private key
        raise InvalidValueError("private key", size, f"1 to {MAX_PRIVATE_KEY_BYTES} bytes")
    # SHA-1 because Elvin clients know no other; a strict deployment hands out only SHA-256 public keys.
    return hashlib.sha256(private_key).digest(), hashlib.sha1(private_key, usedforsecurity=False).digest()
