"""Keys: the three schemes in the words of the Elvin paper, and many pairs at once."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from whimbrel.errors import InvalidValueError
from whimbrel.match.keys import NOTIFICATION_PROVES, SUBSCRIPTION_PROVES, KeyTable, keys_match, may_deliver
from whimbrel.model.keys import NO_KEYS, KeyHash, KeyHashes, Scheme

ALICE, MALLORY, DOCTORS = b"alice's key", b"mallory's key", b"the doctors' key"
HASHES = ("sha1", "sha256")

private = KeyHashes.of_private


def public(scheme: Scheme, private_key: bytes, kind: str = "sha256") -> KeyHashes:
    """Return what somebody carries who knows only the public key, of one kind."""
    return KeyHashes(frozenset({KeyHash(scheme, hashlib.new(kind, private_key).digest())}))


@pytest.mark.parametrize("kind", HASHES)
def test_a_consumer_restricts_from_which_producers_it_receives(kind: str) -> None:
    """Scheme producer: the sender proves who it is; the subscription names whom it trusts."""
    trusts_alice = public(Scheme.PRODUCER, ALICE, kind)
    assert keys_match(private(Scheme.PRODUCER, ALICE), trusts_alice)
    assert not keys_match(private(Scheme.PRODUCER, MALLORY), trusts_alice)
    assert not keys_match(NO_KEYS, trusts_alice)


@pytest.mark.parametrize("kind", HASHES)
def test_a_producer_restricts_which_consumers_may_receive(kind: str) -> None:
    """Scheme consumer: the receiver proves who it is; the notification names for whom it is."""
    for_doctors = public(Scheme.CONSUMER, DOCTORS, kind)
    assert keys_match(for_doctors, private(Scheme.CONSUMER, DOCTORS))
    assert not keys_match(for_doctors, private(Scheme.CONSUMER, MALLORY))
    assert not keys_match(for_doctors, NO_KEYS)


@pytest.mark.parametrize("kind_of_producers", HASHES)
@pytest.mark.parametrize("kind_of_consumers", HASHES)
def test_dual_restricts_both_and_needs_both(kind_of_producers: str, kind_of_consumers: str) -> None:
    """Alice to the doctors, and nobody else to anybody else; each side may know either kind of public key."""
    sent = private(Scheme.DUAL_PRODUCER, ALICE) | public(Scheme.DUAL_CONSUMER, DOCTORS, kind_of_consumers)
    wants_alice = public(Scheme.DUAL_PRODUCER, ALICE, kind_of_producers)
    is_doctor = private(Scheme.DUAL_CONSUMER, DOCTORS)
    assert keys_match(sent, wants_alice | is_doctor)
    assert not keys_match(sent, wants_alice)
    assert not keys_match(sent, is_doctor)
    assert not keys_match(sent, wants_alice | private(Scheme.DUAL_CONSUMER, MALLORY))
    assert not keys_match(sent, public(Scheme.DUAL_PRODUCER, MALLORY) | is_doctor)


def test_only_equal_schemes_compare() -> None:
    """A key that lets in a producer does not let in a consumer."""
    for one in Scheme:
        for other in Scheme:
            if one is not other:
                assert not keys_match(private(one, ALICE), private(other, ALICE))


def test_any_matching_scheme_suffices() -> None:
    """Keys add rights; one that does not fit takes none away."""
    sent = private(Scheme.PRODUCER, ALICE) | public(Scheme.CONSUMER, DOCTORS)
    assert keys_match(sent, public(Scheme.PRODUCER, ALICE) | private(Scheme.CONSUMER, MALLORY))
    assert keys_match(sent, public(Scheme.PRODUCER, MALLORY) | private(Scheme.CONSUMER, DOCTORS))
    assert not keys_match(sent, public(Scheme.PRODUCER, MALLORY) | private(Scheme.CONSUMER, MALLORY))


def test_two_public_keys_of_different_kinds_do_not_meet() -> None:
    """They may be hashes of one key, but nobody here can know it."""
    assert not keys_match(public(Scheme.PRODUCER, ALICE, "sha1"), public(Scheme.PRODUCER, ALICE, "sha256"))


def test_no_keys_match_nothing() -> None:
    """Not even no keys."""
    assert not keys_match(NO_KEYS, NO_KEYS)


@pytest.mark.parametrize("deliver_insecure", [False, True])
@pytest.mark.parametrize("accept_insecure", [False, True])
def test_without_a_match_both_sides_must_allow_it(*, deliver_insecure: bool, accept_insecure: bool) -> None:
    """The producer says who may do without a key, and so does the consumer."""
    flags = {"deliver_insecure": deliver_insecure, "accept_insecure": accept_insecure}
    alice, trusts_alice = private(Scheme.PRODUCER, ALICE), public(Scheme.PRODUCER, ALICE)
    assert may_deliver(alice, trusts_alice, **flags)
    is_allowed = deliver_insecure and accept_insecure
    assert may_deliver(NO_KEYS, NO_KEYS, **flags) is is_allowed
    assert may_deliver(NO_KEYS, trusts_alice, **flags) is is_allowed
    assert may_deliver(private(Scheme.PRODUCER, MALLORY), trusts_alice, **flags) is is_allowed


def test_under_every_scheme_exactly_one_side_proves() -> None:
    """If neither did, whoever knows a public key could use it."""
    assert set(Scheme) == NOTIFICATION_PROVES | SUBSCRIPTION_PROVES
    assert not NOTIFICATION_PROVES & SUBSCRIPTION_PROVES


# -- many pairs --------------------------------------------------------------------------------------------------------

ROWS = np.array([0, 0, 1, 1], np.int32)
HANDLES = np.array([4, 2_000, 4, 2_000], np.int32)


def _asked(table: KeyTable, keys: list[KeyHashes], *, deliver_insecure: list[bool]) -> list[bool]:
    found = table.may_deliver(ROWS, HANDLES, notification_keys=keys, deliver_insecure=np.array(deliver_insecure))
    assert found.dtype == np.bool_
    return [bool(each) for each in found]


def test_where_nobody_uses_keys_the_flags_decide() -> None:
    """Plain MQTT: everything goes, unless a producer says otherwise."""
    assert _asked(KeyTable(), [NO_KEYS, NO_KEYS], deliver_insecure=[True, True]) == [True] * 4
    assert _asked(KeyTable(), [NO_KEYS, NO_KEYS], deliver_insecure=[True, False]) == [True, True, False, False]


def test_a_handle_beyond_the_table_is_a_plain_subscription() -> None:
    """Only the subscriptions that use keys are put into the table."""
    table = KeyTable()
    table.put(4, accept_insecure=False)
    assert _asked(table, [NO_KEYS, NO_KEYS], deliver_insecure=[True, False]) == [False, True, False, False]


def test_keys_decide_where_the_flags_do_not() -> None:
    """Row 0 is Alice's and secure; subscription 4 trusts her and nobody else."""
    table = KeyTable()
    table.put(4, public(Scheme.PRODUCER, ALICE), accept_insecure=False)
    keys = [private(Scheme.PRODUCER, ALICE), NO_KEYS]
    assert _asked(table, keys, deliver_insecure=[False, True]) == [True, False, False, True]
    table.put(4, public(Scheme.PRODUCER, MALLORY), accept_insecure=False)
    assert _asked(table, keys, deliver_insecure=[False, True]) == [False, False, False, True]


def test_a_handle_that_was_removed_has_no_keys() -> None:
    """Handles are given out again."""
    table = KeyTable()
    table.put(4, private(Scheme.CONSUMER, DOCTORS), accept_insecure=False)
    table.remove(4)
    table.remove(5)
    keys = [public(Scheme.CONSUMER, DOCTORS), NO_KEYS]
    assert _asked(table, keys, deliver_insecure=[False, True]) == [False, False, True, True]


def test_no_pairs_have_no_answers() -> None:
    """A batch that nobody wants."""
    table = KeyTable()
    table.put(0, private(Scheme.CONSUMER, DOCTORS), accept_insecure=False)
    none = np.zeros(0, np.int32)
    found = table.may_deliver(none, none, notification_keys=[NO_KEYS], deliver_insecure=np.array([True]))
    assert len(found) == 0


def test_a_handle_that_is_none_is_refused() -> None:
    """A negative one would be counted from the table's end."""
    with pytest.raises(InvalidValueError, match="handle"):
        KeyTable().put(-1)
