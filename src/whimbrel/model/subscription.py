"""Subscriptions: what a session is interested in, as its devices said it.

Rule: within a session a subscription is known by (subject filter, name); the same identity again replaces it.
Rule: the filter is text here. ``language`` says whether it is a filter, ``match`` what a subject filter admits.
Rule: what was parsed where a subscription enters travels with it until it is stored, so that nobody parses it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from whimbrel.model.bounds import INT32_MAX, INT64_MAX, flag, name, text, whole
from whimbrel.model.keys import NO_KEYS, KeyHashes
from whimbrel.model.near import Near
from whimbrel.model.notification import MAX_QOS, MAX_SUBJECT_BYTES

__all__ = [
    "MAX_FILTER_BYTES",
    "MAX_IDENTIFIER",
    "MAX_SUBSCRIPTION_NAME_BYTES",
    "InterestChange",
    "Subscription",
    "SubscriptionIdentity",
]

MAX_FILTER_BYTES = 4 * 65_536  # the language counts 65,536 characters
MAX_SUBSCRIPTION_NAME_BYTES = 1_024
MAX_IDENTIFIER = 268_435_455  # MQTT 5, 3.8.2.1.2


class InterestChange(Enum):
    """What happened to a subscription; the ``change`` column of the ``interests`` table."""

    ADDED = "added"
    MODIFIED = "modified"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class SubscriptionIdentity:
    """What makes two subscriptions of one session the same."""

    subject_filter: str | None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One interest of one session."""

    session: str
    subject_filter: str | None = None
    """``None``: any subject, and notifications without one."""
    name: str = ""
    filter_text: str | None = None
    """``None``: everything that the subject filter admits."""
    ttl_us: int | None = None
    """How long a notification is held; ``None``: the deployment's default."""
    max_held: int | None = None
    """How many are held, the oldest displaced; 0: live only; ``None``: the deployment's default."""
    policy: str | None = None
    near: Near | None = None
    """Where notifications must come from; ``None``: places do not matter but for the publication's own area."""
    stale_us: int | None = None
    """How long a reported place counts for this subscription; ``None``: ``DEFAULT_STALE_US``."""
    keys: KeyHashes = NO_KEYS
    accept_insecure: bool = True
    qos: int | None = None
    """The quality of service granted; ``None``: not asked for over MQTT."""
    no_local: bool = False
    """Whether a device's own notifications are kept from it."""
    retain_as_published: bool = False
    """Whether notifications keep the retain flag that they were published with."""
    identifier: int | None = None
    """The number by which the subscriber is told that this subscription matched; ``None``: it gave none."""
    seq: int | None = field(default=None, compare=False, repr=False)
    """The number of the fact by which it is in force; ``None``: in no log yet, or in a view that does not say."""
    changed_at: int | None = field(default=None, compare=False, repr=False)
    """Time of that fact, in microseconds; ``None`` as for ``seq``."""
    parsed: object | None = field(default=None, compare=False, repr=False)
    """The filter as ``language`` read it from ``filter_text`` a moment ago; in no row, and never in a hold."""

    def __post_init__(self) -> None:
        name("session", self.session)
        if self.subject_filter is not None:
            name("subject_filter", self.subject_filter, max_bytes=MAX_SUBJECT_BYTES)
        text("name", self.name, max_bytes=MAX_SUBSCRIPTION_NAME_BYTES)
        if self.filter_text is not None:
            text("filter_text", self.filter_text, max_bytes=MAX_FILTER_BYTES)
        if self.ttl_us is not None:
            whole("ttl_us", self.ttl_us, 0, INT64_MAX)
        if self.max_held is not None:
            whole("max_held", self.max_held, 0, INT32_MAX)
        if self.policy is not None:
            name("policy", self.policy)
        if self.stale_us is not None:
            whole("stale_us", self.stale_us, 0, INT64_MAX)
        flag("accept_insecure", self.accept_insecure)
        if self.qos is not None:
            whole("qos", self.qos, 0, MAX_QOS)
        flag("no_local", self.no_local)
        flag("retain_as_published", self.retain_as_published)
        if self.identifier is not None:
            whole("identifier", self.identifier, 1, MAX_IDENTIFIER)

    @property
    def identity(self) -> SubscriptionIdentity:
        """What this subscription is known by within its session."""
        return SubscriptionIdentity(self.subject_filter, self.name)
