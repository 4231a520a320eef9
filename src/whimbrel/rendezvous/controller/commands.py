"""Commands of the controller's core, which its shell performs in order.

Rule: a ``Note`` is a fact for the log. It holds no key, token or challenge, and no address of a device whose
publication is restricted: readers of the log need not be members of that group. A use of another device's address is
written in any case, without the event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from whimbrel.rendezvous.controller.parameters import PAGE_TIMEOUT_US
from whimbrel.rendezvous.events import Address, EventId, GroupKey
from whimbrel.rendezvous.messages import FromController
from whimbrel.rendezvous.refusals import Refusal
from whimbrel.rendezvous.stand_in import StandIn

__all__ = [
    "Authenticate",
    "Command",
    "Connect",
    "Disconnect",
    "KeepEpoch",
    "Note",
    "NoteKind",
    "Park",
    "Poll",
    "Release",
    "Send",
    "SetConnectable",
    "SwitchRole",
    "Unpark",
    "UseAddress",
]


class NoteKind(Enum):
    """Kind of a change of an event; the last level of its subject in the log."""

    OPENED = "opened"
    MATCHED = "matched"
    LISTED = "listed"
    NOTIFIED = "notified"
    EXPIRED = "expired"
    RENEWED = "renewed"
    FLUSHED = "flushed"
    STAND_IN = "stand-in"


@dataclass(frozen=True, slots=True)
class Send:
    """Send *message* to a device that is active."""

    address: Address
    message: FromController


@dataclass(frozen=True, slots=True)
class SwitchRole:
    """Become the master of a device that paged us (4.1)."""

    address: Address


@dataclass(frozen=True, slots=True)
class Park:
    """Exchange the device's active address for a parked one."""

    address: Address


@dataclass(frozen=True, slots=True)
class Unpark:
    """Give a parked device an active address at the next beacon; an active device is left as it is."""

    address: Address


@dataclass(frozen=True, slots=True)
class Release:
    """Close the connection of a device that stays a member: it listens for pages, and we page it for each message."""

    address: Address


@dataclass(frozen=True, slots=True)
class Connect:
    """Page this device and connect."""

    address: Address
    clock_offset: int | None
    """``None``: the offset measured when the device was released."""
    timeout_us: int = PAGE_TIMEOUT_US


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection, for this reason."""

    address: Address
    reason: Refusal


@dataclass(frozen=True, slots=True)
class SetConnectable:
    """Turn answering of pages on or off: it is on only while there is a free active slot (4.1)."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class Poll:
    """Poll parked devices at the beacon for messages; at most *seats* of them may get an active slot (4.1.1)."""

    seats: int


@dataclass(frozen=True, slots=True)
class KeepEpoch:
    """Store on disk that a group has shown this epoch, before later commands; lower epochs are revoked (2.3)."""

    group: GroupKey = field(repr=False)
    epoch: int


@dataclass(frozen=True, slots=True)
class UseAddress:
    """Listen for the pages of another device, answer them in its place, or do neither any more (5.4.4)."""

    address: Address
    mode: StandIn
    clock_offset: int | None
    """``None``: the device's clock is not known, so the radio goes through all its frequencies."""


@dataclass(frozen=True, slots=True)
class Authenticate:
    """Pair with a dumb device that takes us for its smart one, by the PIN that its maker gave it (5.4.4)."""

    address: Address
    pin: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One fact for the log."""

    kind: NoteKind
    id: EventId | None = None
    address: Address | None = None
    other_id: EventId | None = None
    other_address: Address | None = None
    detail: str | None = None
    count: int | None = None


Command: TypeAlias = (
    Send
    | SwitchRole
    | Park
    | Unpark
    | Release
    | Connect
    | Disconnect
    | SetConnectable
    | Poll
    | KeepEpoch
    | UseAddress
    | Authenticate
    | Note
)
