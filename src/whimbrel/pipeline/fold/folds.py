"""Folds: events of a log, sorted, through the hold core, and what was settled as rows of ``deliveries``.

A batch run folds each shard of a node from the beginning of the log; a stream keeps one fold a node and goes on with
it (``node_state``). What an event means is said here, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from whimbrel.hold.commands import HandOver, Identity, Settle
from whimbrel.hold.folding import Folding, Settled
from whimbrel.hold.quality import CONFIRMED
from whimbrel.hold.retention import Retention
from whimbrel.hold.sessions import RETAINED, Hold
from whimbrel.hold.state import Copy, CopyFollower
from whimbrel.log.records import BODY, row_from
from whimbrel.model.facts import (
    Decided,
    Fact,
    InterestChanged,
    Mode,
    Outcome,
    PolicyChanged,
    PresenceChange,
    PresenceChanged,
    Reported,
    SessionChange,
    SessionChanged,
)
from whimbrel.model.rows import fact_of
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.model.tables import SUBSCRIPTIONS_TYPE, TABLES, TIME_TYPE
from whimbrel.pipeline.fold.beginnings import Known
from whimbrel.pipeline.fold.described import Described
from whimbrel.pipeline.fold.policies import KeptContent, PolicyFold

__all__ = [
    "DECISION",
    "EVENT",
    "INTEREST",
    "POLICY",
    "PRESENCE",
    "PUBLISHED",
    "RECEIPT",
    "REPORT",
    "SESSION",
    "Event",
    "Fold",
    "Known",
    "Rows",
    "events_of",
    "plain",
]

PUBLISHED, INTEREST, PRESENCE, SESSION, RECEIPT, POLICY, DECISION, REPORT = range(8)
"""The kinds of events."""
_RECORDED = frozenset({POLICY, DECISION, REPORT})
"""Those that travel as the records that they are in a log."""

EVENT = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("at", TIME_TYPE, nullable=False),
        pa.field("expires_at", TIME_TYPE),
        pa.field("deadline_at", TIME_TYPE),
        pa.field("subject", pa.string()),
        pa.field("interests", pa.list_(pa.int64())),
        pa.field("body_hash", pa.binary()),
        pa.field("session", pa.string()),
        pa.field("device", pa.string()),
        pa.field("change", pa.string()),
        pa.field("subject_filter", pa.string()),
        pa.field("name", pa.string()),
        pa.field("ttl_us", pa.int64()),
        pa.field("max_held", pa.int32()),
        pa.field("notification_seq", pa.int64()),
        pa.field("qos", pa.int8()),
        pa.field("no_local", pa.bool_()),
        pa.field("confirms", pa.bool_()),
        pa.field("via", pa.string()),
        pa.field("published_at", TIME_TYPE),
        pa.field("subscriptions", SUBSCRIPTIONS_TYPE),
        pa.field("policy", pa.string()),
        pa.field("content", pa.binary()),
        pa.field("body_bytes", pa.int64()),
        pa.field("body", pa.binary()),
    ]
)
"""Everything that the fold needs."""


class Event(NamedTuple):
    """One event; times in microseconds."""

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
    change: Any
    subject_filter: Any
    name: Any
    ttl_us: Any
    max_held: Any
    notification_seq: Any
    qos: Any
    no_local: Any
    confirms: Any
    via: Any
    published_at: Any
    """Of a retained notification, and for which subscriptions it was sent."""
    subscriptions: Any
    policy: Any
    content: Any
    """The attributes of a publication, where policies may read them; of a report, policy or decision its record."""
    body_bytes: Any
    body: Any
    """That of a publication, where policies may read it."""


def _fact(node: str, event: Event) -> Fact:
    """Return an event that is no publication and no receipt as the fact it was."""
    number: dict[str, Any] = {"node": node, "seq": event.seq, "changed_at": event.at}
    if event.kind == PRESENCE:
        mode = None if event.name is None else Mode(event.name)
        change = PresenceChange(event.change)
        return PresenceChanged(
            **number,
            device=event.device,
            session=event.session,
            change=change,
            receipt=mode,
            sent_seq=event.notification_seq,
            confirms=event.confirms,
        )
    if event.kind == INTEREST:
        subscription = Subscription(
            session=event.session,
            subject_filter=event.subject_filter,
            name=event.name,
            ttl_us=event.ttl_us,
            max_held=event.max_held,
            qos=event.qos,
            no_local=bool(event.no_local),
            policy=event.policy,
        )
        return InterestChanged(**number, change=InterestChange(event.change), subscription=subscription)
    return SessionChanged(**number, session=event.session, device=event.device, change=SessionChange(event.change))


def _recorded(node: str, event: Event) -> Fact:
    """Return the fact whose record an event has."""
    seq, number = BODY.unpack_from(event.content)
    return fact_of(*row_from(node, seq, number, event.content[BODY.size :]))


# -- the fold ----------------------------------------------------------------------------------------------------------


class Fold(CopyFollower):
    """The sessions of a node, or of a shard of it, folded; *hold* is what a fold before it knew."""

    def __init__(
        self,
        node: str,
        *,
        retention: Retention,
        assume_receipts: bool,
        hold: Hold[Described] | None = None,
        policies: PolicyFold | None = None,
    ) -> None:
        self.node = node
        self._folding = Folding(
            node, retention=retention, assume_receipts=assume_receipts, hold=hold, judge=self._decide
        )
        self._decides = assume_receipts
        self.policies = PolicyFold() if policies is None else policies
        self.whose: dict[int, tuple[str, Identity]] = {}
        """By seq of the interest: its session and identity."""
        self.changed: set[int] = set()
        """The notifications whose content, shaped bodies or differences have changed; for a view that follows."""
        self.known_changed: set[int] = set()
        """Those that were stored or forgotten; not those that were stored and forgotten since the view was made."""
        self.hold.follow(self)

    @property
    def hold(self) -> Hold[Described]:
        """What is held."""
        return self._folding.hold

    def stored(self, copy: Copy) -> None:
        """Note that a notification is kept."""
        kept = copy.kept
        assert isinstance(kept, Described)
        self.known_changed.add(kept.seq)
        if kept.content is not None or kept.shaped is not None:
            self.changed.add(kept.seq)

    def forgotten(self, seq: int, copy: Copy) -> None:
        """Note that no device is owed a notification any more."""
        # One that was stored since the last view was never in it.
        (self.known_changed.remove if seq in self.known_changed else self.known_changed.add)(seq)
        kept = copy.kept
        assert isinstance(kept, Described)
        if kept.content is not None or kept.shaped is not None or kept.differences is not None:
            self.changed.add(seq)

    def take(self, event: Event, out: Rows) -> None:
        """Take the next event in."""
        folding = self._folding
        if event.kind == PUBLISHED:
            settled = self._publish(event)
        elif event.kind == RECEIPT:
            if event.via == RETAINED:
                self._add_retained(event, out)
                settled = folding.tick(event.at)
            else:
                outcome, seq = _OUTCOMES[event.change], event.notification_seq
                settled = folding.confirmed(event.at, event.session, event.device, seq, outcome, via=event.via)
        elif event.kind in _RECORDED:
            settled = self._take_recorded(event)
        else:
            if (
                event.kind == INTEREST and event.change != InterestChange.REMOVED.value
            ):  # a removed interest wants nothing
                self.whose[event.seq] = (event.session, (event.subject_filter, event.name))
            fact = _fact(self.node, event)
            if isinstance(fact, SessionChanged):
                self.policies.end_session(fact)
            settled = folding.apply(fact)
        self._write(settled, out)

    def _publish(self, event: Event) -> Settled:
        content = None
        if event.content is not None and (self._decides or self.policies.are_any):
            body = event.body if self._decides or self.policies.needs_bodies else None
            content = KeptContent(event.content, event.body_bytes, body, event.device)
        matches: dict[str, list[Identity]] = {}
        for interest in event.interests:
            session, identity = self.whose[interest]
            matches.setdefault(session, []).append(identity)
        wanted = [(session, tuple(identities)) for session, identities in matches.items()]
        described = Described(
            event.seq,
            Known(event.body_hash, event.at, event.subject, event.deadline_at),
            expires_at=event.expires_at,
            qos=CONFIRMED if event.qos is None else event.qos,
            publisher=event.device,
            content=content,
        )
        return self._folding.published(described, wanted, is_decided=self.policies.are_any)

    def _take_recorded(self, event: Event) -> Settled:
        """Take in a report, a policy or a decision."""
        fact = _recorded(self.node, event)
        if isinstance(fact, Decided):
            if self._decides:
                return self._folding.tick(event.at)
            self._check(fact)
        assert isinstance(fact, Reported | PolicyChanged | Decided)
        self.policies.take(fact)
        return self._folding.apply(fact)

    def _check(self, fact: Decided) -> None:
        """Note which body a decision has handed over, and what it has decided otherwise than its policy does."""
        seq = fact.notification.seq
        kept = self.hold.kept(seq)
        if kept is None:  # it is retained, or has ended
            return
        if fact.body_hash is not None:
            kept.shaped = {**(kept.shaped or {}), fact.device: fact.body_hash}
            self.changed.add(seq)
        difference = self.policies.difference(fact, kept.readable(), kept.body_hash)
        if difference is not None:
            kept.differences = {fact.device: difference, **(kept.differences or {})}
            self.changed.add(seq)

    def _decide(self, command: HandOver) -> Outcome:
        """Let policies decide about a hand-over."""
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
                self.changed.add(kept.seq)
        return decided.outcome

    def _add_retained(self, event: Event, out: Rows) -> None:
        """Add a row for a retained notification: the hold knows nothing of it, and the receipt says all there is."""
        if event.published_at is None:  # a log from before receipts said so
            return
        identities = tuple((each["subject_filter"], each["name"]) for each in event.subscriptions or ())
        ends = (event.session, event.device, event.notification_seq, identities, Outcome(event.change), event.at)
        kept = Described(event.notification_seq, Known(event.body_hash, event.published_at, event.subject, None))
        out.add(self.node, Settle(*ends, None, RETAINED, kept))

    def close(self, end: int, out: Rows) -> None:
        """Let time pass to the end of the log: what has lapsed by then has its outcome."""
        self._write(self._folding.tick(end), out)

    def _write(self, settled: Settled, out: Rows) -> None:
        for each in settled:
            out.add(self.node, each)


_OUTCOMES = {each.value: each for each in Outcome}


class Rows:
    """Rows of ``deliveries`` on their way to Arrow."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._identities: list[int] = []
        self._offsets: list[int] = [0]
        self._known: dict[Identity, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, node: str, settled: Settle) -> None:
        """Add what became of a notification for a device."""
        session, device, seq, subscriptions, outcome, decided_at, lapses_at, via, kept = settled
        assert isinstance(kept, Described)
        for identity in subscriptions:
            self._identities.append(self._known.setdefault(identity, len(self._known)))
        self._offsets.append(len(self._identities))
        body_hash = kept.body_hash_for(device) if outcome is Outcome.DELIVERED else None
        what = kept.published_at, kept.subject, kept.deadline_at
        ended = (outcome.value, body_hash, decided_at, lapses_at, via, kept.difference_for(device))
        self._rows.append((node, seq, *what, session, device, *ended))

    def batch(self) -> Any:
        """Return what there is as an Arrow batch, and begin anew."""
        schema = TABLES["deliveries"].schema
        known = list(self._known)
        structs = pa.StructArray.from_arrays(
            [pa.array([s for s, _ in known], pa.string()), pa.array([n for _, n in known], pa.string())],
            fields=list(schema.field("subscriptions").type.value_type),
        )
        taken = structs.take(pa.array(self._identities, pa.int32()))
        given: dict[str, Any] = dict(zip(_SETTLED, zip(*self._rows, strict=True), strict=True))
        given["subscriptions"] = pa.ListArray.from_arrays(pa.array(self._offsets, pa.int32()), taken)
        columns = [
            given[f.name].cast(f.type) if f.name == "subscriptions" else pa.array(given[f.name], f.type) for f in schema
        ]
        self._rows, self._identities, self._offsets, self._known = [], [], [0], {}
        return pa.RecordBatch.from_arrays(columns, schema=schema)


_SETTLED = "notification_node notification_seq published_at subject deadline_at".split()
_SETTLED += "session device outcome body_hash decided_at lapses_at via difference".split()


def events_of(batch: Any) -> Iterator[Event]:  # a pyarrow.RecordBatch of EVENT
    """Yield the event of each row."""
    make = tuple.__new__  # what ``Event`` would do, in a third of the time
    for row in zip(*(plain(batch.column(f.name)) for f in EVENT), strict=True):
        yield make(Event, row)


def plain(column: Any) -> list[Any]:
    """Return a column as Python values, times as microseconds; Arrow's own way takes its time over nulls and lists."""
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
    if pa.types.is_string(column.type):  # names that come again and again: each is made once
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
