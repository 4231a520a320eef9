"""Keys on the wire: what is read, on which side it stands, and that no error shows a private key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from traceback import format_exception

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.broker.access.keyring import (
    NO_KEYS_AT_ALL,
    Keyring,
    for_publication,
    for_subscription,
    read_insecure,
    read_keys,
)
from whimbrel.errors import InvalidValueError
from whimbrel.match.keys import keys_match
from whimbrel.model.keys import MAX_KEYS, NO_KEYS, KeyHash, KeyHashes, Scheme

SECRET = "correct horse: battery"
SHA256 = hashlib.sha256(SECRET.encode()).hexdigest()
SHA1 = hashlib.sha1(SECRET.encode(), usedforsecurity=False).hexdigest()
READERS: list[Callable[[Iterable[str]], object]] = [read_keys, for_publication, for_subscription]
PRODUCERS, CONSUMERS = ["producer", "dual_producer"], ["consumer", "dual_consumer"]


def _chain(error: BaseException) -> str:
    """Return all that is said by *error* and by whatever stands behind it, shown or not."""
    texts: list[str] = []
    found: BaseException | None = error
    while found is not None:
        texts += [str(found), repr(found), repr(found.args), repr(vars(found)), *format_exception(found)]
        found = found.__cause__ or found.__context__
    return "\n".join(texts)


def _outcome(read: Callable[[Iterable[str]], object], texts: Iterable[str]) -> tuple[object, InvalidValueError | None]:
    try:
        return read(texts), None
    except InvalidValueError as error:
        return None, error


def _refusal(read: Callable[[Iterable[str]], object], *texts: str) -> str:
    with pytest.raises(InvalidValueError) as raised:
        read(texts)
    assert "horse" not in _chain(raised.value)
    return str(raised.value)


# -- what is read ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", PRODUCERS)
def test_producers_prove_who_they_are(scheme: str) -> None:
    """A publication carries the private key, as both hashes; a subscription names a public one."""
    both = KeyHashes.parse([f"{scheme}:{SHA256}", f"{scheme}:{SHA1}"])
    assert read_keys([f"{scheme}:private:{SECRET}"]) == Keyring(publications=both)
    assert read_keys([f"{scheme}:{SHA1}"]) == Keyring(subscriptions=KeyHashes.parse([f"{scheme}:{SHA1}"]))


@pytest.mark.parametrize("scheme", CONSUMERS)
def test_consumers_prove_who_they_are(scheme: str) -> None:
    """The other way round: a subscription carries the private key, a publication names a public one."""
    both = KeyHashes.parse([f"{scheme}:{SHA256}", f"{scheme}:{SHA1}"])
    assert read_keys([f"{scheme}:private:{SECRET}"]) == Keyring(subscriptions=both)
    assert read_keys([f"{scheme}:{SHA256.upper()}"]) == Keyring(publications=KeyHashes.parse([f"{scheme}:{SHA256}"]))


@pytest.mark.parametrize("public", [SHA256, SHA1])
def test_what_two_clients_say_of_one_key_meets(public: str) -> None:
    """Dual needs both halves, each proved by the side that has the private key."""
    publication = for_publication([f"dual_producer:private:{SECRET}", f"dual_consumer:{public}"])
    subscription = for_subscription([f"dual_producer:{public}", f"dual_consumer:private:{SECRET}"])
    assert keys_match(publication, subscription)
    assert not keys_match(publication, for_subscription([f"dual_producer:{public}"]))


@pytest.mark.parametrize("scheme", Scheme)
def test_a_public_key_proves_nothing(scheme: Scheme) -> None:
    """Who only knows the hash, which is public, cannot put it where the owner's would stand."""
    proved = read_keys([f"{scheme.value}:private:{SECRET}"])
    named = read_keys([f"{scheme.value}:{SHA256}", f"{scheme.value}:{SHA1}"])
    assert named.publications == proved.subscriptions
    assert named.subscriptions == proved.publications
    assert NO_KEYS in {named.publications, named.subscriptions}


@pytest.mark.parametrize("secret", ["x", "x" * 1_024, "ü" * 512, ":", "private:", "a:b\n\0 ", SHA256])
def test_a_private_key_is_any_text(secret: str) -> None:
    """The hash is of the text's bytes, exactly as they came: others hash it elsewhere."""
    expected = KeyHashes.of_private(Scheme.PRODUCER, secret.encode())
    assert for_publication([f"producer:private:{secret}"]) == expected


def test_no_texts_are_no_keys() -> None:
    """Most connections have none."""
    assert read_keys([]) == NO_KEYS_AT_ALL == Keyring(NO_KEYS, NO_KEYS)
    assert for_publication(()) == for_subscription(()) == NO_KEYS


def test_a_private_key_is_not_kept() -> None:
    """What is held may be printed."""
    assert "horse" not in repr(read_keys([f"producer:private:{SECRET}"]))


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        SECRET,
        "producer",
        "producer:",
        "producer:horse",
        "producer:private",
        "producer:Private:horse",
        "producer: private:horse",
        "Producer:private:horse",
        "horse:private:horse",
        ":private:horse",
        "private:horse",
        f"producer:{SHA256}0",
        f"producer:{SHA1[1:]}",
        f"producer:{SHA256}\n",
        f"owner:{SHA256}",
        "producer:" + "٠" * 40,
    ],
)
def test_what_is_no_key_is_refused_and_not_shown(read: Callable[[Iterable[str]], object], text: str) -> None:
    """A private key with a slip in front of it is still private; the error says which one, and what would be one."""
    refusal = _refusal(read, text)
    assert refusal.startswith("key 1")
    assert "found a text that is no key (not shown), allowed is <scheme>:private:<text>, or <scheme>:<hex>" in refusal
    assert refusal.endswith("producer, consumer, dual_producer, dual_consumer")


def test_an_error_says_which_key_it_was() -> None:
    """There may be hundreds."""
    good = f"producer:private:{SECRET}"
    assert _refusal(read_keys, good, good, SECRET, "").startswith("key 3: ")
    assert _refusal(for_publication, good, SECRET).startswith("key 2 of a publication: ")


@pytest.mark.parametrize(
    ("secret", "found"), [("", "0 bytes"), ("horse" * 205, "1025 bytes"), ("ü" * 513, "1026 bytes")]
)
def test_a_private_key_has_a_size(secret: str, found: str) -> None:
    """Only the size is said."""
    refusal = _refusal(read_keys, f"consumer:private:{secret}")
    assert refusal == f"key 1: found {found}, allowed is 1 to 1024 bytes of UTF-8 behind private:"


def test_half_a_surrogate_pair_has_no_bytes_to_hash() -> None:
    """JSON can spell it."""
    assert "allowed is Unicode without lone surrogates" in _refusal(read_keys, "producer:private:horse\ud800")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *((f"{each}:{SHA256}", f"a public key of {each}") for each in PRODUCERS),
        *((f"{each}:private:{SECRET}", f"a private key of {each}") for each in CONSUMERS),
    ],
)
def test_a_publication_carries_no_key_of_a_subscription(text: str, found: str) -> None:
    """Above all no public key of a producer: anybody could have it."""
    assert _refusal(for_publication, text) == (
        f"key 1 of a publication: found {found}, allowed is private keys of producer and dual_producer, "
        "and public keys of consumer and dual_consumer"
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *((f"{each}:{SHA1}", f"a public key of {each}") for each in CONSUMERS),
        *((f"{each}:private:{SECRET}", f"a private key of {each}") for each in PRODUCERS),
    ],
)
def test_a_subscription_carries_no_key_of_a_publication(text: str, found: str) -> None:
    """Above all no public key of a consumer: anybody could have it."""
    assert _refusal(for_subscription, f"consumer:private:{SECRET}", text) == (
        f"key 2 of a subscription: found {found}, allowed is private keys of consumer and dual_consumer, "
        "and public keys of producer and dual_producer"
    )


def _public(number: int) -> str:
    return f"consumer:{number:040x}"


def test_keys_are_bounded_on_each_side() -> None:
    """Every match looks at all of them; a private key counts twice."""
    private = [f"producer:private:horse {number}" for number in range(MAX_KEYS // 2 + 1)]
    assert len(for_publication(private[:-1])) == MAX_KEYS
    assert _refusal(for_publication, *private) == (
        "key 129 of a publication: found 258 hashes, "
        "allowed is at most 256 hashes for publications; a private key has two"
    )
    for_subscriptions = [f"producer:{number:040x}" for number in range(MAX_KEYS)]
    full = read_keys([*private[:-1], *for_subscriptions])
    assert len(full.publications) == len(full.subscriptions) == MAX_KEYS


def test_keys_are_read_no_further_than_there_is_room() -> None:
    """A packet full of them must not be hashed to its end."""
    texts = map(_public, range(1_000_000))
    with pytest.raises(InvalidValueError, match="key 257: found 257 hashes"):
        read_keys(texts)
    assert next(texts) == _public(MAX_KEYS + 1)


def test_a_key_that_is_said_twice_counts_once() -> None:
    """A client that adds its keys again adds nothing."""
    assert len(for_publication([_public(7)] * 1_000)) == 1


# -- keyrings ----------------------------------------------------------------------------------------------------------


def test_keys_are_added_and_removed() -> None:
    """A removed private key takes both of its hashes along; what is not there is not missed."""
    one, two = read_keys([f"producer:private:{SECRET}", _public(1)]), read_keys([f"consumer:private:{SECRET}"])
    assert one | NO_KEYS_AT_ALL == one | one == one
    assert (one | two).publications == one.publications
    assert (one | two).subscriptions == two.subscriptions
    assert (one | two).without(two) == one
    assert one.without(two) == one
    assert one.without(read_keys([f"producer:private:{SECRET}"])) == read_keys([_public(1)])


def test_keyrings_together_are_bounded_too() -> None:
    """A connection cannot gather more keys by many requests than by one."""
    full = read_keys(map(_public, range(MAX_KEYS)))
    with pytest.raises(InvalidValueError, match="at most 256 hashes"):
        _ = full | read_keys([_public(MAX_KEYS)])
    assert full | read_keys([_public(0)]) == full


# -- insecure ----------------------------------------------------------------------------------------------------------


def test_insecure_is_yes_or_no() -> None:
    """Words, because user properties are text."""
    assert read_insecure("yes") is True
    assert read_insecure("no") is False


@pytest.mark.parametrize("text", ["", "Yes", "true", "1", "no ", SECRET])
def test_insecure_is_nothing_else(text: str) -> None:
    """Nobody's messages become open because a word was misread; and a key in the wrong place is not shown."""
    with pytest.raises(InvalidValueError, match="insecure: found another word, allowed is yes or no") as raised:
        read_insecure(text)
    assert "horse" not in _chain(raised.value)


# -- any texts ---------------------------------------------------------------------------------------------------------

_WORDS = st.sampled_from([*(scheme.value for scheme in Scheme), "private", ":", "::", SHA1, SHA256, "g" * 40, "owner"])
_NEARLY_KEYS = st.lists(_WORDS | st.sampled_from([":"]), max_size=5).map("".join)
_KEYS = st.builds("{}:{}".format, st.sampled_from([each.value for each in Scheme]), st.sampled_from([SHA1, SHA256]))
_SECRETS = st.builds("{}wHiMbReL{}".format, st.text(max_size=6), st.text(max_size=6))
_PRIVATE = st.builds("{}:private:{}".format, _WORDS, _SECRETS)
_DAMAGED = st.builds("{}{}{}".format, _NEARLY_KEYS, st.sampled_from(["", ":", "private:"]), _SECRETS)
_LONG = _PRIVATE.map(lambda text: text * 100)


@given(texts=st.lists(st.text(max_size=60) | _NEARLY_KEYS | _KEYS | _PRIVATE | _DAMAGED | _LONG, max_size=6))
@pytest.mark.parametrize("read", READERS)
def test_any_texts_are_keys_or_our_error_which_shows_none_of_them(
    read: Callable[[Iterable[str]], object], texts: list[str]
) -> None:
    """Whatever is sent; and neither is a private key in what was read."""
    found, error = _outcome(read, texts)
    if error is None:
        assert "wHiMbReL" not in repr(found)
        return
    assert "wHiMbReL" not in _chain(error)
    assert error.__context__ is None
    assert 1 <= int(error.what.split()[1]) <= len(texts)


@given(
    texts=st.lists(
        _KEYS | st.builds("{}:private:{}".format, st.sampled_from([each.value for each in Scheme]), _SECRETS)
    )
)
def test_each_key_is_for_one_side(texts: list[str]) -> None:
    """So it can be told from the key alone where it belongs, and a keyring is what its keys are one by one."""
    together = NO_KEYS_AT_ALL
    for text in texts:
        one = read_keys([text])
        assert (one.publications == NO_KEYS) is not (one.subscriptions == NO_KEYS)
        right, wrong = for_publication, for_subscription
        if one.publications == NO_KEYS:
            right, wrong = wrong, right
        assert right([text]) == one.publications | one.subscriptions
        with pytest.raises(InvalidValueError):
            wrong([text])
        together |= one
    assert read_keys(texts) == together
    assert all(isinstance(key, KeyHash) for key in together.publications)
