"""Ownership: a private session belongs to the user who made it.

Rule: a user resumes, takes over or restarts only a session of their own; a client without a verified user only a
session of such a client. Any other client is refused, and the session is not disturbed.
Rule: a session without a known owner is *unclaimed*: one from before owners were recorded, or one that an operator
released. It goes to the first user who connects with its client identifier and whose rights cover all its
subscriptions. If the rights do not cover them, the session is ended, and the client starts an empty one.
Rule: when a broker without users gets a users file and admits no anonymous clients, sessions without a user become
unclaimed too: the clients that made them now have users.
Rule: when rights are withdrawn, shared subscriptions that a user may no longer have are ended: a notification that one
member of a share may not receive would be lost for the others. Subscriptions with ``near=any`` that a user may no
longer have are ended as well.
"""

from __future__ import annotations

from enum import Enum, auto

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.limits.operator_notices import Notice
from whimbrel.broker.settings.config import Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.subscribe.interests import SubscribeHandler
from whimbrel.broker.wire.clients import LiveClient
from whimbrel.hold.private import is_shared
from whimbrel.model.near import Anywhere

__all__ = ["NOT_YOURS", "Claim", "Ownership"]

NOT_YOURS = "this client identifier is not yours to use"
"""Reason for an identifier that rights do not grant and for one of another user; clients do not learn which it was."""


class Claim(Enum):
    """Result of a client's claim to an existing session."""

    GRANTED = auto()
    ENDS = auto()
    """The session ends, and the client starts another."""
    REFUSED = auto()


class Ownership:
    """Decides which client may have which private session."""

    def __init__(self, config: Config, state: BrokerState, authorizer: Authorizer, interests: SubscribeHandler) -> None:
        self._state, self._authorizer, self._interests = state, authorizer, interests
        self.replace(config)
        self.notices: list[Notice] = []
        """Notices that the shell logs and then removes."""

    def replace(self, config: Config) -> None:
        """Apply the users settings of *config*: whether users exist, and whether anonymous clients may connect."""
        self._has_users, self._admits_anonymous = config.has_users, config.admits_anonymous

    def claim(self, client: LiveClient, user: str | None) -> Claim:
        """Return the result of a *user*'s claim to the session of *client*."""
        is_unclaimed = client.is_unclaimed
        if user is not None and client.owner is None and not self._admits_anonymous:
            is_unclaimed = True
        if not is_unclaimed:
            return Claim.GRANTED if client.owner == user else Claim.REFUSED
        if user is None and not self._has_users:
            return Claim.GRANTED
        subscriptions = self._state.hold.subscriptions(client.session)
        if all(self._interests.may_subscribe(user, client.id, each) for each in subscriptions):
            self.notices.append(Notice("a session without an owner was adopted", client.id, user))
            return Claim.GRANTED
        text = "a session without an owner was ended: the rights of who came do not cover its subscriptions"
        self.notices.append(Notice(text, client.id, user))
        return Claim.ENDS

    def end_shares(self, now: int) -> None:
        """End the shares and ``near=any`` subscriptions that the owners of their sessions may no longer have."""
        if self._authorizer.is_open:
            return
        for client in list(self._state.clients.values()):
            if client.is_unclaimed:
                continue
            for subscription in self._state.hold.subscriptions(client.session):
                wanted = subscription.subject_filter
                is_asked = is_shared(wanted) or isinstance(subscription.near, Anywhere)
                if is_asked and not self._interests.may_subscribe(client.owner, client.id, subscription):
                    self._interests.remove(client, client.session, (wanted, subscription.name), now)
                    self.notices.append(Notice(f"rights end the subscription {wanted!r}", client.id, client.owner))
