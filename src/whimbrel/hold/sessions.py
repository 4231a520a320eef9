"""Sessions: the hold, as a fold over the facts of one node; its numbered rules are docs/explanation/holding.md.

Rule: no clock, no I/O, no randomness: the same facts give the same commands, live, in Spark and in the simulator.
Rule: a notification is its seq here; subscriptions are (subject filter, name). The shell keeps the rest.
Rule: everything that changes is noted (``_touch``), so that a view can follow in small steps.
Rule: what is in a fast lane (``lane``) lands before anything looks at the session, its device's sessions or the rows;
with and without the lanes, the commands are the same.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from operator import itemgetter
from types import MappingProxyType
from typing import TypeAlias

from whimbrel.hold.commands import Command, Forget, HandOver, Identity, Settle, Store, Tell, TellAll
from whimbrel.hold.counting import Matches, counting, in_order
from whimbrel.hold.lane import Lane, lane_of, lapse_of
from whimbrel.hold.private import client_of, private_session
from whimbrel.hold.quality import CONFIRMED, is_live_only, of_hand_over
from whimbrel.hold.retention import DEFAULT_RETENTION, Retention
from whimbrel.hold.rows import Key, keys, restored, written
from whimbrel.hold.state import Copy, Flight, Member, Pending, Session, State
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import (
    Fact,
    InterestChanged,
    Mode,
    Outcome,
    PresenceChange,
    PresenceChanged,
    Receipt,
    SessionChange,
    SessionChanged,
    time_of,
)
from whimbrel.model.notification import Notification
from whimbrel.model.subscription import InterestChange, Subscription

__all__ = ["PIECE", "RETAINED", "Hold", "Matches"]

PIECE = 250
"""How many sessions a piece of ``Hold.publishing`` sees to: some 20 µs each on the machine of bench/results."""

RETAINED = "retained"
"""How a receipt says that a notification came which was sent beside the hold."""

Work: TypeAlias = Generator[None, None, list[Command]]
"""What is done in pieces, and returns what is to be done about it."""
_QUICK_PIECE = 2_000
"""The same where it takes a microsecond or two each."""
_DELIVERED, _EXPIRED, _DISPLACED = Outcome.DELIVERED, Outcome.EXPIRED, Outcome.DISPLACED
_TAKEN, _DROPPED, _WITHHELD = Outcome.TAKEN_ELSEWHERE, Outcome.DROPPED, Outcome.WITHHELD


_BY_SESSION, _BY_DEVICE = itemgetter(0), itemgetter(0)
_NEW = tuple.__new__  # a named tuple from a tuple takes a third of the time of one from arguments
_EXACTLY_ONCE = 2
_RECEIPTS = frozenset({_DELIVERED, _WITHHELD, _DROPPED, _EXPIRED})
"""What a receipt may say; the others are the hold's to find out."""


class Hold:
    """All sessions of a node; *state* is what a view restored.

    Without the fast lane everything goes by the rules alone: slower, and otherwise the same.
    """

    def __init__(
        self,
        node: str,
        *,
        retention: Retention = DEFAULT_RETENTION,
        state: State | None = None,
        has_fast_lane: bool = True,
    ) -> None:
        self.node = node
        self._has_fast_lane = has_fast_lane
        self._busy: set[Lane] = set()
        """The lanes with flights, and some that had."""
        self._retention = retention
        self._state = State() if state is None else state
        self.tally = self._state
        """Whose ``pendings`` is how many notifications are pending, counted in each session; it only is to be read."""
        self._touched: set[Key] = set()
        self._is_followed = state is not None

    @property
    def now(self) -> int:
        """The largest time of any fact or tick so far."""
        return self._state.now

    def access(self, session: str) -> str | None:
        """Return who may do what in a session, as JSON; None if anybody may, or there is no such session."""
        found = self._state.sessions.get(session)
        return None if found is None else found.access

    def subscriptions(self, session: str) -> tuple[Subscription, ...]:
        """Return the subscriptions of a session, in the order they came."""
        found = self._state.sessions.get(session)
        return () if found is None else tuple(found.subscriptions.values())

    def subscription(self, session: str, identity: Identity) -> Subscription | None:
        """Return a subscription of a session; None if there is none, or no such session."""
        found = self._state.sessions.get(session)
        return None if found is None else found.subscriptions.get(identity)

    def sessions(self) -> tuple[str, ...]:
        """Return the names of all sessions, in the order they came."""
        return tuple(self._state.sessions)

    def has(self, session: str) -> bool:
        """Tell whether there is such a session."""
        return session in self._state.sessions

    def members(self, session: str) -> dict[str, tuple[bool, bool]]:
        """Return whether each device of a session is present, and whether it takes."""
        found = self._state.sessions.get(session)
        return {} if found is None else {d: (m.is_present, m.takes) for d, m in found.members.items()}

    def is_member(self, session: str, device: str) -> bool:
        """Tell whether a device is a member of a session, present or away."""
        found = self._state.sessions.get(session)
        return found is not None and device in found.members

    @property
    def named_count(self) -> int:
        """How many sessions there are that are not private."""
        return len(self._state.sessions) - self._state.privates

    def pending_count(self, session: str) -> int:
        """Return how many notifications a session has pending or in flight."""
        found = self._state.sessions.get(session)
        return 0 if found is None else _pending(found)

    def pending(self) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        """Yield what has no outcome yet: the session, the notification, and the devices that have it in flight."""
        for lane in list(self._busy):
            self._land(lane)
        for name, session in self._state.sessions.items():
            for seq, pending in session.pending.items():
                yield name, seq, tuple(sorted(pending.in_flight))

    def is_stored(self, seq: int) -> bool:
        """Tell whether anybody is still owed a notification."""
        return seq in self._state.copies

    def counts(self) -> dict[str, int]:
        """Return how much there is, for metrics."""
        return {
            "sessions": len(self._state.sessions),
            "notifications": len(self._state.copies),
            "pending": sum(map(_pending, self._state.sessions.values())),
        }

    # -- facts -------------------------------------------------------------------------------------------------------

    def apply(self, fact: Fact, matches: Matches = ()) -> list[Command]:
        """Take the next fact in; return what is to be done about it, in order."""
        if isinstance(fact, Notification):
            return self.published(
                fact.seq, fact.published_at, fact.expires_at, matches, qos=fact.qos, publisher=fact.publisher
            )
        if isinstance(fact, Receipt):
            if fact.notification.node != self.node:
                return self.tick(fact.handed_at)
            if fact.via == RETAINED:  # it was sent beside the hold, which knows nothing of it
                return self.tick(fact.handed_at)
            seq, via = fact.notification.seq, fact.via
            return self.confirmed(fact.handed_at, fact.session, fact.device, seq, fact.outcome, via=via)
        if isinstance(fact, PresenceChanged):
            return _all(self._presence(fact))
        if isinstance(fact, InterestChanged):
            return self._interest(fact)
        if isinstance(fact, SessionChanged):
            return _all(self._session_changed(fact))
        return self.tick(time_of(fact))  # wills, reports, policies and decisions: only their time counts here

    def applying(self, fact: Fact, matches: Matches = ()) -> Work:
        """Do what ``apply`` does in pieces of some milliseconds, yielding after each; return what it returns.

        Until the last piece is done nothing else may be told or asked of the hold.
        """
        if isinstance(fact, Notification):
            expires_at, qos, publisher = fact.expires_at, fact.qos, fact.publisher
            return self.publishing(fact.seq, fact.published_at, expires_at, matches, qos=qos, publisher=publisher)
        if isinstance(fact, PresenceChanged):
            return self._presence(fact)
        if isinstance(fact, SessionChanged):
            return self._session_changed(fact)
        return _at_once(self.apply(fact))

    def tick(self, now: int) -> list[Command]:
        """Let time pass: end what has lapsed."""
        out: list[Command] = []
        self._advance(now, out)
        return out

    def published(
        self,
        seq: int,
        at: int,
        expires_at: int | None,
        matches: Matches,
        *,
        qos: int = CONFIRMED,
        publisher: str | None = None,
    ) -> list[Command]:
        """Take in a notification that was accepted, and who wants it (rules 2 to 5, and 15 to 18)."""
        return _all(self.publishing(seq, at, expires_at, matches, qos=qos, publisher=publisher))

    def publishing(
        self,
        seq: int,
        at: int,
        expires_at: int | None,
        matches: Matches,
        *,
        qos: int = CONFIRMED,
        publisher: str | None = None,
    ) -> Work:
        """Do what ``published`` does in pieces; see ``applying``."""
        out: list[Command] = []
        state = self._state
        if at > state.now:  # noqa: PLR1730  # ``_advance``, written out: this runs for everything that is handed over
            state.now = at
        heap = state.lapses.heap
        if heap and heap[0][0] <= state.now:
            self._end_lapsed(out)
        if state.choosy:
            matches, chosen = counting(state, publisher, matches)
            for share, name in chosen.items():
                state.turns.setdefault(share, {})[name] = seq
                self._touch(("turn", share, name))
        if not matches:
            return out
        flown: list[HandOver] = []
        own: dict[str, Settle] = {}
        before, aloft, now = len(out), 0, state.now
        if state.privates and self._has_fast_lane and (expires_at is None or expires_at > now):
            if len(matches) > 1:
                matches = sorted(matches, key=_BY_SESSION)
            is_expiring, left = expires_at is not None, list[tuple[str, tuple[Identity, ...]]]()
            for start in range(0, len(matches), PIECE):
                if start:
                    yield
                some = matches[start : start + PIECE] if len(matches) > PIECE else matches
                slow, count = self._fly(seq, qos, now - at, some, flown, own, is_expiring=is_expiring)
                left += slow
                aloft += count
            matches = left
        if not matches:  # nothing but fast lanes: in the order of sessions, which is that of their devices
            if aloft:
                copy = state.copies[seq] = Copy(qos, at, expires_at)
                copy.aloft = aloft
                copy.received.update(own)
                out.append(_NEW(Store, (seq,)))
            out += flown
            out += own.values()
            return out
        copy = state.copies[seq] = Copy(qos, at, expires_at)
        copy.aloft = aloft
        yield from self._hold_and_hand_over(seq, copy, in_order(matches), flown, own, out)
        if seq in state.copies:
            out.insert(before, Store(seq))
        else:
            out.remove(Forget(seq))  # it was forgotten with its last ending, and need not be stored for that
        return out

    def confirmed(
        self, at: int, session: str, device: str, seq: int, outcome: Outcome, *, via: str | None = None
    ) -> list[Command]:
        """Take in that a device has a notification, or why it was not given it (rule 7)."""
        out: list[Command] = []
        state = self._state
        if at > state.now:  # noqa: PLR1730  # ``_advance``, written out: this runs for everything that is handed over
            state.now = at
        heap = state.lapses.heap
        if heap and heap[0][0] <= state.now:
            self._end_lapsed(out)
        found = state.sessions.get(session)
        if found is None or outcome not in _RECEIPTS:
            return out
        lane = found.lane
        if lane is not None and seq in lane.flights and device == lane.device:
            if outcome is _DELIVERED:
                terms, copy = lane.flights.pop(seq), state.copies[seq]
                lapse = lapse_of(copy, terms.longest_us)
                out.append(_NEW(Settle, (session, device, seq, terms.identities, outcome, state.now, lapse, via)))
                copy.aloft -= 1
                if copy.has_row:
                    self._touch(("copy", seq))
                if copy.aloft or copy.sessions:
                    copy.received.add(device)
                else:
                    del state.copies[seq]
                    out.append(_NEW(Forget, (seq,)))
                return out
            self._land(lane)
        member = found.members.get(device)
        if member is not None and seq in member.in_flight:
            self._confirm(found, device, member, seq, outcome, out, via=via)
        return out

    def _confirm(
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
        """Settle what a device has in flight (rule 7)."""
        identities = member.in_flight.pop(seq).identities
        pending = session.pending[seq]
        pending.in_flight.discard(device)
        if self._is_followed:
            self._touch(("pending", session.name, seq))
        if outcome is _DELIVERED:
            copy = self._state.copies[seq]
            copy.received.add(device)
            copy.attempted.pop(device, None)
            if self._is_followed:
                self._touch(("copy", seq))
        via = via if outcome is _DELIVERED else None
        self._settle(session.name, device, seq, pending, identities, outcome, self._state.now, out, via=via)
        if outcome is _DELIVERED and member.takes and pending.end is None:
            self._end(session, seq, _TAKEN, tuple(pending.held), self._state.now, out)
        elif pending.end is not None:
            self._close(session, seq, pending, out)
        elif outcome is not _DELIVERED and device == client_of(session.name):  # there is nobody else to keep it for
            self._end(session, seq, outcome, tuple(pending.held), self._state.now, out)

    # -- the fast lane -----------------------------------------------------------------------------------------------

    def _fly(
        self,
        seq: int,
        qos: int,
        late_us: int,
        matches: Matches,
        out: list[HandOver],
        own: dict[str, Settle],
        *,
        is_expiring: bool,
    ) -> tuple[Matches, int]:
        """Hand over through the fast lanes, those of quality 0 with their *own* receipts.

        Return what is left for the rules, and how many flights there are.
        """
        left: list[tuple[str, tuple[Identity, ...]]] = []
        aloft, now, sessions, busy = 0, self._state.now, self._state.sessions, self._busy
        for match in matches:
            name, identities = match
            session = sessions.get(name)
            lane = None if session is None else session.lane or self._open(session)
            if lane is None:
                left.append(match)
                continue
            terms = lane.terms.get(identities) or lane.work_out(identities)
            granted = terms.qos if terms.qos < qos else qos  # noqa: FURB136  # min() takes four times as long
            if granted > 0:
                flights = lane.flights
                if late_us >= terms.shortest_us or len(flights) + len(lane.pending) >= terms.room:
                    left.append(match)
                    continue
                if not flights:
                    busy.add(lane)
                flights[seq] = terms
                aloft += 1
            elif granted == 0 and not lane.member.confirms_qos_0(is_expiring=is_expiring):
                end = (name, lane.device, seq, terms.identities, _DELIVERED, now, None, None)
                own[lane.device] = _NEW(Settle, end)
            else:
                left.append(match)
                continue
            out.append(_NEW(HandOver, (lane.device, seq, terms.handed, False, False, True, granted, granted == 0)))
        return left, aloft

    def _open(self, session: Session) -> Lane | None:
        """Return the session's lane if it may have one now."""
        session.lane = lane_of(self._state, session, self._retention)
        return session.lane

    def _land(self, lane: Lane) -> None:
        """Let the rules hold what is in flight in a lane."""
        self._busy.discard(lane)
        for seq in lane.land(self._state):
            self._touch(("pending", lane.name, seq))
            self._touch(("copy", seq))

    def _close_lane(self, session: Session) -> None:
        """Let there be no lane: what it was opened for is about to change."""
        if session.lane is not None:
            self._land(session.lane)
            session.lane = None

    # -- publications ------------------------------------------------------------------------------------------------

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
        if self._is_followed:
            self._touch(("copy", seq))
        expires_at = copy.expires_at
        is_dead = expires_at is not None and expires_at <= self._state.now
        ended: list[tuple[Session, Outcome, tuple[Identity, ...], int]] = []
        for count, (name, identities) in enumerate(matches, start=1):
            if count % PIECE == 0:
                yield
            session = self._session(name)
            if session.lane is not None:
                self._land(session.lane)  # what is older stands before this
            copy.sessions.add(name)
            if is_dead:
                assert expires_at is not None
                held: dict[Identity, int] = {}
                end = (_EXPIRED, identities, expires_at)
            else:
                held, end = self._to_hold(session, identities, copy)
            session.pending[seq] = Pending(held, max(held.values(), default=None))
            self._state.pendings += 1
            if self._is_followed:
                self._touch(("pending", name, seq))
            if held:
                self._keep(session, seq, held, out)
            else:
                ended.append((session, *end))
        handed = [] if is_dead else (yield from self._hand_over_live(seq, matches, copy, flown))
        out += handed
        for count, (session, outcome, identities, moment) in enumerate(ended, start=1):
            if count % PIECE == 0:
                yield
            self._end(session, seq, outcome, identities, moment, out)
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
            self._confirm(session, device, session.members[device], command.seq, _DELIVERED, out)

    def _to_hold(
        self, session: Session, identities: tuple[Identity, ...], copy: Copy
    ) -> tuple[dict[Identity, int], tuple[Outcome, tuple[Identity, ...], int]]:
        """Return until when it is held for whom; and how it ends if for nobody (rule 3)."""
        held: dict[Identity, int] = {}
        live_only: list[Identity] = []
        lapsed: dict[Identity, int] = {}
        for identity in identities:
            subscription = session.subscriptions.get(identity)
            ttl, most = self._retention.of(subscription)
            lapse = lapse_of(copy, ttl)
            if most == 0 or (session.is_private and is_live_only(copy.qos, subscription)):
                live_only.append(identity)
            elif lapse <= self._state.now:
                lapsed[identity] = lapse
            else:
                held[identity] = lapse
        if live_only or held:
            return held, (_DROPPED, tuple(live_only), self._state.now)
        latest = max(lapsed.values())
        return held, (_EXPIRED, tuple(i for i, lapse in lapsed.items() if lapse == latest), latest)

    def _keep(self, session: Session, seq: int, held: dict[Identity, int], out: list[Command]) -> None:
        """Hold a notification for some subscriptions, displacing the oldest where there is no room (rule 4)."""
        for identity, lapse in held.items():
            queue = session.counts.setdefault(identity, {})
            _, most = self._retention.of(session.subscriptions.get(identity))
            while len(queue) >= most:
                self._strip(session, next(iter(queue)), identity, _DISPLACED, self._state.now, out)
            queue[seq] = None
            self._state.lapses.push(lapse, seq, session.name)

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
            pending = session.pending[seq]
            for device, member in session.members.items():
                if member.is_present:
                    pending.in_flight.add(device)
                    counted.setdefault(device, []).append(match)
                    if member.confirms_qos_0(is_expiring=copy.expires_at is not None):
                        confirming.add(device)
        handed: list[HandOver] = []
        for count, device in enumerate(sorted(counted), start=1):
            if count % PIECE == 0:
                yield
            sessions = tuple(counted[device])
            qos = self._quality(copy, sessions) if with_qos else CONFIRMED
            for name, identities in sessions:
                self._state.sessions[name].members[device].in_flight[seq] = Flight(identities, qos)
            is_own = qos == 0 and device not in confirming
            handed.append(_NEW(HandOver, (device, seq, sessions, False, False, True, qos, is_own)))
        return sorted(flown + handed, key=_BY_DEVICE) if flown else handed

    def _quality(self, copy: Copy, counted: Matches) -> int:
        return of_hand_over(copy.qos, ((self._state.sessions[name], identities) for name, identities in counted))

    # -- endings -----------------------------------------------------------------------------------------------------

    def _advance(self, at: int, out: list[Command]) -> None:
        """Move the time to *at* and end what lapses until then, each at its instant (rules 1 and 8)."""
        if at > self._state.now:  # noqa: PLR1730  # max() takes twice as long, and this runs for every fact
            self._state.now = at
        heap = self._state.lapses.heap
        if heap and heap[0][0] <= self._state.now:
            self._end_lapsed(out)

    def _end_lapsed(self, out: list[Command]) -> None:
        for lapse, seq, name in self._state.lapses.due(self._state.now):
            session = self._state.sessions.get(name)
            pending = None if session is None else session.pending.get(seq)
            if session is None or pending is None or not pending.held:
                continue
            lapsed = tuple(identity for identity, until in pending.held.items() if until == lapse)
            for identity in lapsed:
                del pending.held[identity]
                del session.counts[identity][seq]
            if lapsed:
                self._touch(("pending", name, seq))
                if not pending.held:
                    self._end(session, seq, _EXPIRED, lapsed, lapse, out)

    def _strip(
        self, session: Session, seq: int, identity: Identity, outcome: Outcome, moment: int, out: list[Command]
    ) -> None:
        """Hold a notification no more for one subscription; if that was the last, it ends."""
        pending = session.pending[seq]
        del pending.held[identity]
        del session.counts[identity][seq]
        self._state.lapses.release(1, self._state.is_held)
        if self._is_followed:
            self._touch(("pending", session.name, seq))
        if not pending.held:
            self._end(session, seq, outcome, (identity,), moment, out)

    def _end(
        self,
        session: Session,
        seq: int,
        outcome: Outcome,
        identities: tuple[Identity, ...],
        moment: int,
        out: list[Command],
    ) -> None:
        """End a notification in a session: settle whoever is owed it and does not have it in flight (rule 9)."""
        pending = session.pending[seq]
        if pending.held:
            for identity in pending.held:
                del session.counts[identity][seq]
            self._state.lapses.release(len(pending.held), self._state.is_held)
            pending.held = {}
        pending.end = (outcome, identities, moment)
        if self._is_followed:
            self._touch(("pending", session.name, seq))
        received = self._state.copies[seq].received
        for device in sorted(session.members):
            if device not in pending.settled and device not in pending.in_flight:
                has_it = device in received
                self._settle(
                    session.name, device, seq, pending, identities, _DELIVERED if has_it else outcome, moment, out
                )
        self._close(session, seq, pending, out)

    def _close(self, session: Session, seq: int, pending: Pending, out: list[Command]) -> None:
        """Let go of a notification that has ended, once nobody has it in flight any more."""
        if pending.in_flight or pending.end is None:
            return
        if not pending.settled:
            outcome, identities, moment = pending.end
            self._settle(session.name, None, seq, pending, identities, outcome, moment, out)
        del session.pending[seq]
        self._state.pendings -= 1
        if self._is_followed:
            self._touch(("pending", session.name, seq))
        copy = self._state.copies[seq]
        copy.sessions.discard(session.name)
        if not copy.sessions and not copy.aloft:
            del self._state.copies[seq]
            if self._is_followed:
                self._touch(("copy", seq))
            out.append(Forget(seq))

    @staticmethod
    def _settle(
        session: str,
        device: str | None,
        seq: int,
        pending: Pending,
        identities: tuple[Identity, ...],
        outcome: Outcome,
        moment: int,
        out: list[Command],
        *,
        via: str | None = None,
    ) -> None:
        if device is not None:
            pending.settled.add(device)
        out.append(_NEW(Settle, (session, device, seq, identities, outcome, moment, pending.lapses_at, via)))

    # -- devices -----------------------------------------------------------------------------------------------------

    def _presence(self, fact: PresenceChanged) -> Work:
        if fact.change is PresenceChange.JOINED:
            assert fact.session is not None
            takes = fact.receipt is Mode.TAKE
            return self._join(fact.changed_at, fact.device, fact.session, takes=takes, confirms=fact.confirms)
        if fact.change is PresenceChange.RECEIPTS:
            assert fact.session is not None
            is_confirming = bool(fact.confirms)
            return _at_once(self._change_receipts(fact.changed_at, fact.device, fact.session, confirms=is_confirming))
        if fact.change is PresenceChange.LEFT:
            assert fact.session is not None
            return self._leave(fact.changed_at, fact.device, fact.session)
        if fact.change is PresenceChange.DISCONNECTED:
            return self._disconnect(fact.changed_at, fact.device, sent_seq=fact.sent_seq)
        return _at_once(self.tick(fact.changed_at))

    def joined(self, at: int, device: str, name: str, *, takes: bool, confirms: bool | None = None) -> list[Command]:
        """Let a device be present in a session from now on; it gets what is held (rule 6)."""
        return _all(self._join(at, device, name, takes=takes, confirms=confirms))

    def _join(self, at: int, device: str, name: str, *, takes: bool, confirms: bool | None) -> Work:
        out: list[Command] = []
        self._advance(at, out)
        session = self._session(name)
        self._close_lane(session)
        for other in self._state.joined.get(device, ()):
            self._close_lane(self._state.sessions[other])
        member = session.members.get(device)
        if member is None:
            member = session.members[device] = Member(is_present=True, takes=takes)
            self._touch(("session", name))
        begun = set() if member.is_present else set(member.in_flight)
        member.is_present, member.takes, member.confirms = True, takes, confirms
        self._state.joined.setdefault(device, set()).add(name)
        self._touch(("member", name, device))
        out.append(TellAll(device, name, tuple(session.subscriptions.values())))
        for count, (seq, pending) in enumerate(list(session.pending.items()), start=1):
            if count % PIECE == 0:
                yield
            if seq in begun:
                flight = member.in_flight[seq]
                counted = ((name, flight.identities),)
                out.append(HandOver(device, seq, counted, is_held=True, is_again=True, qos=flight.qos))
            elif pending.end is None and device not in pending.settled and device not in pending.in_flight:
                self._hand_over_held(session, device, member, seq, pending, out)
        return out

    def _hand_over_held(
        self, session: Session, device: str, member: Member, seq: int, pending: Pending, out: list[Command]
    ) -> None:
        copy = self._state.copies[seq]
        identities = tuple(pending.held)
        self._touch(("pending", session.name, seq))
        if device in copy.received:
            self._settle(session.name, device, seq, pending, identities, _DELIVERED, self._state.now, out)
            if member.takes:
                self._end(session, seq, _TAKEN, identities, self._state.now, out)
            return
        pending.in_flight.add(device)
        counted = ((session.name, identities),)
        on_its_way = self._on_its_way(device, seq, session.name)
        if on_its_way is not None:  # it was not its own receipt, or it would be settled: it will be confirmed
            member.in_flight[seq] = Flight(identities, on_its_way.qos)
            out.append(HandOver(device, seq, counted, is_held=True, is_again=False, is_copy=False))
            return
        attempted = copy.attempted.get(device)
        qos = attempted or (self._quality(copy, counted) if session.with_qos else CONFIRMED)
        is_own = qos == 0 and not member.confirms_qos_0(is_expiring=copy.expires_at is not None)
        member.in_flight[seq] = Flight(identities, qos)
        is_again = attempted is not None
        out.append(HandOver(device, seq, counted, is_held=True, is_again=is_again, qos=qos, is_own_receipt=is_own))
        if is_own:
            self._confirm(session, device, member, seq, _DELIVERED, out)

    def _change_receipts(self, at: int, device: str, name: str, *, confirms: bool) -> list[Command]:
        """Let hand-overs of quality 0 to a member have receipts from now on, or none (rule 16)."""
        out: list[Command] = []
        self._advance(at, out)
        session = self._state.sessions.get(name)
        member = None if session is None else session.members.get(device)
        if member is not None:
            member.confirms = confirms
            self._touch(("member", name, device))
        return out

    def _on_its_way(self, device: str, seq: int, joining: str) -> Flight | None:
        """Return what a device has in flight through another session than the one it is joining."""
        # Only its own sessions are looked at: a notification may be held in thousands.
        for name in (*self._state.joined.get(device, ()), private_session(device)):
            session = self._state.sessions.get(name) if name != joining else None
            pending = None if session is None else session.pending.get(seq)
            if session is not None and pending is not None and device in pending.in_flight:
                return session.members[device].in_flight[seq]
        return None

    def _leave(self, at: int, device: str, name: str) -> Work:
        """Let a device be no member of a session any more (rule 10)."""
        out: list[Command] = []
        self._advance(at, out)
        session = self._state.sessions.get(name)
        if session is not None and device in session.members:
            self._close_lane(session)
            member = session.members.pop(device)
            self._away(device, name)
            self._touch(("session", name))
            self._touch(("member", name, device))
            yield from self._note_sent(device, member)
            yield from self._let_go(session, device, member, out)
        return out

    def disconnected(self, at: int, device: str, *, sent_seq: int | None = None) -> list[Command]:
        """Let a device be away in all its sessions (rules 10 and 19)."""
        return _all(self._disconnect(at, device, sent_seq=sent_seq))

    def _disconnect(self, at: int, device: str, *, sent_seq: int | None) -> Work:
        out: list[Command] = []
        self._advance(at, out)
        for name in sorted(self._state.joined.pop(device, ())):
            session = self._state.sessions[name]
            self._close_lane(session)
            member = session.members[device]
            member.is_present = False
            self._touch(("member", name, device))
            begun: dict[int, Flight] = {}
            yield from self._note_sent(device, member, INT64_MAX if sent_seq is None else sent_seq)
            if session.is_private:
                begun = self._begun(session, device, member)
            yield from self._let_go(session, device, member, out, begun=begun)
        return out

    def _note_sent(self, device: str, member: Member, sent_seq: int = INT64_MAX) -> Iterator[None]:
        """Note that a device may have what it has in flight up to *sent_seq*, and did not confirm it."""
        for count, (seq, flight) in enumerate(member.in_flight.items(), start=1):
            if count % _QUICK_PIECE == 0:
                yield
            if seq <= sent_seq:
                self._state.copies[seq].attempted[device] = flight.qos
                self._touch(("copy", seq))

    def _begun(self, session: Session, device: str, member: Member) -> dict[int, Flight]:
        """Return what was sent and is to be brought to its end, as MQTT has it (rule 19)."""
        copies = self._state.copies
        return {
            seq: flight
            for seq, flight in member.in_flight.items()
            if device in copies[seq].attempted and self._must_finish(copies[seq], flight, session.pending[seq])
        }

    @staticmethod
    def _must_finish(copy: Copy, flight: Flight, pending: Pending) -> bool:
        """Tell whether a delivery goes on, whatever ends its notification: exactly once, or unsubscribed from since."""
        if flight.qos == _EXACTLY_ONCE:
            return copy.qos == _EXACTLY_ONCE
        is_unsubscribed = pending.end is not None and pending.end[0] is _DROPPED and pending.lapses_at is not None
        return flight.qos > 0 and is_unsubscribed

    def _away(self, device: str, name: str) -> None:
        """Note that a device is not present in a session any more."""
        joined = self._state.joined.get(device)
        if joined is not None:
            joined.discard(name)
            if not joined:
                del self._state.joined[device]

    def _let_go(
        self,
        session: Session,
        device: str,
        member: Member,
        out: list[Command],
        *,
        begun: Mapping[int, Flight] = MappingProxyType({}),
    ) -> Iterator[None]:
        """Take back what a device had in flight, but what was *begun*; where the session has ended it, that is it."""
        in_flight, member.in_flight = member.in_flight, dict(begun)
        for count, seq in enumerate(in_flight, start=1):
            if count % _QUICK_PIECE == 0:
                yield
            if seq in begun:
                continue
            pending = session.pending[seq]
            pending.in_flight.discard(device)
            self._touch(("pending", session.name, seq))
            if pending.end is not None:
                outcome, identities, moment = pending.end
                has_it = device in self._state.copies[seq].received
                self._settle(
                    session.name, device, seq, pending, identities, _DELIVERED if has_it else outcome, moment, out
                )
                self._close(session, seq, pending, out)

    # -- subscriptions and sessions ----------------------------------------------------------------------------------

    def _interest(self, fact: InterestChanged) -> list[Command]:
        """Put a subscription in place or take it away, and tell the others (rule 11)."""
        out: list[Command] = []
        self._advance(fact.changed_at, out)
        subscription = fact.subscription
        if fact.change is InterestChange.REMOVED and subscription.session not in self._state.sessions:
            return out
        session = self._session(subscription.session)
        self._close_lane(session)
        identity = (subscription.subject_filter, subscription.name)
        if fact.change is InterestChange.REMOVED:
            self._state.remove(session, identity)
            self._touch(("turn", identity[0], session.name))
            for seq in list(session.counts.get(identity, ())):
                self._strip(session, seq, identity, _DROPPED, self._state.now, out)
            session.counts.pop(identity, None)
        else:
            self._state.put(session, subscription)
        self._touch(("session", session.name))
        self._touch(("subscription", session.name, *identity))
        for device, member in session.members.items():
            if member.is_present and device != fact.device:
                out.append(Tell(device, session.name, fact.change, subscription))
        return out

    def _session_changed(self, fact: SessionChanged) -> Work:
        out: list[Command] = []
        self._advance(fact.changed_at, out)
        if fact.change is SessionChange.DELETED:
            yield from self._delete(fact.session, out)
        else:
            self._session(fact.session).access = fact.access
            self._touch(("session", fact.session))
        return out

    def _delete(self, name: str, out: list[Command]) -> Iterator[None]:
        """End everything, let everybody go (rule 12)."""
        session = self._state.sessions.get(name)
        if session is None:
            return
        self._close_lane(session)
        for count, (seq, pending) in enumerate(list(session.pending.items()), start=1):
            if count % PIECE == 0:
                yield
            if pending.end is None:
                self._end(session, seq, _DROPPED, tuple(pending.held), self._state.now, out)
        for device in sorted(session.members):
            member = session.members[device]
            self._away(device, name)
            self._touch(("member", name, device))
            yield from self._note_sent(device, member)
            yield from self._let_go(session, device, member, out)
        for identity in session.subscriptions:
            self._touch(("subscription", name, *identity))
            self._touch(("turn", identity[0], name))
        self._touch(("session", name))
        self._state.delete(session)

    def _session(self, name: str) -> Session:
        found = self._state.sessions.get(name)
        if found is None:
            found = self._state.begin(name)
            self._touch(("session", name))
        return found

    # -- the view ----------------------------------------------------------------------------------------------------

    def _touch(self, key: Key) -> None:
        """Note that a row changed; where it is called most, whether anybody follows is asked before it is."""
        if self._is_followed:
            self._touched.add(key)

    @property
    def changed(self) -> int:
        """How many rows have changed since the last call of ``changes``."""
        return len(self._touched)

    def some_changes(self, most: int) -> tuple[dict[Key, bytes], set[Key]]:
        """Return at most about *most* of the rows that ``changes`` would; these may change again before it is called.

        For whoever has much to write and little time at once: what all calls return together, the later before the
        earlier, is what one call of ``changes`` at the end would have returned.
        """
        if not self._is_followed:
            return {}, set()
        chosen = {self._touched.pop() for _ in range(min(most, len(self._touched)))}
        return written(self._state, chosen)

    def discard_changes(self) -> None:
        """Forget what has changed: whoever followed does not any more."""
        self._touched.clear()

    def touch_all(self) -> None:
        """Let ``changes`` return everything there is, whatever it returned before."""
        for lane in list(self._busy):
            self._land(lane)
        self._touched = set(keys(self._state))

    def changes(self) -> tuple[dict[Key, bytes], set[Key]]:
        """Return the rows to put and those to drop since the last call; the first call returns everything."""
        for lane in list(self._busy):
            self._land(lane)
        if not self._is_followed:
            self._is_followed = True
            self._touched = set(keys(self._state))
        touched, self._touched = self._touched, set()
        return written(self._state, touched)

    @classmethod
    def restore(
        cls,
        node: str,
        rows: Iterable[tuple[Key, bytes]],
        *,
        retention: Retention = DEFAULT_RETENTION,
        has_fast_lane: bool = True,
    ) -> Hold:
        """Return the hold that a view has the rows of."""
        return cls(node, retention=retention, state=restored(rows), has_fast_lane=has_fast_lane)


def _all(work: Work) -> list[Command]:
    """Do all of some work at once."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # what a generator returns is typed there


def _at_once(commands: list[Command]) -> Work:
    """Return work that is done already."""
    yield from ()
    return commands


def _pending(session: Session) -> int:
    return len(session.pending) + (0 if session.lane is None else len(session.lane.flights))
