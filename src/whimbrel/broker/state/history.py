"""History: selects the earlier publications of the log that a subscription would have received (replay).

The code here is pure: records come in, messages go out. Reading the log and sending the messages is done elsewhere.
Rule: the rules of the present apply. The subscription's topic filter, content filter and keys decide; its ttl counts
from the time of publication; expired notifications are not sent. The right to receive a message is checked when the
message is sent (``gate``).
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
    """Reader of the log that stays open between the chunks of one replay.

    Only the thread that reads the log uses it.
    """

    __slots__ = ("reader",)

    def __init__(self) -> None:
        self.reader: LogReader | None = None


class HistoryQuestion(NamedTuple):
    """Request to read the next chunk of a replay: at most one chunk of the records with seqs *first* to *last*."""

    replay: object
    """The replay that the chunk is for."""
    place: HistoryPlace
    matches: PastMatches
    first: int
    last: int
    now: int


class HistoryChunk(NamedTuple):
    """Answer to a ``HistoryQuestion``: the messages of one chunk of the log that the subscription matches."""

    messages: list[KeptNotification]
    next_seq: int
    """The first seq of the next chunk."""
    missing: int = 0
    """Number of seqs, counted from the first that was requested, that were cut from the log."""
    trouble: str | None = None
    """Why the rest of the log cannot be read; None if it can."""


class PastMatches:
    """Selects the publications that match *subscription* and are not older than *since_at*, for *device*.

    *sightings* are the last known places of the members of its session at the time of the request: the rules about
    places use these, and not the places at the time of publication.
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
        """Return the publication that a log record stores, or None if it is not a publication or does not match.

        *number* is the number of the table to which the record belongs. Raise ``InvalidValueError`` if the record is
        damaged.
        """
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
