"""Quality of service: the effective QoS of a delivery, from the publisher's and the subscriber's (rules 15 and 16).

Rule: if no matching subscription was made over MQTT, the publisher's QoS is ignored: the delivery must be confirmed.
"""

from __future__ import annotations

from whimbrel.hold.commands import Matches
from whimbrel.hold.state import State
from whimbrel.model.subscription import Subscription

__all__ = ["CONFIRMED", "effective", "hand_over_qos", "is_live_only"]

CONFIRMED = 2
"""QoS of a delivery to subscriptions that were not made over MQTT: it must be confirmed."""


def effective(qos: int, subscription: Subscription | None) -> int:
    """Return the effective QoS of a notification with *qos* for a subscription: the lower of the two."""
    granted = None if subscription is None else subscription.qos
    return qos if granted is None or qos < granted else granted


def is_live_only(qos: int, subscription: Subscription | None) -> bool:
    """Return whether a private session only delivers a notification live: *qos* or the subscription's QoS is 0.

    Return False for a subscription that was not made over MQTT.
    """
    if subscription is None or subscription.qos is None:
        return False
    return qos == 0 or subscription.qos == 0


def hand_over_qos(state: State, qos: int, counted: Matches) -> int:
    """Return the QoS of a delivery: the highest effective QoS of its subscriptions; ``CONFIRMED`` if none has a QoS."""
    is_asked, highest = False, 0
    for name, identities in counted:
        session = state.sessions[name]
        if not session.with_qos:
            highest = qos
            continue
        for identity in identities:
            subscription = session.subscriptions.get(identity)
            is_asked = is_asked or (subscription is not None and subscription.qos is not None)
            highest = max(highest, effective(qos, subscription))
    return highest if is_asked else CONFIRMED
