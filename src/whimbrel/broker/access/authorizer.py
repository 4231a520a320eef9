"""The authorizer: decides what a client may do, by its user, the user's groups and its client identifier.

Rule: every delivery needs a decision, so decisions are cached, in bounded memory (``Verdicts``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from whimbrel.broker.access.client_ids import MountedIds
from whimbrel.broker.access.topic_rights import Rights

__all__ = ["Authorizer", "Connected", "Verdicts"]


_Question: TypeAlias = tuple[str | None, str, str]
"""Cache key of a decision: user, client identifier, topic (or topic filter)."""
_MAX_REMEMBERED = 50_000
_LONGEST = 512


class Verdicts:
    """Cache of decisions about rights, with at most about twice *most* entries.

    The cache has two generations. A decision that is used moves to the younger one. When the younger one is full, the
    older one is dropped and the younger takes its place. So decisions that are used often stay in the cache.
    """

    __slots__ = ("_most", "_older", "recent")

    def __init__(self, most: int = _MAX_REMEMBERED) -> None:
        self._most = most
        self.recent: dict[_Question, bool] = {}
        """The younger generation; read it before calling ``get``, because a call takes longer."""
        self._older: dict[_Question, bool] = {}

    def __len__(self) -> int:
        return len(self.recent) + len(self._older)

    def get(self, question: _Question) -> bool | None:
        """Return the cached decision, or None if it is not cached."""
        found = self.recent.get(question)
        if found is None and (found := self._older.get(question)) is not None:
            self.put(question, found)
        return found

    def put(self, question: _Question, answer: bool) -> bool:  # noqa: FBT001 # the answer is what this is about
        """Cache the decision *answer* and return it; if identifier and topic are too long, only return it."""
        if len(question[1]) + len(question[2]) <= _LONGEST:
            if len(self.recent) >= self._most:
                self._older, self.recent = self.recent, {}
            self.recent[question] = answer
        return answer

    def clear(self) -> None:
        """Remove all decisions, because the rights were replaced."""
        self.recent, self._older = {}, {}


class Connected(Protocol):
    """The part of a connection that the authorizer needs: the authenticated user."""

    @property
    def user(self) -> str | None:
        """The authenticated user of the connection, or None."""


def _no_groups(_user: str | None) -> frozenset[str]:
    return frozenset()


class Authorizer:
    """Decides by *rights* what clients may do; *groups* returns the groups of a user.

    Decisions about publishing, receiving and shares are cached until the rights are replaced.
    """

    def __init__(
        self, rights: Rights = Rights.OPEN, groups: Callable[[str | None], frozenset[str]] = _no_groups
    ) -> None:
        self._groups = groups
        self.ids = MountedIds()
        """The mount points of listeners: rights are about the client identifier without its mount point."""
        self._publishing, self._receiving, self._sharing = Verdicts(), Verdicts(), Verdicts()
        self.epoch = 0
        """Version number of the rights, increased whenever they are replaced."""
        self._set(rights)

    def _set(self, rights: Rights) -> None:
        self._rights = rights
        self.is_open = rights.is_open
        """Whether every client may publish and subscribe to everything."""
        self.is_silent_on_ids = not rights.client_ids.rules
        """Whether every user may connect under every client identifier."""
        self._asks_client = rights.asks_client

    def replace(self, rights: Rights) -> None:
        """Replace the rights, and discard the cached decisions."""
        self._set(rights)
        self._publishing.clear()
        self._receiving.clear()
        self._sharing.clear()
        self.epoch += 1

    def groups_of(self, link: Connected) -> frozenset[str]:
        """Return the groups of a client's user."""
        return self._groups(link.user)

    def may_connect(self, user: str | None, client_id: str) -> bool:
        """Return whether *user* may connect with the client identifier *client_id*."""
        return self._rights.client_ids.may_use(user, self._groups(user), self.ids.without_mount(client_id))

    def may_publish(self, link: Connected, client_id: str, topic: str) -> bool:
        """Return whether a connected client may publish to *topic*."""
        if self.is_open:
            return True
        user = link.user
        question = (user, client_id if self._asks_client else "", topic)
        found = self._publishing.recent.get(question)
        if found is None and (found := self._publishing.get(question)) is None:
            found = self._rights.may_publish(user, self._groups(user), self.ids.without_mount(client_id), topic)
            self._publishing.put(question, found)
        return found

    def may_publish_as(self, user: str | None, client_id: str, topic: str) -> bool:
        """Return whether the client *client_id* of *user* may publish to *topic*; it need not be connected."""
        return self.is_open or self._rights.may_publish(
            user, self._groups(user), self.ids.without_mount(client_id), topic
        )

    def may_subscribe(self, user: str | None, client_id: str, topic_filter: str, *, is_shared: bool = False) -> bool:
        """Return whether a user's client may subscribe to *topic_filter*, which is without ``$share/<group>/``.

        A shared subscription (*is_shared*) is allowed only if the client may receive every topic that the filter
        admits.
        """
        if self.is_open:
            return True
        if is_shared:
            return self._may_receive_all(user, client_id, topic_filter)
        return self._rights.may_subscribe(user, self._groups(user), self.ids.without_mount(client_id), topic_filter)

    def may_be_refused(self, user: str | None, client_id: str, topic_filters: Iterable[str]) -> bool:
        """Return whether ``may_receive`` could refuse the client a topic that one of *topic_filters* admits."""
        if self.is_open:
            return False
        return not all(self._may_receive_all(user, client_id, each) for each in topic_filters)

    def _may_receive_all(self, user: str | None, client_id: str, topic_filter: str) -> bool:
        question = (user, client_id if self._asks_client else "", topic_filter)
        found = self._sharing.get(question)
        if found is None:
            found = self._rights.may_share(user, self._groups(user), self.ids.without_mount(client_id), topic_filter)
            self._sharing.put(question, found)
        return found

    def may_receive(self, link: Connected, client_id: str, topic: str) -> bool:
        """Return whether *topic* may be delivered to a connected client, whatever it subscribed to."""
        if self.is_open:
            return True
        user = link.user
        question = (user, client_id if self._asks_client else "", topic)
        found = self._receiving.recent.get(question)
        if found is None and (found := self._receiving.get(question)) is None:
            found = self._rights.may_receive(user, self._groups(user), self.ids.without_mount(client_id), topic)
            self._receiving.put(question, found)
        return found

    def may_hear_anywhere(self, user: str | None, client_id: str, topic_filter: str) -> bool:
        """Return whether a user's client may subscribe to *topic_filter* with ``near=any``.

        Such a subscription ignores the areas of publications: it receives them wherever the client is.
        """
        return self._rights.may_hear_anywhere(user, self._groups(user), self.ids.without_mount(client_id), topic_filter)

    @property
    def has_rules(self) -> bool:
        """Whether a rights file is in use; without one, everything is allowed."""
        return self._rights is not Rights.OPEN

    def may_operate(self, link: Connected, client_id: str, topic: str) -> bool:
        """Return whether a client may send an operators' request on *topic*, such as ``$whimbrel/clients/list``."""
        return self._rights.may_operate(link.user, self._groups(link.user), self.ids.without_mount(client_id), topic)
