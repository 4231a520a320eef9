"""Hold: the offline queues of all sessions of one node, as a fold over the facts of its log.

This module is the interface to callers. The numbered rules are in docs/explanation/holding.md; ``rules/`` applies them.
Rule: no clock, no I/O, no randomness: the same facts give the same commands in the broker, Spark and the simulator.
Rule: a notification is identified by its seq, and a subscription by subject filter and name.
Rule: the state can be saved as rows (``rows``). Every change marks its row as changed (``view``), so that a store is
updated in small steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, Self, TypeVar, cast

from whimbrel.hold.commands import Command, Identity, Matches, Published
from whimbrel.hold.private import is_private
from whimbrel.hold.retention import DEFAULT_RETENTION, Retention
from whimbrel.hold.rows import Key, restore_state
from whimbrel.hold.rules.assumed import AssumedReceipts
from whimbrel.hold.rules.changes import SubscriptionRules
from whimbrel.hold.rules.endings import OutcomeRules
from whimbrel.hold.rules.fast_lane import FastLanes
from whimbrel.hold.rules.keeping import QueueRules
from whimbrel.hold.rules.members import MemberRules
from whimbrel.hold.rules.places import Places
from whimbrel.hold.rules.publications import Publications
from whimbrel.hold.rules.work import PIECE, Work, all_of, at_once
from whimbrel.hold.state import CopyFollower, Session, State
from whimbrel.hold.touched_rows import ChangedRows
from whimbrel.hold.view import View
from whimbrel.model.facts import (
    Fact,
    InterestChanged,
    Outcome,
    PolicyChanged,
    PresenceChanged,
    Receipt,
    Reported,
    SessionChanged,
    time_of,
)
from whimbrel.model.notification import Notification
from whimbrel.model.subscription import Subscription

__all__ = ["PIECE", "RETAINED", "Hold", "Matches"]

RETAINED = "retained"
"""Value of ``Receipt.via`` for a retained message. The hold did not send it and ignores its receipt."""


K = TypeVar("K", bound=Published)


class Hold(Generic[K]):
    """Offline queues of all sessions of a node; *state* is a restored state, None an empty one.

    *K* is the type of notifications: the caller's own form, stored while some device has yet to receive or confirm it.
    Without *has_fast_lane* (``rules.fast_lane``) the hold is slower and returns the same commands.
    With *heeds_places* the caller matches by subject, content and keys, and the hold leaves out the subscriptions that
    are out of range (rule 20). Without it, the caller has left them out.
    """

    def __init__(
        self,
        node: str,
        *,
        retention: Retention = DEFAULT_RETENTION,
        state: State | None = None,
        has_fast_lane: bool = True,
        heeds_places: bool = False,
    ) -> None:
        self.node = node
        self._state = State() if state is None else state
        self.tally = self._state
        """The state, from which callers read the number of pending notifications (``pendings``) without a call."""
        self._view = View(self._state, is_followed=state is not None)
        self._lanes = lanes = FastLanes(self._state, self._view, retention)
        endings = OutcomeRules(self._state, self._view)
        keeping = QueueRules(self._state, endings, retention)
        members = MemberRules(self._state, self._view, endings, self._lanes, keeping)
        publications = Publications(
            self._state, self._view, endings, self._lanes, members, keeping, has_fast_lane=has_fast_lane
        )
        self.places = Places(self._state)
        """Last known places of devices; position reports update them if *heeds_places*."""
        self._places = self.places if heeds_places else None
        self._presence, self._choose = members.presence, members.choose
        self._changes = SubscriptionRules(self._state, self._view, endings, self._lanes, members)
        # Methods of the rules are attributes of the hold: wrapping them would cost a second call for every delivery.
        self.published, self.publishing = publications.published, publications.publishing
        self.find_target, self.begin_flights, self._end_flights = (
            lanes.find_target,
            lanes.begin_flights,
            lanes.end_flights,
        )
        assumed = AssumedReceipts(self._state, self._view, endings, keeping, publications, retention)
        self.published_and_received = assumed.published
        self.confirmed, self.joined, self.disconnected = members.confirmed, members.joined, members.disconnected
        self.tick = endings.tick

    def follow(self, follower: CopyFollower) -> None:
        """Notify *follower* from now on when a notification is stored, or removed because no device needs it."""
        self._state.follower = follower

    @property
    def now(self) -> int:
        """The largest time of any fact or tick so far."""
        return self._state.now

    @property
    def next_lapse(self) -> int | None:
        """The earliest time at which a notification may lapse (be no longer held), in microseconds; None if none may.

        It may be too early, but never too late.
        """
        heap = self._state.lapses.heap
        return heap[0][0] if heap else None

    def access(self, session: str) -> str | None:
        """Return the access list of a session, as JSON; None if it is open to all, or does not exist."""
        found = self._state.sessions.get(session)
        return None if found is None else found.access

    def subscriptions(self, session: str) -> tuple[Subscription, ...]:
        """Return the subscriptions of a session, in the order in which they were first made."""
        found = self._state.sessions.get(session)
        return () if found is None else tuple(found.subscriptions.values())

    def sizes(self, session: str) -> tuple[int, int]:
        """Return the number of subscriptions and the number of members of a session."""
        found = self._state.sessions.get(session)
        return (0, 0) if found is None else (len(found.subscriptions), len(found.members))

    def subscription(self, session: str, identity: Identity) -> Subscription | None:
        """Return a subscription of a session; None if the subscription or the session does not exist."""
        found = self._state.sessions.get(session)
        return None if found is None else found.subscriptions.get(identity)

    def sessions(self) -> tuple[str, ...]:
        """Return the names of all sessions, in order of creation."""
        return tuple(self._state.sessions)

    def has(self, session: str) -> bool:
        """Return whether a session exists."""
        return session in self._state.sessions

    def flight_qos(self, session: str, device: str, seq: int) -> int | None:
        """Return the QoS of a device's unconfirmed delivery of a notification through a session; None without one.

        The device may have left the session since.
        """
        found, copy = self._state.sessions.get(session), self._state.copies.get(seq)
        if found is None or copy is None:
            return None
        lane = found.lane
        if lane is not None and lane.device == device and (terms := lane.flights.get(seq)) is not None:
            return min(terms.qos, copy.qos)
        bearer, pending = found.bearer(device), found.pending.get(seq)
        flight = None if bearer is None else bearer.in_flight.get(seq)
        if flight is None and pending is not None:
            flight = pending.left.get(device)
        return None if flight is None else flight.qos

    def member_count(self, session: str) -> int:
        """Return the number of devices of a session, present or away."""
        found = self._state.sessions.get(session)
        return 0 if found is None else len(found.members)

    def members(self, session: str) -> dict[str, tuple[bool, bool]]:
        """Return, for each device of a session, whether it is present and whether its mode is take."""
        found = self._state.sessions.get(session)
        return {} if found is None else {d: (m.is_present, m.takes) for d, m in found.members.items()}

    def is_member(self, session: str, device: str) -> bool:
        """Return whether a device is a member of a session, present or away."""
        found = self._state.sessions.get(session)
        return found is not None and device in found.members

    def sessions_of(self, device: str) -> tuple[str, ...]:
        """Return the named sessions that a device is present in, in alphabetical order."""
        return tuple(sorted(name for name in self._state.joined.get(device, ()) if not is_private(name)))

    def absent(self, session: str) -> list[tuple[str, int]]:
        """Return the devices of a named session that are away, each with the time at which it went away."""
        found = self._state.sessions.get(session)
        members = {} if found is None else found.members
        return [(device, member.away_at) for device, member in members.items() if member.away_at is not None]

    @property
    def named_count(self) -> int:
        """Number of sessions that are not private."""
        return len(self._state.sessions) - self._state.privates

    def pending_count(self, session: str) -> int:
        """Return the number of notifications in a session's queue, including deliveries that are not confirmed."""
        found = self._state.sessions.get(session)
        return 0 if found is None else _pending(found)

    def pending(self) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        """Yield each pending notification of each session: session, seq, and the devices that have it in flight."""
        self._lanes.land_all()
        for name, session in self._state.sessions.items():
            for seq, pending in session.pending.items():
                yield name, seq, tuple(sorted(pending.in_flight))

    def kept(self, seq: int) -> K | None:
        """Return the stored notification with a seq; None if it is not stored (any more)."""
        copy = self._state.copies.get(seq)
        return None if copy is None else cast("K | None", copy.kept)

    def all_kept(self) -> Iterator[tuple[int, K | None]]:
        """Yield the seq and the notification (None if not attached yet) of each stored notification."""
        for seq, copy in self._state.copies.items():
            yield seq, cast("K | None", copy.kept)

    def keep_again(self, kept: K) -> bool:
        """Attach a notification to its record, which ``restore`` made without it.

        Return False if there is no such record.
        """
        copy = self._state.copies.get(kept.seq)
        if copy is None:
            return False
        copy.kept = kept
        self._state.store(copy)
        return True

    def is_stored(self, seq: int) -> bool:
        """Return whether a notification is stored, because some device has yet to receive or confirm it."""
        return seq in self._state.copies

    def counts(self) -> dict[str, int]:
        """Return the numbers of sessions, stored notifications and pending notifications, for metrics."""
        return {
            "sessions": len(self._state.sessions),
            "notifications": len(self._state.copies),
            "pending": self._state.pendings + self._lanes.flight_count,
        }

    def apply(self, fact: Fact, matches: Matches = (), kept: K | None = None) -> list[Command]:
        """Apply the next fact; return the commands that follow, in order.

        *kept* is the notification in the form to be stored; default: the fact itself.
        """
        if isinstance(fact, Notification):
            if self._places is not None:
                matches = self._places.heard_by(fact, matches)
            return self.published(fact if kept is None else kept, matches)
        if isinstance(fact, Receipt):
            if fact.notification.node != self.node:
                return self.tick(fact.handed_at)
            if fact.via == RETAINED:  # the hold did not send this message and has no record of it
                return self.tick(fact.handed_at)
            seq, via = fact.notification.seq, fact.via
            return self.confirmed(fact.handed_at, fact.session, fact.device, seq, fact.outcome, via=via)
        if isinstance(fact, PresenceChanged):
            return all_of(self._presence(fact))
        if isinstance(fact, InterestChanged):
            return self._changes.interest(fact)
        if isinstance(fact, SessionChanged):
            return all_of(self._changes.session_changed(fact))
        if isinstance(fact, Reported) and self._places is not None:
            self._places.reported(fact)
        if isinstance(fact, PolicyChanged):
            return self._choose(fact)
        return self.tick(time_of(fact))  # wills and policy decisions only advance the time

    def confirm_all(self, at: int, session: str, device: str, seqs: Sequence[int]) -> list[Command]:
        """Apply the receipts of notifications that a device received through one session, all at the time *at*.

        The outcomes of those that were in flight in a fast lane are not among the commands.
        """
        out = self.tick(at)
        for seq in self._end_flights(session, device, seqs):
            out += self.confirmed(at, session, device, seq, Outcome.DELIVERED)
        return out

    def applying(self, fact: Fact, matches: Matches = (), kept: K | None = None) -> Work:
        """Apply a fact in slices of some milliseconds, yielding after each; return the commands as ``apply`` does.

        No other method may be called until the last slice is done.
        """
        if isinstance(fact, Notification):
            if self._places is not None:
                matches = self._places.heard_by(fact, matches)
            return self.publishing(fact if kept is None else kept, matches)
        if isinstance(fact, PresenceChanged):
            return self._presence(fact)
        if isinstance(fact, SessionChanged):
            return self._changes.session_changed(fact)
        return at_once(self.apply(fact))

    # -- the saved state ---------------------------------------------------------------------------------------------

    @property
    def changed(self) -> int:
        """Number of rows of the saved state that have changed since the last call of ``changes``."""
        return self._view.changed

    def some_changes(self, most: int) -> ChangedRows:
        """Return about *most* of the changed rows, in the form of ``changes``; see ``TouchedRows.take_some``."""
        return self._view.some_changes(most)

    def discard_changes(self) -> None:
        """Forget which rows have changed, because no store saves them any more."""
        self._view.discard_changes()

    def touch_all(self) -> None:
        """Mark every row as changed, so that ``changes`` returns all of them."""
        self._lanes.land_all()
        self._view.touch_all()

    def changes(self) -> ChangedRows:
        """Return the rows to write to a store, and the keys to delete, since the last call; the first returns all."""
        self._lanes.land_all()
        return self._view.changes()

    @classmethod
    def restore(
        cls,
        node: str,
        rows: Iterable[tuple[Key, bytes]],
        *,
        retention: Retention = DEFAULT_RETENTION,
        has_fast_lane: bool = True,
        heeds_places: bool = False,
    ) -> Self:
        """Return a hold with the state in *rows*; the caller then attaches the notifications with ``keep_again``."""
        flags = {"has_fast_lane": has_fast_lane, "heeds_places": heeds_places}
        return cls(node, retention=retention, state=restore_state(rows), **flags)


def _pending(session: Session) -> int:
    return len(session.pending) + (0 if session.lane is None else len(session.lane.flights))
