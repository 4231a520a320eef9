"""The gate: decides whether a message may be sent to a connection now.

Rule: this decision is made only here. The callers are ``DeliveryHandler``, before each delivery from a queue;
``SubscribeHandler``, for retained messages; ``HandOvers``, for QoS 0 copies without a receipt and for notices about
sessions; and ``system_messages``, for ``$SYS``. A ``DeliveryPlan`` need not call it: it serves no message that can
expire, and a client whose rights may refuse a message has receipts, so its messages wait in a queue.
Rule: policies then decide about the messages that may be sent, also in one place (``deliver.shaping``).
``DeliveryHandler`` and ``SubscribeHandler`` pass it each message for a device or subscription with a policy, and
``Plans`` leave these out.
Rule: the length of a packet is known only when it is encoded: ``Sender`` returns whether the client accepts that
length.
"""

from __future__ import annotations

from typing import NamedTuple

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.wire.clients import Link
from whimbrel.model.facts import Outcome
from whimbrel.node.publication import KeptNotification

__all__ = ["Gate", "has_room"]


def has_room(link: Link) -> bool:
    """Return whether a QoS 0 copy may be written now: the connection is open and its buffer is not full.

    Otherwise the copy waits behind earlier ones (``BackPressure``) up to a bound, and beyond that it is dropped, with a
    receipt. Messages without a record in the log, such as ``$SYS``, are dropped at once.
    """
    return link.room > 0


class _Source(NamedTuple):
    """The user who published a message, in the form that rights are checked with."""

    user: str | None


class Gate:
    """Checks expiry and receivers' rights; with *checks_sources*, also rights of publishers of retained messages."""

    def __init__(self, authorizer: Authorizer, *, checks_sources: bool = True) -> None:
        self.rights, self._checks_sources = authorizer, checks_sources

    def may_stay(self, message: KeptNotification, source: str | None) -> bool:
        """Return whether a retained message, published by a client of the user *source*, may still be sent.

        It may not once that user has lost the right to publish it. A message of a client without a user is not checked.
        """
        if source is None or not self._checks_sources:
            return True
        return self.rights.may_publish(_Source(source), message.publisher or "", message.subject)

    def refusal(
        self, link: Link, client_id: str, message: KeptNotification, now: int, *, is_begun: bool = False
    ) -> Outcome | None:
        """Return the outcome to record for a message that may not be sent, or None if it may be sent.

        A delivery that *is_begun* at QoS 2 is completed even if it has expired (4.3.3).
        """
        if message.expires_at is not None and message.expires_at <= now and not is_begun:
            return Outcome.EXPIRED
        if not self.rights.may_receive(link, client_id, message.subject):
            return Outcome.WITHHELD
        return None
