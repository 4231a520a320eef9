"""Cache of delivery options (*terms*) of a session, per combination of its subscriptions that match a message.

The options (QoS, identifiers, retain flag, policies) are computed from the subscriptions in the hold.
Rule: when a subscription of a session has changed, the cached terms of the session are removed (``forget``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from whimbrel.broker.wire.clients import HandOverOptions
from whimbrel.hold.commands import Identity
from whimbrel.hold.private import is_shared
from whimbrel.hold.sessions import Hold
from whimbrel.log.compact import receipt_prefix
from whimbrel.model.notification import EXACTLY_ONCE
from whimbrel.model.subscription import Subscription, SubscriptionIdentity

__all__ = ["OptionsCache"]

_MAX_TERMS = 10_000
_IDENTITIES_A_TERM = 8
"""Number of subscriptions in a combination that count as one more entry, because the options list each of them."""


class OptionsCache:
    """Cached terms (delivery options) per session, device and combination of subscriptions.

    At most 10,000 entries are cached, or two for each of *clients* if that is more; a full cache is emptied.
    """

    __slots__ = ("_by_session", "_clients", "_hold", "_size")

    def __init__(self, hold: Hold[Any], clients: Sized) -> None:
        self._hold, self._clients = hold, clients
        self._by_session: dict[str, dict[tuple[str, tuple[Identity, ...]], HandOverOptions]] = {}
        self._size = 0

    def get(self, session: str, identities: tuple[Identity, ...], device: str) -> HandOverOptions:
        """Return the delivery options for messages that match the subscriptions *identities* of *session*.

        *device* is the member of the session that receives the messages.
        """
        of_session = self._by_session.get(session)
        found = None if of_session is None else of_session.get((device, identities))
        if found is None:
            # The possible combinations of subscriptions with content filters may not fit into memory.
            if self._size >= max(_MAX_TERMS, 2 * len(self._clients)):
                self._by_session.clear()
                self._size = 0
            found = HandOverOptions(
                session,
                identities,
                *self.options(session, identities),
                receipt_prefix(session, device, [SubscriptionIdentity(*identity) for identity in identities]),
                self.granted_qos(session, identities),
                all(self._asks_for_copies(session, identity) for identity in identities),
                tuple(self._policy(session, identity) for identity in identities),
            )
            self._by_session.setdefault(session, {})[device, identities] = found
            self._size += 1 + len(identities) // _IDENTITIES_A_TERM
        return found

    def forget(self, session: str) -> None:
        """Remove the cached terms of a session, because its subscriptions have changed."""
        gone = self._by_session.pop(session, ())
        self._size -= sum(1 + len(identities) // _IDENTITIES_A_TERM for _, identities in gone)

    def options(self, session: str, identities: tuple[Identity, ...]) -> tuple[tuple[int, ...], bool]:
        """Return the subscription identifiers of *identities*, and whether any has the option Retain As Published."""
        identifiers: tuple[int, ...] = ()
        keeps_retain = False
        for identity in identities:
            subscription = self._hold.subscription(session, identity)
            if subscription is not None:
                if subscription.identifier is not None:
                    identifiers += (subscription.identifier,)
                keeps_retain = keeps_retain or subscription.retain_as_published
        return identifiers, keeps_retain

    def granted_qos(self, session: str, identities: Iterable[Identity]) -> int:
        """Return the highest QoS granted to the subscriptions *identities* of a private session."""
        found = (self._hold.subscription(session, identity) for identity in identities)
        return max((_qos_of(subscription) for subscription in found), default=0)

    def _asks_for_copies(self, session: str, identity: Identity) -> bool:
        found = self._hold.subscription(session, identity)
        if found is None or found.qos is None or found.no_local or found.max_held == 0:
            return False
        return found.policy is None and not is_shared(identity[0])

    def _policy(self, session: str, identity: Identity) -> str | None:
        found = self._hold.subscription(session, identity)
        return None if found is None else found.policy


def _qos_of(subscription: Subscription | None) -> int:
    return EXACTLY_ONCE if subscription is None or subscription.qos is None else subscription.qos
