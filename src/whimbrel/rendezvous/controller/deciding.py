"""Decisions: open, list or answer a trigger, and the conversations that follow (Huang, 4.1.3).

A *trigger* is the event that is being processed; the open events that match it are its candidates.

Rule: a trigger without a match is opened. With one match, both parties are told at the same time; when both have
confirmed, both events are erased and both devices parked. A publication that matches several subscriptions answers the
oldest by ``seq``. A subscription that matches several publications gets their list and is erased; the publications
stay.
Rule: pairs that were matched recently are left out before matches are counted (4.1.3).
Rule: a device that leaves a question or a notification unanswered is disconnected: it is gone, or holds up the others.
Rule: a trigger that needs proofs is decided when they have arrived. Later triggers do not wait for it. It is matched
against the events that are open when it is decided, so nothing is reserved for a device that may never answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from whimbrel.rendezvous.controller.commands import Connect, NoteKind, Send
from whimbrel.rendezvous.controller.dumb import DumbDevices
from whimbrel.rendezvous.controller.openings import Record, Stage
from whimbrel.rendezvous.controller.piconet import Member
from whimbrel.rendezvous.controller.proofs.asking import Asker
from whimbrel.rendezvous.controller.proofs.members import Members
from whimbrel.rendezvous.controller.proofs.verification import Verification, make_plan
from whimbrel.rendezvous.controller.state import State
from whimbrel.rendezvous.events import Address, EventId, GroupKey, Kind, Publication
from whimbrel.rendezvous.messages import Accepted, Listed, Matched, Matches, Proof, WakeUp

__all__ = ["Decider"]


@dataclass(slots=True, eq=False)
class _Answer:
    """A match whose parties are told, at the same time, as soon as all of them are connected."""

    publication: Record
    subscription: Record
    told_at: int | None = None
    awaited: dict[EventId, Member] = field(default_factory=dict)
    held: list[Member] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)


class Decider:
    """Matches triggers, and handles the messages that follow: proofs, notifications and their confirmations."""

    def __init__(
        self,
        state: State,
        *,
        address: Address,
        nonce_key: bytes,
        epochs: Mapping[GroupKey, int],
        drop_silent: Callable[[list[Member], int], None],
        dumb: DumbDevices,
    ) -> None:
        self._state, self._dumb = state, dumb
        self._drop_silent = drop_silent
        self.members = Members(state.parameters, epochs)
        self._asker = Asker(state, self.members, address=address, nonce_key=nonce_key)
        self._verifications: dict[EventId, Verification] = {}
        """Triggers that wait for proofs, by their identifier, in the order in which they came."""
        self._blocked: dict[EventId, Verification] = {}
        """Triggers that have their proofs, and wait for active slots in which their parties can be told."""
        self._answers: OrderedDict[EventId, _Answer] = OrderedDict()
        """Matches in progress, by the subscription's identifier, in the order in which they began."""

    @property
    def refused_proofs(self) -> dict[str, int]:
        """Number of refused proofs, by the check that they failed."""
        return dict(self._asker.refused_proofs)

    # -- a trigger -----------------------------------------------------------------------------------------------------

    def decide(self, record: Record, candidates: list[Record], *, now: int) -> bool:
        """Decide on the trigger *record*; return ``False`` if the decision must wait for an active slot."""
        found = [
            each for each in candidates if self._state.is_present(each) and not self._is_repeated(record, each, now)
        ]
        proofs = self._verifications.get(record.id)
        is_publication = record.kind is Kind.PUBLICATION
        if proofs is None:
            restricted = (record,) if is_publication else found
            if not any(each.event.is_restricted for each in restricted):  # no proof is needed: every candidate matches
                return self._act(record, found[:1] if is_publication else found, is_complete=True, now=now)
            proofs = Verification(record)
        self._asker.ask_further(proofs, now=now)
        plan = make_plan(
            proofs,
            found,
            is_good=lambda group, member: self.members.is_good(group, member, now=now),
            now=now,
            patience_us=self._state.parameters.answer_us // 2,
        )
        proofs.again_at = plan.again_at
        if plan.is_waiting:
            record.stage = Stage.VERIFYING
            self._verifications[record.id] = proofs
            for each in plan.to_ask:
                if not self._asker.begin(proofs, each, now=now):
                    break
            return True
        is_done = self._act(record, plan.matches, is_complete=plan.is_complete, now=now)
        if is_done:
            self._forget(record, now=now)
        return is_done

    def _act(self, record: Record, matches: Sequence[Record], *, is_complete: bool, now: int) -> bool:
        """Open, list or answer the trigger *record*; return ``False`` if this must wait for an active slot."""
        if not matches:
            return self._dumb.meet(record, now=now) or self._open(record, now=now)
        if len(matches) > 1:
            return self._list(record, matches, is_complete=is_complete, now=now)
        if record.kind is Kind.PUBLICATION:
            return self._answer(record, matches[0], now=now)
        return self._answer(matches[0], record, now=now)

    def _forget(self, record: Record, *, now: int) -> None:
        """Remove the proofs of a trigger that is decided or gone."""
        self._blocked.pop(record.id, None)
        proofs = self._verifications.pop(record.id, None)
        if proofs is not None:
            self._asker.end_all(proofs, now=now)

    def _is_repeated(self, one: Record, other: Record, now: int) -> bool:
        return self._state.pairs.touch(_pair_key(one, other), now=now) is not None

    def _open(self, record: Record, *, now: int) -> bool:
        state = self._state
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

    def _list(self, record: Record, matches: Iterable[Record], *, is_complete: bool, now: int) -> bool:
        state = self._state
        member = state.piconet.get(record.owner)
        assert member is not None
        listed = tuple(
            Listed(address=each.event.address, name=each.event.name, device_class=each.event.device_class)
            for each in matches
            if isinstance(each.event, Publication)
        )
        state.tell(member, Matches(id=record.id, publications=listed, is_complete=is_complete))
        state.erase(record, now=now, is_remembered=True)
        state.note(NoteKind.LISTED, record, count=len(listed), detail=None if is_complete else "incomplete")
        state.settle(record.owner)
        return True

    def _answer(self, publication: Record, subscription: Record, *, now: int) -> bool:
        """Begin to tell both parties of their match; return ``False`` if this must wait for active slots.

        A publisher that was only found by inquiry, or was released, is not told: it listens for pages anyway. So
        without park only the subscriber is paged. The controller never pages the publisher while the subscriber pages
        it (Figure 4-9): if the controller is paging the publisher already, telling waits for the end of that page.
        """
        state = self._state
        event = publication.event
        assert isinstance(event, Publication)
        subscriber, publisher = state.piconet.get(subscription.owner), state.piconet.get(publication.owner)
        assert subscriber is not None
        awaited = {subscription.id: subscriber}
        is_listening = (
            publisher is not None and publisher.is_released and not state.piconet.pager.is_expected(publisher.address)
        )
        if publisher is not None and publisher.has_layer and not is_listening:
            awaited[publication.id] = publisher
        if not state.piconet.has_seats_for(*awaited.values()):
            return False
        answer = _Answer(publication, subscription, awaited=awaited, held=list(awaited.values()))
        for record in (publication, subscription):
            if record.stage is Stage.OPEN:
                state.index.remove(record)
                state.expiring.pop(record.id, None)
            record.stage = Stage.ANSWERING
        state.pairs.put(_pair_key(publication, subscription), value=True, now=now)
        for member in answer.held:
            member.conversations += 1
            state.out += state.piconet.wake(member)
        self._answers[subscription.id] = answer
        self._tell(answer, now=now)
        return True

    def _tell(self, answer: _Answer, *, now: int) -> None:
        """Tell the parties of a match, unless one of them is still being paged, or they were told before."""
        publication, subscription, event = answer.publication, answer.subscription, answer.publication.event
        is_paged = publication.id in self._state.connecting  # a device that was found, and is to be hidden
        if answer.told_at is not None or is_paged or any(each.is_released for each in answer.held):
            return
        publisher = self._state.piconet.get(publication.owner)
        if publisher is not None and publication.id not in answer.awaited and publisher.has_layer:
            if self._state.piconet.pager.is_expected(publisher.address):
                return
            if publisher.is_released:
                self._state.piconet.pager.hush(publisher.address)
            else:  # it came by itself meanwhile
                answer.awaited[publication.id] = publisher
                answer.held.append(publisher)
                publisher.conversations += 1
        if publisher is None:
            self._state.introduced.put(publication.owner, value=True, now=now)
        assert isinstance(event, Publication)
        answer.told_at = now
        self._state.pairs.put(_pair_key(publication, subscription), value=True, now=now)
        self._state.note(NoteKind.MATCHED, publication, subscription)
        matched = Matched(id=subscription.id, address=event.address, clock_offset=event.clock_offset)
        self._state.out.append(Send(subscription.owner, matched))
        if publication.id in answer.awaited:
            self._state.out.append(Send(publication.owner, WakeUp(publication.id)))

    def go_on_with(self, address: Address, *, now: int) -> None:
        """Continue the matches that waited for the page of a device: it is connected now, or was not reached."""
        for answer in list(self._answers.values()):
            owners = {answer.publication.owner, *(each.address for each in answer.held)}
            if address in owners:
                self._tell(answer, now=now)

    # -- answers to a match --------------------------------------------------------------------------------------------

    def confirm(self, member: Member, identifier: EventId, *, now: int) -> bool:
        """Record that *member* has its notification; return ``False`` if no such confirmation is awaited from it."""
        for answer in self._answers.values():
            if answer.told_at is not None and answer.awaited.get(identifier) is member:
                del answer.awaited[identifier]
                if not answer.awaited:
                    self._finish(answer, now=now)
                return True
        return False

    def release(self, record: Record, *, now: int) -> None:
        """Erase a publication whose device confirmed its match and publishes again before the subscriber confirmed."""
        for answer in self._answers.values():
            if record is answer.publication and answer.told_at is not None and record.id not in answer.awaited:
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
        publisher = state.piconet.get(answer.publication.owner)
        if publisher is not None and publisher.is_released and publisher.has_layer:  # the subscriber pages it now
            due = now + state.parameters.page_timeout_us
            state.piconet.pager.hush(publisher.address, due)
            state.unaware[publisher.address] = answer.publication.id, due
        for record in (answer.publication, answer.subscription):
            state.settle(record.owner, has_scans_off=False)  # the publisher has just been told to listen

    def _undo(self, answer: _Answer, lost: Member, *, now: int) -> None:
        """Undo a match that nobody was told of, because *lost* is gone; the other party's event is queued again."""
        state = self._state
        del self._answers[answer.subscription.id]
        state.pairs.discard(_pair_key(answer.publication, answer.subscription))
        for member in answer.held:
            member.conversations -= 1
        for record in (answer.publication, answer.subscription):
            if record.owner == lost.address:
                state.erase(record, now=now, is_remembered=True)
                state.note(NoteKind.FLUSHED, record, detail="disconnected")
            else:
                state.piconet.pager.hush(record.owner, now)
                state.requeue(record, now=now)

    # -- questions about membership ------------------------------------------------------------------------------------

    def take_proof(self, member: Member, proof: Proof, *, now: int) -> bool:
        """Handle a proof of membership; return ``False`` if the device was never asked for it."""
        taken = self._asker.take(member, proof, now=now)
        if isinstance(taken, bool):
            return taken
        self._go_on(taken, now=now)
        self._asker.park_released()
        return True

    def _go_on(self, proofs: Verification, *, now: int) -> None:
        """Decide on a trigger with the received proofs, or ask for the next proof."""
        record = proofs.trigger
        is_here = self._state.piconet.get(record.owner) is not None  # else it is about to be flushed
        if record.stage is not Stage.VERIFYING or not is_here:
            return
        self._blocked.pop(record.id, None)
        if not self.decide(record, self._state.candidates(record), now=now):
            self._blocked[record.id] = proofs

    # -- what happens meanwhile ----------------------------------------------------------------------------------------

    def cancel(self, record: Record, *, now: int) -> None:
        """End the questions about an event that was removed or flushed."""
        self._forget(record, now=now)
        self._asker.park_released()

    def end_conversations(self, member: Member, *, now: int) -> None:
        """End the questions to, and the matches of, a device that is gone; its own triggers have ended already."""
        for proofs in self._asker.lose(member, now=now):
            self._go_on(proofs, now=now)
        for answer in list(self._answers.values()):
            if answer.told_at is None:
                if member in answer.held or member.address == answer.publication.owner:
                    self._undo(answer, member, now=now)
                continue
            for identifier in [each for each, awaited in answer.awaited.items() if awaited is member]:
                del answer.awaited[identifier]
                answer.silent.append("publisher" if identifier == answer.publication.id else "subscriber")
            if not answer.awaited:
                self._finish(answer, now=now)
        self._asker.park_released()

    def check_deadlines(self, *, now: int, work: int) -> None:
        """Drop devices that did not answer in time; continue triggers that waited for time or for an active slot."""
        if not self._answers and not self._verifications:
            return
        silent = [m for at, each in self._find_told_matches() if at <= now for m in each.awaited.values()]
        silent += self._asker.silent(now=now)
        if silent:
            self._drop_silent(silent, now)  # all at once: none of them is matched because another was dropped
        for proofs in [*self._blocked.values(), *self._asker.due(now=now)]:
            self._go_on(proofs, now=now)
        for _ in range(work):  # triggers that cannot start a question are not looked up: a crowd of them could flood us
            head = self._asker.next_waiting
            if head is None:
                break
            self._go_on(head, now=now)
            if head is self._asker.next_waiting:
                break
        self._asker.park_released()

    @property
    def next_due(self) -> int | None:
        """Time at which the next device has been silent for too long."""
        due = [at for at, _ in self._find_told_matches()]
        due += [] if self._asker.next_due is None else [self._asker.next_due]
        return min(due, default=None)

    def _find_told_matches(self) -> list[tuple[int, _Answer]]:
        """Return the matches whose parties were told, each with the time by which they must confirm."""
        answer_us = self._state.parameters.answer_us
        return [(each.told_at + answer_us, each) for each in self._answers.values() if each.told_at is not None]

    @property
    def waiting(self) -> int:
        """Number of triggers that wait for proofs."""
        return len(self._verifications)


def _pair_key(one: Record, other: Record) -> tuple[object, ...]:
    """Return the cache key of a matched pair: addresses and contents, since identifiers change (4.1.3)."""
    publication, subscription = (one, other) if one.kind is Kind.PUBLICATION else (other, one)
    return publication.owner, subscription.owner, publication.event.contents, subscription.event.contents
