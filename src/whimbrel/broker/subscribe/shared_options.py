"""Protect shared subscription options: a SUBSCRIBE changes those of a named session only with ``modify=yes``.

All devices of a named session receive through the same subscriptions. If a device that only wants to listen subscribed
plainly to a topic for which the session has a content filter, it would remove the filter for all others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.hold.commands import Identity
from whimbrel.hold.private import is_private
from whimbrel.model.subscription import Subscription
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError

__all__ = ["SharedOptions"]

_IS_ANOTHER = (
    "the session has a subscription to this topic with other options; say modify=yes to change it for all its devices, "
    "or give yours a name"
)


class SharedOptions:
    """The subscriptions of named sessions, including those that wait for the disk."""

    def __init__(self, commits: CommitQueue, state: BrokerState) -> None:
        self._commits, self._state = commits, state
        self._entering: dict[tuple[str, Identity], Subscription] = {}

    def check_unchanged(self, subscription: Subscription) -> None:
        """Refuse a SUBSCRIBE that would change an existing subscription of a named session."""
        if is_private(subscription.session):
            return
        session, identity = subscription.session, (subscription.subject_filter, subscription.name)
        there: Subscription | None = None
        if identity in self._state.subscribed_to.get(session, ()):
            there = self._entering.get((session, identity)) or self._state.hold.subscription(session, identity)
        if there is not None and replace(there, identifier=subscription.identifier) != subscription:
            raise ProtocolError(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, _IS_ANOTHER)

    def enter(self, subscription: Subscription, identity: Identity) -> None:
        """Remember a subscription, whose fact just got its seq, until the fact is accepted."""
        if not is_private(subscription.session):
            self._entering[subscription.session, identity] = subscription
            self._commits.then(partial(self._forget, subscription, identity))

    def _forget(self, subscription: Subscription, identity: Identity) -> None:
        if self._entering.get((subscription.session, identity)) is subscription:
            del self._entering[subscription.session, identity]
