"""Telling: what the devices of a session hear of it over the wire (Elvin proxy, 4.5; docs/reference/sessions.md).

A device that joins is told all subscriptions, and then every change that another device makes.
Rule: only a device that is present in a session is told of it, and only if it subscribes to the topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from whimbrel.hold.commands import Identity
from whimbrel.match.topics import matches
from whimbrel.model.clock import US_PER_S
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.node.publication import KeptNotification

__all__ = [
    "ANSWERS",
    "CLIENTS",
    "NEAR",
    "OWN",
    "POLICIES",
    "POLICY",
    "REPORT",
    "SESSIONS",
    "TOLD",
    "can_be_told",
    "changed_subscription",
    "crossed",
    "is_told",
    "listens",
    "put_out",
    "subscription_tree",
    "subscriptions_of",
    "subscriptions_topic",
]

OWN = "$whimbrel/"
"""What all topics begin with that are about Whimbrel itself."""
SESSIONS = f"{OWN}session/"
CLIENTS = f"{OWN}clients/"
"""Where operators ask about clients."""
REPORT = f"{OWN}report"
"""Where devices report their state to."""
POLICY = f"{OWN}policy"
"""Where devices choose a policy, and ask about policies."""
POLICIES = f"{POLICY}/"
"""Where policies are put, each under its name."""
ANSWERS = f"{SESSIONS}answer"
"""Where requests are answered that cannot say where to."""
NEAR = f"{OWN}near/"
"""Where a client is told that it enters and leaves an area, each under the name that it gave to the area."""
TOLD = (
    ANSWERS,
    f"{SESSIONS}+/subscriptions",
    f"{SESSIONS}+/changes",
    f"{POLICIES}+/suspended",
    f"{POLICIES}+/slowed",
    f"{NEAR}+",
)
"""All that clients are told: a subscription to any other topic of our own would wait for ever."""


def subscriptions_topic(session: str) -> str:
    """Return where a device finds all subscriptions of a session."""
    return f"{SESSIONS}{session}/subscriptions"


def subscriptions_of(session: str, subscriptions: Sequence[Subscription]) -> KeptNotification:
    """Return what a device is told that joined a session."""
    tree = {"session": session, "subscriptions": [subscription_tree(each) for each in subscriptions]}
    return _message(subscriptions_topic(session), tree)


def changed_subscription(
    session: str, change: InterestChange, subscription: Subscription, device: str | None
) -> KeptNotification:
    """Return what the other devices are told of a change that *device* made."""
    tree = {
        "session": session,
        "change": change.value,
        "subscription": subscription_tree(subscription),
        "device": device,
    }
    return _message(f"{SESSIONS}{session}/changes", tree)


def crossed(name: str, *, is_inside: bool) -> KeptNotification:
    """Return the notice that a client entered or left the area *name*; it does not say where."""
    return _message(f"{NEAR}{name}", {"near": name, "change": "entered" if is_inside else "left"})


def put_out(session: str, device: str, *, is_deleted: bool) -> KeptNotification:
    """Return what a device is told that *device* put out of a session, or whose session it deleted."""
    tree = {"session": session, "change": "deleted" if is_deleted else "left", "device": device}
    return _message(f"{SESSIONS}{session}/changes", tree)


def subscription_tree(subscription: Subscription) -> dict[str, object]:
    """Return a subscription as the wire says it; of its keys there are only hashes."""
    ttl_us = subscription.ttl_us
    return {
        "topic": subscription.subject_filter,
        "name": subscription.name,
        "filter": subscription.filter_text,
        "ttl": None if ttl_us is None else ttl_us // US_PER_S,
        "max": subscription.max_held,
        "qos": subscription.qos,
        "keys": list(subscription.keys.texts()),
        "insecure": subscription.accept_insecure,
        "policy": subscription.policy,
        "near": None if subscription.near is None else str(subscription.near),
        "stale": None if subscription.stale_us is None else subscription.stale_us / US_PER_S,
    }


def listens(subscribed: Iterable[Identity]) -> bool:
    """Tell whether one of these subscriptions may ask for anything that is told."""
    return any(wanted is not None and wanted.startswith(OWN) for wanted, _ in subscribed)


def is_told(topic: str, subscribed: Iterable[Identity]) -> bool:
    """Tell whether one of these subscriptions asks for what is told under *topic*."""
    return any(wanted is not None and wanted.startswith(OWN) and matches(wanted, topic) for wanted, _ in subscribed)


def can_be_told(topic_filter: str) -> bool:
    """Tell whether anything that clients are told can come to a subscription to *topic_filter*."""
    return any(_overlap(topic_filter.split("/"), told.split("/")) for told in TOLD)


def _overlap(wanted: Sequence[str], told: Sequence[str]) -> bool:
    """Tell whether some topic fits both; of the two only *wanted* may end with ``#``."""
    for at, level in enumerate(wanted):
        if level == "#":
            return len(told) >= at  # it stands for no level, too (MQTT 5, 4.7.1.2)
        if at == len(told) or not (level == told[at] or "+" in {level, told[at]}):
            return False
    return len(wanted) == len(told)


def _message(topic: str, tree: Mapping[str, object]) -> KeptNotification:
    return KeptNotification.live(topic, json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode())
