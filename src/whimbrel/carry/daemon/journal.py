"""The log of a node, in the format of a broker's log: samples, receipts, subscriptions, and when the node ran.

Rule: a sample that is published here, or arrives, is one publication under ``campus/<topic>``. Its attribute ``sample``
is its id, ``<time of publication>.<address of the publisher>``; ``giver`` is the neighbour that it came from.
Rule: a sample that is delivered to the application, or given to a neighbour, is a receipt of that node. A node is a
device with the name of its address, which joins a private session; its subscriptions are rows of ``interests``. Its own
samples are not delivered to it. A sample that it carried before it subscribed counts as a retained one.
Rule: the size of the log is bounded; its oldest segments are removed first. If the disk is full, facts are lost and
counted, and the node continues.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path
from typing import NamedTuple

from whimbrel.carry.hello import Sample, SampleId
from whimbrel.hold.private import private_session
from whimbrel.log.errors import LogError
from whimbrel.log.keeping.cutting import cut, on_disk
from whimbrel.log.keeping.plan import Plan
from whimbrel.log.writer import LogWriter
from whimbrel.model.attributes import FrozenAttributes
from whimbrel.model.facts import Fact, InterestChanged, Mode, Outcome, PresenceChange, PresenceChanged, Receipt, later
from whimbrel.model.notification import Notification, NotificationId
from whimbrel.model.subscription import InterestChange, Subscription, SubscriptionIdentity

__all__ = ["SUBJECT", "Journal", "address_name", "sample_name", "subject_of"]

SUBJECT = "campus"
_SEGMENT_BYTES = 4 << 20
_MAX_KNOWN = 4_096
_NO_WILDCARDS = str.maketrans("+#", "__")


def subject_of(topic: str) -> str:
    """Return the subject for samples of *topic*: ``campus/<topic>``; wildcards in its name become ``_``."""
    return f"{SUBJECT}/{topic}".translate(_NO_WILDCARDS)


def address_name(address: int) -> str:
    """Return the name of the node at *address*: 16 hexadecimal digits."""
    return f"{address:016x}"


def sample_name(sample_id: SampleId) -> str:
    """Return the id of a sample as text: ``<time of publication>.<address of the publisher>``."""
    return f"{sample_id.published_at}.{address_name(sample_id.publisher)}"


class _Known(NamedTuple):
    """The publication of a sample in the log."""

    seq: int
    published_at: int


class Journal:
    """The log of the node at *address*, of at most about *max_bytes*."""

    def __init__(self, folder: Path, address: int, *, max_bytes: int = 64 << 20) -> None:
        self._own, self._max_bytes = address_name(address), max_bytes
        self._writer = LogWriter(folder, f"campus-{self._own}", segment_bytes=min(_SEGMENT_BYTES, max_bytes // 4))
        self._known: OrderedDict[tuple[int, SampleId], _Known] = OrderedDict()
        """The publications of the latest samples."""
        self._grown_bytes = 0
        self.counts: Counter[str] = Counter()

    def open(self, *, at: int) -> None:
        """Open the log; note that the node runs from *at* on."""
        self._writer.open()
        self._note_presence(PresenceChange.CONNECTED, at)
        self._note_presence(PresenceChange.JOINED, at)

    def close(self, *, at: int) -> None:
        """Note that the node stops *at* this time, and close the log."""
        self._note_presence(PresenceChange.DISCONNECTED, at)
        self._writer.close()

    def note_sample(self, sample: Sample, topic: str, *, giver: int | None, at: int) -> bool:
        """Append a sample that was published here or came from *giver*; return False if it was appended before."""
        if (sample.topic, sample.id) in self._known:
            return False
        said: dict[str, int | float | str | bytes] = {"sample": sample_name(sample.id), "topic": sample.topic}
        if giver is not None:
            said["giver"] = address_name(giver)
        if sample.is_unsynchronised:
            said["unsynchronised"] = 1
        published_at = self._at(at)
        self._known[sample.topic, sample.id] = _Known(self._writer.next_seq, published_at)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        self._append(
            Notification(
                node=self._writer.node,
                seq=self._writer.next_seq,
                published_at=published_at,
                subject=subject_of(topic),
                publisher=address_name(sample.publisher),
                attributes=FrozenAttributes(said),
                body=sample.body,
                expires_at=sample.expires_at,
            )
        )
        return True

    def note_receipt(
        self, sample: Sample, topic: str, *, receiver: int | None, at: int, was_carried: bool = False
    ) -> None:
        """Append the receipt of a sample by the application, or by the neighbour *receiver*.

        With *was_carried* the node stored the sample before its application subscribed.
        """
        known = self._known.get((sample.topic, sample.id))
        if known is None:
            return  # its publication was cut from the log, or came before a restart
        device = self._own if receiver is None else address_name(receiver)
        self._append(
            Receipt(
                node=self._writer.node,
                seq=self._writer.next_seq,
                handed_at=self._at(at),
                session=private_session(device),
                device=device,
                notification=NotificationId(self._writer.node, known.seq),
                subscriptions=(SubscriptionIdentity(subject_of(topic)),) if receiver is None else (),
                outcome=Outcome.DELIVERED,
                via="retained" if was_carried else "live",
                published_at=known.published_at if was_carried else None,
                subject=subject_of(topic) if was_carried else None,
            )
        )

    def note_interest(self, topic: str, *, is_added: bool, at: int) -> None:
        """Append that the application has subscribed to a topic, or ended a subscription."""
        self._append(
            InterestChanged(
                node=self._writer.node,
                seq=self._writer.next_seq,
                changed_at=self._at(at),
                change=InterestChange.ADDED if is_added else InterestChange.REMOVED,
                subscription=Subscription(
                    session=private_session(self._own), subject_filter=subject_of(topic), qos=0, no_local=True
                ),
                device=self._own,
            )
        )

    def sync(self) -> None:
        """Write appended facts, without waiting for the disk, and remove the oldest segments if the log is too long."""
        before = self._writer.grown_bytes
        try:
            self._writer.sync(wait=False)
            self._grown_bytes += self._writer.grown_bytes - before
            if self._grown_bytes >= _SEGMENT_BYTES:
                self._grown_bytes = 0
                self._cut()
        except (LogError, OSError):
            self.counts["log errors"] += 1

    def _cut(self) -> None:
        found = on_disk(self._writer.directory, self._writer.node)
        total, going = found.segment_bytes, []
        for segment in found.segments:
            if total <= self._max_bytes:
                break
            total -= segment.size_bytes
            going.append(segment)
        cut(self._writer.directory, self._writer.node, Plan(segments=tuple(going)))

    def _at(self, at: int) -> int:
        return later(self._writer.last_at, at)

    def _note_presence(self, change: PresenceChange, at: int) -> None:
        is_joining = change is PresenceChange.JOINED
        self._append(
            PresenceChanged(
                node=self._writer.node,
                seq=self._writer.next_seq,
                changed_at=self._at(at),
                device=self._own,
                change=change,
                session=private_session(self._own) if is_joining else None,
                receipt=Mode.TAKE if is_joining else None,
                confirms=True if is_joining else None,
            )
        )

    def _append(self, fact: Fact) -> None:
        try:
            self._writer.append(fact)
        except (LogError, OSError):
            self.counts["log errors"] += 1
