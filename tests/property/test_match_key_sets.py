"""Keys against a second opinion that thinks in sets, and many pairs against one at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.match.keys import KeyTable, keys_match, may_deliver
from whimbrel.model.keys import NO_KEYS, KeyHash, KeyHashes, Scheme

_DIGESTS = [b"1" * 20, b"2" * 20, b"1" * 32, b"2" * 32]

hashes = st.builds(KeyHash, st.sampled_from(Scheme), st.sampled_from(_DIGESTS))
key_sets = st.one_of(st.just(NO_KEYS), st.frozensets(hashes, max_size=5).map(KeyHashes))
notifications = st.lists(st.tuples(key_sets, st.booleans()), min_size=1, max_size=5)
subscriptions = st.dictionaries(st.integers(0, 6), st.tuples(key_sets, st.booleans()), max_size=6)


def _naive(notification: KeyHashes, subscription: KeyHashes) -> bool:
    """Answer from Elvin's description, scheme by scheme."""

    def common(scheme: Scheme) -> set[bytes]:
        ours = {key.digest for key in notification if key.scheme is scheme}
        return ours & {key.digest for key in subscription if key.scheme is scheme}

    return bool(
        common(Scheme.PRODUCER)
        or common(Scheme.CONSUMER)
        or (common(Scheme.DUAL_PRODUCER) and common(Scheme.DUAL_CONSUMER))
    )


@given(notification=key_sets, subscription=key_sets)
def test_keys_match_as_elvin_says(notification: KeyHashes, subscription: KeyHashes) -> None:
    """The reference is right only if somebody who did not read it computes the same."""
    assert keys_match(notification, subscription) is _naive(notification, subscription)


@given(notification=key_sets, subscription=key_sets, more=key_sets)
def test_another_key_never_takes_a_right_away(
    notification: KeyHashes, subscription: KeyHashes, more: KeyHashes
) -> None:
    """Connection keys are added to those of each item; that must be safe to do."""
    if keys_match(notification, subscription):
        assert keys_match(notification | more, subscription)
        assert keys_match(notification, subscription | more)


@given(rows=notifications, table=subscriptions, before=subscriptions, data=st.data())
def test_many_pairs_are_decided_as_one_by_one(
    rows: list[tuple[KeyHashes, bool]],
    table: dict[int, tuple[KeyHashes, bool]],
    before: dict[int, tuple[KeyHashes, bool]],
    data: st.DataObject,
) -> None:
    """Whatever the handles had before, and however often a pair is asked."""
    keys = KeyTable()
    for handle, (theirs, accepts) in before.items():
        keys.put(handle, theirs, accept_insecure=accepts)
        keys.remove(handle)
    for handle, (theirs, accepts) in table.items():
        keys.put(handle, *before.get(handle, (NO_KEYS,))[:1])
        keys.put(handle, theirs, accept_insecure=accepts)
    pairs = data.draw(st.lists(st.tuples(st.integers(0, len(rows) - 1), st.integers(0, 3_000) | st.integers(0, 6))))
    found = keys.may_deliver(
        np.array([row for row, _ in pairs], np.int32),
        np.array([handle for _, handle in pairs], np.int32),
        notification_keys=[ours for ours, _ in rows],
        deliver_insecure=np.array([delivers for _, delivers in rows]),
    )
    assert found.tolist() == [_one(rows[row], table.get(handle, (NO_KEYS, True))) for row, handle in pairs]


def _one(notification: tuple[KeyHashes, bool], subscription: tuple[KeyHashes, bool]) -> bool:
    (ours, delivers), (theirs, accepts) = notification, subscription
    return may_deliver(ours, theirs, deliver_insecure=delivers, accept_insecure=accepts)
