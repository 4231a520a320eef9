"""History: what a subscription would have got of the publications in the log.

Rule: the rules are those of now. The subscription's topic filter, content filter and keys decide, its ttl counts from
when a notification was published, and what has expired is not sent; rights are asked when it is sent (``gate``).
Pure: records in, messages out; who reads them, and when they are sent, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from whimbrel.log.reader import LogReader
from whimbrel.log.records import BODY, PUBLICATIONS, values_from
from whimbrel.match.select import Selection
from whimbrel.model.notification import Notification
from whimbrel.model.proximity import Sighting
from whimbrel.model.rows import COLUMNS, fact_of
from whimbrel.model.subscription import Subscription
from whimbrel.node.publication import KeptNotification

__all__ = ["HistoryChunk", "HistoryPlace", "HistoryQuestion", "PastMatches"]

_SUBJECT = COLUMNS["publications"].index("subject")


class HistoryPlace:
    """Where a replay is in the log; only who reads it looks here."""

    __slots__ = ("reader",)

    def __init__(self) -> None:
        self.reader: LogReader | None = None


class HistoryQuestion(NamedTuple):
    """What is to be read next for a replay: records from *first* to *last*, and no more than one piece of them."""

    replay: object
    """Who asks."""
    place: HistoryPlace
    matches: PastMatches
    first: int
    last: int
    now: int


class HistoryChunk(NamedTuple):
    """What was found."""

    messages: list[KeptNotification]
    next_seq: int
    """Where the next question begins."""
    missing: int = 0
    """How many numbers, from the first that was asked for on, were cut from the log."""
    trouble: str | None = None
    """Why no more can be read."""


class PastMatches:
    """Which publications *subscription* wants, not older than *since_at*; *device* is who asks.

    *sightings* are where the members of its session were last when it asked: places are those of now too.
    """

    def __init__(
        self,
        node: str,
        subscription: Subscription,
        device: str,
        *,
        since_at: int,
        sightings: Sequence[Sighting] = (),
    ) -> None:
        self._node, self.since_at = node, since_at
        self._selection = Selection(subscription, lambda: sightings)
        self._ttl_us = subscription.ttl_us
        self._not_by = device if subscription.no_local else None

    def message(self, seq: int, number: int, payload: bytes, now: int) -> KeptNotification | None:
        """Return the publication of a record, if it is one and is wanted; ``InvalidValueError`` if it is damaged."""
        if number not in PUBLICATIONS:
            return None
        table, values = values_from(self._node, seq, number, payload)
        subject = values[_SUBJECT] if len(values) > _SUBJECT else None
        if not isinstance(subject, str) or not self._selection.admits_subject(subject):
            return None
        fact = fact_of(table, dict(zip(COLUMNS[table], values, strict=False)))
        if not isinstance(fact, Notification) or not self._admits(fact, now):
            return None
        return KeptNotification.of(fact, BODY.pack(seq, number) + payload)

    def _admits(self, fact: Notification, now: int) -> bool:
        if fact.published_at < self.since_at or (self._ttl_us is not None and fact.published_at + self._ttl_us <= now):
            return False
        if (fact.expires_at is not None and fact.expires_at <= now) or (
            self._not_by is not None and fact.publisher == self._not_by
        ):
            return False
        return self._selection.admits(
            lambda: fact.attributes,
            keys=fact.keys,
            deliver_insecure=fact.deliver_insecure,
            place=fact.place,
            area=fact.area,
            now=now,
        )
