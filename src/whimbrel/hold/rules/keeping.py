"""Keeping: how long a notification is held for each subscription, and which older ones it displaces (rules 3, 4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from whimbrel.hold.commands import Command, Identity
from whimbrel.hold.quality import is_live_only
from whimbrel.hold.retention import Retention
from whimbrel.hold.rules.endings import OutcomeRules
from whimbrel.hold.state import Copy, Session, State
from whimbrel.model.facts import Outcome

__all__ = ["QueueRules", "put_in_order"]

_EXPIRED, _DISPLACED, _DROPPED = Outcome.EXPIRED, Outcome.DISPLACED, Outcome.DROPPED
T = TypeVar("T")


def put_in_order(by_number: dict[int, T]) -> None:
    """Sort a dictionary by its keys (seqs) in place, because other objects refer to the dictionary."""
    found = sorted(by_number.items())
    by_number.clear()
    by_number.update(found)


class QueueRules:
    """Puts notifications into the queues of subscriptions, within their limits."""

    def __init__(self, state: State, endings: OutcomeRules, retention: Retention) -> None:
        self._state, self._endings, self._retention = state, endings, retention

    def is_wanted(self, session: Session, identity: Identity, copy: Copy) -> bool:
        """Return whether a session still has a subscription whose time to live for the notification is not over."""
        subscription = session.subscriptions.get(identity)
        return subscription is not None and copy.lapse_of(self._retention.of(subscription)[0]) > self._state.now

    def to_hold(
        self, session: Session, identities: tuple[Identity, ...], copy: Copy
    ) -> tuple[dict[Identity, int], tuple[Outcome, tuple[Identity, ...], int]]:
        """Return the subscriptions that can hold a notification, each with the time at which it lapses (rule 3).

        If none can, the session ends the notification. Return as second value how: the outcome, subscriptions and time.
        """
        held: dict[Identity, int] = {}
        live_only: list[Identity] = []
        lapsed: dict[Identity, int] = {}
        for identity in identities:
            subscription = session.subscriptions.get(identity)
            ttl, most = self._retention.of(subscription)
            lapse = copy.lapse_of(ttl)
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

    def keep(self, session: Session, seq: int, held: dict[Identity, int], out: list[Command]) -> None:
        """Hold a notification for the subscriptions in *held*; full queues first drop their oldest (rule 4)."""
        self.make_room(session, held, out)
        self.add(session, seq, held)

    def make_room(self, session: Session, identities: Iterable[Identity], out: list[Command]) -> None:
        """Displace the oldest notification of each subscription that holds its maximum number of them (rule 4)."""
        counts = session.counts
        for identity in identities:
            queue = counts.get(identity)
            if not queue:
                continue
            _, most = self._retention.of(session.subscriptions.get(identity))
            while len(queue) >= most:
                self._endings.strip(session, next(iter(queue)), identity, _DISPLACED, self._state.now, out)

    def add(self, session: Session, seq: int, held: dict[Identity, int]) -> None:
        """Hold a notification for the subscriptions in *held*, whose queues must not be full."""
        for identity, lapse in held.items():
            queue = session.counts.setdefault(identity, {})
            is_oldest = bool(queue) and next(reversed(queue)) > seq
            queue[seq] = None
            if is_oldest:  # it is older than the last one: another session held it before (rule 21)
                put_in_order(queue)
            self._state.lapses.push(lapse, seq, session.name)
