"""Verification: the conversation that proves membership before a restricted publication is matched (Huang, 4.1.3).

Rule: need to know. Devices are asked only where attributes and keys agree: both parties at once, one group at a time,
in the publication's order. The first group that both prove unlocks; a wrong proof goes on to the next group, a silent
device fails the match.
Rule: the list of verified members spares the token, never the challenge (5.4.1).
Rule: a trigger that needs proofs is decided when they are there. Those behind it do not wait for it, and when it is
decided it is matched against what is open then; so nothing is reserved for a device that may never answer.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from dataclasses import dataclass, field

from whimbrel.rendezvous.controller.caches import TimedCache
from whimbrel.rendezvous.controller.openings import Record
from whimbrel.rendezvous.controller.parameters import Parameters
from whimbrel.rendezvous.controller.piconet import Member
from whimbrel.rendezvous.events import Address, EventId, GroupKey, Publication, Subscription
from whimbrel.rendezvous.matching import common_groups
from whimbrel.rendezvous.messages import Ask, Proof
from whimbrel.rendezvous.tokens import Membership, TokenError, TokenFault, check_answer, check_group_token

__all__ = ["Challenges", "Members", "Question", "Verification"]


class Challenges:
    """Unpredictable numbers that a replay reproduces: a keyed hash (HMAC) of a counter."""

    def __init__(self, key: bytes) -> None:
        self._key, self._count = key, 0

    def next(self) -> bytes:
        """Return the next challenge."""
        self._count += 1
        return hmac.digest(self._key, self._count.to_bytes(8, "big"), hashlib.sha256)


class Members:
    """The list of verified members, and the highest epoch that each group has shown (5.4.1)."""

    def __init__(self, parameters: Parameters) -> None:
        self._known: TimedCache[tuple[Address, GroupKey], Membership] = TimedCache(
            parameters.member_ttl_us, parameters.remembered
        )
        self._epochs: OrderedDict[GroupKey, int] = OrderedDict()
        self._capacity = parameters.remembered

    def find(self, address: Address, group: GroupKey, *, now: int) -> Membership | None:
        """Return the membership that was verified, if token and epoch are still good; each look resets its time."""
        found = self._known.get((address, group), now=now)
        if found is None or now >= found.expires_at or found.epoch < self._epochs.get(group, 0):
            return None
        return self._known.touch((address, group), now=now)

    def check(self, proof: Proof, asked: Ask, *, address: Address, controller: Address, now: int) -> None:
        """Check what a device answered, and remember it; raise ``TokenError`` if it proves nothing."""
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
        self._epochs[asked.group] = member.epoch
        self._epochs.move_to_end(asked.group)
        if len(self._epochs) > self._capacity:
            self._epochs.popitem(last=False)

    def forget(self, address: Address, group: GroupKey) -> None:
        """Forget a membership whose device did not answer its challenge."""
        self._known.discard((address, group))

    def clean(self, *, now: int, work: int) -> None:
        """Forget memberships that were not looked up for long."""
        self._known.clean(now=now, work=work)

    def __len__(self) -> int:
        return len(self._known)


@dataclass(slots=True, eq=False)
class Question:
    """One pair that is being asked, group after group."""

    publication: Record
    subscription: Record
    groups: list[GroupKey]
    asked: dict[Address, Ask] = field(default_factory=dict)
    proven: set[Address] = field(default_factory=set)
    due_at: int = 0
    held: list[Member] = field(default_factory=list)
    """The members whose seats this conversation holds."""

    @property
    def parties(self) -> tuple[Address, Address]:
        """Publisher and subscriber."""
        return self.publication.owner, self.subscription.owner

    @property
    def silent(self) -> list[Address]:
        """The parties that have not answered yet."""
        return [party for party in self.parties if party not in self.proven]

    @classmethod
    def between(cls, publication: Record, subscription: Record) -> Question:
        """Return the question whether this pair shares a group."""
        assert isinstance(publication.event, Publication)
        assert isinstance(subscription.event, Subscription)
        return cls(publication, subscription, list(common_groups(publication.event, subscription.event)))

    def next_group(self, challenges: Challenges, members: Members, *, now: int, due_at: int) -> dict[Address, Ask]:
        """Return what both parties are asked about the next group; nothing if no group is left."""
        self.asked, self.proven = {}, set()
        if self.groups:
            group = self.groups.pop(0)
            for party in self.parties:
                is_known = members.find(party, group, now=now) is not None
                self.asked[party] = Ask(group=group, challenge=challenges.next(), wants_token=not is_known)
            self.due_at = due_at
        return self.asked


@dataclass(slots=True, eq=False)
class Verification:
    """A trigger that waits for proofs."""

    trigger: Record
    proven: set[EventId] = field(default_factory=set)
    """Events whose pair with the trigger shares a group that both proved."""
    failed: set[EventId] = field(default_factory=set)
    question: Question | None = None
    waits_for: list[Member] = field(default_factory=list)
    """The parties of its next question, one of which is being asked by another trigger."""
    due_at: int | None = None
    """When it is decided with the proofs that are there; counted from its first question."""
