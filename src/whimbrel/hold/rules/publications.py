"""Publications: which sessions hold a notification, and which devices are given it now (rules 2 to 5, and 13 to 18)."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from operator import itemgetter

from whimbrel.hold.commands import Command, HandOver, Identity, Matches, Published, Settle
from whimbrel.hold.counting import matches_that_count, sorted_matches
from whimbrel.hold.quality import CONFIRMED, hand_over_qos
from whimbrel.hold.rules.endings import Endings
from whimbrel.hold.rules.fast_lane import FastLanes
from whimbrel.hold.rules.keeping import Keeping
from whimbrel.hold.rules.members import Members
from whimbrel.hold.rules.work import PIECE, Work, all_of
from whimbrel.hold.state import NO_SHARES, Copy, Flight, Pending, Session, State
from whimbrel.hold.view import View
from whimbrel.model.facts import Outcome

__all__ = ["Publications"]

_DELIVERED, _EXPIRED = Outcome.DELIVERED, Outcome.EXPIRED
_BY_SESSION, _BY_DEVICE = itemgetter(0), itemgetter(0)
_NEW = tuple.__new__  # a named tuple from a tuple takes a third of the time of one from arguments


class Publications:
    """Takes notifications in; without the fast lane, by the rules alone."""

    def __init__(
        self,
        state: State,
        view: View,
        endings: Endings,
        lanes: FastLanes,
        members: Members,
        keeping: Keeping,
        *,
        has_fast_lane: bool,
    ) -> None:
        self._state, self._view, self._endings, self._lanes, self._members = state, view, endings, lanes, members
        self._keeping, self._has_fast_lane = keeping, has_fast_lane
        self._fly = lanes.fly

    def published(self, kept: Published, matches: Matches, *, received: Collection[str] = ()) -> list[Command]:
        """Take in a notification that was accepted, and who wants it (rules 2 to 5, and 15 to 18).

        Devices that have *received* it already, for matches that are not given, do not receive it again.
        """
        return all_of(self.publishing(kept, matches, received=received))

    def publishing(self, kept: Published, matches: Matches, *, received: Collection[str] = ()) -> Work:
        """Do what ``published`` does in pieces; see ``applying``."""
        seq, at, expires_at, qos = kept.seq, kept.published_at, kept.expires_at, kept.qos
        out: list[Command] = []
        state = self._state
        if at > state.now:  # noqa: PLR1730  # ``Endings.advance``, written out: this runs for everything that is handed over
            state.now = at
        heap = state.lapses.heap
        if heap and heap[0][0] <= state.now:
            self._endings.end_lapsed(out)
        others = NO_SHARES
        if state.conditional:
            matches, (chosen, others) = matches_that_count(state, kept.publisher, matches)
            for share, name in chosen.items():
                state.turns.setdefault(share, {})[name] = seq
                self._view.touch(("turn", share, name))
        if not matches:
            return out
        flown: list[HandOver] = []
        own: dict[str, Settle] = {}
        flight_count, now = 0, state.now
        if state.privates and self._has_fast_lane and (expires_at is None or expires_at > now):
            if len(matches) > 1:
                matches = sorted(matches, key=_BY_SESSION)
            is_expiring, left = expires_at is not None, list[tuple[str, tuple[Identity, ...]]]()
            for start in range(0, len(matches), PIECE):
                if start:
                    yield
                some = matches[start : start + PIECE] if len(matches) > PIECE else matches
                slow, count = self._fly(kept, now - at, some, flown, own, is_expiring=is_expiring)
                left += slow
                flight_count += count
            matches = left
        if not matches:  # nothing but fast lanes: in the order of sessions, which is that of their devices
            if flight_count:
                copy = state.copies[seq] = Copy(qos, at, expires_at, kept=kept)
                copy.flight_count = flight_count
                copy.received = {*received, *own}
                copy.shares = others
                state.store(copy)
            out += flown
            out += own.values()
            return out
        copy = state.copies[seq] = Copy(qos, at, expires_at, kept=kept)
        copy.flight_count = flight_count
        copy.shares = others
        if received:
            copy.received = set(received)
        yield from self._hold_and_hand_over(seq, copy, sorted_matches(matches), flown, own, out)
        if seq in state.copies:  # else it was forgotten with its last ending
            state.store(copy)
        return out

    def _hold_and_hand_over(
        self,
        seq: int,
        copy: Copy,
        matches: Matches,
        flown: list[HandOver],
        own: dict[str, Settle],
        out: list[Command],
    ) -> Iterator[None]:
        """Hold and hand over by the rules, together with what has *flown* already, and its *own* receipts."""
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
                self._lanes.land(session.lane)  # what is older stands before this
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
        """Take a hand-over for its own receipt (rule 16)."""
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
        """Give every device that is present its one copy (rule 5); return all that are given one, by name."""
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
