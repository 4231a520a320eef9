"""Keys: whether the key hashes of a notification and of a subscription authorise its delivery (Elvin 4).

A scheme is named after the side that has the private key and so proves who it is:

| scheme | the notification carries | the subscription carries | in the words of the Elvin paper (5.2.3) |
|---|---|---|---|
| producer | PRODUCER of its private keys | PRODUCER, public | a consumer restricts from which producers it receives |
| consumer | CONSUMER, public | CONSUMER of its private keys | a producer restricts which consumers may receive |
| dual, producers' half | DUAL_PRODUCER of its private keys | DUAL_PRODUCER, public | both at once: this and |
| dual, consumers' half | DUAL_CONSUMER, public | DUAL_CONSUMER of its private keys | this restriction |

Rule: two key hashes meet if scheme and digest are equal. Hashes of different schemes never meet, nor do the SHA-1 and
the SHA-256 of one key. The side with the private key carries both digests, so it meets a public key of either kind, and
the two halves of dual may meet by different digests.
Rule: producer or consumer matches if one hash meets; dual if one meets in each half. Any scheme that matches suffices,
and a side without keys matches nothing.
Rule: if the keys match, the notification is delivered. If they do not match, or a side has none, it is delivered only
if both sides allow that: ``deliver_insecure`` on the notification and ``accept_insecure`` on the subscription.
Rule: a hash does not prove who made it, and public keys are public. So the edge accepts the schemes of
``NOTIFICATION_PROVES`` and ``SUBSCRIPTION_PROVES`` only as private keys, and hashes them itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from whimbrel.model.bounds import INT32_MAX, whole
from whimbrel.model.keys import NO_KEYS, KeyHashes, Scheme

__all__ = ["NOTIFICATION_PROVES", "SUBSCRIPTION_PROVES", "KeyTable", "keys_match", "may_deliver"]

NOTIFICATION_PROVES = frozenset({Scheme.PRODUCER, Scheme.DUAL_PRODUCER})
"""The schemes for which a notification must bring private keys; for the others it names public keys."""

SUBSCRIPTION_PROVES = frozenset({Scheme.CONSUMER, Scheme.DUAL_CONSUMER})
"""The schemes for which a subscription must bring private keys; for the others it names public keys."""

_DUAL = frozenset({Scheme.DUAL_PRODUCER, Scheme.DUAL_CONSUMER})
_LEAST_ROOM = 1_024


def keys_match(notification_keys: KeyHashes, subscription_keys: KeyHashes) -> bool:
    """Return whether the two sets of keys match under any scheme; this is the reference."""
    met = {key.scheme for key in notification_keys.hashes & subscription_keys.hashes}
    return Scheme.PRODUCER in met or Scheme.CONSUMER in met or met >= _DUAL


def may_deliver(
    notification_keys: KeyHashes, subscription_keys: KeyHashes, *, deliver_insecure: bool, accept_insecure: bool
) -> bool:
    """Return whether the keys and the insecure flags allow delivery to a subscription that wants the notification."""
    return (deliver_insecure and accept_insecure) or keys_match(notification_keys, subscription_keys)


class KeyTable:
    """The keys of subscriptions by handle (number); checks many pairs of notification and subscription at once.

    A handle that was never put, or was removed, has no keys and accepts insecure notifications, like a plain MQTT
    subscription. Handles should be dense: the table takes two bytes for each handle up to the highest.
    """

    __slots__ = ("_accept_insecure", "_is_keyed", "_keys", "_strict")

    def __init__(self) -> None:
        self._keys: dict[int, KeyHashes] = {}
        """Key hashes of each subscription that has keys, by handle; few have."""
        self._strict: set[int] = set()
        """Handles of subscriptions that do not accept insecure notifications."""
        self._is_keyed = np.zeros(0, np.bool_)
        self._accept_insecure = np.ones(0, np.bool_)

    def put(self, handle: int, keys: KeyHashes = NO_KEYS, *, accept_insecure: bool = True) -> None:
        """Set the keys and the flag ``accept_insecure`` of the subscription *handle*."""
        whole("handle", handle, 0, INT32_MAX)
        self.remove(handle)
        if not keys.hashes and accept_insecure:
            return  # these are the values of an absent handle
        self._make_room(handle)
        if keys.hashes:
            self._keys[handle] = keys
            self._is_keyed[handle] = True
        if not accept_insecure:
            self._strict.add(handle)
            self._accept_insecure[handle] = False

    def remove(self, handle: int) -> None:
        """Remove the key hashes of the subscription *handle*, and set its flag ``accept_insecure`` to True."""
        if self._keys.pop(handle, None) is not None:
            self._is_keyed[handle] = False
        if handle in self._strict:
            self._strict.discard(handle)
            self._accept_insecure[handle] = True

    def may_deliver(
        self,
        rows: NDArray[np.integer],
        handles: NDArray[np.integer],
        *,
        notification_keys: Sequence[KeyHashes],
        deliver_insecure: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Return, for each pair of ``rows[i]`` and ``handles[i]``, whether keys and flags allow delivery.

        A row is a position in *notification_keys* and *deliver_insecure*. Keys are compared only if the flags do not
        allow delivery and both sides have keys. Equal pairs of key sets are compared once.
        """
        allowed: NDArray[np.bool_] = deliver_insecure[rows]
        if self._strict:
            allowed &= self._looked_up(self._accept_insecure, handles, absent=True)
        if not self._keys or allowed.all():
            return allowed
        open_pairs = np.flatnonzero(~allowed & self._looked_up(self._is_keyed, handles, absent=False))
        is_keyed_row = np.fromiter((bool(keys.hashes) for keys in notification_keys), np.bool_, len(notification_keys))
        open_pairs = open_pairs[is_keyed_row[rows[open_pairs]]]
        if len(open_pairs):
            allowed[open_pairs] = self._keys_match(rows[open_pairs], handles[open_pairs], notification_keys)
        return allowed

    def _keys_match(
        self, rows: NDArray[np.integer], handles: NDArray[np.integer], notification_keys: Sequence[KeyHashes]
    ) -> NDArray[np.bool_]:
        """Return ``keys_match`` for pairs in which both sides have keys."""
        distinct_rows, row_at = np.unique(rows, return_inverse=True)
        distinct_handles, handle_at = np.unique(handles, return_inverse=True)
        ours, our_numbers = _number_sets([notification_keys[row] for row in distinct_rows.tolist()])
        theirs, their_numbers = _number_sets([self._keys[handle] for handle in distinct_handles.tolist()])
        pairs, pair_at = np.unique(our_numbers[row_at] * len(theirs) + their_numbers[handle_at], return_inverse=True)
        split = (divmod(pair, len(theirs)) for pair in pairs.tolist())
        verdicts = (keys_match(ours[our], theirs[their]) for our, their in split)
        return np.fromiter(verdicts, np.bool_, len(pairs))[pair_at]

    def _make_room(self, handle: int) -> None:
        size = len(self._is_keyed)
        if handle >= size:
            more = max(_LEAST_ROOM, handle + 1, 2 * size) - size
            self._is_keyed = np.concatenate([self._is_keyed, np.zeros(more, np.bool_)])
            self._accept_insecure = np.concatenate([self._accept_insecure, np.ones(more, np.bool_)])

    @staticmethod
    def _looked_up(table: NDArray[np.bool_], handles: NDArray[np.integer], *, absent: bool) -> NDArray[np.bool_]:
        """Return ``table[handles]``; for a handle beyond the end of the table, the value is *absent*."""
        found: NDArray[np.bool_] = np.full(len(handles), absent)
        is_inside = handles < len(table)
        found[is_inside] = table[handles[is_inside]]
        return found


def _number_sets(sets: Sequence[KeyHashes]) -> tuple[list[KeyHashes], NDArray[np.int64]]:
    """Return the distinct sets of key hashes, and the index of each of *sets* among the distinct sets."""
    numbers: dict[KeyHashes, int] = {}
    found = [numbers.setdefault(each, len(numbers)) for each in sets]
    return list(numbers), np.array(found, np.int64)
