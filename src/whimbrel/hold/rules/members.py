"""Members: devices that join a session, confirm deliveries, disconnect and leave (rules 6, 7, 10 and 19)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from whimbrel.hold.commands import Command, HandOver, Identity, NotifySubscriptions, Settle
from whimbrel.hold.private import client_of, private_session
from whimbrel.hold.quality import CONFIRMED, hand_over_qos
from whimbrel.hold.rules.departures import Departures
from whimbrel.hold.rules.endings import OutcomeRules
from whimbrel.hold.rules.fast_lane import FastLanes
from whimbrel.hold.rules.keeping import QueueRules, put_in_order
from whimbrel.hold.rules.shares import next_to_serve
from whimbrel.hold.rules.work import PIECE, QUICK_PIECE, Work, all_of, at_once
from whimbrel.hold.state import Copy, Flight, Member, Pending, Session, State
from whimbrel.hold.view import View
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import Mode, Outcome, PolicyChange, PolicyChanged, PresenceChange, PresenceChanged
from whimbrel.model.notification import EXACTLY_ONCE

__all__ = ["MemberRules"]

_DELIVERED, _EXPIRED, _TAKEN = Outcome.DELIVERED, Outcome.EXPIRED, Outcome.TAKEN_ELSEWHERE
_DROPPED, _WITHHELD = Outcome.DROPPED, Outcome.WITHHELD
_NEW = tuple.__new__  # makes a named tuple in a third of the time of its constructor
_RECEIPTS = frozenset({_DELIVERED, _WITHHELD, _DROPPED, _EXPIRED})
"""Outcomes that a receipt may have; the hold itself determines the others."""


class MemberRules:
    """Applies the facts that devices join, disconnect and leave, and their receipts."""

    def __init__(self, state: State, view: View, endings: OutcomeRules, lanes: FastLanes, keeping: QueueRules) -> None:
        self._state, self._view, self._endings, self._lanes = state, view, endings, lanes
        self._keeping = keeping
        self._departures = Departures(state, view, endings)

    def presence(self, fact: PresenceChanged) -> Work:
        """Apply a presence fact: a device joins, leaves, disconnects, or changes which deliveries it confirms."""
        if fact.change is PresenceChange.JOINED:
            assert fact.session is not None
            takes = fact.receipt is Mode.TAKE
            return self._join(fact.changed_at, fact.device, fact.session, takes=takes, confirms=fact.confirms)
        if fact.change is PresenceChange.RECEIPTS:
            assert fact.session is not None
            is_confirming = bool(fact.confirms)
            return at_once(self._change_receipts(fact.changed_at, fact.device, fact.session, confirms=is_confirming))
        if fact.change is PresenceChange.LEFT:
            assert fact.session is not None
            sent_seq = INT64_MAX if fact.sent_seq is None else fact.sent_seq
            return self._leave(fact.changed_at, fact.device, fact.session, sent_seq)
        if fact.change is PresenceChange.DISCONNECTED:
            return self._disconnect(fact.changed_at, fact.device, sent_seq=fact.sent_seq)
        return at_once(self._endings.tick(fact.changed_at))

    def joined(self, at: int, device: str, name: str, *, takes: bool, confirms: bool | None = None) -> list[Command]:
        """Add a device to a session, or mark it present; deliver the held notifications (rule 6)."""
        return all_of(self._join(at, device, name, takes=takes, confirms=confirms))

    def _join(self, at: int, device: str, name: str, *, takes: bool, confirms: bool | None) -> Work:
        out: list[Command] = []
        self._endings.advance(at, out)
        session = self._view.session(name)
        self._lanes.close(session)
        for other in self._state.joined.get(device, ()):
            self._lanes.close(self._state.sessions[other])
        member = session.members.get(device)
        if member is None:
            member = session.members[device] = Member(is_present=True, takes=takes)
            self._view.touch(("session", name))
        begun = set() if member.is_present else set(member.in_flight)
        if session.departed:
            self._departures.join(session, device, member)
        member.is_present, member.takes, member.confirms, member.away_at = True, takes, confirms, None
        self._state.joined.setdefault(device, set()).add(name)
        self._view.touch(("member", name, device))
        out.append(NotifySubscriptions(device, name, tuple(session.subscriptions.values())))
        for count, (seq, pending) in enumerate(list(session.pending.items()), start=1):
            if count % PIECE == 0:
                yield
            if pending.left:
                self._departures.come_back(session, device, seq, pending)
            if seq in begun:
                flight = member.in_flight[seq]
                counted = ((name, flight.identities),)
                kept = self._state.copies[seq].kept
                out.append(HandOver(device, seq, counted, is_held=True, is_again=True, qos=flight.qos, kept=kept))
            elif pending.end is None and device not in pending.settled and device not in pending.in_flight:
                self._hand_over_held(session, device, member, seq, pending, out)
        return out

    def _hand_over_held(
        self, session: Session, device: str, member: Member, seq: int, pending: Pending, out: list[Command]
    ) -> None:
        copy = self._state.copies[seq]
        identities = tuple(pending.held)
        self._view.touch(("pending", session.name, seq))
        if device in copy.received:
            self._endings.settle(session.name, device, seq, pending, identities, _DELIVERED, self._state.now, out)
            if member.takes:
                self._endings.end(session, seq, _TAKEN, identities, self._state.now, out)
            return
        if self._give(session, device, member, seq, identities, out):
            self.confirm(session, device, member, seq, _DELIVERED, out)

    def _give(
        self,
        session: Session,
        device: str,
        member: Member,
        seq: int,
        identities: tuple[Identity, ...],
        out: list[Command],
    ) -> bool:
        """Deliver a held notification to a device (rules 6 and 16).

        Return whether the delivery is at QoS 0 and needs no receipt.
        """
        copy = self._state.copies[seq]
        session.pending[seq].in_flight.add(device)
        counted = ((session.name, identities),)
        on_its_way = self._on_its_way(device, seq, session.name)
        if on_its_way is not None:  # it is sent already, through another session, and its receipt will come
            member.in_flight[seq] = Flight(identities, on_its_way.qos)
            out.append(HandOver(device, seq, counted, is_held=True, is_again=False, is_copy=False, kept=copy.kept))
            return False
        attempted = copy.attempted.get(device)
        qos = attempted or (hand_over_qos(self._state, copy.qos, counted) if session.with_qos else CONFIRMED)
        is_own = qos == 0 and not (
            device in self._state.shaped
            or self._state.has_policy(session, identities)
            or member.confirms_qos_0(is_expiring=copy.expires_at is not None)
        )
        member.in_flight[seq] = Flight(identities, qos)
        is_again = attempted is not None
        out.append(
            HandOver(
                device, seq, counted, is_held=True, is_again=is_again, qos=qos, is_own_receipt=is_own, kept=copy.kept
            )
        )
        return is_own

    def _pass_on(self, seq: int, copy: Copy, name: str, identities: tuple[Identity, ...], out: list[Command]) -> None:
        """Hold and deliver a notification in session *name* (rule 21).

        A policy withheld the notification from another session of a share, and *name* is the next.
        """
        session = self._state.sessions[name]
        self._lanes.close(session)  # its unconfirmed deliveries may be younger, and must come after this one
        held, end = self._keeping.to_hold(session, identities, copy)
        pending = session.pending[seq] = Pending(held, max(held.values(), default=None))
        put_in_order(session.pending)
        self._state.pendings += 1
        copy.sessions.add(name)
        self._view.touch(("pending", name, seq))
        self._keeping.keep(session, seq, held, out)
        own: list[str] = []
        for device in sorted(session.members):
            member = session.members[device]
            if not member.is_present or device in pending.settled:
                continue
            if device in copy.received:
                self._endings.settle(name, device, seq, pending, identities, _DELIVERED, self._state.now, out)
                if member.takes and held:
                    self._endings.end(session, seq, _TAKEN, tuple(pending.held), self._state.now, out)
            elif self._give(session, device, member, seq, identities, out):
                own.append(device)
        if not held:
            self._endings.end(session, seq, *end, out)
        for device in own:
            self.confirm(session, device, session.members[device], seq, _DELIVERED, out)

    def choose(self, fact: PolicyChanged) -> list[Command]:
        """Record that a device chose a policy for its deliveries, or chose to have none (rule 16)."""
        out: list[Command] = []
        self._endings.advance(fact.changed_at, out)
        if fact.change is PolicyChange.CHOSEN and fact.device is not None:
            (self._state.shaped.discard if fact.name is None else self._state.shaped.add)(fact.device)
            self._view.touch(("shaped", fact.device))
        return out

    def _change_receipts(self, at: int, device: str, name: str, *, confirms: bool) -> list[Command]:
        """Set whether a member confirms deliveries at QoS 0 (rule 16)."""
        out: list[Command] = []
        self._endings.advance(at, out)
        session = self._state.sessions.get(name)
        member = None if session is None else session.members.get(device)
        if member is not None:
            member.confirms = confirms
            self._view.touch(("member", name, device))
        return out

    def _on_its_way(self, device: str, seq: int, joining: str) -> Flight | None:
        """Return a device's unconfirmed delivery of a notification through any session but *joining*.

        Return None if there is none.
        """
        # Search only the sessions of the device: a notification may be held in thousands.
        joined, departed = self._state.joined.get(device, ()), self._state.departed.get(device, ())
        for name in (*joined, *departed, private_session(device)):
            session = self._state.sessions.get(name) if name != joining else None
            bearer = None if session is None else session.bearer(device)
            flight = None if bearer is None else bearer.in_flight.get(seq)
            if flight is not None:
                return flight
        return None

    def _leave(self, at: int, device: str, name: str, sent_seq: int) -> Work:
        """Remove a device from a session (rule 10)."""
        out: list[Command] = []
        self._endings.advance(at, out)
        session = self._state.sessions.get(name)
        if session is not None and device in session.members:
            self._lanes.close(session)
            member = session.members.pop(device)
            self.away(device, name)
            self._view.touch(("session", name))
            self._view.touch(("member", name, device))
            yield from self.note_sent(device, member, sent_seq)
            yield from self._departures.leave(session, device, member, sent_seq, out)
        return out

    def disconnected(self, at: int, device: str, *, sent_seq: int | None = None) -> list[Command]:
        """Mark a device absent in all its sessions (rules 10 and 19)."""
        return all_of(self._disconnect(at, device, sent_seq=sent_seq))

    def _disconnect(self, at: int, device: str, *, sent_seq: int | None) -> Work:
        out: list[Command] = []
        self._endings.advance(at, out)
        for name in sorted(self._state.joined.pop(device, ())):
            session = self._state.sessions[name]
            self._lanes.close(session)
            member = session.members[device]
            member.is_present = False
            member.away_at = None if session.is_private else at
            self._view.touch(("member", name, device))
            begun: dict[int, Flight] = {}
            yield from self.note_sent(device, member, INT64_MAX if sent_seq is None else sent_seq)
            if session.is_private:
                begun = self._find_unfinished(session, device, member)
            yield from self.let_go(session, device, member, out, begun=begun)
        yield from self._departures.disconnect(device, out)
        return out

    def note_sent(self, device: str, member: Member, sent_seq: int = INT64_MAX) -> Iterator[None]:
        """Record that a device may have received its unconfirmed deliveries up to *sent_seq*.

        A redelivery at QoS 1 or 2 then has DUP set.
        """
        for count, (seq, flight) in enumerate(member.in_flight.items(), start=1):
            if count % QUICK_PIECE == 0:
                yield
            if seq <= sent_seq:
                self._state.copies[seq].attempted[device] = flight.qos
                self._view.touch(("copy", seq))

    def _find_unfinished(self, session: Session, device: str, member: Member) -> dict[int, Flight]:
        """Return the sent, unconfirmed deliveries that MQTT requires to be completed after a reconnect (rule 19)."""
        copies = self._state.copies
        return {
            seq: flight
            for seq, flight in member.in_flight.items()
            if device in copies[seq].attempted and self._must_finish(copies[seq], flight, session.pending[seq])
        }

    @staticmethod
    def _must_finish(copy: Copy, flight: Flight, pending: Pending) -> bool:
        """Return whether a sent delivery must be completed after a reconnect (rule 19).

        It must at QoS 2 and, if the client has unsubscribed in the meantime, at QoS 1.
        """
        if flight.qos == EXACTLY_ONCE:
            return copy.qos == EXACTLY_ONCE
        is_unsubscribed = pending.end is not None and pending.end[0] is _DROPPED and pending.lapses_at is not None
        return flight.qos > 0 and is_unsubscribed

    def away(self, device: str, name: str) -> None:
        """Record that a device is no longer present in a session."""
        joined = self._state.joined.get(device)
        if joined is not None:
            joined.discard(name)
            if not joined:
                del self._state.joined[device]

    def let_go(
        self,
        session: Session,
        device: str,
        member: Member,
        out: list[Command],
        *,
        begun: Mapping[int, Flight] = MappingProxyType({}),
    ) -> Iterator[None]:
        """Cancel a device's unconfirmed deliveries, except those in *begun*.

        If the session has ended a notification, the device now gets its final outcome.
        """
        in_flight, member.in_flight = member.in_flight, dict(begun)
        for count, seq in enumerate(in_flight, start=1):
            if count % QUICK_PIECE == 0:
                yield
            if seq in begun:
                continue
            self._view.touch(("pending", session.name, seq))
            self._endings.take_back(session, device, seq, session.pending[seq], out)

    def release(self, session: Session, device: str, out: list[Command]) -> Iterator[None]:
        """Cancel a device's unconfirmed deliveries of a session that is deleted; the device may have left it."""
        member = session.members.get(device)
        if member is not None:
            self.away(device, session.name)
            self._view.touch(("member", session.name, device))
            yield from self.note_sent(device, member)
            yield from self.let_go(session, device, member, out)
        yield from self._departures.end(session, device, out)

    def _serve_shares(self, seq: int, identities: tuple[Identity, ...], out: list[Command]) -> None:
        """Pass a notification that a policy withheld to the next session of each share (rule 21).

        The shares are those among the subscriptions *identities*.
        """
        copy = self._state.copies[seq]
        if not copy.shares:
            return
        for name, found in next_to_serve(self._state, self._view, self._keeping, copy, seq, identities):
            self._pass_on(seq, copy, name, found, out)
        self._view.touch(("copy", seq))

    def confirmed(
        self, at: int, session: str, device: str, seq: int, outcome: Outcome, *, via: str | None = None
    ) -> list[Command]:
        """Apply a receipt: a device received a notification, or *outcome* is the reason why not (rule 7)."""
        out: list[Command] = []
        state = self._state
        if at > state.now:  # noqa: PLR1730  # ``OutcomeRules.advance``, inlined: this runs for every receipt
            state.now = at
        heap = state.lapses.heap
        if heap and heap[0][0] <= state.now:
            self._endings.end_lapsed(out)
        found = state.sessions.get(session)
        if found is None or outcome not in _RECEIPTS:
            return out
        lane = found.lane
        if lane is not None and seq in lane.flights and device == lane.device:
            copy = state.copies[seq]
            if outcome is _DELIVERED or (outcome is _WITHHELD and not copy.shares):
                is_delivered = outcome is _DELIVERED
                terms, via = lane.flights.pop(seq), via if is_delivered else None
                lapse = copy.lapse_of(terms.longest_us) if terms.qos and copy.qos else None
                end = (session, device, seq, terms.identities, outcome, state.now, lapse, via, copy.kept)
                out.append(_NEW(Settle, end))
                copy.flight_count -= 1
                if copy.has_row:
                    self._view.touch(("copy", seq))
                if copy.flight_count or copy.sessions:
                    if is_delivered:
                        copy.received.add(device)
                else:
                    state.forget(seq)
                return out
            self._lanes.land(lane)
        bearer = found.bearer(device)
        if bearer is not None and seq in bearer.in_flight:
            self.confirm(found, device, bearer, seq, outcome, out, via=via)
            if not bearer.in_flight and bearer is found.departed.get(device):
                self._departures.forget(found, device)
        else:
            self._departures.confirm(found, device, seq, outcome, out, via=via)
        return out

    def confirm(
        self,
        session: Session,
        device: str,
        member: Member,
        seq: int,
        outcome: Outcome,
        out: list[Command],
        *,
        via: str | None = None,
    ) -> None:
        """Give a device's unconfirmed delivery the final *outcome*; in mode take, end the notification (rule 7)."""
        identities = member.in_flight.pop(seq).identities
        pending = session.pending[seq]
        pending.in_flight.discard(device)
        if self._view.is_followed:
            self._view.touch(("pending", session.name, seq))
        if outcome is _DELIVERED:
            copy = self._state.copies[seq]
            copy.received.add(device)
            copy.attempted.pop(device, None)
            if self._view.is_followed:
                self._view.touch(("copy", seq))
        via = via if outcome is _DELIVERED else None
        self._endings.settle(session.name, device, seq, pending, identities, outcome, self._state.now, out, via=via)
        if outcome is _WITHHELD and device == client_of(session.name):
            self._serve_shares(seq, identities, out)
        if outcome is _DELIVERED and member.takes and pending.end is None:
            self._endings.end(session, seq, _TAKEN, tuple(pending.held), self._state.now, out)
        elif pending.end is not None:
            self._endings.close(session, seq, pending, out)
        elif outcome is not _DELIVERED and device == client_of(session.name):  # no other device could still get it
            self._endings.end(session, seq, outcome, tuple(pending.held), self._state.now, out)
