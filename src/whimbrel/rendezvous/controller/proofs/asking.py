"""Questions for proofs: the devices asked now, the active slots held for that, and the answers (Huang, 4.1.3).

Rule: a proof names the challenge that it answers. One that answers an older challenge is ignored, without a penalty for
the device, whatever its content.
Rule: every device has ``answer_us`` for each answer, and every pair ``answer_us`` for all its groups. A device without
an answer in that time is gone; a pair whose time is over fails, and a device that had less time is not dropped for it.
Rule: conversations about membership hold at most ``_SEATS`` active slots. Every trigger gets one pair before any other
gets two; triggers that wait for slots are served in the order in which they came.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from whimbrel.rendezvous.controller.caches import TimedCache
from whimbrel.rendezvous.controller.commands import KeepEpoch
from whimbrel.rendezvous.controller.openings import Record, Stage
from whimbrel.rendezvous.controller.piconet import Member
from whimbrel.rendezvous.controller.proofs.members import Challenges, Members
from whimbrel.rendezvous.controller.proofs.verification import Question, Verification
from whimbrel.rendezvous.controller.state import State
from whimbrel.rendezvous.events import Address, EventId, GroupKey, Kind
from whimbrel.rendezvous.messages import Ask, Proof
from whimbrel.rendezvous.tokens import TokenError

__all__ = ["Asker"]

_SEATS = 4
"""Most active slots held by questions for proofs: two are left for a match without tokens, and one for a new device."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A challenge that has not been answered."""

    proofs: Verification
    member: Member
    asked: Ask
    asked_at: int

    def due_at(self, answer_us: int) -> int | None:
        """Return the end of the device's time to answer; None until it is connected."""
        return None if self.member.is_released else max(self.asked_at, self.member.seated_at) + answer_us


class Asker:
    """Asks devices for the proofs that triggers need."""

    def __init__(self, state: State, members: Members, *, address: Address, nonce_key: bytes) -> None:
        self._state, self.members, self._address = state, members, address
        self._challenges = Challenges(nonce_key)
        self.refused_proofs: Counter[str] = Counter()
        self.running: dict[EventId, Verification] = {}
        """Triggers with a question in progress."""
        self.waiting: OrderedDict[EventId, Verification] = OrderedDict()
        """Triggers without a question in progress, which wait for active slots; the next to be served is first."""
        self._pending: dict[bytes, _Pending] = {}
        self._older: TimedCache[bytes, Address] = TimedCache(
            4 * state.parameters.answer_us, state.parameters.remembered
        )
        """Challenges that no longer need an answer, each with the device that got it."""
        self._held: Counter[Member] = Counter()
        self._released: dict[Member, None] = {}
        """Devices whose active slots are no longer held for a question."""

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def next_waiting(self) -> Verification | None:
        """The next trigger to serve of those that wait for active slots; None if there is no slot."""
        return next(iter(self.waiting.values()), None) if len(self._held) < _SEATS else None

    def begin(self, proofs: Verification, candidate: Record, *, now: int) -> bool:
        """Begin to ask the trigger's device and that of *candidate*; return ``False`` to wait for active slots."""
        piconet, trigger = self._state.piconet, proofs.trigger
        pair = (trigger, candidate) if trigger.kind is Kind.PUBLICATION else (candidate, trigger)
        publisher, subscriber = (piconet.get(each.owner) for each in pair)
        assert publisher is not None
        assert subscriber is not None
        held = publisher, subscriber
        new = [each for each in held if each not in self._held]
        is_turn = next(iter(self.waiting), trigger.id) == trigger.id if not proofs.questions else not self.waiting
        has_seats = len(self._held) + len(new) <= _SEATS and piconet.has_seats_for(*held)
        if not has_seats or (new and not is_turn):
            if not proofs.questions:
                self.waiting.setdefault(trigger.id, proofs)
            return False
        self.waiting.pop(trigger.id, None)
        self.running[trigger.id] = proofs
        proofs.questions[candidate.id] = Question(candidate, now, held)
        for member in held:
            self._held[member] += 1
            member.conversations += 1
        self.ask_further(proofs, now=now)
        return True

    def ask_further(self, proofs: Verification, *, now: int) -> None:
        """Ask each pair about its next group, and end the questions that are decided, moot, or out of time."""
        for identifier, question in list(proofs.questions.items()):
            candidate = question.candidate
            if candidate.stage is not Stage.OPEN or self._state.piconet.get(candidate.owner) not in question.held:
                self._end(proofs, identifier, now=now)
                continue
            group = proofs.next_group(candidate, lambda *each: self.members.is_good(*each, now=now))
            if not isinstance(group, bool) and self._is_due(question, now):
                proofs.failed.add(identifier)
                proofs.has_gaps = True
                group = False
            if isinstance(group, bool):
                self._end(proofs, identifier, now=now)
                continue
            for member in question.held:
                self._ask(proofs, member, group, now=now)

    def _ask(self, proofs: Verification, member: Member, group: GroupKey, *, now: int) -> None:
        if (member.address, group) in proofs.answers:
            return
        if any(each.proofs is proofs and each.member is member and each.asked.group == group for each in self._asked):
            return
        is_known = self.members.find(member.address, group, now=now) is not None
        asked = Ask(group=group, challenge=self._challenges.next(), wants_token=not is_known)
        self._pending[asked.challenge] = _Pending(proofs, member, asked, now)
        self._state.out += self._state.piconet.wake(member)
        self._state.say(member, asked)

    @property
    def _asked(self) -> list[_Pending]:
        return list(self._pending.values())

    def _end(self, proofs: Verification, identifier: EventId, *, now: int) -> None:
        """Release the active slots of a pair, and drop the challenges that only it needed."""
        question = proofs.questions.pop(identifier)
        for member in question.held:
            self._held[member] -= 1
            if not self._held[member]:
                del self._held[member]
            member.conversations -= 1
            self._released[member] = None
        still = {member for each in proofs.questions.values() for member in each.held}
        for each in self._asked:
            if each.proofs is proofs and each.member in question.held and each.member not in still:
                self._forget(each, now=now)
        if not proofs.questions:
            self.running.pop(proofs.trigger.id, None)

    def _forget(self, pending: _Pending, *, now: int) -> None:
        del self._pending[pending.asked.challenge]
        self._older.put(pending.asked.challenge, pending.member.address, now=now)

    def end_all(self, proofs: Verification, *, now: int) -> None:
        """End every question of a trigger that is decided or gone."""
        self.waiting.pop(proofs.trigger.id, None)
        for identifier in list(proofs.questions):
            self._end(proofs, identifier, now=now)

    def park_released(self) -> None:
        """Park the devices whose questions have ended, unless another conversation keeps them active."""
        released, self._released = self._released, {}
        for member in released:
            if self._state.piconet.get(member.address) is member:
                self._state.settle(member.address)

    def lose(self, member: Member, *, now: int) -> list[Verification]:
        """End the questions about a gone device's events, and return the triggers that lose a candidate.

        A list that might have contained the device is marked incomplete.
        """
        lost = []
        for proofs in list(self.running.values()):
            theirs = [
                key
                for key, each in proofs.questions.items()
                if member in each.held and each.candidate.owner == member.address
            ]
            for identifier in theirs:
                proofs.has_gaps = True
                self._end(proofs, identifier, now=now)
                lost.append(proofs)
        return lost

    # -- answers -------------------------------------------------------------------------------------------------------

    def take(self, member: Member, proof: Proof, *, now: int) -> Verification | bool:
        """Check a proof; return the trigger that needed it, or else whether it answers an older challenge."""
        pending = self._pending.get(proof.challenge)
        if pending is None or pending.member is not member:
            return self._older.get(proof.challenge, now=now) == member.address
        asked, proofs = pending.asked, pending.proofs
        if proof.group != asked.group:
            return False
        self._forget(pending, now=now)
        try:
            membership, is_higher = self.members.check(
                proof, asked, address=member.address, controller=self._address, now=now
            )
        except TokenError as error:
            self.refused_proofs[error.fault.name.lower()] += 1
            self.members.forget(member.address, asked.group)
            proofs.answers[member.address, asked.group] = None
            return proofs
        if is_higher:
            self._state.out.append(KeepEpoch(asked.group, membership.epoch))
        proofs.answers[member.address, asked.group] = membership
        return proofs

    # -- time ----------------------------------------------------------------------------------------------------------

    def silent(self, *, now: int) -> list[Member]:
        """Return the devices that have left a challenge unanswered for the whole of ``answer_us``."""
        return [each.member for each in self._pending.values() if self._is_due(each, now)]

    def _is_due(self, asked: _Pending | Question, now: int) -> bool:
        due_at = asked.due_at(self._state.parameters.answer_us)
        return due_at is not None and due_at <= now

    def due(self, *, now: int) -> list[Verification]:
        """Return the triggers whose next step is due: a time is over, or a candidate is no longer open."""
        return [
            proofs
            for proofs in self.running.values()
            if (proofs.again_at is not None and proofs.again_at <= now)
            or any(
                self._is_due(each, now) or each.candidate.stage is not Stage.OPEN for each in proofs.questions.values()
            )
        ]

    @property
    def next_due(self) -> int | None:
        """Time at which the next device runs out of time to answer, or the next candidate may get its question."""
        asked: list[_Pending | Question] = list(self._pending.values())
        for proofs in self.running.values():
            asked += proofs.questions.values()
        answer_us = self._state.parameters.answer_us
        due = [each.due_at(answer_us) for each in asked] + [each.again_at for each in self.running.values()]
        return min((each for each in due if each is not None), default=None)
