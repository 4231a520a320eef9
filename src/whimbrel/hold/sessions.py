"""Sessions: the hold, as a fold over the facts of one node; its numbered rules are docs/explanation/holding.md.

Rule: no clock, no I/O, no randomness: the same facts give the same commands, live, in Spark and in the simulator.
Rule: a notification is its seq here; subscriptions are (subject filter, name). The shell keeps the rest.
Rule: everything that changes is noted (``_touch``), so that a view can follow in small steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TypeAlias

from whimbrel.hold.commands import Command, Forget, HandOver, Identity, Settle, Store, Tell, TellAll
from whimbrel.hold.retention import DEFAULT_RETENTION, Retention
from whimbrel.hold.rows import Key, keys, restored, written
from whimbrel.hold.state import Copy, Member, Pending, Session, State
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import (
    Fact,
    InterestChanged,
    Mode,
    Outcome,
    PresenceChange,
    PresenceChanged,
    Receipt,
    Reported,
    SessionChange,
    SessionChanged,
)
from whimbrel.model.notification import Notification
from whimbrel.model.subscription import InterestChange, Subscription

__all__ = ["Hold", "Matches"]

Matches: TypeAlias = Sequence[tuple[str, tuple[Identity, ...]]]
"""For each session that wants a notification, the subscriptions that do."""

_DELIVERED, _EXPIRED, _DISPLACED = Outcome.DELIVERED, Outcome.EXPIRED, Outcome.DISPLACED
_TAKEN, _DROPPED, _WITHHELD = Outcome.TAKEN_ELSEWHERE, Outcome.DROPPED, Outcome.WITHHELD


def in_order(matches: Matches) -> Matches:
    """Return *matches* by session, and each session's by subject filter and name: whoever found them, and how."""
    return sorted(((session, _sorted(found)) for session, found in matches), key=itemgetter(0))


def _sorted(identities: tuple[Identity, ...]) -> tuple[Identity, ...]:
    if len(identities) == 1:
        return identities
    return tuple(sorted(identities, key=lambda identity: (identity[0] or "", identity[1])))


class Hold:
    """All sessions of a node; *state* is what a view restored."""

    def __init__(self, node: str, *, retention: Retention = DEFAULT_RETENTION, state: State | None = None) -> None:
        self.node = node
        self._retention = retention
        self._state = State() if state is None else state
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

    def is_stored(self, seq: int) -> bool:
        """Tell whether anybody is still owed a notification."""
        return seq in self._state.copies

    def counts(self) -> dict[str, int]:
        """Return how much there is, for metrics."""
        return {
            "sessions": len(self._state.sessions),
            "notifications": len(self._state.copies),
            "pending": sum(len(session.pending) for session in self._state.sessions.values()),
        }

    # -- facts -------------------------------------------------------------------------------------------------------

    def apply(self, fact: Fact, matches: Matches = ()) -> list[Command]:
        """Take the next fact in; return what is to be done about it, in order."""
        if isinstance(fact, Notification):
            return self.published(fact.seq, fact.published_at, fact.expires_at, matches)
        if isinstance(fact, Receipt):
            if fact.notification.node != self.node:
                return self.tick(fact.handed_at)
            return self.confirmed(fact.handed_at, fact.session, fact.device, fact.notification.seq, fact.outcome)
        if isinstance(fact, PresenceChanged):
            return self._presence(fact)
        if isinstance(fact, InterestChanged):
            return self._interest(fact)
        if isinstance(fact, SessionChanged):
            return self._session_changed(fact)
        assert isinstance(fact, Reported)
        return self.tick(fact.state.reported_at)

    def tick(self, now: int) -> list[Command]:
        """Let time pass: end what has lapsed."""
        out: list[Command] = []
        self._advance(now, out)
        return out

    def published(self, seq: int, at: int, expires_at: int | None, matches: Matches) -> list[Command]:
        """Take in a notification that was accepted, and who wants it (rules 2 to 5)."""
        out: list[Command] = []
        self._advance(at, out)
        now = self._state.now
        if not matches:
            return out
        matches = in_order(matches)
        before = len(out)
        copy = self._state.copies[seq] = Copy()
        if self._is_followed:
            self._touch(("copy", seq))
        is_dead = expires_at is not None and expires_at <= now
        ended: list[tuple[Session, Outcome, tuple[Identity, ...], int]] = []
        for name, identities in matches:
            session = self._session(name)
            copy.sessions.add(name)
            if is_dead:
                assert expires_at is not None
                held: dict[Identity, int] = {}
                end = (_EXPIRED, identities, expires_at)
            else:
                held, end = self._to_hold(session, identities, at, expires_at)
            session.pending[seq] = Pending(held, max(held.values(), default=None))
            if self._is_followed:
                self._touch(("pending", name, seq))
            if held:
                self._keep(session, seq, held, out)
            else:
                ended.append((session, *end))
        if not is_dead:
            self._hand_over_live(seq, matches, copy, out)
        for session, outcome, identities, moment in ended:
            self._end(session, seq, outcome, identities, moment, out)
        if seq in self._state.copies:
            out.insert(before, Store(seq))
        else:
            out.pop()  # it was forgotten with its last ending, and need not be stored for that
        return out

    def confirmed(self, at: int, session: str, device: str, seq: int, outcome: Outcome) -> list[Command]:
        """Take in that a device has a notification, or that its policy withheld it (rule 7)."""
        out: list[Command] = []
        self._advance(at, out)
        found = self._state.sessions.get(session)
        member = None if found is None else found.members.get(device)
        if found is None or member is None or (outcome is not _DELIVERED and outcome is not _WITHHELD):
            return out
        identities = member.in_flight.pop(seq, None)
        if identities is None:
            return out
        pending = found.pending[seq]
        pending.in_flight.discard(device)
        if self._is_followed:
            self._touch(("pending", session, seq))
        if outcome is _DELIVERED:
            self._state.copies[seq].received.add(device)
            if self._is_followed:
                self._touch(("copy", seq))
        self._settle(session, device, seq, pending, identities, outcome, self._state.now, out)
        if outcome is _DELIVERED and member.takes and pending.end is None:
            self._end(found, seq, _TAKEN, tuple(pending.held), self._state.now, out)
        elif pending.end is not None:
            self._close(found, seq, pending, out)
        return out

    # -- publications ------------------------------------------------------------------------------------------------

    def _to_hold(
        self, session: Session, identities: tuple[Identity, ...], at: int, expires_at: int | None
    ) -> tuple[dict[Identity, int], tuple[Outcome, tuple[Identity, ...], int]]:
        """Return until when it is held for whom; and how it ends if for nobody (rule 3)."""
        held: dict[Identity, int] = {}
        live_only: list[Identity] = []
        lapsed: dict[Identity, int] = {}
        for identity in identities:
            subscription = session.subscriptions.get(identity)
            ttl, most = self._bounds(subscription)
            lapse = min(at + ttl, INT64_MAX)
            if expires_at is not None and expires_at < lapse:
                lapse = expires_at
            if most == 0:
                live_only.append(identity)
            elif lapse <= self._state.now:
                lapsed[identity] = lapse
            else:
                held[identity] = lapse
        if live_only or held:
            return held, (_DROPPED, tuple(live_only), self._state.now)
        latest = max(lapsed.values())
        return held, (_EXPIRED, tuple(i for i, lapse in lapsed.items() if lapse == latest), latest)

    def _bounds(self, subscription: Subscription | None) -> tuple[int, int]:
        if subscription is None:  # the log was cut: its interest is older than its beginning
            return self._retention.ttl_us, self._retention.max_held
        ttl, most = subscription.ttl_us, subscription.max_held
        return (
            self._retention.ttl_us if ttl is None else ttl,
            self._retention.max_held if most is None else most,
        )

    def _keep(self, session: Session, seq: int, held: dict[Identity, int], out: list[Command]) -> None:
        """Hold a notification for some subscriptions, displacing the oldest where there is no room (rule 4)."""
        for identity, lapse in held.items():
            queue = session.counts.setdefault(identity, {})
            _, most = self._bounds(session.subscriptions.get(identity))
            while len(queue) >= most:
                self._strip(session, next(iter(queue)), identity, _DISPLACED, self._state.now, out)
            queue[seq] = None
            self._state.lapses.push(lapse, seq, session.name)

    def _hand_over_live(self, seq: int, matches: Matches, copy: Copy, out: list[Command]) -> None:
        """Give every device that is present its one copy (rule 5)."""
        counting: dict[str, list[tuple[str, tuple[Identity, ...]]]] = {}
        for name, identities in matches:
            session = self._state.sessions[name]
            pending = session.pending[seq]
            for device, member in session.members.items():
                if member.is_present:
                    member.in_flight[seq] = identities
                    pending.in_flight.add(device)
                    counting.setdefault(device, []).append((name, identities))
        copy.attempted.update(counting)
        out += [HandOver(d, seq, tuple(counting[d]), is_held=False, is_again=False) for d in sorted(counting)]

    # -- endings -----------------------------------------------------------------------------------------------------

    def _advance(self, at: int, out: list[Command]) -> None:
        """Move the time to *at* and end what lapses until then, each at its instant (rules 1 and 8)."""
        if at > self._state.now:  # noqa: PLR1730  # max() takes twice as long, and this runs for every fact
            self._state.now = at
        if not self._state.lapses.is_due(self._state.now):
            return
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
        if self._is_followed:
            self._touch(("pending", session.name, seq))
        copy = self._state.copies[seq]
        copy.sessions.discard(session.name)
        if not copy.sessions:
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
    ) -> None:
        if device is not None:
            pending.settled.add(device)
        out.append(Settle(session, device, seq, identities, outcome, moment, pending.lapses_at))

    # -- devices -----------------------------------------------------------------------------------------------------

    def _presence(self, fact: PresenceChanged) -> list[Command]:
        if fact.change is PresenceChange.JOINED:
            assert fact.session is not None
            return self.joined(fact.changed_at, fact.device, fact.session, takes=fact.receipt is Mode.TAKE)
        if fact.change is PresenceChange.LEFT:
            assert fact.session is not None
            return self.left(fact.changed_at, fact.device, fact.session)
        if fact.change is PresenceChange.DISCONNECTED:
            return self.disconnected(fact.changed_at, fact.device)
        return self.tick(fact.changed_at)

    def joined(self, at: int, device: str, name: str, *, takes: bool) -> list[Command]:
        """Let a device be present in a session from now on; it gets what is held (rule 6)."""
        out: list[Command] = []
        self._advance(at, out)
        session = self._session(name)
        member = session.members.get(device)
        if member is None:
            member = session.members[device] = Member(is_present=True, takes=takes)
            self._touch(("session", name))
        member.is_present, member.takes = True, takes
        self._state.joined.setdefault(device, set()).add(name)
        self._touch(("member", name, device))
        out.append(TellAll(device, name, tuple(session.subscriptions.values())))
        for seq, pending in list(session.pending.items()):
            if pending.end is None and device not in pending.settled and device not in pending.in_flight:
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
        is_on_its_way = any(
            device in self._state.sessions[other].pending[seq].in_flight
            for other in copy.sessions
            if other != session.name
        )
        member.in_flight[seq] = identities
        pending.in_flight.add(device)
        counting = ((session.name, identities),)
        is_again = device in copy.attempted and not is_on_its_way
        copy.attempted.add(device)
        self._touch(("copy", seq))
        out.append(HandOver(device, seq, counting, is_held=True, is_again=is_again, is_copy=not is_on_its_way))

    def left(self, at: int, device: str, name: str) -> list[Command]:
        """Let a device be no member of a session any more (rule 10)."""
        out: list[Command] = []
        self._advance(at, out)
        session = self._state.sessions.get(name)
        if session is not None and device in session.members:
            member = session.members.pop(device)
            self._away(device, name)
            self._touch(("session", name))
            self._touch(("member", name, device))
            self._let_go(session, device, member, out)
        return out

    def disconnected(self, at: int, device: str) -> list[Command]:
        """Let a device be away in all its sessions (rule 10)."""
        out: list[Command] = []
        self._advance(at, out)
        for name in sorted(self._state.joined.pop(device, ())):
            session = self._state.sessions[name]
            member = session.members[device]
            member.is_present = False
            self._touch(("member", name, device))
            self._let_go(session, device, member, out)
        return out

    def _away(self, device: str, name: str) -> None:
        """Note that a device is not present in a session any more."""
        joined = self._state.joined.get(device)
        if joined is not None:
            joined.discard(name)
            if not joined:
                del self._state.joined[device]

    def _let_go(self, session: Session, device: str, member: Member, out: list[Command]) -> None:
        """Take back what a device had in flight; where the session has ended it, that is its outcome."""
        in_flight, member.in_flight = member.in_flight, {}
        for seq in in_flight:
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
        identity = (subscription.subject_filter, subscription.name)
        if fact.change is InterestChange.REMOVED:
            session.subscriptions.pop(identity, None)
            for seq in list(session.counts.get(identity, ())):
                self._strip(session, seq, identity, _DROPPED, self._state.now, out)
            session.counts.pop(identity, None)
        else:
            session.subscriptions[identity] = subscription
        self._touch(("session", session.name))
        self._touch(("subscription", session.name, *identity))
        for device, member in session.members.items():
            if member.is_present and device != fact.device:
                out.append(Tell(device, session.name, fact.change, subscription))
        return out

    def _session_changed(self, fact: SessionChanged) -> list[Command]:
        out: list[Command] = []
        self._advance(fact.changed_at, out)
        if fact.change is SessionChange.DELETED:
            self._delete(fact.session, out)
        else:
            self._session(fact.session).access = fact.access
            self._touch(("session", fact.session))
        return out

    def _delete(self, name: str, out: list[Command]) -> None:
        """End everything, let everybody go (rule 12)."""
        session = self._state.sessions.get(name)
        if session is None:
            return
        for seq, pending in list(session.pending.items()):
            if pending.end is None:
                self._end(session, seq, _DROPPED, tuple(pending.held), self._state.now, out)
        for device in sorted(session.members):
            member = session.members[device]
            self._away(device, name)
            self._touch(("member", name, device))
            self._let_go(session, device, member, out)
        for identity in session.subscriptions:
            self._touch(("subscription", name, *identity))
        self._touch(("session", name))
        del self._state.sessions[name]

    def _session(self, name: str) -> Session:
        found = self._state.sessions.get(name)
        if found is None:
            found = self._state.sessions[name] = Session(name)
            self._touch(("session", name))
        return found

    # -- the view ----------------------------------------------------------------------------------------------------

    def _touch(self, key: Key) -> None:
        """Note that a row changed; where it is called most, whether anybody follows is asked before it is."""
        if self._is_followed:
            self._touched.add(key)

    def changes(self) -> tuple[dict[Key, bytes], set[Key]]:
        """Return the rows to put and those to drop since the last call; the first call returns everything."""
        if not self._is_followed:
            self._is_followed = True
            self._touched = set(keys(self._state))
        touched, self._touched = self._touched, set()
        return written(self._state, touched)

    @classmethod
    def restore(cls, node: str, rows: Iterable[tuple[Key, bytes]], *, retention: Retention = DEFAULT_RETENTION) -> Hold:
        """Return the hold that a view has the rows of."""
        return cls(node, retention=retention, state=restored(rows))
