"""Keyring: parses Elvin's keys from the text form in which clients send them, and hashes private keys at once.

| text | meaning |
|---|---|
| ``<scheme>:private:<text>`` | a private key: both of its hashes are kept, the text is not |
| ``<scheme>:<hex>`` | a public key: the SHA-256 (64 digits) or the SHA-1 (40 digits) of a private one |

Rule: the scheme of a key, and whether it is private, decide if it is for publications or for subscriptions. In each
scheme one side proves its identity (``match/keys``): that side has private keys, the other side public ones.
Rule: so the broker itself computes every hash that proves an identity. A client that knows only a public key cannot
act as its owner.
Rule: an error, or the error that caused it, never quotes the text of a key: it may be a private key, and errors are
logged and sent. The error has the number of the key in the request, counted from 1, and the allowed forms.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.match.keys import NOTIFICATION_PROVES, SUBSCRIPTION_PROVES
from whimbrel.model.keys import MAX_KEYS, NO_KEYS, KeyHash, KeyHashes, Scheme

__all__ = [
    "MAX_PRIVATE_TEXT_BYTES",
    "NO_KEYS_AT_ALL",
    "Keyring",
    "for_publication",
    "for_subscription",
    "read_insecure",
    "read_keys",
]

MAX_PRIVATE_TEXT_BYTES = 1_024

_PRIVATE = "private:"
_SCHEMES = {scheme.value: scheme for scheme in Scheme}
_NO_KEY = Phrase("a text that is no key (not shown)")
_ALLOWED = f"<scheme>:private:<text>, or <scheme>:<hex> of 64 or 40 digits, the scheme one of {', '.join(_SCHEMES)}"
_INSECURE = {"yes": True, "no": False}


class _Side(Enum):
    """The side that carries a key: a publication or a subscription."""

    PUBLICATION = "publication"
    SUBSCRIPTION = "subscription"


_PROVES = {_Side.PUBLICATION: NOTIFICATION_PROVES, _Side.SUBSCRIPTION: SUBSCRIPTION_PROVES}


@dataclass(frozen=True, slots=True)
class Keyring:
    """The key hashes of a connection: those of its publications, and those of its subscriptions."""

    publications: KeyHashes = NO_KEYS
    subscriptions: KeyHashes = NO_KEYS

    def __or__(self, other: Keyring) -> Keyring:
        return Keyring(self.publications | other.publications, self.subscriptions | other.subscriptions)

    def __len__(self) -> int:
        return len(self.publications.hashes) + len(self.subscriptions.hashes)

    def without(self, other: Keyring) -> Keyring:
        """Return this keyring without the keys of *other*; keys that it does not have are ignored."""
        return Keyring(
            KeyHashes(self.publications.hashes - other.publications.hashes),
            KeyHashes(self.subscriptions.hashes - other.subscriptions.hashes),
        )


NO_KEYS_AT_ALL = Keyring()


def read_keys(texts: Iterable[str]) -> Keyring:
    """Parse *texts* as keys, and return each on its side; raise ``InvalidValueError`` for a text that is not a key."""
    return _read(texts, None)


def for_publication(texts: Iterable[str]) -> KeyHashes:
    """Parse *texts* as keys of a publication; raise ``InvalidValueError`` for a key that is for subscriptions."""
    return _read(texts, _Side.PUBLICATION).publications


def for_subscription(texts: Iterable[str]) -> KeyHashes:
    """Parse *texts* as keys of a subscription; raise ``InvalidValueError`` for a key that is for publications."""
    return _read(texts, _Side.SUBSCRIPTION).subscriptions


def read_insecure(text: str) -> bool:
    """Parse the value of ``insecure``: return True for ``yes`` and False for ``no``."""
    found = _INSECURE.get(text)
    if found is None:
        raise InvalidValueError("insecure", Phrase("another word"), "yes or no")
    return found


def _read(texts: Iterable[str], only: _Side | None) -> Keyring:
    """Parse *texts* as keys; if *only* is given, refuse a key of the other side."""
    hashes: dict[_Side, set[KeyHash]] = {side: set() for side in _Side}
    for number, text in enumerate(texts, start=1):
        what = f"key {number}" if only is None else f"key {number} of a {only.value}"
        key = _read_key(text, what)
        if only is not None and key.side is not only:
            raise InvalidValueError(what, Phrase(key), _kinds_text(only))
        hashes[key.side] |= key.hashes.hashes
        if len(hashes[key.side]) > MAX_KEYS:  # checked per key: hashing the keys behind it would be wasted work
            allowed = f"at most {MAX_KEYS} hashes for {key.side.value}s; a private key has two"
            raise InvalidValueError(what, Phrase(f"{len(hashes[key.side])} hashes"), allowed)
    return Keyring(KeyHashes(frozenset(hashes[_Side.PUBLICATION])), KeyHashes(frozenset(hashes[_Side.SUBSCRIPTION])))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """One parsed key; of a private key only the hashes are left."""

    scheme: Scheme
    is_private: bool
    hashes: KeyHashes

    @property
    def side(self) -> _Side:
        """The side that the key is for."""
        return next(side for side in _Side if (self.scheme in _PROVES[side]) is self.is_private)

    def __str__(self) -> str:
        return f"a {'private' if self.is_private else 'public'} key of {self.scheme.value}"


def _kinds_text(side: _Side) -> str:
    """Return, as words for an error, the kinds of keys that *side* may carry."""
    private, public = (
        " and ".join(scheme.value for scheme in Scheme if (scheme in _PROVES[side]) is is_private)
        for is_private in (True, False)
    )
    return f"private keys of {private}, and public keys of {public}"


def _read_key(text: str, what: str) -> _Key:
    word, _, rest = text.partition(":")
    scheme = _SCHEMES.get(word)
    if scheme is None:
        raise InvalidValueError(what, _NO_KEY, _ALLOWED)
    if rest.startswith(_PRIVATE):
        secret = _encode(rest.removeprefix(_PRIVATE))
        if secret is None:
            raise InvalidValueError(what, Phrase("half of a character"), "Unicode without lone surrogates")
        if not 1 <= len(secret) <= MAX_PRIVATE_TEXT_BYTES:
            allowed = f"1 to {MAX_PRIVATE_TEXT_BYTES} bytes of UTF-8 behind {_PRIVATE}"
            raise InvalidValueError(what, Phrase(f"{len(secret)} bytes"), allowed)
        return _Key(scheme=scheme, is_private=True, hashes=KeyHashes.of_private(scheme, secret))
    public = _parse_hash(text)
    if public is None:
        raise InvalidValueError(what, _NO_KEY, _ALLOWED)
    return _Key(scheme=scheme, is_private=False, hashes=KeyHashes(frozenset({public})))


# These two return None instead of raising: an error that is raised while another is handled keeps a reference to it
# (``__context__``), and with it the text of the key.


def _encode(text: str) -> bytes | None:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _parse_hash(text: str) -> KeyHash | None:
    try:
        return KeyHash.parse(text)
    except InvalidValueError:
        return None
