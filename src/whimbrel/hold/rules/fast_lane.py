"""Fast lane: cheap records of deliveries in flight to a connected client, which nearly always confirms them at once.

Holding each such notification by the rules, only to remove it a moment later, is most of the work of a broker. In a
fast lane a delivery is only a dictionary entry, a *flight*. Most flights end with their confirmation. The others
*land*: they become pending notifications in the session's queue, by the rules. This is done as late as possible, which
changes no command: while the only device of a session has a notification in flight, neither its lapse nor its end in
the session gives a command.
Rule: only a private session has a lane, while its one device is present, has mode take, and is present in no other
session. A change of these conditions, or of the session's subscriptions, closes the lane.
Rule: flights land before any code reads the session, other sessions of its device, or the rows; the commands are the
same with and without lanes.
Rule: all flights of a session are younger than its pending notifications, so that landing keeps the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from whimbrel.hold.commands import HandOver, Identity, Matches, Published, Settle
from whimbrel.hold.private import client_of
from whimbrel.hold.retention import Retention
from whimbrel.hold.shared_subscriptions import sorted_identities
from whimbrel.hold.state import Copy, FastLane, Flight, LaneOptions, Pending, Session, State
from whimbrel.hold.touched_rows import Key
from whimbrel.hold.view import View
from whimbrel.model.facts import Outcome

__all__ = ["FastLanes", "FlightTarget", "terms_of"]

FlightTarget: TypeAlias = tuple[Session, LaneOptions]
"""A private session with the options of fast delivery for some of its subscriptions; valid until these change."""

_MANY = 64
_DELIVERED = Outcome.DELIVERED
_NEW = tuple.__new__  # makes a named tuple in a third of the time of its constructor


def terms_of(session: Session, matched: tuple[Identity, ...], retention: Retention) -> LaneOptions:
    """Return the options of fast delivery (QoS, times to live, limits) for a combination of matching subscriptions."""
    terms = LaneOptions(session.name, sorted_identities(matched))
    subscriptions = [session.subscriptions.get(identity) for identity in terms.identities]
    granted = [None if found is None else found.qos for found in subscriptions]
    bounds = [retention.of(found) for found in subscriptions]
    asked = [qos for qos in granted if qos is not None]
    held = [(i, *b) for i, qos, b in zip(terms.identities, granted, bounds, strict=True) if qos]
    if len(asked) < len(granted):
        return terms
    terms.qos = max(asked)
    terms.has_policy = any(found is not None and found.policy is not None for found in subscriptions)
    terms.kept = tuple((identity, ttl_us) for identity, ttl_us, _ in held)
    terms.room = min((most for _, _, most in held), default=0)
    terms.shortest_us = min((ttl_us for _, ttl_us in terms.kept), default=0)
    terms.longest_us = max((ttl_us for _, ttl_us in terms.kept), default=0)
    return terms


class FastLanes:
    """The fast lanes of all private sessions: deliveries in flight that are not in the sessions' queues."""

    def __init__(self, state: State, view: View, retention: Retention) -> None:
        self._state, self._view, self._retention = state, view, retention
        self._busy: set[FastLane] = set()
        """All lanes with flights (unconfirmed deliveries), and some that have none any more."""

    def fly(
        self,
        kept: Published,
        late_us: int,
        matches: Matches,
        out: list[HandOver],
        own: dict[str, Settle],
        *,
        is_expiring: bool,
    ) -> tuple[Matches, int]:
        """Deliver a notification through fast lanes; append the deliveries to *out*.

        At QoS 0 without a receipt, the final outcome is known at once; it is added to *own*, by device. Return the
        matches that are left for the rules, and the number of new flights (unconfirmed deliveries).
        """
        left: list[tuple[str, tuple[Identity, ...]]] = []
        seq, qos = kept.seq, kept.qos
        flight_count, now, sessions, busy = 0, self._state.now, self._state.sessions, self._busy
        for match in matches:
            name, identities = match
            session = sessions.get(name)
            lane = None if session is None else session.lane or self._open(session)
            if lane is None:
                left.append(match)
                continue
            terms = lane.terms.get(identities) or self._work_out(lane, identities)
            granted = terms.qos if terms.qos < qos else qos  # noqa: FURB136  # min() takes four times as long
            if granted > 0:
                flights = lane.flights
                if late_us >= terms.shortest_us or len(flights) + len(lane.pending) >= terms.room:
                    left.append(match)
                    continue
                if not flights:
                    busy.add(lane)
                flights[seq] = terms
                flight_count += 1
                is_own = False
            elif granted < 0:
                left.append(match)
                continue
            elif (
                terms.has_policy
                or lane.device in self._state.shaped
                or lane.member.confirms_qos_0(is_expiring=is_expiring)
            ):
                if late_us:  # ``_as_pending`` takes ``published_at`` as the time at which the session ended it
                    left.append(match)
                    continue
                busy.add(lane)
                lane.flights[seq] = terms
                flight_count += 1
                is_own = False
            else:
                end = (name, lane.device, seq, terms.identities, _DELIVERED, now, None, None, kept)
                own[lane.device] = _NEW(Settle, end)
                is_own = True
            out.append(_NEW(HandOver, (lane.device, seq, terms.handed, False, False, True, granted, is_own, kept)))
        return left, flight_count

    def find_target(self, name: str, matched: tuple[Identity, ...]) -> FlightTarget:
        """Return the target for the session *name* and its subscriptions *matched*."""
        session = self._state.sessions[name]
        return session, terms_of(session, matched, self._retention)

    def begin_flights(self, messages: Sequence[Published], targets: Sequence[FlightTarget]) -> Sequence[int]:
        """Record notifications as in flight in the fast lanes of *targets*, and store them.

        The notifications have one QoS, 1 or 2, and one time; each target was granted QoS 1 or 2. The caller delivers
        them to the devices of these sessions. Return the indices of the targets without a fast lane, or with too many
        notifications: none of *messages* is in flight there, and the caller must call ``published`` for each of them.
        """
        state, first, more = self._state, messages[0], len(messages)
        seqs, at = [each.seq for each in messages], first.published_at
        if at > state.now:  # noqa: PLR1730  # max() takes twice as long, and this runs for every publication
            state.now = at
        late_us, busy = state.now - at, self._busy
        left: list[int] = []
        for index, (session, options) in enumerate(targets):
            lane = session.lane
            if lane is None and (lane := self._open(session)) is None:
                left.append(index)
                continue
            flights = lane.flights
            if late_us >= options.shortest_us or len(flights) + len(lane.pending) + more > options.room:
                left.append(index)
                continue
            if not flights:
                busy.add(lane)
            for seq in seqs:
                flights[seq] = options
        count = len(targets) - len(left)
        if not count:
            return left
        for kept in messages:
            copy = state.copies.get(kept.seq)
            if copy is not None:
                copy.flight_count += count
                continue
            copy = state.copies[kept.seq] = Copy(kept.qos, at, kept.expires_at, kept=kept)
            copy.flight_count = count
            state.store(copy)
        return left

    def end_flights(self, name: str, device: str, seqs: Sequence[int]) -> Sequence[int]:
        """Confirm deliveries of the notifications *seqs* to a device, through its fast lane of the session *name*.

        Return the seqs that are not in flight there. Their receipts follow the rules (``MemberRules.confirmed``).
        """
        state = self._state
        session = state.sessions.get(name)
        lane = None if session is None else session.lane
        if lane is None or lane.device != device:
            return seqs
        flights, copies, left = lane.flights, state.copies, list[int]()
        mark: Callable[[Key], None] | None = None
        for seq in seqs:
            if flights.pop(seq, None) is None:
                left.append(seq)
                continue
            copy = copies[seq]
            copy.flight_count -= 1
            if copy.has_row:
                mark = mark or self._view.mark
                mark(("copy", seq))
            if copy.flight_count or copy.sessions:
                copy.received.add(device)
            else:
                state.forget(seq)
        return left

    def _open(self, session: Session) -> FastLane | None:
        """Open a fast lane for a session that fulfils the conditions in this module's docstring, and return it.

        Else return None.
        """
        if not session.is_private or len(session.members) != 1:
            return None
        ((device, member),) = session.members.items()
        if not member.is_present or not member.takes or device != client_of(session.name):
            return None
        if len(self._state.joined[device]) == 1:
            session.lane = FastLane(session, device, member)
        return session.lane

    def _work_out(self, lane: FastLane, matched: tuple[Identity, ...]) -> LaneOptions:
        """Compute the options of fast delivery for a combination of matching subscriptions, and cache them."""
        if len(lane.terms) >= _MANY:
            lane.terms.clear()
        terms = lane.terms[matched] = terms_of(lane.session, matched, self._retention)
        return terms

    def land(self, lane: FastLane) -> None:
        """Turn a lane's flights (unconfirmed deliveries) into pending notifications, as they would be by the rules."""
        self._busy.discard(lane)
        landed, lane.flights = lane.flights, {}
        state, name = self._state, lane.name
        for seq, terms in landed.items():
            copy = state.copies[seq]
            copy.flight_count -= 1
            copy.has_row = True
            copy.sessions.add(name)
            lane.pending[seq] = self._as_pending(lane, seq, terms, copy)
            state.pendings += 1
            lane.member.in_flight[seq] = Flight(terms.identities, min(terms.qos, copy.qos))
            self._view.touch(("pending", name, seq))
            self._view.touch(("copy", seq))

    @property
    def flight_count(self) -> int:
        """Number of unconfirmed deliveries in all fast lanes, outside the sessions' queues."""
        return sum(len(lane.flights) for lane in self._busy)

    def land_all(self) -> None:
        """Move the unconfirmed deliveries of all fast lanes into the sessions' queues, as pending notifications."""
        for lane in list(self._busy):
            self.land(lane)

    def _as_pending(self, lane: FastLane, seq: int, terms: LaneOptions, copy: Copy) -> Pending:
        state = self._state
        if not (terms.qos and copy.qos):  # not to be held: the session ended it when it was published
            pending = Pending({}, None)
            pending.in_flight.add(lane.device)
            pending.end = (Outcome.DROPPED, terms.identities, copy.published_at)
            return pending
        lapses = {identity: copy.lapse_of(ttl_us) for identity, ttl_us in terms.kept}
        latest = max(lapses.values())
        pending = Pending({identity: lapse for identity, lapse in lapses.items() if lapse > state.now}, latest)
        pending.in_flight.add(lane.device)
        if not pending.held:
            last = tuple(identity for identity, lapse in lapses.items() if lapse == latest)
            pending.end = (Outcome.EXPIRED, last, latest)
        for identity, lapse in pending.held.items():
            lane.session.counts.setdefault(identity, {})[seq] = None
            state.lapses.push(lapse, seq, lane.name)
        return pending

    def close(self, session: Session) -> None:
        """Close the fast lane of a session, if it has one, and forget its results that assumed receipts have cached.

        Its unconfirmed deliveries become pending notifications. Call this before the session's devices or subscriptions
        change.
        """
        if session.results:
            session.results.clear()
        if session.lane is not None:
            self.land(session.lane)
            session.lane = None
