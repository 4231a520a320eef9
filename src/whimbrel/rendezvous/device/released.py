"""Released: a device that its controller has disconnected and will page when there is something (without park).

Rule: what the device wants to say meanwhile waits in ``outbox``; the device pages the controller for it, without an
inquiry. After two pages that were not answered, or when no page came for as long as the controller said, the controller
is taken for gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.messages import FromDevice

__all__ = ["MAX_CALLS", "Release"]

MAX_CALLS = 2


@dataclass(slots=True, eq=False)
class Release:
    """What a device remembers while it is released."""

    controller: Address
    until: int
    """When the controller is taken for gone if it has not paged us."""
    outbox: list[FromDevice] = field(default_factory=list)
    is_calling: bool = False
    """Whether we page the controller."""
    failures: int = 0
    call_at: int | None = None
    """When we page it again."""
