"""Selection: check stored publications (retained messages, the log's past) against one subscription.

Rule: no index is used, only the reference functions: compiled filters, ``topics.matches``, ``may_deliver``, ``hears``.
An index is for one publication and many subscriptions; here it is one subscription and many publications.
Rule: a subject filter admits no publication without a subject; the subject filter ``None`` admits all.
Rule: the filter that came with the subscription decides. A filter stored as text is parsed once, at the first
publication that passes the check of keys and places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from whimbrel.language.filters import Filter, filter_of
from whimbrel.match.keys import may_deliver
from whimbrel.match.topics import matches
from whimbrel.model.attributes import Attributes
from whimbrel.model.keys import KeyHashes
from whimbrel.model.place import Area, Place
from whimbrel.model.proximity import Sighting, hears, places_at
from whimbrel.model.subscription import Subscription

__all__ = ["Selection"]


class Selection:
    """Check of stored publications against *subscription*.

    *sightings* is a function that returns its devices' last places.
    """

    __slots__ = ("_filter", "_sightings", "subscription")

    def __init__(self, subscription: Subscription, sightings: Callable[[], Iterable[Sighting]]) -> None:
        self.subscription, self._sightings = subscription, sightings
        self._filter: Filter | None = None

    def admits_subject(self, subject: str | None) -> bool:
        """Return whether the subscription's subject filter admits *subject*."""
        wanted = self.subscription.subject_filter
        return wanted is None or (subject is not None and matches(wanted, subject))

    def admits(
        self,
        attributes: Callable[[], Attributes],
        *,
        keys: KeyHashes,
        deliver_insecure: bool,
        place: Place | None,
        area: Area | None,
        now: int,
    ) -> bool:
        """Return whether keys, places at *now* and content allow delivery, after ``admits_subject`` returned True."""
        asked = self.subscription
        if not may_deliver(keys, asked.keys, deliver_insecure=deliver_insecure, accept_insecure=asked.accept_insecure):
            return False
        if asked.near is not None or area is not None:
            places = places_at(self._sightings(), now=now, stale_us=asked.stale_us)
            if not hears(asked.near, places, place=place, area=area):
                return False
        if asked.filter_text is None:
            return True
        if self._filter is None:
            self._filter = filter_of(asked)
            assert self._filter is not None
        return self._filter.matches(attributes())
