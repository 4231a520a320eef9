"""Ownership: a private session belongs to the user who made it.

Rule: a user resumes, takes over or begins anew only a session of their own; a client without a verified user only
one of such a client. Any other client is refused, and the session is not disturbed.
Rule: a session without a known owner is *unclaimed*: one from before owners were written down, and one that an operator
released. It becomes the session of the first who comes with its client identifier and whose rights cover all that it
subscribes to; if these do not cover it, it is ended, and the client begins anew.
Rule: where a broker without users is given a users file, and lets in no other client, sessions that no user made
are unclaimed too: those who made them are users now.
Rule: when rights are taken away, shares are ended that a user may not serve any more. What one member of a share may
not have would be lost for the others. So are subscriptions with ``near=any`` of a user who may not have them any more.
"""

from __future__ import annotations

from enum import Enum, auto

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.limits.operator_notices import Notice
from whimbrel.broker.settings.config import Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.subscribe.interests import Interests
from whimbrel.broker.wire.clients import LiveClient
from whimbrel.hold.private import is_shared
from whimbrel.model.near import Anywhere

__all__ = ["NOT_YOURS", "Claim", "Ownership"]

NOT_YOURS = "this client identifier is not yours to use"
"""Said of one that rights do not grant and of one that another user has, so that clients do not learn which."""


class Claim(Enum):
    """What becomes of a client that comes to a session which is there."""

    GRANTED = auto()
    ENDS = auto()
    """The session ends, and the client begins another."""
    REFUSED = auto()


class Ownership:
    """Who may have which private session."""

    def __init__(self, config: Config, state: BrokerState, authorizer: Authorizer, interests: Interests) -> None:
        self._state, self._authorizer, self._interests = state, authorizer, interests
        self.replace(config)
        self.notices: list[Notice] = []
        """What the shell is to log, and then to forget."""

    def replace(self, config: Config) -> None:
        """Let other users count from now on."""
        self._has_users, self._admits_anonymous = config.has_users, config.admits_anonymous

    def claim(self, client: LiveClient, user: str | None) -> Claim:
        """Return what becomes of a user who comes to the session of *client*."""
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
        """End the shares that the owners of their sessions may not serve any more."""
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
