"""What one listener asks of its clients, and where it mounts their topics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["OPEN_LISTENER", "ListenerRules", "Verify"]

Verify: TypeAlias = Callable[[str, bytes | None], bool]
"""Tells whether a user has a password; it takes most of a second, in any thread."""


@dataclass(slots=True, kw_only=True, eq=False)
class ListenerRules:
    """The rules of a listener that the core keeps; sockets and TLS are its shell's.

    A reload changes them in place, so that they count for connections that are open too.
    """

    verify: Verify | None = None
    """None: any client may connect, and a user name is only a claim."""
    admits_anonymous: bool = True
    """Whether a client may connect without a user name."""
    mount: str = ""
    """The mount point of its clients' topics (``mqtt.mounts``)."""


OPEN_LISTENER = ListenerRules()
