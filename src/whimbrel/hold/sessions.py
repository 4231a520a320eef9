"""Sessions: the hold, as a fold over the facts of one node; its numbered rules are docs/explanation/holding.md.

Rule: no clock, no I/O, no randomness: the same facts give the same commands, live, in Spark and in the simulator.
Rule: a notification is its seq here; subscriptions are (subject filter, name). The shell keeps the rest.
Rule: everything that changes is noted (``view``), so that a store can follow in small steps.

The rules are in ``rules/``, by subject; this module has the interface to callers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Self, TypeVar, cast

from whimbrel.hold.commands import Command, Identity, Matches, Published
from whimbrel.hold.private import is_private
from whimbrel.hold.retention import DEFAULT_RETENTION, Retention
from whimbrel.hold.rows import Key, restore_state
from whimbrel.hold.rules.assumed import AssumedReceipts
from whimbrel.hold.rules.changes import Changes
from whimbrel.hold.rules.endings import Endings
from whimbrel.hold.rules.fast_lane import FastLanes
from whimbrel.hold.rules.keeping import Keeping
from whimbrel.hold.rules.members import Members
from whimbrel.hold.rules.places import Places
from whimbrel.hold.rules.publications import Publications
from whimbrel.hold.rules.work import PIECE, Work, all_of, at_once
from whimbrel.hold.state import CopyFollower, Session, State
from whimbrel.hold.touched_rows import ChangedRows
from whimbrel.hold.view import View
from whimbrel.model.facts import (
    Fact,
    InterestChanged,
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
"""How a receipt says that a notification came which was sent beside the hold."""


K = TypeVar("K", bound=Published)


class Hold(Generic[K]):
    """All sessions of a node; *state* is what a view restored.

    *K* is what is kept of a notification while any device is owed it.
    Without the fast lane everything goes by the rules alone: slower, and otherwise the same. With *heeds_places* the
    matches are those of subject, content and keys, and the hold leaves out who is not near (rule 20); without, the
    matcher has done so.
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
        """Whose ``pendings`` is how many notifications are pending, counted in each session; it only is to be read."""
        self._view = View(self._state, is_followed=state is not None)
        self._lanes = FastLanes(self._state, self._view, retention)
        endings = Endings(self._state, self._view)
        keeping = Keeping(self._state, endings, retention)
        members = Members(self._state, self._view, endings, self._lanes, keeping)
        publications = Publications(
            self._state, self._view, endings, self._lanes, members, keeping, has_fast_lane=has_fast_lane
        )
        self.places = Places(self._state)
        """Where the devices are; they are told of reports where places are heeded."""
        self._places = self.places if heeds_places else None
        self._presence, self._choose = members.presence, members.choose
        self._changes = Changes(self._state, self._view, endings, self._lanes, members)
        # The methods of the rules are the hold's own: each call would cost a second one for everything handed over.
        self.published, self.publishing = publications.published, publications.publishing
        self.published_and_received = AssumedReceipts(self._state, self._view, endings, keeping, publications).published
        self.confirmed, self.joined, self.disconnected = members.confirmed, members.joined, members.disconnected
        self.tick = endings.tick

    def follow(self, follower: CopyFollower) -> None:
        """Tell *follower* from now on which notifications are kept."""
        self._state.follower = follower

    @property
    def now(self) -> int:
        """The largest time of any fact or tick so far."""
        return self._state.now

    def access(self, session: str) -> str | None:
        """Return the access list of a session, as JSON; None if it is open to all, or does not exist."""
        found = self._state.sessions.get(session)
        return None if found is None else found.access

    def subscriptions(self, session: str) -> tuple[Subscription, ...]:
        """Return the subscriptions of a session, in the order they came."""
        found = self._state.sessions.get(session)
        return () if found is None else tuple(found.subscriptions.values())

    def sizes(self, session: str) -> tuple[int, int]:
        """Return how many subscriptions and members a session has."""
        found = self._state.sessions.get(session)
        return (0, 0) if found is None else (len(found.subscriptions), len(found.members))

    def subscription(self, session: str, identity: Identity) -> Subscription | None:
        """Return a subscription of a session; None if there is none, or no such session."""
        found = self._state.sessions.get(session)
        return None if found is None else found.subscriptions.get(identity)

    def sessions(self) -> tuple[str, ...]:
        """Return the names of all sessions, in the order they came."""
        return tuple(self._state.sessions)

    def has(self, session: str) -> bool:
        """Return whether there is such a session."""
        return session in self._state.sessions

    def flight_qos(self, session: str, device: str, seq: int) -> int | None:
        """Return the quality of what a device has in flight in a session, or left unconfirmed; None if it has not."""
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
        """Return how many devices a session has, present or not."""
        found = self._state.sessions.get(session)
        return 0 if found is None else len(found.members)

    def members(self, session: str) -> dict[str, tuple[bool, bool]]:
        """Return whether each device of a session is present, and whether it takes."""
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
        """Return the devices of a named session that are away, and since when."""
        found = self._state.sessions.get(session)
        members = {} if found is None else found.members
        return [(device, member.away_at) for device, member in members.items() if member.away_at is not None]

    @property
    def named_count(self) -> int:
        """How many sessions there are that are not private."""
        return len(self._state.sessions) - self._state.privates

    def pending_count(self, session: str) -> int:
        """Return how many notifications a session has pending or in flight."""
        found = self._state.sessions.get(session)
        return 0 if found is None else _pending(found)

    def pending(self) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        """Yield each pending notification: the session, the seq, and the devices that have it in flight."""
        self._lanes.land_all()
        for name, session in self._state.sessions.items():
            for seq, pending in session.pending.items():
                yield name, seq, tuple(sorted(pending.in_flight))

    def kept(self, seq: int) -> K | None:
        """Return the kept form of a notification; None if it is pending for no device."""
        copy = self._state.copies.get(seq)
        return None if copy is None else cast("K | None", copy.kept)

    def all_kept(self) -> Iterator[tuple[int, K | None]]:
        """Yield all notifications that any device is owed."""
        for seq, copy in self._state.copies.items():
            yield seq, cast("K | None", copy.kept)

    def keep_again(self, kept: K) -> bool:
        """Give a copy that was restored its notification; return whether there is such a copy."""
        copy = self._state.copies.get(kept.seq)
        if copy is None:
            return False
        copy.kept = kept
        self._state.store(copy)
        return True

    def is_stored(self, seq: int) -> bool:
        """Return whether any device is still owed a notification."""
        return seq in self._state.copies

    def counts(self) -> dict[str, int]:
        """Return how much there is, for metrics."""
        return {
            "sessions": len(self._state.sessions),
            "notifications": len(self._state.copies),
            "pending": self._state.pendings + self._lanes.flight_count,
        }

    def apply(self, fact: Fact, matches: Matches = (), kept: K | None = None) -> list[Command]:
        """Apply the next fact; return the commands that follow, in order.

        Of a notification *kept* is what to keep; the fact itself if it is not given.
        """
        if isinstance(fact, Notification):
            if self._places is not None:
                matches = self._places.heard_by(fact, matches)
            return self.published(fact if kept is None else kept, matches)
        if isinstance(fact, Receipt):
            if fact.notification.node != self.node:
                return self.tick(fact.handed_at)
            if fact.via == RETAINED:  # it was sent beside the hold, which knows nothing of it
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
        return self.tick(time_of(fact))  # of wills and decisions only the time counts here

    def applying(self, fact: Fact, matches: Matches = (), kept: K | None = None) -> Work:
        """Apply a fact in pieces of some milliseconds, yielding after each; return what ``apply`` returns.

        Until the last piece is done nothing else may be told or asked of the hold.
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

    # -- the view ----------------------------------------------------------------------------------------------------

    @property
    def changed(self) -> int:
        """How many rows have changed since the last call of ``changes``."""
        return self._view.changed

    def some_changes(self, most: int) -> ChangedRows:
        """Return about *most* of the rows that ``changes`` would; see ``TouchedRows.take_some``."""
        return self._view.some_changes(most)

    def discard_changes(self) -> None:
        """Forget what has changed: nothing follows the hold any more."""
        self._view.discard_changes()

    def touch_all(self) -> None:
        """Mark every row as changed, so that ``changes`` returns all of them."""
        self._lanes.land_all()
        self._view.touch_all()

    def changes(self) -> ChangedRows:
        """Return the rows to put and those to drop since the last call; the first call returns everything."""
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
        """Return the hold that a view has the rows of; ``keep_again`` gives it the notifications."""
        flags = {"has_fast_lane": has_fast_lane, "heeds_places": heeds_places}
        return cls(node, retention=retention, state=restore_state(rows), **flags)


def _pending(session: Session) -> int:
    return len(session.pending) + (0 if session.lane is None else len(session.lane.flights))
