"""The parts of a node, and the listener that follows it.

Rule: a part has its own rows, and the code that writes them is beside the code that reads them. A part restored from
its rows equals the part that wrote them.
Rule: a listener keeps data that is derived from the node's state (routes, caches, queues). It changes nothing in the
node, and its data is in no row.
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
    """Notify a client that it entered or left an area that it named."""

    device: str
    name: str
    is_inside: bool


class Arrived(NamedTuple):
    """Send a session a message that is retained for an area that it entered."""

    session: str
    kept: KeptNotification


NodeCommand: TypeAlias = Command | Crossed | Arrived
"""A request of a node to its shell; performing it does not change the state that a restart restores."""


NodeWork: TypeAlias = Generator[None, None, list[NodeCommand]]
"""Work in steps: a generator that yields after each step, and returns the commands for the shell."""


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
    """Listener of a node's changes; a shell overrides the methods it needs. They are called when a fact is applied."""

    def subscription_put(self, subscription: Subscription) -> None:
        """Handle that a session's subscription was added or changed."""

    def subscription_removed(self, session: str, identity: Identity) -> None:
        """Handle that a session's subscription was removed."""

    def session_ends(self, session: str, subscriptions: Sequence[Subscription], members: Iterable[str]) -> None:
        """Handle that a session is about to end, with its *subscriptions* and *members*."""

    def session_changed(self, session: str, ended_members: Sequence[str]) -> None:
        """Handle that a session was created, got another access list, or ended (then with its *ended_members*)."""

    def members_changed(self, session: str, device: str) -> None:
        """Handle that a device joined a session or left it."""

    def conditions_changed(self) -> None:
        """Handle that the set of devices with receipts, policies or memberships of named sessions may have changed."""

    def client_leaves(self, client: C, session: str) -> None:
        """Handle that a client is about to leave a session."""

    def connection_ended(self, client: C) -> None:
        """Handle that a client's connection has ended."""

    def client_ended(self, client: C) -> None:
        """Handle that a client's private session has ended."""
