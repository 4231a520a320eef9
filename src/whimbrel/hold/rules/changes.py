"""Changes of subscriptions and of sessions (rules 11 and 12)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from whimbrel.hold.commands import Command, NotifyChange
from whimbrel.hold.private import client_of
from whimbrel.hold.rules.endings import OutcomeRules
from whimbrel.hold.rules.fast_lane import FastLanes
from whimbrel.hold.rules.members import MemberRules
from whimbrel.hold.rules.work import PIECE, Work
from whimbrel.hold.state import State
from whimbrel.hold.view import View
from whimbrel.model.facts import InterestChanged, Outcome, SessionChange, SessionChanged
from whimbrel.model.subscription import InterestChange

__all__ = ["SubscriptionRules"]

_DROPPED = Outcome.DROPPED


class SubscriptionRules:
    """Applies changes of subscriptions and of sessions."""

    def __init__(self, state: State, view: View, endings: OutcomeRules, lanes: FastLanes, members: MemberRules) -> None:
        self._state, self._view, self._endings, self._lanes, self._members = state, view, endings, lanes, members

    def interest(self, fact: InterestChanged) -> list[Command]:
        """Add, replace or remove a subscription, and notify the other present devices (rule 11)."""
        out: list[Command] = []
        self._endings.advance(fact.changed_at, out)
        subscription = fact.subscription
        if fact.change is InterestChange.REMOVED and subscription.session not in self._state.sessions:
            return out
        session = self._view.session(subscription.session)
        self._lanes.close(session)
        identity = (subscription.subject_filter, subscription.name)
        if fact.change is InterestChange.REMOVED:
            self._state.remove(session, identity)
            self._view.touch(("turn", identity[0], session.name))
            for seq in list(session.counts.get(identity, ())):
                self._endings.strip(session, seq, identity, _DROPPED, self._state.now, out)
            session.counts.pop(identity, None)
        else:
            if subscription.seq != fact.seq or subscription.changed_at is None:  # a new one, not read from a log
                subscription = replace(subscription, seq=fact.seq, changed_at=fact.changed_at, parsed=None)
            self._state.put(session, subscription)
        self._view.touch(("session", session.name))
        self._view.touch(("subscription", session.name, *identity))
        for device, member in session.members.items():
            if member.is_present and device != fact.device:
                out.append(NotifyChange(device, session.name, fact.change, subscription))
        return out

    def session_changed(self, fact: SessionChanged) -> Work:
        """Delete a session, or replace its access rights."""
        out: list[Command] = []
        self._endings.advance(fact.changed_at, out)
        if fact.change is SessionChange.DELETED:
            yield from self._delete(fact.session, out)
            device = client_of(fact.session)
            if device is not None:  # the policy that the device chose ends with its private session
                self._state.shaped.discard(device)
                self._view.touch(("shaped", device))
        else:
            self._view.session(fact.session).access = fact.access
            self._view.touch(("session", fact.session))
        return out

    def _delete(self, name: str, out: list[Command]) -> Iterator[None]:
        """Delete a session: end its pending notifications and cancel unconfirmed deliveries (rule 12)."""
        session = self._state.sessions.get(name)
        if session is None:
            return
        self._lanes.close(session)
        for count, (seq, pending) in enumerate(list(session.pending.items()), start=1):
            if count % PIECE == 0:
                yield
            if pending.end is None:
                self._endings.end(session, seq, _DROPPED, tuple(pending.held), self._state.now, out)
        for device in sorted({*session.members, *session.departed}):
            yield from self._members.release(session, device, out)
        for identity in session.subscriptions:
            self._view.touch(("subscription", name, *identity))
            self._view.touch(("turn", identity[0], name))
        self._view.touch(("session", name))
        self._state.delete(session)
