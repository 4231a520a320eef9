"""Commands that the hold returns, for its caller to carry out in order; and identities of subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from whimbrel.model.facts import Outcome
from whimbrel.model.subscription import InterestChange, Subscription

__all__ = ["Command", "HandOver", "Identity", "Matches", "NotifyChange", "NotifySubscriptions", "Published", "Settle"]

Identity: TypeAlias = tuple[str | None, str]
"""Subject filter and name of a subscription; together they identify it within its session."""

Matches: TypeAlias = Sequence[tuple[str, tuple[Identity, ...]]]
"""Sessions that match a notification, each with the subscriptions that match."""


class Published(Protocol):
    """An accepted notification in the caller's own form, as a typing protocol with the values that the rules need."""

    @property
    def seq(self) -> int:
        """Seq of the notification in the node's log."""

    @property
    def published_at(self) -> int:
        """Time at which the notification was accepted."""

    @property
    def expires_at(self) -> int | None:
        """Time at which the notification expires; None if it does not expire."""

    @property
    def qos(self) -> int:
        """QoS with which the notification was published."""

    @property
    def publisher(self) -> str | None:
        """Id of the client that published the notification, or None."""


class HandOver(NamedTuple):
    """Attempt to deliver a notification to a device.

    Unless *is_own_receipt*, the caller must report a receipt for each of the sessions.
    """

    device: str
    seq: int
    sessions: tuple[tuple[str, tuple[Identity, ...]], ...]
    """Sessions through which the device gets it, each with the subscriptions that matched; it is sent once for all."""
    is_held: bool
    """Whether the notification was held for the device; False: it is delivered live."""
    is_again: bool
    """Whether this is a redelivery: the device was sent it before and sent no receipt (DUP in MQTT)."""
    is_copy: bool = True
    """False: send nothing, because an earlier delivery that is still in flight counts for these sessions too."""
    qos: int = 2
    """QoS to send it with; 2 if no subscription among *sessions* was made over MQTT, and if no copy is sent."""
    is_own_receipt: bool = False
    """Whether the hold counts it as delivered at once, without a receipt: at QoS 0, if not confirmed (rule 16)."""
    kept: Published | None = None
    """The notification in the caller's form; None if the hold was restored without it."""


class NotifyChange(NamedTuple):
    """Notify a device that another device changed a subscription of their session (Elvin proxy, 4.5)."""

    device: str
    session: str
    change: InterestChange
    subscription: Subscription


class NotifySubscriptions(NamedTuple):
    """Send all subscriptions of a session to a device that joined it (Elvin proxy, 4.5)."""

    device: str
    session: str
    subscriptions: tuple[Subscription, ...]


class Settle(NamedTuple):
    """Final outcome of a notification for one device of a session; each device gets exactly one."""

    session: str
    device: str | None
    """None: the session had no device to give it to."""
    seq: int
    subscriptions: tuple[Identity, ...]
    outcome: Outcome
    decided_at: int
    lapses_at: int | None
    """Time until which the notification would have been held; None if it was never held."""
    via: str | None = None
    """``Receipt.via`` of the receipt of delivery (live or held); None without such a receipt."""
    kept: Published | None = None
    """The notification, as in ``HandOver``."""


Command: TypeAlias = HandOver | NotifyChange | NotifySubscriptions | Settle
