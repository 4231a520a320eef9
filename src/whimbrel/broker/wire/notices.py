"""Notices: messages by which the broker tells the devices of a session about changes (Elvin proxy, 4.5).

A device that joins a session gets the list of its subscriptions, then each change that another device makes
(docs/reference/sessions.md).
Rule: only a device that is present in a session gets its notices, and only if it subscribes to their topic.
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
    "crossing_notice",
    "is_told",
    "listens",
    "put_out",
    "subscription_tree",
    "subscriptions_of",
    "subscriptions_topic",
]

OWN = "$whimbrel/"
"""Prefix of all topics that are about Whimbrel itself."""
SESSIONS = f"{OWN}session/"
CLIENTS = f"{OWN}clients/"
"""Prefix of the topics for operators' requests about clients."""
REPORT = f"{OWN}report"
"""Topic to which devices report their state."""
POLICY = f"{OWN}policy"
"""Topic for requests to choose a policy and requests about policies."""
POLICIES = f"{POLICY}/"
"""Prefix of the topics that store a policy under its name."""
ANSWERS = f"{SESSIONS}answer"
"""Topic for answers to requests that cannot carry a response topic."""
NEAR = f"{OWN}near/"
"""Prefix of the topics for notices that a client entered or left an area, followed by the client's name for it."""
TOLD = (
    ANSWERS,
    f"{SESSIONS}+/subscriptions",
    f"{SESSIONS}+/changes",
    f"{POLICIES}+/suspended",
    f"{POLICIES}+/slowed",
    f"{NEAR}+",
)
"""Topic filters of all messages of the broker to clients; a subscription to any other topic of ours gets nothing."""


def subscriptions_topic(session: str) -> str:
    """Return the topic that lists all subscriptions of a session."""
    return f"{SESSIONS}{session}/subscriptions"


def subscriptions_of(session: str, subscriptions: Sequence[Subscription]) -> KeptNotification:
    """Return the message that lists a session's subscriptions, for a device that joined."""
    tree = {"session": session, "subscriptions": [subscription_tree(each) for each in subscriptions]}
    return _message(subscriptions_topic(session), tree)


def changed_subscription(
    session: str, change: InterestChange, subscription: Subscription, device: str | None
) -> KeptNotification:
    """Return the notice, for the other devices of a session, of a subscription that *device* changed."""
    tree = {
        "session": session,
        "change": change.value,
        "subscription": subscription_tree(subscription),
        "device": device,
    }
    return _message(f"{SESSIONS}{session}/changes", tree)


def crossing_notice(name: str, *, is_inside: bool) -> KeptNotification:
    """Return the notice that a client entered or left the area *name*; it does not contain the client's position."""
    return _message(f"{NEAR}{name}", {"near": name, "change": "entered" if is_inside else "left"})


def put_out(session: str, device: str, *, is_deleted: bool) -> KeptNotification:
    """Return the notice that *device* removed the receiver from a session, or deleted its session."""
    tree = {"session": session, "change": "deleted" if is_deleted else "left", "device": device}
    return _message(f"{SESSIONS}{session}/changes", tree)


def subscription_tree(subscription: Subscription) -> dict[str, object]:
    """Return a subscription as an object of JSON; its keys appear only as hashes."""
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
    """Return whether one of these subscriptions may match a notice."""
    return any(wanted is not None and wanted.startswith(OWN) for wanted, _ in subscribed)


def is_told(topic: str, subscribed: Iterable[Identity]) -> bool:
    """Return whether one of these subscriptions matches the notice topic *topic*."""
    return any(wanted is not None and wanted.startswith(OWN) and matches(wanted, topic) for wanted, _ in subscribed)


def can_be_told(topic_filter: str) -> bool:
    """Return whether a subscription to *topic_filter* can ever match a notice."""
    return any(_overlap(topic_filter.split("/"), told.split("/")) for told in TOLD)


def _overlap(wanted: Sequence[str], told: Sequence[str]) -> bool:
    """Return whether some topic matches both filters; only *wanted* may end with ``#``."""
    for at, level in enumerate(wanted):
        if level == "#":
            return len(told) >= at  # # also matches its parent level (MQTT 5, 4.7.1.2)
        if at == len(told) or not (level == told[at] or "+" in {level, told[at]}):
            return False
    return len(wanted) == len(told)


def _message(topic: str, tree: Mapping[str, object]) -> KeptNotification:
    return KeptNotification.live(topic, json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode())
