"""Scopes of a node's rows (session, device, …), so that a slice of the state can be extracted from a checkpoint.

Rule: every kind of row has one scope. A slice of the state has the rows of some sessions and devices, the notifications
that these sessions hold, and all rows of the node itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TypeAlias

from whimbrel.hold.touched_rows import Key

__all__ = ["RowScope", "scope_of", "split"]

_Row: TypeAlias = tuple[Key, bytes]


class RowScope(Enum):
    """The kind of thing that a row belongs to."""

    NODE = "node"
    SESSION = "session"
    DEVICE = "device"
    NOTIFICATION = "notification"
    SUBJECT = "subject"


_OF_NODE = frozenset({"now", "decided", "policy", "time", "log mark"})
_BY_PLACE = {
    **dict.fromkeys(("session", "subscription", "member", "pending", "arrived"), (RowScope.SESSION, 1)),
    "turn": (RowScope.SESSION, 2),
    **dict.fromkeys(
        ("client", "device", "failures", "link", "place", "shaped", "variables", "will"), (RowScope.DEVICE, 1)
    ),
    **dict.fromkeys(("copy", "decision", "notification"), (RowScope.NOTIFICATION, 1)),
    **dict.fromkeys(("retained", "source"), (RowScope.SUBJECT, 1)),
}
"""Scope of each kind of row, and the index in its key of the session, device, notification or subject."""


def scope_of(key: Key) -> tuple[RowScope, str | int | None]:
    """Return the scope of a row, and its session, device, notification or subject; None for a row of the node."""
    kind = str(key[0])
    if kind in _OF_NODE:
        return RowScope.NODE, None
    scope, place = _BY_PLACE[kind]
    return scope, key[place]


def split(rows: Sequence[_Row], is_own: Callable[[RowScope, str], bool]) -> Iterator[_Row]:
    """Yield the slice of *rows* for the sessions, devices and subjects for which *is_own* returns True.

    A notification is in the slice if one of the slice's sessions holds it; so several slices may have it.
    """
    held: set[int] = set()
    for key, _ in rows:
        if key[0] == "pending" and is_own(RowScope.SESSION, str(key[1])):
            held.add(int(str(key[2])))
    for key, value in rows:
        scope, whose = scope_of(key)
        if scope is RowScope.NODE or (
            int(str(whose)) in held if scope is RowScope.NOTIFICATION else is_own(scope, str(whose))
        ):
            yield key, value
