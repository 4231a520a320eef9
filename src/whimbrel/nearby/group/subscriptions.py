"""Subscriptions of a consumer: by event type, with content filters that never leave it (4.3; T2, T12, T14, T17, T18).

Rule: a filter must fit the vocabulary. The steps of all filters of one subject together stay within the limit of its
event type, so the time of matching is bounded.
Rule: a subscription may have a ``near`` of its own, a circle in which the producer's place must lie; the consumer must
be inside the producer's area as well (T11).
Rule: the rules of keys in ``match/`` apply; the key that signed an event is its producer's key.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from whimbrel.errors import InvalidValueError
from whimbrel.language.filters import Filter
from whimbrel.match.keys import may_deliver
from whimbrel.model.attributes import Attributes
from whimbrel.model.bounds import flag, name, text
from whimbrel.model.keys import NO_KEYS, KeyHashes
from whimbrel.model.place import Area, Place
from whimbrel.nearby.frames.signatures import keys_proven
from whimbrel.nearby.frames.values import Event
from whimbrel.nearby.vocabulary import FilterTooCostlyError, Vocabulary, filter_steps

__all__ = ["NearbySubscription", "SubscriptionTable"]

_MAX_NAME_BYTES = 128
_MAX_FOR_SUBJECT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NearbySubscription:
    """One subscription of a consumer; it is valid wherever the consumer goes (T7)."""

    subject: str
    name: str = ""
    filter_text: str | None = None
    near: Area | None = None
    keys: KeyHashes = NO_KEYS
    accept_insecure: bool = True

    def __post_init__(self) -> None:
        name("subject", self.subject)
        text("name", self.name, max_bytes=_MAX_NAME_BYTES)
        flag("accept_insecure", self.accept_insecure)


@dataclass(frozen=True, slots=True)
class _Entry:
    subscription: NearbySubscription
    filter: Filter | None
    steps: int = field(default=0)

    def admits(self, place: Place) -> bool:
        """Return whether *place* of a producer is in the subscription's ``near``."""
        return self.subscription.near is None or self.subscription.near.contains(place)


class SubscriptionTable:
    """The few subscriptions of each subject, found by one lookup (Figure 3b)."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._by_subject: dict[str, dict[str, _Entry]] = {}

    def __contains__(self, subject: object) -> bool:
        return subject in self._by_subject

    def add(self, subscription: NearbySubscription) -> None:
        """Add *subscription*, replacing one with the same subject and name; raise if it does not fit its event type."""
        kind = self._vocabulary[subscription.subject]
        found = None if subscription.filter_text is None else kind.check_filter(subscription.filter_text)
        entry = _Entry(subscription, found, 0 if found is None else filter_steps(found.tree))
        others = {**self._by_subject.get(subscription.subject, {}), subscription.name: entry}
        steps = sum(each.steps for each in others.values())
        if steps > kind.max_filter_steps:
            raise FilterTooCostlyError(subscription.subject, steps, kind.max_filter_steps)
        if len(others) > _MAX_FOR_SUBJECT:
            raise InvalidValueError(f"subscriptions to {kind.name}", len(others), f"at most {_MAX_FOR_SUBJECT}")
        self._by_subject[subscription.subject] = others

    def remove(self, subject: str, subscription_name: str = "") -> None:
        """Remove a subscription."""
        entries = self._by_subject.get(subject, {})
        if subscription_name not in entries:
            raise InvalidValueError("subscription", f"{subject} {subscription_name}".rstrip(), "one that was made")
        del entries[subscription_name]
        if not entries:
            del self._by_subject[subject]

    def admits(self, subject: str, place: Place) -> bool:
        """Return whether any subscription to *subject* accepts events from *place*."""
        return any(each.admits(place) for each in self._by_subject.get(subject, {}).values())

    def select(self, event: Event, attributes: Attributes) -> tuple[tuple[str, ...], int]:
        """Return the names of the subscriptions that match *event*, and the number of filters evaluated."""
        wanted, asked = [], 0
        for entry in self._by_subject.get(event.subject, {}).values():
            one = entry.subscription
            if not entry.admits(event.place):
                continue
            if not one.accept_insecure and not may_deliver(
                keys_proven(event), one.keys, deliver_insecure=True, accept_insecure=False
            ):
                continue
            asked += entry.filter is not None
            if entry.filter is None or entry.filter.verdict(attributes) is True:
                wanted.append(one.name)
        return tuple(wanted), asked
