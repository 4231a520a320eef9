"""What one listener asks of its clients, and where it mounts their topics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["OPEN_LISTENER", "ListenerRules", "Verify"]

Verify: TypeAlias = Callable[[str, bytes | None], bool]
"""Tells whether a user has a password; it takes most of a second, in any thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerRules:
    """The rules of a listener that the core keeps; sockets and TLS are its shell's."""

    verify: Verify | None = None
    """Verifies the users of its own file; None: those of [access] count, if there are any."""
    anonymous: bool | None = None
    """Whether a client may connect without a user name although there are users; None: as [access] has it."""
    mount: str = ""
    """The mount point of its clients' topics (``mqtt.mounts``)."""


OPEN_LISTENER = ListenerRules()
