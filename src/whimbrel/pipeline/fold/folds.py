"""Folds: apply the events of a log, in order, to a node's state (core), and write outcomes as rows of ``deliveries``.

A batch run folds each shard of a node from the start of the log. A stream keeps one fold per node and continues it
(``unit.node_share``). The effect of each kind of event is defined here, once for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from whimbrel.hold.commands import HandOver, Identity, Matches, Settle
from whimbrel.hold.folding import Folding, Grouped, Settled
from whimbrel.hold.quality import CONFIRMED
from whimbrel.hold.sessions import RETAINED
from whimbrel.hold.shared_subscriptions import sorted_matches
from whimbrel.model.facts import Decided, Fact, Outcome, PolicyChanged
from whimbrel.model.tables import SUBSCRIPTIONS_TYPE, TIME_TYPE
from whimbrel.node.core import NodeCore
from whimbrel.pipeline.fold.delivery_rows import Rows
from whimbrel.pipeline.fold.described import Described, HeldValues
from whimbrel.pipeline.fold.policies import KeptContent, PolicyChecks

__all__ = ["EVENT", "FACT", "PUBLISHED", "RECEIPT", "Event", "Fold", "events_of", "plain"]

PUBLISHED, RECEIPT, FACT = range(3)
"""Kinds of events; publications and receipts have their values in columns, any other event refers to a fact."""

EVENT = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("at", TIME_TYPE),
        pa.field("expires_at", TIME_TYPE),
        pa.field("deadline_at", TIME_TYPE),
        pa.field("subject", pa.string()),
        pa.field("interests", pa.list_(pa.int64())),
        pa.field("body_hash", pa.binary()),
        pa.field("session", pa.string()),
        pa.field("device", pa.string()),
        pa.field("outcome", pa.string()),
        pa.field("notification_seq", pa.int64()),
        pa.field("qos", pa.int8()),
        pa.field("via", pa.string()),
        pa.field("published_at", TIME_TYPE),
        pa.field("subscriptions", SUBSCRIPTIONS_TYPE),
        pa.field("content", pa.binary()),
        pa.field("body_bytes", pa.int64()),
        pa.field("body", pa.binary()),
    ]
)
"""Arrow schema of events."""


class Event(NamedTuple):
    """One event of a node's log, as input of the fold; times in microseconds."""

    seq: int
    kind: int
    at: int
    expires_at: int | None
    deadline_at: int | None
    subject: str | None
    interests: Any
    body_hash: Any
    session: Any
    device: Any
    outcome: Any
    notification_seq: Any
    qos: Any
    via: Any
    published_at: Any
    """When a retained message was published; only receipts of retained messages have this and ``subscriptions``."""
    subscriptions: Any
    content: Any
    """The attributes of a publication; None if no policy may read them."""
    body_bytes: Any
    body: Any
    """The body of a publication; None if no policy may read it."""


_MANY = 10_000

# -- the fold ----------------------------------------------------------------------------------------------------------


class Fold:
    """Replays events for the sessions of a node, or of one shard of them, and yields rows of ``deliveries``.

    *whose* has the session and identity of each subscription that a publication may match. Its keys are seqs: of the
    row of ``interests`` that made the subscription.
    """

    def __init__(
        self, core: NodeCore[Described], *, assume_receipts: bool, whose: Mapping[int, tuple[str, Identity]]
    ) -> None:
        self._core, self._whose = core, whose
        self.node, self.hold = core.name, core.hold
        self._folding = Folding(core.name, assume_receipts=assume_receipts, hold=core.hold, judge=self._decide)
        self._decides = assume_receipts
        self._matched: dict[tuple[int, ...], Matches] = {}
        """Cache of ``_matches``; a seq of ``interests`` stays with its session and identity."""
        self._touch = core.rows.touch
        self.policies = PolicyChecks(core.policies)

    def take(self, event: Event, facts: Mapping[int, Fact], out: Rows) -> None:
        """Apply the next event, and add the outcomes of notifications to *out*.

        *facts* maps the seq of each event of the kind ``FACT`` to its fact.
        """
        folding = self._folding
        if event.kind == PUBLISHED:
            settled: Grouped = self._publish(event)
        elif event.kind == RECEIPT:
            if event.via == RETAINED:
                self._add_retained(event, out)
                settled = folding.tick(event.at)
            else:
                outcome, seq = _OUTCOMES[event.outcome], event.notification_seq
                settled = folding.confirmed(event.at, event.session, event.device, seq, outcome, via=event.via)
        else:
            settled = self._apply(facts[event.seq])
        out.extend(settled)

    def _publish(self, event: Event) -> Grouped:
        content = None
        if event.content is not None and (self._decides or self.policies.are_any):
            body = event.body if self._decides or self.policies.needs_bodies else None
            content = KeptContent(event.content, event.body_bytes, body, event.device)
        described = Described(
            event.seq,
            HeldValues(event.body_hash, event.at, event.subject, event.deadline_at),
            expires_at=event.expires_at,
            qos=CONFIRMED if event.qos is None else event.qos,
            publisher=event.device,
            content=content,
        )
        matches = self._matches(tuple(event.interests))
        return self._folding.published(described, matches, is_decided=self.policies.are_any)

    def _matches(self, interests: tuple[int, ...]) -> Matches:
        """Return the sessions of matching subscriptions, in the form of the hold; many publications match the same."""
        found = self._matched.get(interests)
        if found is None:
            by_session: dict[str, list[Identity]] = {}
            for interest in interests:
                session, identity = self._whose[interest]
                by_session.setdefault(session, []).append(identity)
            if len(self._matched) >= _MANY:
                self._matched.clear()
            found = sorted_matches([(session, tuple(identities)) for session, identities in by_session.items()])
            self._matched[interests] = found
        return found

    def _apply(self, fact: Fact) -> Settled:
        if isinstance(fact, Decided):
            if self._decides:
                return self._folding.tick(fact.decided_at)
            self._check(fact)
        elif isinstance(fact, PolicyChanged):
            self.policies.note_put(fact.text)
        return self._folding.answered(self._core.apply(fact))

    def _check(self, fact: Decided) -> None:
        """Check a logged decision: store the hash of the delivered body, and the difference to the policy's result."""
        seq = fact.notification.seq
        kept = self.hold.kept(seq)
        if kept is None:  # a retained message, or one that has its outcome already
            return
        if fact.body_hash is not None:
            kept.shaped = {**(kept.shaped or {}), fact.device: fact.body_hash}
            self._touch(("notification", seq))
        difference = self.policies.difference(fact, kept.readable(), kept.body_hash)
        if difference is not None:
            kept.differences = {fact.device: difference, **(kept.differences or {})}
            self._touch(("notification", seq))

    def _decide(self, command: HandOver) -> Outcome:
        """Evaluate the policies for a hand-over (delivery attempt) to a device, and return its outcome."""
        if not self.policies.are_any:
            return Outcome.DELIVERED
        device, hold, kept = command.device, self.hold, command.kept
        assert isinstance(kept, Described)
        found = (hold.subscription(name, identity) for name, own in sorted(command.sessions) for identity in own)
        named = [None if subscription is None else subscription.policy for subscription in found]
        decided = self.policies.decide(device, named, kept.readable(), now=hold.now)
        if decided.body_hash is not None:
            kept.shaped = {**(kept.shaped or {}), device: decided.body_hash}
            if hold.is_stored(kept.seq):
                self._touch(("notification", kept.seq))
        return decided.outcome

    def _add_retained(self, event: Event, out: Rows) -> None:
        """Add a row for a retained message, from its receipt alone: the queues of sessions lack retained messages."""
        if event.published_at is None:  # an older log, whose receipts lack this column
            return
        identities = tuple((each["subject_filter"], each["name"]) for each in event.subscriptions or ())
        ends = (event.session, event.device, event.notification_seq, identities, Outcome(event.outcome), event.at)
        kept = Described(event.notification_seq, HeldValues(event.body_hash, event.published_at, event.subject, None))
        out.extend([Settle(*ends, None, RETAINED, kept)])

    def close(self, end: int, out: Rows) -> None:
        """Advance the time to *end*, so that notifications that lapsed by then get their outcome."""
        out.extend(self._folding.tick(end))


_OUTCOMES = {each.value: each for each in Outcome}


def events_of(batch: Any) -> Iterator[Event]:  # a pyarrow.RecordBatch of EVENT
    """Yield an ``Event`` for each row of *batch*."""
    make = tuple.__new__  # same as ``Event(*row)``, in a third of the time
    for row in zip(*(plain(batch.column(f.name)) for f in EVENT), strict=True):
        yield make(Event, row)


def plain(column: Any) -> list[Any]:
    """Return a column as Python values, times as microseconds; Arrow's ``to_pylist`` is slow for nulls and lists."""
    count = len(column)
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if column.null_count == count:
        return [None] * count
    if pa.types.is_timestamp(column.type):
        column = column.cast(TIME_TYPE).cast(pa.int64())
    if pa.types.is_list(column.type) and pa.types.is_integer(column.type.value_type):
        values, offsets = column.values.to_numpy().tolist(), column.offsets.to_numpy().tolist()
        return [values[begin:end] for begin, end in pairwise(offsets)]
    if pa.types.is_list(column.type) and not column.null_count and not len(column.flatten()):
        return [[]] * count
    if pa.types.is_integer(column.type):
        return _numbers(column)
    if pa.types.is_string(column.type):  # names repeat, so each distinct name is decoded once
        encoded = column.dictionary_encode()
        texts = [*encoded.dictionary.to_pylist(), None]
        return [texts[place] for place in encoded.indices.fill_null(len(texts) - 1).to_numpy().tolist()]
    found: list[Any] = column.to_pylist()
    return found


def _numbers(column: Any) -> list[Any]:
    numbers: list[Any] = column.fill_null(0).to_numpy().tolist()
    if column.null_count:
        for place in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            numbers[place] = None
    return numbers
