"""Members: the proven memberships, the highest epoch of each group, and fresh challenges (Huang, 5.4.1).

Rule: a device on the list of verified members need not send its token again, but must answer every challenge.
Rule: a new highest epoch is stored (``KeepEpoch``) before the proof that showed it has any effect: after a restart, a
revoked token must not be accepted.
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
    """Unpredictable bytes that a replay reproduces: a keyed hash (HMAC) of a counter.

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
        """Return a verified membership if it is neither expired nor revoked; this restarts its time in the list."""
        found = self._known.get((address, group), now=now)
        if found is None or not self.is_good(group, found, now=now):
            return None
        return self._known.touch((address, group), now=now)

    def is_good(self, group: GroupKey, member: Membership, *, now: int) -> bool:
        """Return whether a verified membership is neither expired nor revoked."""
        return now < member.expires_at and member.epoch >= self._epochs.get(group, 0)

    def check(
        self, proof: Proof, asked: Ask, *, address: Address, controller: Address, now: int
    ) -> tuple[Membership, bool]:
        """Check a proof and store the membership that it proves, or raise ``TokenError``.

        The second value is whether the proof showed a higher epoch of the group than any before.
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
        """Record that *group* has shown *epoch*; return whether it is higher than any before."""
        is_higher = epoch > self._epochs.get(group, 0)
        self._epochs[group] = max(epoch, self._epochs.get(group, 0))
        self._epochs.move_to_end(group)
        if len(self._epochs) > self._capacity:
            self._epochs.popitem(last=False)
        return is_higher

    def forget(self, address: Address, group: GroupKey) -> None:
        """Remove a membership whose device did not answer its challenge."""
        self._known.discard((address, group))

    def clean(self, *, now: int, work: int) -> None:
        """Remove at most *work* memberships that nobody looked up during their time in the list."""
        self._known.clean(now=now, work=work)

    def __len__(self) -> int:
        return len(self._known)
