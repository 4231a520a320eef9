"""The radio, as the shells around a controller and a device see it; every radio runs the same contract suite.

Rule: a method starts an operation and returns at once. Its result is an event.
Rule: clock offsets are those of HCI: bits 16 to 2 of the other clock minus the own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.stand_in import StandIn

__all__ = [
    "Authenticated",
    "InquiryResult",
    "LinkLost",
    "LinkMade",
    "Overheard",
    "PageFailed",
    "Parked",
    "Radio",
    "RadioEvent",
    "Received",
    "RoleSwitched",
    "StandIn",
    "StandInRadio",
    "Unparked",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class InquiryResult:
    """A discoverable device answered our inquiry; its name was asked for."""

    address: Address
    clock_offset: int
    name: str
    device_class: int


@dataclass(frozen=True, slots=True)
class LinkMade:
    """A page led to a connection; the pager is master."""

    address: Address
    is_caller: bool
    """Whether we paged."""
    name: str
    """The other's name, which a radio requests."""
    has_layer: bool
    """Whether the other device offers our channel. Without it, a device can be parked, but gets no messages."""
    as_address: Address | None = None
    """The address in whose place we answered the page; ``None``: our own."""


@dataclass(frozen=True, slots=True)
class PageFailed:
    """The page was not answered in time."""

    address: Address


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The other side closed the connection, or is out of range."""

    address: Address


@dataclass(frozen=True, slots=True)
class Received:
    """The other side sent bytes, whole and in order."""

    address: Address
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RoleSwitched:
    """Master and slave changed places."""

    address: Address
    is_master: bool


@dataclass(frozen=True, slots=True)
class Parked:
    """Our master took our active address."""

    address: Address


@dataclass(frozen=True, slots=True)
class Unparked:
    """Our master gave us an active address again."""

    address: Address


@dataclass(frozen=True, slots=True)
class Overheard:
    """A device pages the device at *address*, for which we listen; a page does not show the caller's address."""

    address: Address


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A connected device accepted our PIN, or refused it and hangs up."""

    address: Address
    is_accepted: bool


RadioEvent: TypeAlias = (
    InquiryResult
    | LinkMade
    | PageFailed
    | LinkLost
    | Received
    | RoleSwitched
    | Parked
    | Unparked
    | Overheard
    | Authenticated
)


class Radio(Protocol):
    """One Bluetooth radio."""

    @property
    def address(self) -> Address:
        """The address of this radio."""
        ...

    def inquire(self, *, is_on: bool) -> None:
        """Inquire without end, or stop."""
        ...

    def set_scans(self, *, inquiry: bool, page: bool) -> None:
        """Listen for inquiries and for pages, or not."""
        ...

    def page(self, address: Address, clock_offset: int | None, *, timeout_us: int) -> None:
        """Page a device; with its clock offset it is heard in half the time."""
        ...

    def switch_role(self, address: Address) -> None:
        """Become master of a connection in which we are slave."""
        ...

    def park(self, address: Address) -> None:
        """Park a slave of ours."""
        ...

    def unpark(self, address: Address) -> None:
        """Wake a parked slave at the next beacon; an active one stays as it is."""
        ...

    def poll(self, *, seats: int) -> None:
        """Poll parked slaves for messages at the next beacon, and wake at most *seats* of them."""
        ...

    def send(self, address: Address, data: bytes) -> None:
        """Send bytes; a parked slave keeps them until it is polled or woken."""
        ...

    def disconnect(self, address: Address) -> None:
        """Close a connection after what was sent; the other side is told."""
        ...

    def clock_offset_of(self, address: Address) -> int:
        """Return the clock offset of a device that we are connected to, or were last."""
        ...


@runtime_checkable
class StandInRadio(Protocol):
    """A radio that can use the address of another device, by extra hardware (5.4.4); only the simulated one is."""

    def stand_in(self, address: Address, mode: StandIn, *, clock_offset: int | None) -> None:
        """Listen for the pages of *address*, or answer them in its place, or do neither any more.

        With the device's clock offset its frequencies are known; without, the radio hops by its own clock.
        """
        ...

    def authenticate(self, address: Address, pin: str) -> None:
        """Pair with a connected device by *pin*."""
        ...
