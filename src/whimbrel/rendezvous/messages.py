"""Messages between a device and the controller, and between two devices.

Rule: a message is a value; ``wire`` encodes and decodes it.
Rule: no ``repr`` shows a token, challenge, answer or key, so that no log or error can show them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from whimbrel.rendezvous.events import Address, EventId, GroupKey, Publication, Subscription

__all__ = [
    "Accepted",
    "Answered",
    "Ask",
    "Data",
    "Expired",
    "FromController",
    "FromDevice",
    "GroupTokenIssued",
    "Join",
    "Listed",
    "Matched",
    "Matches",
    "Message",
    "Noted",
    "Proof",
    "Publish",
    "Refused",
    "Released",
    "Removed",
    "Renew",
    "Sleep",
    "Subscribe",
    "Unpublish",
    "Unsubscribe",
    "WakeUp",
]

# -- from a device ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Publish:
    """I am available: publish this event (4.1.1)."""

    publication: Publication


@dataclass(frozen=True, slots=True)
class Subscribe:
    """I seek a device like this: tell me of one (4.1.1)."""

    subscription: Subscription


@dataclass(frozen=True, slots=True)
class Unpublish:
    """Remove this publication."""

    id: EventId


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Remove this subscription."""

    id: EventId


@dataclass(frozen=True, slots=True)
class Renew:
    """Put a recently removed event back in the queue, or restart the time to live of an open one (5.4.1)."""

    id: EventId


@dataclass(frozen=True, slots=True)
class Noted:
    """I have the notification of this event. The controller waits for this confirmation (5.3)."""

    id: EventId


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The answer to the ``Ask`` of this challenge; without a token if none was needed, or if it proves nothing."""

    group: GroupKey = field(repr=False)
    challenge: bytes = field(repr=False)
    device_key: bytes = field(repr=False)
    answer: bytes = field(repr=False)
    token: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """To the owner of a group: admit me (2.3, Figure 2-11)."""

    token: bytes = field(repr=False)
    device_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of the application, to a peer."""

    data: bytes = field(repr=False)


# -- from the controller ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accepted:
    """The event is valid and waits to be processed under this identifier."""

    id: EventId
    is_indirect: bool = False
    """Whether the controller published for the device by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The request was not carried out."""

    request: str
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Removed:
    """The event was removed, as its device requested."""

    id: EventId


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """To the subscriber: page this device. Address and clock offset are its FHS (4.1.3)."""

    id: EventId
    address: Address
    clock_offset: int


@dataclass(frozen=True, slots=True)
class WakeUp:
    """To the publisher: listen for pages (4.1.3)."""

    id: EventId


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One publication of a list: no clock offset, so it cannot be paged from this (4.1.3)."""

    address: Address
    name: str
    device_class: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """To the subscriber: several publications match; subscribe again with a narrower template (4.1.3)."""

    id: EventId
    publications: tuple[Listed, ...]
    is_complete: bool = True
    """Whether every matching publication is listed; false if a device was gone before it proved its group."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The time to live of this event is over (4.1.5)."""

    id: EventId


@dataclass(frozen=True, slots=True)
class Sleep:
    """Turn your scans off; you are parked now (4.1.1)."""


@dataclass(frozen=True, slots=True)
class Released:
    """I close the connection and keep your events; listen for pages, and page me when you have a message.

    A device that gets no page for ``patience_us`` treats the controller as gone.
    """

    patience_us: int


@dataclass(frozen=True, slots=True)
class Answered:
    """To a released publisher, after its match: a device was told to page you. If no page came, renew the event."""

    id: EventId


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Prove that you are a member of this group (4.1.3)."""

    group: GroupKey = field(repr=False)
    challenge: bytes = field(repr=False)
    wants_token: bool = True
    """Whether the token is needed, too; a verified member need not send it again, only the answer (5.4.1)."""


@dataclass(frozen=True, slots=True)
class GroupTokenIssued:
    """From the owner of a group: you are a member (2.3)."""

    token: bytes = field(repr=False)


FromDevice: TypeAlias = Publish | Subscribe | Unpublish | Unsubscribe | Renew | Noted | Proof | Join | Data
FromController: TypeAlias = (
    Accepted
    | Refused
    | Removed
    | Matched
    | WakeUp
    | Matches
    | Expired
    | Sleep
    | Released
    | Answered
    | Ask
    | GroupTokenIssued
)
Message: TypeAlias = FromDevice | FromController
