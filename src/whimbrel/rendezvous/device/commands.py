"""Inputs of a device's core, its commands, and its messages to the user."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from whimbrel.rendezvous.events import Address, EventId, GroupKey
from whimbrel.rendezvous.messages import FromDevice, Listed, Message

__all__ = [
    "BecomeMaster",
    "DeviceCommand",
    "DeviceInput",
    "FoundController",
    "Heard",
    "HeardPeer",
    "Inquire",
    "Introduced",
    "JoinedController",
    "KeepToken",
    "LeaveController",
    "LostController",
    "LostPeer",
    "PageController",
    "PageEnded",
    "PagePeer",
    "Paged",
    "Say",
    "SayPeer",
    "SetScans",
    "Tell",
    "Verified",
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
    """The controller made us active again."""


@dataclass(frozen=True, slots=True)
class PageEnded:
    """Our page of a match was answered, or timed out."""

    address: Address
    is_connected: bool


@dataclass(frozen=True, slots=True)
class Paged:
    """A match paged us and is connected."""

    address: Address
    has_layer: bool = True
    """Whether it speaks our messages; a dumb device that is paired with us does not."""


@dataclass(frozen=True, slots=True)
class HeardPeer:
    """A peer (a device, not a controller) sent bytes."""

    address: Address
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class LostPeer:
    """The connection to a peer is lost."""

    address: Address


DeviceInput: TypeAlias = (
    FoundController
    | JoinedController
    | LostController
    | Heard
    | WasParked
    | WasWoken
    | PageEnded
    | Paged
    | HeardPeer
    | LostPeer
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
    clock_offset: int | None
    """``None``: the offset measured when we were connected to it."""


@dataclass(frozen=True, slots=True)
class Say:
    """Send *message* to the controller; while the device is parked, the message waits for the next poll."""

    message: FromDevice


@dataclass(frozen=True, slots=True)
class SayPeer:
    """Send *message* to a peer."""

    address: Address
    message: Message


@dataclass(frozen=True, slots=True)
class KeepToken:
    """Store on disk the token that proves our membership in a group, before the user is told of it."""

    group: GroupKey = field(repr=False)
    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class SetScans:
    """Listen for inquiries, for pages, for both or for neither."""

    has_inquiry_scan: bool
    has_page_scan: bool


@dataclass(frozen=True, slots=True)
class BecomeMaster:
    """Switch roles with a dumb device that paged us: the computing device is the master (5.4.4)."""

    address: Address


@dataclass(frozen=True, slots=True)
class PagePeer:
    """Page the device that was matched, for at most ``timeout_us``."""

    address: Address
    clock_offset: int
    timeout_us: int


@dataclass(frozen=True, slots=True)
class LeaveController:
    """Close the connection to the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduced:
    """A message to the user: we are connected to the device with which the controller matched us."""

    address: Address
    is_caller: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """A message to the user of the device: the result for an event, or for a peer."""

    what: str
    id: EventId | None = None
    address: Address | None = None
    reason: str | None = None
    listed: tuple[Listed, ...] = ()
    data: bytes = field(default=b"", repr=False)
    """Bytes that a peer sent to our application."""
    is_complete: bool = True
    """Whether *listed* has every publication that matches."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A peer has proven that it is a member of a group (2.3, Figure 2-12)."""

    address: Address
    group: GroupKey = field(repr=False)
    expires_at: int
    skips_authentication: bool
    """Whether we are a member, too: then no further authentication is needed between us."""


DeviceCommand: TypeAlias = (
    Inquire
    | PageController
    | Say
    | SayPeer
    | KeepToken
    | SetScans
    | BecomeMaster
    | PagePeer
    | LeaveController
    | Introduced
    | Tell
    | Verified
)
