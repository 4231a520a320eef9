"""Visitors: who a client is, and what it may do."""

from __future__ import annotations

from collections.abc import Callable

from whimbrel.broker.clients import Link
from whimbrel.broker.rights import Rights

__all__ = ["Visitors"]


def _no_groups(_user: str | None) -> frozenset[str]:
    return frozenset()


class Visitors:
    """The rights of everybody who is connected; *groups* tells which groups a user is in."""

    def __init__(
        self, rights: Rights = Rights.OPEN, groups: Callable[[str | None], frozenset[str]] = _no_groups
    ) -> None:
        self._rights, self._groups = rights, groups
        self.is_open = rights.is_open
        """Whether everybody may do everything."""
        self.checks_deliveries = rights.checks_deliveries
        """Whether something that was subscribed to may still not be received."""

    def groups_of(self, link: Link) -> frozenset[str]:
        """Return the groups that a client's user is in."""
        return self._groups(link.user)

    def may_publish(self, link: Link, client_id: str, topic: str) -> bool:
        """Tell whether a client may publish to *topic*."""
        return self.is_open or self._rights.may_publish(link.user, self._groups(link.user), client_id, topic)

    def may_publish_as(self, user: str | None, client_id: str, topic: str) -> bool:
        """Tell the same of a client that is not connected, whose user is known."""
        return self.is_open or self._rights.may_publish(user, self._groups(user), client_id, topic)

    def may_subscribe(self, link: Link, client_id: str, topic_filter: str) -> bool:
        """Tell whether a client may subscribe to *topic_filter*, which is not shared."""
        return self.is_open or self._rights.may_subscribe(link.user, self._groups(link.user), client_id, topic_filter)

    def may_receive(self, link: Link, client_id: str, topic: str) -> bool:
        """Tell whether *topic* may be delivered to a client, whatever it subscribed to."""
        if not self.checks_deliveries:
            return True
        return self._rights.may_receive(link.user, self._groups(link.user), client_id, topic)
