"""Publications: which sessions hold a notification, and which devices are sent it now (rules 2 to 5, 13 to 18)."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from operator import itemgetter

from whimbrel.hold.commands import Command, HandOver, Identity, Matches, Published, Settle
from whimbrel.hold.quality import CONFIRMED, hand_over_qos
from whimbrel.hold.rules.endings import OutcomeRules
from whimbrel.hold.rules.fast_lane import FastLanes
from whimbrel.hold.rules.keeping import QueueRules
from whimbrel.hold.rules.members import MemberRules
from whimbrel.hold.rules.work import PIECE, Work, all_of
from whimbrel.hold.shared_subscriptions import matches_that_count, sorted_matches
from whimbrel.hold.state import NO_SHARES, Copy, Flight, Pending, Session, State
from whimbrel.hold.view import View
from whimbrel.model.facts import Outcome

__all__ = ["Publications"]

_DELIVERED, _EXPIRED = Outcome.DELIVERED, Outcome.EXPIRED
_BY_SESSION, _BY_DEVICE = itemgetter(0), itemgetter(0)
_NEW = tuple.__new__  # makes a named tuple in a third of the time of its constructor


class Publications:
    """Applies publications to the sessions that match; with *has_fast_lane*, through fast lanes where possible."""

    def __init__(
        self,
        state: State,
        view: View,
        endings: OutcomeRules,
        lanes: FastLanes,
        members: MemberRules,
        keeping: QueueRules,
        *,
        has_fast_lane: bool,
    ) -> None:
        self._state, self._view, self._endings, self._lanes, self._members = state, view, endings, lanes, members
        self._keeping, self._has_fast_lane = keeping, has_fast_lane
        self._fly = lanes.fly

    def published(self, kept: Published, matches: Matches, *, received: Collection[str] = ()) -> list[Command]:
        """Apply an accepted notification to the sessions that match it (rules 2 to 5, and 15 to 18).

        The devices *received* already have the notification, through other sessions than those in *matches*; they do
        not get it again.
        """
        out: list[Command] = []
        matches, others = self._begin(kept, matches, out)
        if not matches:
            return out
        flown: list[HandOver] = []
        own: dict[str, Settle] = {}
        flight_count = 0
        if self._may_fly(kept):
            if len(matches) > PIECE:
                return out + all_of(self._publishing(kept, matches, others, received))
            late_us, is_expiring = self._state.now - kept.published_at, kept.expires_at is not None
            if len(matches) > 1:
                matches = sorted(matches, key=_BY_SESSION)
            matches, flight_count = self._fly(kept, late_us, matches, flown, own, is_expiring=is_expiring)
            if not matches:
                return self._end_flown(kept, flight_count, others, received, flown, own, out)
        copy = self._copy(kept, flight_count, others, received)
        for _ in self._hold_and_hand_over(kept.seq, copy, sorted_matches(matches), flown, own, out):
            pass
        self._store(kept.seq, copy)
        return out

    def publishing(self, kept: Published, matches: Matches, *, received: Collection[str] = ()) -> Work:
        """Apply a publication as ``published`` does, in slices of some milliseconds; see ``Hold.applying``."""
        out: list[Command] = []
        matches, others = self._begin(kept, matches, out)
        if matches:
            out += yield from self._publishing(kept, matches, others, received)
        return out

    def _publishing(
        self, kept: Published, matches: Matches, others: Mapping[str, Matches], received: Collection[str]
    ) -> Work:
        """Deliver a notification through fast lanes where possible, else by the rules.

        Yield after each slice of work.
        """
        out: list[Command] = []
        flown: list[HandOver] = []
        own: dict[str, Settle] = {}
        flight_count = 0
        if self._may_fly(kept):
            late_us, is_expiring = self._state.now - kept.published_at, kept.expires_at is not None
            matches, left = sorted(matches, key=_BY_SESSION), list[tuple[str, tuple[Identity, ...]]]()
            for start in range(0, len(matches), PIECE):
                if start:
                    yield
                some = matches[start : start + PIECE]
                slow, count = self._fly(kept, late_us, some, flown, own, is_expiring=is_expiring)
                left += slow
                flight_count += count
            matches = left
            if not matches:
                return self._end_flown(kept, flight_count, others, received, flown, own, out)
        copy = self._copy(kept, flight_count, others, received)
        yield from self._hold_and_hand_over(kept.seq, copy, sorted_matches(matches), flown, own, out)
        self._store(kept.seq, copy)
        return out

    def _begin(self, kept: Published, matches: Matches, out: list[Command]) -> tuple[Matches, Mapping[str, Matches]]:
        """Advance the time, and return *matches* without those that no-local or a share excludes (rules 17 and 18).

        Return also, for each share whose chosen session may withhold the notification by a policy, the sessions that
        may get it instead (rule 21).
        """
        state, at = self._state, kept.published_at
        if at > state.now:  # noqa: PLR1730  # ``OutcomeRules.advance``, inlined: this runs for every publication
            state.now = at
        heap = state.lapses.heap
        if heap and heap[0][0] <= state.now:
            self._endings.end_lapsed(out)
        if not state.conditional:
            return matches, NO_SHARES
        matches, (chosen, others) = matches_that_count(state, kept.publisher, matches)
        for share, name in chosen.items():
            state.turns.setdefault(share, {})[name] = kept.seq
            self._view.touch(("turn", share, name))
        return matches, others

    def _may_fly(self, kept: Published) -> bool:
        """Return whether a notification may be delivered through fast lanes."""
        state, expires_at = self._state, kept.expires_at
        return bool(state.privates) and self._has_fast_lane and (expires_at is None or expires_at > state.now)

    def _copy(
        self, kept: Published, flight_count: int, others: Mapping[str, Matches], received: Collection[str]
    ) -> Copy:
        """Create the record of a notification that a session is about to hold or has in flight; return the record."""
        copy = self._state.copies.get(kept.seq)  # of deliveries that ``FastLanes.begin_flights`` has made
        if copy is None:
            copy = self._state.copies[kept.seq] = Copy(kept.qos, kept.published_at, kept.expires_at, kept=kept)
        copy.flight_count += flight_count
        copy.shares = others
        if received:
            copy.received.update(received)
        return copy

    def _end_flown(
        self,
        kept: Published,
        flight_count: int,
        others: Mapping[str, Matches],
        received: Collection[str],
        flown: list[HandOver],
        own: dict[str, Settle],
        out: list[Command],
    ) -> list[Command]:
        """Return all commands of a publication that fast lanes delivered in every matching session.

        These are the commands in *out*, then the deliveries *flown*, sorted by device, then the outcomes *own*. If a
        delivery needs a receipt, store the record of the notification.
        """
        if flight_count or kept.seq in self._state.copies:
            copy = self._copy(kept, flight_count, others, received)
            copy.received.update(own)
            self._store(kept.seq, copy)
        out += flown
        out += own.values()
        return out

    def _store(self, seq: int, copy: Copy) -> None:
        """Mark the record of a notification as stored, and notify its observer, unless it is so or already removed."""
        if seq in self._state.copies and not copy.is_stored:
            self._state.store(copy)

    def _hold_and_hand_over(
        self,
        seq: int,
        copy: Copy,
        matches: Matches,
        flown: list[HandOver],
        own: dict[str, Settle],
        out: list[Command],
    ) -> Iterator[None]:
        """Hold a notification and deliver it, by the rules, in the sessions that the fast lanes left.

        The fast lanes have made the deliveries *flown*, and given the final outcomes *own* to devices that got it at
        QoS 0 and confirm nothing.
        """
        copy.has_row = True
        if self._view.is_followed:
            self._view.touch(("copy", seq))
        expires_at = copy.expires_at
        is_dead = expires_at is not None and expires_at <= self._state.now
        ended: list[tuple[Session, Outcome, tuple[Identity, ...], int]] = []
        for count, (name, identities) in enumerate(matches, start=1):
            if count % PIECE == 0:
                yield
            session = self._view.session(name)
            if session.lane is not None:
                self._lanes.land(session.lane)  # older notifications must come before this one
            copy.sessions.add(name)
            if is_dead:
                assert expires_at is not None
                held: dict[Identity, int] = {}
                end = (_EXPIRED, identities, expires_at)
            else:
                held, end = self._keeping.to_hold(session, identities, copy)
            session.pending[seq] = Pending(held, max(held.values(), default=None))
            self._state.pendings += 1
            if self._view.is_followed:
                self._view.touch(("pending", name, seq))
            if held:
                self._keeping.keep(session, seq, held, out)
            else:
                ended.append((session, *end))
        handed = [] if is_dead else (yield from self._hand_over_live(seq, matches, copy, flown))
        out += handed
        for count, (session, outcome, identities, moment) in enumerate(ended, start=1):
            if count % PIECE == 0:
                yield
            self._endings.end(session, seq, outcome, identities, moment, out)
        for count, command in enumerate(handed, start=1):
            if count % PIECE == 0:
                yield
            if command.is_own_receipt:
                self._receive_at_once(command, copy, own, out)

    def _receive_at_once(self, command: HandOver, copy: Copy, own: dict[str, Settle], out: list[Command]) -> None:
        """Count a delivery at QoS 0, which needs no receipt, as received (rule 16)."""
        device = command.device
        settled = own.get(device)
        if settled is not None:
            copy.received.add(device)
            out.append(settled)
            return
        for name, _ in command.sessions:
            session = self._state.sessions[name]
            self._members.confirm(session, device, session.members[device], command.seq, _DELIVERED, out)

    def _hand_over_live(
        self, seq: int, matches: Matches, copy: Copy, flown: list[HandOver]
    ) -> Generator[None, None, list[HandOver]]:
        """Deliver a notification once to every present device (rule 5); return all deliveries, sorted by device.

        The deliveries *flown*, which fast lanes have made, are included.
        """
        counted: dict[str, list[tuple[str, tuple[Identity, ...]]]] = {}
        confirming: set[str] = set()
        with_qos = 0
        for count, match in enumerate(matches, start=1):
            if count % PIECE == 0:
                yield
            name, identities = match
            session = self._state.sessions[name]
            with_qos += session.with_qos
            has_policy = self._state.has_policy(session, identities)
            pending = session.pending[seq]
            for device, member in session.members.items():
                if member.is_present:
                    pending.in_flight.add(device)
                    counted.setdefault(device, []).append(match)
                    if has_policy or member.confirms_qos_0(is_expiring=copy.expires_at is not None):
                        confirming.add(device)
        handed: list[HandOver] = []
        for count, device in enumerate(sorted(counted), start=1):
            if count % PIECE == 0:
                yield
            sessions = tuple(counted[device])
            qos = hand_over_qos(self._state, copy.qos, sessions) if with_qos else CONFIRMED
            for name, identities in sessions:
                self._state.sessions[name].members[device].in_flight[seq] = Flight(identities, qos)
            is_own = qos == 0 and device not in confirming and device not in self._state.shaped
            handed.append(_NEW(HandOver, (device, seq, sessions, False, False, True, qos, is_own, copy.kept)))
        return sorted(flown + handed, key=_BY_DEVICE) if flown else handed
