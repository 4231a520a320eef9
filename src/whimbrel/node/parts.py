"""The parts of a node, and the listener that follows it.

Rule: a part has its own rows, and writes and reads them side by side. A part restored from its rows equals the part
that wrote them.
Rule: a listener keeps what follows from the node's state (routes, caches, queues). It changes nothing of the node, and
no row has anything of it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from whimbrel.hold.commands import Command, Identity
from whimbrel.hold.touched_rows import Key
from whimbrel.model.subscription import Subscription
from whimbrel.node.publication import KeptNotification

__all__ = ["Arrived", "Crossed", "NodeCommand", "NodeListener", "NodePart", "NodeWork"]


class Crossed(NamedTuple):
    """Tell a client that it entered or left an area that it named."""

    device: str
    name: str
    is_inside: bool


class Arrived(NamedTuple):
    """Send a session what is retained for an area that it entered."""

    session: str
    kept: KeptNotification


NodeCommand: TypeAlias = Command | Crossed | Arrived
"""A request of a node to its shell; performing it changes nothing that a restart knows."""


NodeWork: TypeAlias = Generator[None, None, list[NodeCommand]]
"""Work in pieces, which returns the commands that follow from it."""


class NodePart(Protocol):
    """A part of a node's state, with its rows."""

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of its rows."""

    def keys(self) -> Iterable[Key]:
        """Yield the keys of all its rows."""

    def row(self, key: Key) -> bytes | None:
        """Return the row under *key*, encoded; None if there is none."""

    def restore(self, rows: Mapping[Key, bytes]) -> None:
        """Restore the part from *rows*."""


C = TypeVar("C")


class NodeListener(Generic[C]):
    """Follows a node; a shell overrides what it wants to know. Each method is called as the fact is applied."""

    def subscribed(self, subscription: Subscription) -> None:
        """Note that a session has a subscription, new or changed."""

    def unsubscribed(self, session: str, identity: Identity) -> None:
        """Note that a session has a subscription no more."""

    def session_ends(self, session: str, subscriptions: Sequence[Subscription], members: Iterable[str]) -> None:
        """Note that a session is about to end, with its *subscriptions* and *members*."""

    def session_changed(self, session: str, ended_members: Sequence[str]) -> None:
        """Note that a session was made, has another access list, or has ended, with the members that it had."""

    def members_changed(self, session: str, device: str) -> None:
        """Note that a device joined a session or left it."""

    def conditions_changed(self) -> None:
        """Note that other devices than before have receipts, policies or memberships of named sessions."""

    def left(self, client: C, session: str) -> None:
        """Note that a client is about to leave a session."""

    def disconnected(self, client: C) -> None:
        """Note that a client's connection has ended."""

    def client_ended(self, client: C) -> None:
        """Note that a client's own session has ended."""
