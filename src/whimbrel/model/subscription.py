"""Subscriptions: what a session wants, as its devices requested it.

Rule: within a session a subscription is identified by (subject filter, name); a new one with the same identity
replaces the old one.
Rule: here the filter is text. ``language`` decides whether it is a filter, ``match`` what a subject filter admits.
Rule: a filter parsed where the subscription enters travels with it until it is stored, so that it is parsed once.
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
    """A change of a subscription; the ``change`` column of the ``interests`` table."""

    ADDED = "added"
    MODIFIED = "modified"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class SubscriptionIdentity:
    """The identity of a subscription within its session."""

    subject_filter: str | None
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One subscription of one session."""

    session: str
    subject_filter: str | None = None
    """``None``: any subject, and notifications without a subject."""
    name: str = ""
    filter_text: str | None = None
    """``None``: everything that the subject filter admits."""
    ttl_us: int | None = None
    """Time for which a notification is held; ``None``: the deployment's default."""
    max_held: int | None = None
    """Most notifications held, the oldest are displaced; 0: live only; ``None``: the deployment's default."""
    policy: str | None = None
    near: Near | None = None
    """Where notifications must come from; ``None``: places do not matter, except the publication's own area."""
    stale_us: int | None = None
    """Time for which a reported place counts for this subscription; ``None``: ``DEFAULT_STALE_US``."""
    keys: KeyHashes = NO_KEYS
    accept_insecure: bool = True
    qos: int | None = None
    """The quality of service granted; ``None``: not requested over MQTT."""
    no_local: bool = False
    """Whether a device does not get its own notifications."""
    retain_as_published: bool = False
    """Whether notifications keep the retain flag with which they were published."""
    identifier: int | None = None
    """MQTT subscription identifier, sent along with matching notifications; ``None``: the subscriber gave none."""
    seq: int | None = field(default=None, compare=False, repr=False)
    """Seq of the fact that put the subscription in force; ``None``: not in a log yet, or in a view without seqs."""
    changed_at: int | None = field(default=None, compare=False, repr=False)
    """Time of that fact, in microseconds; ``None`` as for ``seq``."""
    parsed: object | None = field(default=None, compare=False, repr=False)
    """The filter as ``language`` parsed it just now from ``filter_text``; never in a row, and never in a hold."""

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
        """The identity of this subscription within its session."""
        return SubscriptionIdentity(self.subject_filter, self.name)
