"""Verification: the proofs of membership that a trigger needs, and the next step after those given (Huang, 4.1.3).

Rule: need to know. A pair of devices is asked only if attributes and keys agree, about one group at a time, in the
publication's order. The pair matches at the first group that both prove; if one fails, the next group is tried.
Rule: a device proves a group once for a trigger, however many pairs need the proof.
Rule: a publication answers the oldest subscription that proves a group. The next oldest gets its question when
the one before has failed, or has not answered for ``patience_us``. The older one keeps its whole time to answer, and
its precedence.
Rule: a subscription collects the publications that are older than itself; their devices may get questions at the same
time. Younger publications count only if no older one matches: then the first that matches is taken, as if it had
answered the subscription on its own arrival.
Rule: a device without a question has not failed. A list is marked incomplete if the proof of a publication is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from whimbrel.rendezvous.controller.openings import Record
from whimbrel.rendezvous.controller.piconet import Member
from whimbrel.rendezvous.events import Address, EventId, GroupKey, Kind, Publication, Subscription
from whimbrel.rendezvous.matching import common_groups
from whimbrel.rendezvous.tokens import Membership

__all__ = ["IsGood", "Plan", "Question", "Verification", "make_plan"]

IsGood: TypeAlias = Callable[[GroupKey, Membership], bool]
"""Whether a membership that was proven for this trigger is still good: not expired, and of no revoked epoch."""


@dataclass(slots=True, eq=False)
class Question:
    """A running conversation about one pair: a trigger and one candidate."""

    candidate: Record
    asked_at: int
    held: tuple[Member, Member]
    """Publisher and subscriber, which this conversation keeps active."""

    def due_at(self, answer_us: int) -> int | None:
        """Return the end of the pair's time to answer, for all groups together; None until both are connected."""
        if any(each.is_released for each in self.held):
            return None
        return max(self.asked_at, *(each.seated_at for each in self.held)) + answer_us


@dataclass(slots=True, eq=False)
class Verification:
    """A trigger that waits for proofs."""

    trigger: Record
    answers: dict[tuple[Address, GroupKey], Membership | None] = field(default_factory=dict)
    """Each proof that was given for this trigger; ``None``: it proved nothing."""
    questions: dict[EventId, Question] = field(default_factory=dict)
    """The running conversations, by the candidate's identifier."""
    failed: set[EventId] = field(default_factory=set)
    """Candidates whose pair did not answer in time."""
    has_gaps: bool = False
    """Whether a candidate was lost without an answer: a list of the others is incomplete."""
    again_at: int | None = None
    """Time from which the next oldest candidate may get its question, while older ones have not answered."""

    def next_group(self, candidate: Record, is_good: IsGood) -> GroupKey | bool:
        """Return whether *candidate* and the trigger match, or the group whose proof must be requested next."""
        pair = (self.trigger, candidate) if self.trigger.kind is Kind.PUBLICATION else (candidate, self.trigger)
        publication, subscription = (each.event for each in pair)
        assert isinstance(publication, Publication)
        assert isinstance(subscription, Subscription)
        if not publication.is_restricted:
            return True
        if candidate.id in self.failed:
            return False
        for group in common_groups(publication, subscription):
            proofs = [self.answers[each.owner, group] for each in pair if (each.owner, group) in self.answers]
            if all(each is not None and is_good(group, each) for each in proofs):
                return True if len(proofs) == len(pair) else group
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next step with a trigger: ask, wait, or act on its matches."""

    matches: tuple[Record, ...] = ()
    is_complete: bool = True
    """Whether *matches* has every match."""
    is_waiting: bool = False
    """Whether the trigger has to wait for proofs."""
    to_ask: tuple[Record, ...] = ()
    """Candidates to question now, in order."""
    again_at: int | None = None


def make_plan(proofs: Verification, found: Sequence[Record], *, is_good: IsGood, now: int, patience_us: int) -> Plan:
    """Return the next step with a trigger whose candidates are *found*, the oldest first."""
    trigger = proofs.trigger
    if trigger.kind is Kind.PUBLICATION:
        return _find_first(proofs, found, is_good=is_good, now=now, patience_us=patience_us)
    older = [each for each in found if each.seq < trigger.seq]
    newer = [each for each in found if each.seq > trigger.seq]
    verdicts = [(each, proofs.next_group(each, is_good)) for each in older]
    undecided = [each for each, verdict in verdicts if not isinstance(verdict, bool)]
    if undecided:
        return Plan(is_waiting=True, to_ask=tuple(each for each in undecided if each.id not in proofs.questions))
    matches = tuple(each for each, verdict in verdicts if verdict is True)
    if not matches:
        return _find_first(proofs, newer, is_good=is_good, now=now, patience_us=patience_us)
    has_more = any(proofs.next_group(each, is_good) is not False for each in newer)
    return Plan(matches=matches, is_complete=not proofs.has_gaps and not has_more)


def _find_first(proofs: Verification, found: Sequence[Record], *, is_good: IsGood, now: int, patience_us: int) -> Plan:
    """Return the next step towards the first of *found* that matches."""
    is_waiting = False
    for each in found:
        verdict = proofs.next_group(each, is_good)
        if verdict is False:
            continue
        if verdict is True:
            return Plan(is_waiting=True) if is_waiting else Plan(matches=(each,))
        is_waiting = True
        question = proofs.questions.get(each.id)
        if question is None:
            return Plan(is_waiting=True, to_ask=(each,), again_at=now + patience_us)
        if now < question.asked_at + patience_us:
            return Plan(is_waiting=True, again_at=question.asked_at + patience_us)
    return Plan(is_waiting=is_waiting)
