"""Commands: what the hold asks its shell to do, in this order; and the names of subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from whimbrel.model.facts import Outcome
from whimbrel.model.subscription import InterestChange, Subscription

__all__ = ["Command", "HandOver", "Identity", "Matches", "Published", "Settle", "Tell", "TellAll"]

Identity: TypeAlias = tuple[str | None, str]
"""Subject filter and name: what a subscription is known by within its session."""

Matches: TypeAlias = Sequence[tuple[str, tuple[Identity, ...]]]
"""For each session that wants a notification, the subscriptions that do."""


class Published(Protocol):
    """An accepted notification, as the shell keeps it: these are the values that the rules ask for."""

    @property
    def seq(self) -> int:
        """Its number."""

    @property
    def published_at(self) -> int:
        """When it was accepted."""

    @property
    def expires_at(self) -> int | None:
        """When it expires; None if it does not."""

    @property
    def qos(self) -> int:
        """The quality of service that it was published with."""

    @property
    def publisher(self) -> str | None:
        """The client that published it."""


class HandOver(NamedTuple):
    """Give a device its copy; the shell answers with a receipt for each of the sessions, unless it is its own."""

    device: str
    seq: int
    sessions: tuple[tuple[str, tuple[Identity, ...]], ...]
    """The sessions that it counts for, each with the subscriptions that matched."""
    is_held: bool
    """It was held for the device, not live."""
    is_again: bool
    """It was handed to the device before, without a receipt: on the wire, DUP."""
    is_copy: bool = True
    """False: the copy that is on its way already counts for these sessions too, send nothing."""
    qos: int = 2
    """The QoS to send it with; 2 for devices that do not use MQTT, and where no copy is sent."""
    is_own_receipt: bool = False
    """The hold has settled it already: it is of quality 0, and the device's hand-overs of that have no receipts."""
    kept: Published | None = None
    """The notification; None if a store had its copy and not the notification itself."""


class Tell(NamedTuple):
    """Tell a device of one change of a subscription that another device made (4.5)."""

    device: str
    session: str
    change: InterestChange
    subscription: Subscription


class TellAll(NamedTuple):
    """Tell a device that joined all subscriptions of the session (4.5)."""

    device: str
    session: str
    subscriptions: tuple[Subscription, ...]


class Settle(NamedTuple):
    """The one final outcome of a notification for a session and device."""

    session: str
    device: str | None
    """None: there was no device to give it to."""
    seq: int
    subscriptions: tuple[Identity, ...]
    outcome: Outcome
    decided_at: int
    lapses_at: int | None
    """Until when it would have been held; None if it never was."""
    via: str | None = None
    """How a receipt says that it came, live or held; None where no receipt said that it was delivered."""
    kept: Published | None = None
    """The notification, as in ``HandOver``."""


Command: TypeAlias = HandOver | Tell | TellAll | Settle
