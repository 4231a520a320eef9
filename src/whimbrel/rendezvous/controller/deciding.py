"""Deciding: what becomes of a trigger, and the conversations that follow (Huang, 4.1.3).

Rule: no match, the trigger is opened. One match, both parties are told at once and both are awaited, then both events
are erased and both devices parked. A publication that matches several subscriptions answers the oldest by ``seq``; a
subscription that matches several publications gets their list and is erased, the publications stay.
Rule: pairs that were matched lately are taken out before matches are counted (4.1.3).
Rule: a device that leaves a question or a notification unanswered is disconnected: it is gone, or holds up the others.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from whimbrel.rendezvous.controller.commands import Connect, NoteKind, Send
from whimbrel.rendezvous.controller.openings import Record, Stage
from whimbrel.rendezvous.controller.piconet import Member
from whimbrel.rendezvous.controller.state import State
from whimbrel.rendezvous.controller.verification import Challenges, Members, Question, Verification
from whimbrel.rendezvous.events import Address, EventId, Kind, Publication
from whimbrel.rendezvous.messages import Accepted, Listed, Matched, Matches, Proof, WakeUp
from whimbrel.rendezvous.tokens import TokenError

__all__ = ["Decider"]

_QUESTIONS = 2
"""Conversations about membership at a time: four seats, so that a match without tokens always finds two."""


@dataclass(slots=True, eq=False)
class _Answer:
    """A match whose parties are being told."""

    publication: Record
    subscription: Record
    due_at: int
    awaited: dict[EventId, Member] = field(default_factory=dict)
    held: list[Member] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)


class Decider:
    """Matches triggers and carries on the conversations."""

    def __init__(
        self, state: State, *, address: Address, nonce_key: bytes, drop_silent: Callable[[list[Member], int], None]
    ) -> None:
        self._state, self._address = state, address
        self._drop_silent = drop_silent
        self._challenges = Challenges(nonce_key)
        self.members = Members(state.parameters)
        self.refused_proofs: Counter[str] = Counter()
        self._verifications: dict[EventId, Verification] = {}
        """Triggers that wait for proofs, by their identifier, the first to come first."""
        self._asking: dict[EventId, Verification] = {}
        """Those of them whose question has been put: at most ``_QUESTIONS``."""
        self._answers: OrderedDict[EventId, _Answer] = OrderedDict()
        """By the subscription's identifier, the first due first."""

    # -- a trigger -----------------------------------------------------------------------------------------------------

    def decide(self, record: Record, candidates: list[Record], *, now: int) -> bool:
        """Decide on the trigger *record*; ``False`` if that has to wait for a seat."""
        found = [
            each for each in candidates if self._state.is_present(each) and not self._is_repeated(record, each, now)
        ]
        proofs = self._verifications.get(record.id) or Verification(record)
        if record.kind is Kind.PUBLICATION:
            for each in found:
                if not record.event.is_restricted or each.id in proofs.proven:
                    return self._answer(record, each, now=now)
                if each.id not in proofs.failed:
                    return self._ask(proofs, each, now=now)
            return self._open(record, now=now)
        for each in found:
            if each.event.is_restricted and each.id not in proofs.proven | proofs.failed:
                return self._ask(proofs, each, now=now)
        matches = [each for each in found if not each.event.is_restricted or each.id in proofs.proven]
        if len(matches) > 1:
            return self._list(record, matches, now=now)
        return self._answer(matches[0], record, now=now) if matches else self._open(record, now=now)

    def _is_repeated(self, one: Record, other: Record, now: int) -> bool:
        return self._state.pairs.touch(_pair_key(one, other), now=now) is not None

    def _open(self, record: Record, *, now: int) -> bool:
        state = self._state
        self._verifications.pop(record.id, None)
        member = state.piconet.get(record.owner)
        state.open(record, now=now)
        if member is not None:
            if not record.is_announced:
                state.tell(member, Accepted(record.id, is_indirect=True))
            state.settle(record.owner)
        elif len(state.piconet) < state.parameters.max_members and isinstance(record.event, Publication):
            state.connecting[record.id] = now + state.parameters.connect_us
            state.out.append(Connect(record.owner, record.event.clock_offset))
        else:
            state.erase(record, now=now, is_remembered=False)  # no room to keep its device; it will be found again
            state.note(NoteKind.FLUSHED, record, detail="no room")
        return True

    def _list(self, record: Record, matches: list[Record], *, now: int) -> bool:
        state = self._state
        member = state.piconet.get(record.owner)
        assert member is not None
        self._verifications.pop(record.id, None)
        listed = tuple(
            Listed(address=each.event.address, name=each.event.name, device_class=each.event.device_class)
            for each in matches
            if isinstance(each.event, Publication)
        )
        state.tell(member, Matches(id=record.id, publications=listed))
        state.erase(record, now=now, is_remembered=True)
        state.note(NoteKind.LISTED, record, count=len(listed))
        state.settle(record.owner)
        return True

    def _answer(self, publication: Record, subscription: Record, *, now: int) -> bool:
        """Tell both parties at once; the publisher only if it is here: one that was just found is scanning anyway."""
        state = self._state
        event = publication.event
        assert isinstance(event, Publication)
        subscriber, publisher = state.piconet.get(subscription.owner), state.piconet.get(publication.owner)
        assert subscriber is not None
        awaited = {subscription.id: subscriber}
        if publisher is not None and publisher.has_layer:
            awaited[publication.id] = publisher
        if not state.piconet.has_seats_for(*awaited.values()):
            return False
        answer = _Answer(publication, subscription, now + state.parameters.answer_us, awaited, list(awaited.values()))
        for record in (publication, subscription):
            if record.stage is Stage.OPEN:
                state.index.remove(record)
                state.expiring.pop(record.id, None)
            record.stage = Stage.ANSWERING
            self._verifications.pop(record.id, None)
        if publisher is None:
            state.connecting.pop(publication.id, None)
            state.introduced.put(publication.owner, value=True, now=now)
        state.pairs.put(_pair_key(publication, subscription), value=True, now=now)
        state.note(NoteKind.MATCHED, publication, subscription)
        for member in answer.held:
            member.conversations += 1
            state.out += state.piconet.wake(member)
        matched = Matched(id=subscription.id, address=event.address, clock_offset=event.clock_offset)
        state.out.append(Send(subscription.owner, matched))
        if publication.id in awaited:
            state.out.append(Send(publication.owner, WakeUp(publication.id)))
        self._answers[subscription.id] = answer
        return True

    # -- answers to a match --------------------------------------------------------------------------------------------

    def confirm(self, member: Member, identifier: EventId, *, now: int) -> bool:
        """Take a device's word that it has its notification; ``False`` if none is awaited from it."""
        for answer in self._answers.values():
            if answer.awaited.get(identifier) is member:
                del answer.awaited[identifier]
                if not answer.awaited:
                    self._finish(answer, now=now)
                return True
        return False

    def release(self, record: Record, *, now: int) -> None:
        """Erase a publication whose device noted its match and asks again, while the subscriber is still awaited."""
        for answer in self._answers.values():
            if record is answer.publication and record.id not in answer.awaited:
                self._state.erase(record, now=now, is_remembered=True)

    def _finish(self, answer: _Answer, *, now: int) -> None:
        state = self._state
        del self._answers[answer.subscription.id]
        for member in answer.held:
            member.conversations -= 1
        for record in (answer.publication, answer.subscription):
            if record.stage is Stage.ANSWERING:
                state.erase(record, now=now, is_remembered=True)
        detail = "unconfirmed by " + " and ".join(answer.silent) if answer.silent else "confirmed"
        state.note(NoteKind.NOTIFIED, answer.publication, answer.subscription, detail=detail)
        for record in (answer.publication, answer.subscription):
            state.settle(record.owner, has_scans_off=False)  # the publisher has just been told to listen

    # -- questions about membership ------------------------------------------------------------------------------------

    def _ask(self, proofs: Verification, candidate: Record, *, now: int) -> bool:
        """Ask both parties about their first common group, or let the trigger wait until they can be asked."""
        state, record = self._state, proofs.trigger
        record.stage = Stage.VERIFYING
        self._verifications[record.id] = proofs
        pair = (record, candidate) if record.kind is Kind.PUBLICATION else (candidate, record)
        members = [state.piconet.get(each.owner) for each in pair]
        present = [each for each in members if each is not None]
        is_engaged = self._is_engaged(present)
        proofs.waits_for = present if is_engaged else []
        if (
            len(present) < len(pair)
            or is_engaged
            or len(self._asking) >= _QUESTIONS
            or not state.piconet.has_seats_for(*present)
        ):
            return True
        question = Question.between(*pair)
        question.held = present
        for member in present:
            member.conversations += 1
        proofs.question = question
        self._asking[record.id] = proofs
        proofs.due_at = proofs.due_at or now + state.parameters.verify_us
        self._ask_next_group(proofs, question, candidate, now=now)
        return True

    def _is_engaged(self, members: list[Member]) -> bool:
        """Tell whether one of *members* is being asked already."""
        held = [each.question.held for each in self._asking.values() if each.question is not None]
        return any(each in asked for asked in held for each in members)

    def _ask_next_group(self, proofs: Verification, question: Question, candidate: Record, *, now: int) -> None:
        due_at = min(now + self._state.parameters.answer_us, proofs.due_at or now)
        asks = question.next_group(self._challenges, self.members, now=now, due_at=due_at)
        if not asks or now >= due_at:
            proofs.failed.add(candidate.id)
            self._end_question(proofs, now=now)
            return
        for member in question.held:
            self._state.out += self._state.piconet.wake(member)
        self._state.out += [Send(party, asked) for party, asked in asks.items()]

    def take_proof(self, member: Member, proof: Proof, *, now: int) -> bool:
        """Take a device's proof of membership; ``False`` if it was not asked for it."""
        for proofs in self._asking.values():
            question = proofs.question
            asked = question.asked.get(member.address) if question is not None and member in question.held else None
            if question is None or asked is None or asked.group != proof.group or member.address in question.proven:
                continue
            candidate = _other(proofs, question)
            try:
                self.members.check(proof, asked, address=member.address, controller=self._address, now=now)
            except TokenError as error:
                self.refused_proofs[error.fault.name.lower()] += 1
                self.members.forget(member.address, asked.group)
                self._ask_next_group(proofs, question, candidate, now=now)
                return True
            question.proven.add(member.address)
            if not question.silent:
                proofs.proven.add(candidate.id)
                self._end_question(proofs, now=now)
            return True
        return False

    def _end_question(self, proofs: Verification, *, now: int) -> None:
        question, proofs.question = proofs.question, None
        assert question is not None
        del self._asking[proofs.trigger.id]
        for member in question.held:
            member.conversations -= 1
        self.go_on(proofs, now=now)
        for member in question.held:
            self._state.settle(member.address)

    def go_on(self, proofs: Verification, *, now: int) -> None:
        """Decide on a trigger with the proofs that are there, or ask for the next."""
        record = proofs.trigger
        is_here = self._state.piconet.get(record.owner) is not None  # else it is about to be flushed
        if record.stage is not Stage.VERIFYING or proofs.question is not None or not is_here:
            return
        candidates = self._state.candidates(record)
        if proofs.due_at is not None and now >= proofs.due_at:
            proofs.failed.update(each.id for each in candidates if each.id not in proofs.proven)
        self.decide(record, candidates, now=now)

    # -- what happens meanwhile ----------------------------------------------------------------------------------------

    def cancel(self, record: Record, *, now: int) -> None:
        """End what goes on about an event that its device has removed."""
        proofs = self._verifications.pop(record.id, None)
        if proofs is not None and proofs.question is not None:
            record.stage = Stage.GONE
            self._end_question(proofs, now=now)

    def end_conversations(self, member: Member, *, now: int) -> None:
        """End what goes on with a device that is gone; its own triggers have been forgotten already."""
        for proofs in list(self._asking.values()):
            if proofs.question is not None and member in proofs.question.held:
                proofs.failed.add(_other(proofs, proofs.question).id)
                self._end_question(proofs, now=now)
        for answer in list(self._answers.values()):
            for identifier in [each for each, awaited in answer.awaited.items() if awaited is member]:
                del answer.awaited[identifier]
                answer.silent.append("publisher" if identifier == answer.publication.id else "subscriber")
            if not answer.awaited:
                self._finish(answer, now=now)

    def check_deadlines(self, *, now: int, work: int) -> None:
        """Give up on devices that are silent, and go on with triggers that waited for a seat."""
        if not self._answers and not self._verifications:
            return
        silent = [m for each in self._answers.values() if each.due_at <= now for m in each.awaited.values()]
        for proofs in self._asking.values():
            question = proofs.question
            if question is not None and question.due_at <= now:
                silent += [each for each in question.held if each.address in question.silent]
        if silent:
            self._drop_silent(silent, now)  # all at once: none of them is matched because another was dropped
        for proofs in list(islice(self._verifications.values(), work)):
            is_due = proofs.due_at is not None and proofs.due_at <= now
            # One that can neither be asked nor decided is not looked up: a crowd of them would be a way to flood us.
            if is_due or (len(self._asking) < _QUESTIONS and not self._is_engaged(proofs.waits_for)):
                self.go_on(proofs, now=now)

    @property
    def next_due(self) -> int | None:
        """When a device will have been silent for too long."""
        due = [answer.due_at for answer in self._answers.values()]
        due += [each.question.due_at for each in self._asking.values() if each.question is not None]
        return min(due, default=None)

    @property
    def waiting(self) -> int:
        """How many triggers wait for proofs."""
        return len(self._verifications)


def _other(proofs: Verification, question: Question) -> Record:
    """Return the event of the pair in question that is not the trigger."""
    return question.subscription if question.publication is proofs.trigger else question.publication


def _pair_key(one: Record, other: Record) -> tuple[object, ...]:
    """Return what a matched pair is known by: addresses and contents, since identifiers change (4.1.3)."""
    publication, subscription = (one, other) if one.kind is Kind.PUBLICATION else (other, one)
    return publication.owner, subscription.owner, publication.event.contents, subscription.event.contents
