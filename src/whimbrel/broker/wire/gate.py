"""The gate: whether a message may be sent to a connection now.

Rule: this is the one place that decides it. Who asks: ``Delivering`` before each hand-over that waited in a queue,
``Interests`` about what is retained, ``HandOvers`` about a QoS 0 copy that is its own receipt and about what a device
is told of its sessions, and ``system_messages`` about ``$SYS``. ``Lane`` need not ask: what may expire takes no lane,
and a client whose rights may refuse something has receipts, so that what is for it waits in a queue.
Rule: what may be sent is then decided about by policies, in one place too (``deliver.shaping``): ``Delivering`` and
``Interests`` leave a device or subscription with a policy to it, and ``Lanes`` gives it no seat.
Rule: whether a packet is longer than its client takes is known only when it is encoded: ``Sender`` returns it.
"""

from __future__ import annotations

from typing import NamedTuple

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.wire.clients import Link
from whimbrel.model.facts import Outcome
from whimbrel.node.publication import KeptNotification

__all__ = ["Gate", "has_room"]


def has_room(link: Link) -> bool:
    """Tell whether a QoS 0 copy may be written to a link now: it is open, and there is room for more to wait.

    Where it may not, it waits for room with the rest (``BackPressure``) up to a bound, and beyond that it is
    dropped, with a receipt that says so; news that no account has is dropped at once.
    """
    return link.room > 0


class _Source(NamedTuple):
    """A user who published something."""

    user: str | None


class Gate:
    """Expiry, and the rights of the connected client; and of who published what is retained, if it *checks_sources*."""

    def __init__(self, authorizer: Authorizer, *, checks_sources: bool = True) -> None:
        self.rights, self._checks_sources = authorizer, checks_sources

    def may_stay(self, message: KeptNotification, source: str | None) -> bool:
        """Tell whether a retained message, which a client of the user *source* published, may still be sent.

        It may not if that user may not publish it any more. Of a client without a user that is not asked.
        """
        if source is None or not self._checks_sources:
            return True
        return self.rights.may_publish(_Source(source), message.publisher or "", message.subject)

    def refusal(
        self, link: Link, client_id: str, message: KeptNotification, now: int, *, is_begun: bool = False
    ) -> Outcome | None:
        """Return what becomes of a message instead of being sent; None if it may be.

        A delivery that *is_begun* at QoS 2 is brought to its end, expired or not (4.3.3).
        """
        if message.expires_at is not None and message.expires_at <= now and not is_begun:
            return Outcome.EXPIRED
        if not self.rights.may_receive(link, client_id, message.subject):
            return Outcome.WITHHELD
        return None
