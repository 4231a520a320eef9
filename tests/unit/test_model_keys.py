"""Keys: hashes only, from the edge inwards."""

from __future__ import annotations

import hashlib

import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.model.keys import MAX_KEYS, NO_KEYS, KeyHash, KeyHashes, Scheme, fingerprint

SECRET = b"correct horse"


def test_a_private_key_leaves_only_its_two_hashes() -> None:
    """The other side may have either kind of public key."""
    sha256, sha1 = fingerprint(SECRET)
    assert sha256 == hashlib.sha256(SECRET).digest()
    assert len(sha1) == 20
    keys = KeyHashes.of_private(Scheme.PRODUCER, SECRET)
    assert keys.digests(Scheme.PRODUCER) == {sha256, sha1}
    assert keys.digests(Scheme.CONSUMER) == frozenset()


@pytest.mark.parametrize("size", [0, 65_536])
def test_an_error_never_shows_a_private_key(size: int) -> None:
    """Errors are logged."""
    with pytest.raises(InvalidValueError) as caught:
        fingerprint(b"s" * size)
    assert "sss" not in str(caught.value)


@pytest.mark.parametrize("digest", [b"", b"x" * 19, b"x" * 33])
def test_a_digest_of_no_known_hash_is_refused(digest: bytes) -> None:
    """A key itself, put where its hash belongs, is nearly always of another length."""
    with pytest.raises(InvalidValueError, match="20 bytes"):
        KeyHash(Scheme.CONSUMER, digest)


def test_key_hashes_have_a_text_form() -> None:
    """The command line and JSON carry ``scheme:hex``; equal sets print the same."""
    keys = KeyHashes.of_private(Scheme.DUAL_CONSUMER, SECRET)
    assert all(text.startswith("dual_consumer:") for text in keys.texts())
    assert KeyHashes.parse(reversed(keys.texts())) == keys


@pytest.mark.parametrize("text", ["", "producer", "producer:00", "owner:" + "0" * 40, "producer:" + "g" * 40])
def test_a_text_that_is_no_key_hash_is_refused(text: str) -> None:
    """The error names the schemes there are."""
    with pytest.raises(InvalidValueError, match="dual_consumer"):
        KeyHashes.parse([text])


def test_sets_of_hashes_unite() -> None:
    """A device's connection keys are merged into each of its subscriptions."""
    one, two = KeyHash(Scheme.PRODUCER, b"1" * 20), KeyHash(Scheme.PRODUCER, b"2" * 32)
    both = KeyHashes(frozenset({one})) | KeyHashes(frozenset({two}))
    assert set(both) == {one, two}
    assert one in both
    assert len(NO_KEYS) == 0


def test_a_set_of_hashes_is_bounded() -> None:
    """Every match looks at all of them."""
    many = frozenset(KeyHash(Scheme.PRODUCER, number.to_bytes(20)) for number in range(MAX_KEYS + 1))
    with pytest.raises(InvalidValueError, match="at most 256 hashes"):
        KeyHashes(many)
