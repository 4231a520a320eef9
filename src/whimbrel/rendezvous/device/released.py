"""Released state: the controller has disconnected the device and pages it when it has a message (without park).

Rule: the device's own messages wait in ``outbox`` meanwhile; the device pages the controller for them, without an
inquiry. After two unanswered pages, or without a page for the time that the controller stated, the controller counts as
gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.messages import FromDevice

__all__ = ["MAX_CALLS", "Release"]

MAX_CALLS = 2


@dataclass(slots=True, eq=False)
class Release:
    """State of a device while it is released."""

    controller: Address
    until: int
    """Time at which the controller counts as gone if it has not paged us."""
    outbox: list[FromDevice] = field(default_factory=list)
    is_calling: bool = False
    """Whether we page the controller."""
    failures: int = 0
    call_at: int | None = None
    """Time at which we page it again; None if no page is scheduled."""
