"""Members: who has proven which membership, the highest epoch of each group, and fresh challenges (Huang, 5.4.1).

Rule: the list of verified members spares the token, never the challenge.
Rule: the highest epoch of a group is a fact to be kept (``KeepEpoch``) before anything follows from the proof that
showed it: a restart must not accept a token that had been revoked.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Mapping

from whimbrel.errors import InvalidValueError, description_of
from whimbrel.rendezvous.controller.caches import TimedCache
from whimbrel.rendezvous.controller.parameters import Parameters
from whimbrel.rendezvous.events import Address, GroupKey
from whimbrel.rendezvous.messages import Ask, Proof
from whimbrel.rendezvous.tokens import Membership, TokenError, TokenFault, check_answer, check_group_token

__all__ = ["NONCE_KEY_BYTES", "Challenges", "Members"]

NONCE_KEY_BYTES = 32


class Challenges:
    """Unpredictable numbers that a replay reproduces: a keyed hash (HMAC) of a counter.

    The key is a secret of one run: with the same key, the same challenges come again.
    """

    def __init__(self, nonce_key: bytes) -> None:
        if type(nonce_key) is not bytes or len(nonce_key) != NONCE_KEY_BYTES:
            raise InvalidValueError("nonce_key", description_of(nonce_key), f"{NONCE_KEY_BYTES} bytes")
        self._key, self._count = nonce_key, 0

    def next(self) -> bytes:
        """Return the next challenge."""
        self._count += 1
        return hmac.digest(self._key, self._count.to_bytes(8, "big"), hashlib.sha256)


class Members:
    """The list of verified members, and the highest epoch that each group has shown (5.4.1)."""

    def __init__(self, parameters: Parameters, epochs: Mapping[GroupKey, int] | None = None) -> None:
        self._known: TimedCache[tuple[Address, GroupKey], Membership] = TimedCache(
            parameters.member_ttl_us, parameters.remembered
        )
        self._epochs: OrderedDict[GroupKey, int] = OrderedDict(epochs or {})
        self._capacity = parameters.remembered

    def find(self, address: Address, group: GroupKey, *, now: int) -> Membership | None:
        """Return the membership that was verified, if token and epoch are still good; each look resets its time."""
        found = self._known.get((address, group), now=now)
        if found is None or not self.is_good(group, found, now=now):
            return None
        return self._known.touch((address, group), now=now)

    def is_good(self, group: GroupKey, member: Membership, *, now: int) -> bool:
        """Return whether a membership that was checked has neither expired nor been revoked since."""
        return now < member.expires_at and member.epoch >= self._epochs.get(group, 0)

    def check(
        self, proof: Proof, asked: Ask, *, address: Address, controller: Address, now: int
    ) -> tuple[Membership, bool]:
        """Check what a device answered, and remember it; raise ``TokenError`` if it proves nothing.

        The second value says whether the group has shown a higher epoch than ever before.
        """
        if asked.wants_token:
            if proof.token is None:
                raise TokenError(TokenFault.MALFORMED)
            least = self._epochs.get(asked.group, 0)
            member = check_group_token(proof.token, group=asked.group, address=address, now=now, least_epoch=least)
        else:
            found = self.find(address, asked.group, now=now)
            if found is None:
                raise TokenError(TokenFault.EXPIRED)
            member = found
        if proof.device_key != member.device_key:
            raise TokenError(TokenFault.WRONG_DEVICE)
        check_answer(
            proof.answer,
            challenge=asked.challenge,
            device_key=member.device_key,
            group=asked.group,
            address=address,
            controller=controller,
        )
        self._known.put((address, asked.group), member, now=now)
        return member, self.see_epoch(asked.group, member.epoch)

    def see_epoch(self, group: GroupKey, epoch: int) -> bool:
        """Take note that *group* has shown *epoch*; return whether that is higher than ever before."""
        is_higher = epoch > self._epochs.get(group, 0)
        self._epochs[group] = max(epoch, self._epochs.get(group, 0))
        self._epochs.move_to_end(group)
        if len(self._epochs) > self._capacity:
            self._epochs.popitem(last=False)
        return is_higher

    def forget(self, address: Address, group: GroupKey) -> None:
        """Forget a membership whose device did not answer its challenge."""
        self._known.discard((address, group))

    def clean(self, *, now: int, work: int) -> None:
        """Forget memberships that were not looked up for long."""
        self._known.clean(now=now, work=work)

    def __len__(self) -> int:
        return len(self._known)
