"""Requests of devices: checks and execution (Huang, 4.1.1 and 4.1.2).

Rule: each request is answered, with an identifier or with a code and a reason; nothing is dropped silently.
Rule: a request changes the queue and the tables only. Matches are decided when its event is processed.
"""

from __future__ import annotations

from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller.commands import NoteKind
from whimbrel.rendezvous.controller.deciding import Decider
from whimbrel.rendezvous.controller.dumb import DumbDevices
from whimbrel.rendezvous.controller.openings import Record, Stage
from whimbrel.rendezvous.controller.piconet import Member
from whimbrel.rendezvous.controller.state import State
from whimbrel.rendezvous.events import Event, EventId, Kind, Publication, kind_of
from whimbrel.rendezvous.refusals import Refusal
from whimbrel.rendezvous.wire import MAX_REQUEST_BYTES, MalformedMessageError, decode, name_of

__all__ = ["Requests"]


class Requests:
    """Checks the requests of devices and executes them."""

    def __init__(self, state: State, decider: Decider, dumb: DumbDevices) -> None:
        self._state, self._decider, self._dumb = state, decider, dumb

    def handle(self, member: Member, data: bytes, *, now: int) -> None:
        """Execute the message in *data*, or refuse it."""
        if len(data) > MAX_REQUEST_BYTES:
            reason = f"a request of {len(data)} bytes; allowed are {MAX_REQUEST_BYTES}"
            self._refuse(member, "message", Refusal.MALFORMED, reason)
            return
        try:
            message = decode(data)
        except MalformedMessageError as error:
            self._refuse(member, "message", error.refusal, error.reason)
            return
        refusal = self._carry_out(member, message, now)
        if refusal is not None:
            self._refuse(member, name_of(message), refusal, refusal.reason)

    def _carry_out(self, member: Member, message: m.Message, now: int) -> Refusal | None:
        match message:
            case m.Publish(publication):
                return self._publish(member, publication, now)
            case m.Subscribe(subscription):
                return self._submit(member, subscription, now)
            case m.Unpublish(identifier):
                return self._remove(member, identifier, Kind.PUBLICATION, now)
            case m.Unsubscribe(identifier):
                return self._remove(member, identifier, Kind.SUBSCRIPTION, now)
            case m.Renew(identifier):
                return self._renew(member, identifier, now)
            case m.Noted(identifier):
                is_awaited = self._decider.confirm(member, identifier, now=now) or self._dumb.confirm(
                    member, identifier
                )
                return None if is_awaited else Refusal.UNEXPECTED
            case m.Proof():
                return None if self._decider.take_proof(member, message, now=now) else Refusal.UNEXPECTED
            case _:
                return Refusal.UNEXPECTED

    def _refuse(self, member: Member, request: str, refusal: Refusal, reason: str) -> None:
        reason = reason.encode()[:500].decode(errors="ignore")
        self._state.tell(member, m.Refused(request=request, code=refusal.code, reason=reason))

    def _publish(self, member: Member, publication: Publication, now: int) -> Refusal | None:
        if publication.address != member.address:
            return Refusal.FOREIGN_ADDRESS
        self._make_way(member, now)
        return self._submit(member, publication, now)

    def _make_way(self, member: Member, now: int) -> None:
        """Erase a device's earlier publication before its new one, if the controller made it or its match is over.

        The controller's publication shows the values of an inquiry; the device's own may be for friends only. A
        publisher that confirmed its match and publishes again has been paged, or waits no longer (4.1.3): a subscriber
        that never confirms must not keep others from finding it.
        """
        other = self._state.publication_of(member.address)
        if other is None:
            return
        if other.stage is Stage.ANSWERING:
            self._decider.release(other, now=now)
        elif other.is_indirect and other.stage in {Stage.QUEUED, Stage.OPEN}:
            self._state.erase(other, now=now, is_remembered=False)
            self._state.note(NoteKind.FLUSHED, other, detail="replaced")

    def _invalid(self, owner: Member, event: Event) -> Refusal | None:
        """Return why *owner* may not have *event* beside its other events (4.1.2); None if it may."""
        if isinstance(event, Publication):
            return None if self._state.publication_of(owner.address) is None else Refusal.SECOND_PUBLICATION
        mine = self._state.subscriptions_of(owner.address)
        if any(each.event.contents == event.contents for each in mine):
            return Refusal.REPEATED_SUBSCRIPTION
        if len(mine) >= self._state.parameters.max_subscriptions:
            return Refusal.TOO_MANY_SUBSCRIPTIONS
        return None

    def _submit(self, member: Member, event: Event, now: int) -> Refusal | None:
        refusal = self._invalid(member, event)
        if refusal is not None:
            return refusal
        if isinstance(event, Publication):
            self._state.unaware.pop(member.address, None)
        identifier = self._state.enqueue(member.address, event, now=now)
        if identifier is None:
            return Refusal.NO_IDENTIFIER
        self._state.tell(member, m.Accepted(identifier))
        return None

    def _remove(self, member: Member, identifier: EventId, kind: Kind, now: int) -> Refusal | None:
        record = self._own(member, identifier)
        if record is None or kind_of(identifier) is not kind or record.stage is Stage.ANSWERING:
            return Refusal.UNKNOWN_EVENT
        self._state.erase(record, now=now, is_remembered=False)
        self._decider.cancel(record, now=now)
        self._state.tell(member, m.Removed(identifier))
        return None

    def _renew(self, member: Member, identifier: EventId, now: int) -> Refusal | None:
        """Restart the time to live of an open event, or queue a removed one again (5.4.1)."""
        record = self._own(member, identifier)
        if record is not None and record.stage is Stage.ANSWERING:
            self._decider.release(record, now=now)
            record = self._own(member, identifier)
            if record is not None:
                return Refusal.UNKNOWN_EVENT
        if record is None:
            record = self._state.removed.get(identifier, now=now)
            if record is None or record.owner != member.address:
                return Refusal.UNKNOWN_EVENT
            if record.kind is Kind.PUBLICATION:
                self._make_way(member, now)
            refusal = self._invalid(member, record.event)
            if refusal is not None:
                return refusal
            if record.kind is Kind.PUBLICATION:
                self._state.unaware.pop(member.address, None)
            self._state.removed.discard(identifier)
            self._state.enqueue(
                member.address, record.event, now=now, identifier=identifier, is_indirect=record.is_indirect
            )
        elif record.stage is Stage.OPEN and identifier in self._state.expiring:
            self._state.expiring[identifier] = now + self._state.parameters.event_ttl_us
            self._state.expiring.move_to_end(identifier)
        self._state.note(NoteKind.RENEWED, record)
        self._state.tell(member, m.Accepted(identifier))
        return None

    def _own(self, member: Member, identifier: EventId) -> Record | None:
        record = self._state.records.get(identifier)
        return record if record is not None and record.owner == member.address else None
