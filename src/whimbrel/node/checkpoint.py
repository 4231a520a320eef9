"""Rows of a node by whose they are, so that a part of its state can be taken out of a checkpoint.

Rule: every kind of row has one scope. A slice of the state is the rows of some sessions and devices, the notifications
that these sessions hold, and all rows of the node.
"""

from __future__ import annotations

from enum import Enum

from whimbrel.hold.touched_rows import Key

__all__ = ["RowScope", "scope_of"]


class RowScope(Enum):
    """Whose a row is."""

    NODE = "node"
    SESSION = "session"
    DEVICE = "device"
    NOTIFICATION = "notification"
    SUBJECT = "subject"


_OF_NODE = frozenset({"now", "decided", "policy"})
_BY_PLACE = {
    **dict.fromkeys(("session", "subscription", "member", "pending", "arrived"), (RowScope.SESSION, 1)),
    "turn": (RowScope.SESSION, 2),
    **dict.fromkeys(
        ("client", "device", "failures", "link", "place", "shaped", "variables", "will"), (RowScope.DEVICE, 1)
    ),
    **dict.fromkeys(("copy", "decision", "notification"), (RowScope.NOTIFICATION, 1)),
    **dict.fromkeys(("retained", "source"), (RowScope.SUBJECT, 1)),
}
"""By kind, the scope of a row, and where its key names the session, device, notification or subject."""


def scope_of(key: Key) -> tuple[RowScope, str | int | None]:
    """Return the scope of a row, and which session, device, notification or subject it is of; None for the node."""
    kind = str(key[0])
    if kind in _OF_NODE:
        return RowScope.NODE, None
    scope, place = _BY_PLACE[kind]
    return scope, key[place]
