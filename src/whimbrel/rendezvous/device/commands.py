"""What happens to a device, what its core commands, and what its user is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from whimbrel.rendezvous.events import Address, EventId
from whimbrel.rendezvous.messages import FromDevice, Listed

__all__ = [
    "DeviceCommand",
    "DeviceInput",
    "FoundController",
    "Heard",
    "Inquire",
    "Introduced",
    "JoinedController",
    "LeaveController",
    "LostController",
    "PageController",
    "PageEnded",
    "PagePeer",
    "Paged",
    "Say",
    "SetScans",
    "Tell",
    "WasParked",
    "WasWoken",
]

# -- inputs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundController:
    """Our inquiry heard a device whose name says that it is a controller."""

    address: Address
    clock_offset: int


@dataclass(frozen=True, slots=True)
class JoinedController:
    """We are connected to a controller; it is master."""

    address: Address
    is_caller: bool = True
    """Whether we paged it."""


@dataclass(frozen=True, slots=True)
class LostController:
    """The connection to the controller is gone, or could not be made."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The controller sent bytes."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class WasParked:
    """The controller parked us."""


@dataclass(frozen=True, slots=True)
class WasWoken:
    """The controller gave us a seat again."""


@dataclass(frozen=True, slots=True)
class PageEnded:
    """Our page of a match was answered, or timed out."""

    address: Address
    is_connected: bool


@dataclass(frozen=True, slots=True)
class Paged:
    """A match paged us and is connected."""

    address: Address


DeviceInput: TypeAlias = (
    FoundController | JoinedController | LostController | Heard | WasParked | WasWoken | PageEnded | Paged
)

# -- commands --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inquire:
    """Look for a controller, or stop looking."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class PageController:
    """Page the controller and connect."""

    address: Address
    clock_offset: int


@dataclass(frozen=True, slots=True)
class Say:
    """Send *message* to the controller; a parked device waits for the next poll with it."""

    message: FromDevice


@dataclass(frozen=True, slots=True)
class SetScans:
    """Listen for inquiries, for pages, for both or for neither."""

    has_inquiry_scan: bool
    has_page_scan: bool


@dataclass(frozen=True, slots=True)
class PagePeer:
    """Page a match for at most so long."""

    address: Address
    clock_offset: int
    timeout_us: int


@dataclass(frozen=True, slots=True)
class LeaveController:
    """Close the connection to the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduced:
    """We are connected to a device that the controller found for us, or for which it found us."""

    address: Address
    is_caller: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Something the user of the device wants to know: what became of an event."""

    what: str
    id: EventId | None = None
    reason: str | None = None
    listed: tuple[Listed, ...] = ()
    is_complete: bool = True
    """Whether *listed* has every publication that matches."""


DeviceCommand: TypeAlias = Inquire | PageController | Say | SetScans | PagePeer | LeaveController | Introduced | Tell
