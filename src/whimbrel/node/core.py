"""The core of a node: sessions, held notifications and policies, which brokers and pipeline workers fold alike.

A broker adds clients, wills, retained messages and places (``node``); a worker adds state for its tables.
Rule: facts are applied in the order of their seqs. The same facts and matches give the same commands and rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from whimbrel.hold.commands import Matches
from whimbrel.hold.sessions import Hold
from whimbrel.hold.touched_rows import Key
from whimbrel.model.facts import Decided, Fact, PolicyChanged, Reported, SessionChanged
from whimbrel.node.held import HeldNotifications, Kept
from whimbrel.node.parts import NodeCommand, NodePart
from whimbrel.node.policies import Policies
from whimbrel.node.rows import NodeRows

__all__ = ["NodeCore"]

K = TypeVar("K", bound=Kept)


class NodeCore(Generic[K]):
    """The fold of the log of the node *name*; *K* is the form in which it keeps a held notification."""

    def __init__(self, name: str, hold: Hold[K], held: HeldNotifications[K], policies: Policies) -> None:
        self.name, self.hold, self.policies = name, hold, policies
        self.rows = NodeRows(hold, policies)
        held.touch, held.untouch = self.rows.touch, self.rows.untouch
        self.rows.add([held])

    def apply(self, fact: Fact, matches: Matches = (), kept: K | None = None) -> Sequence[NodeCommand]:
        """Apply the next fact; return the commands for the shell, in order.

        For a notification, *kept* is the form in which the hold keeps it.
        """
        if isinstance(fact, Reported | PolicyChanged | Decided | SessionChanged):
            self.policies.note(fact)
        return self.hold.apply(fact, matches, kept)

    def add(self, parts: Iterable[NodePart]) -> None:
        """Add parts with rows of their own."""
        self.rows.add(parts)

    def restore(self, rows: Iterable[tuple[Key, bytes]]) -> None:
        """Restore everything except the hold from *rows*; the hold is restored already."""
        self.rows.restore([(key, value) for key, value in rows])
