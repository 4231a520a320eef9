"""Options of subscriptions that devices share: a SUBSCRIBE changes them only if it says so.

In a named session every device receives by the same subscriptions. A device that only wants to listen, and subscribes
plainly to a topic that the session has a filter on, would take the filter off for all others.
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
    """The subscriptions of named sessions, with those that wait for the disk."""

    def __init__(self, commits: CommitQueue, state: BrokerState) -> None:
        self._commits, self._state = commits, state
        self._entering: dict[tuple[str, Identity], Subscription] = {}

    def check_unchanged(self, subscription: Subscription) -> None:
        """Refuse a SUBSCRIBE that would change what a named session is subscribed to."""
        if is_private(subscription.session):
            return
        session, identity = subscription.session, (subscription.subject_filter, subscription.name)
        there: Subscription | None = None
        if identity in self._state.subscribed_to.get(session, ()):
            there = self._entering.get((session, identity)) or self._state.hold.subscription(session, identity)
        if there is not None and replace(there, identifier=subscription.identifier) != subscription:
            raise ProtocolError(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, _IS_ANOTHER)

    def enter(self, subscription: Subscription, identity: Identity) -> None:
        """Note a subscription that was entered just now, until it is accepted."""
        if not is_private(subscription.session):
            self._entering[subscription.session, identity] = subscription
            self._commits.then(partial(self._accepted, subscription, identity))

    def _accepted(self, subscription: Subscription, identity: Identity) -> None:
        if self._entering.get((subscription.session, identity)) is subscription:
            del self._entering[subscription.session, identity]
