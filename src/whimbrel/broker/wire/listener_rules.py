"""Rules of one listener: how its clients authenticate, and their mount point (prefix of topics and identifiers)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["OPEN_LISTENER", "ListenerRules", "Verify"]

Verify: TypeAlias = Callable[[str, bytes | None], bool]
"""Function that returns whether a password is a user's; it takes most of a second and may run in any thread."""


@dataclass(slots=True, kw_only=True, eq=False)
class ListenerRules:
    """The rules of a listener that the core applies; its sockets and TLS belong to the shell.

    A reload of the settings changes them in place, so they apply to open connections too.
    """

    verify: Verify | None = None
    """Checks a user name and password; None: any client may connect, and a user name is only a claim."""
    admits_anonymous: bool = True
    """Whether a client may connect without a user name."""
    mount: str = ""
    """The mount point of its clients' topics (``mqtt.mounts``); empty for none."""


OPEN_LISTENER = ListenerRules()
