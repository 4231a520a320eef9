"""Authentication of users: by TLS certificate, or by a name and password of the users file.

Rule: the users file may be read again at any time. A password verified with the old file is verified again with the new
one, and connected clients are checked again (``revocation``).
"""

from __future__ import annotations

from functools import partial

from whimbrel.broker.access.users import UserChanges
from whimbrel.broker.waiting.blocking_tasks import BlockingTasks, RequesterId
from whimbrel.broker.waiting.driver import Procedure, answer_to
from whimbrel.broker.wire.clients import Link
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import Connect

__all__ = ["UserCheck"]


class UserCheck:
    """Authenticates clients; without ``ListenerRules.verify`` no user is verified, and a user name is only a claim."""

    def __init__(self, blocking_tasks: BlockingTasks) -> None:
        self._blocking_tasks = blocking_tasks
        self.epoch = 0
        """Increases each time the users are replaced."""

    def user_of(self, link: Link, connect: Connect, now: int) -> Procedure[tuple[str | None, int]]:
        """Return the verified user (None if the client has none), and the time at which the user was verified."""
        user = link.user
        while link.user_epoch != self.epoch:
            epoch = self.epoch
            user, now = yield from self._authenticate(link, connect, now)
            link.user_epoch = epoch
        return user, now

    def _authenticate(self, link: Link, connect: Connect, now: int) -> Procedure[tuple[str | None, int]]:
        verify = link.listener.verify
        if link.verified_user is not None or verify is None:
            return link.verified_user, now  # an unverified name is only a claim
        if connect.username is None and link.listener.admits_anonymous:
            return None, now
        if connect.username is None:
            raise ProtocolError(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "a user name and a password are needed")
        name = f"user {connect.username}"
        asker, ask = RequesterId(link.address, name, (name,)), partial(verify, connect.username, connect.password)
        is_right, now = yield from answer_to(link, asker, ask, "too many wrong passwords; try again in a minute")
        self._blocking_tasks.learn(asker, is_right=is_right)
        if not is_right:
            raise ProtocolError(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "wrong user name or password")
        return connect.username, now

    def revocation(self, link: Link, changes: UserChanges) -> tuple[ReasonCode, str] | None:
        """Return the reason code and text for disconnecting a client after *changes* of the users, or None."""
        if link.user_epoch is None or link.verified_user is not None:
            return None
        if link.user is None:
            if link.listener.verify is None or link.listener.admits_anonymous:
                return None
            return ReasonCode.NOT_AUTHORIZED, "a user name and a password are needed now"
        if link.user in changes.revoked:
            return ReasonCode.NOT_AUTHORIZED, "this user was removed, or has another password now"
        if link.user in changes.regrouped and (link.rights or link.joining):
            # The client's rights in named sessions were derived from its groups when it joined.
            return ReasonCode.ADMINISTRATIVE_ACTION, "the groups of this user have changed: connect again"
        return None
