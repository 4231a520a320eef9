"""Commands: what the hold asks its shell to do, in this order; and the names of subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from whimbrel.model.facts import Outcome
from whimbrel.model.subscription import InterestChange, Subscription

__all__ = ["Command", "Forget", "HandOver", "Identity", "Matches", "Settle", "Store", "Tell", "TellAll"]

Identity: TypeAlias = tuple[str | None, str]
"""Subject filter and name: what a subscription is known by within its session."""

Matches: TypeAlias = Sequence[tuple[str, tuple[Identity, ...]]]
"""For each session that wants a notification, the subscriptions that do."""


class Store(NamedTuple):
    """Keep the notification: some session has it pending. Comes before anything else is done with it.

    A notification that no device is owed once its publication has been applied is handed over without being stored.
    """

    seq: int


class HandOver(NamedTuple):
    """Give a device its copy; the shell answers with a receipt for each of the sessions, unless it is its own."""

    device: str
    seq: int
    sessions: tuple[tuple[str, tuple[Identity, ...]], ...]
    """For which session it counts, and for which of its subscriptions."""
    is_held: bool
    """It was held for the device, not live."""
    is_again: bool
    """It was handed to the device before, without a receipt: on the wire, DUP."""
    is_copy: bool = True
    """False: the copy that is on its way already counts for these sessions too, send nothing."""
    qos: int = 2
    """What it is to be sent with; 2 where MQTT has no say in it, and without a copy."""
    is_own_receipt: bool = False
    """The hold has settled it already: it is of quality 0, and the device's hand-overs of that have no receipts."""


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


class Forget(NamedTuple):
    """No device is owed the notification any more: delete the stored copy."""

    seq: int


Command: TypeAlias = Store | HandOver | Tell | TellAll | Settle | Forget
