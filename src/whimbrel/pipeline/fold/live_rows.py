"""Rows of ``deliveries`` for publications that need no queue, made with array operations instead of the hold.

Where no receipts are expected, a publication ends at once in each session in which a device that takes is present
(``hold.live_spans``). Its rows are a join of the matching subscriptions with the session's devices at that moment. The
hold gets only the matches in the other sessions, and the devices that have the notification already.
Rule: rows and state are those of the hold alone; ``tests/property/test_live_rows.py`` compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.hold.commands import Identity
from whimbrel.hold.live_spans import LiveSpan
from whimbrel.hold.retention import Retention
from whimbrel.hold.sessions import Hold
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import Fact, Outcome, PolicyChanged, time_of
from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.pipeline.fold.folds import FACT, PUBLISHED

__all__ = ["LiveRows", "live_rows"]

Arrow = Any
"""A ``pyarrow`` array, batch or table; pyarrow ships no types."""
Numbers = Any
"""A numpy array."""

_ROWS_AT_ONCE = 100_000


@dataclass(frozen=True, slots=True)
class LiveRows:
    """Result for the events of one piece of a log."""

    rows: Iterator[Arrow]
    """Batches of ``deliveries``."""
    events: Arrow
    """The events that are left for the hold; publications have only the interests that are left."""
    received: Mapping[int, Sequence[LiveSpan]]
    """For publications that are left, by seq: spans whose present devices have received them."""


def live_rows(
    events: Arrow,
    facts: Mapping[int, Fact],
    hold: Hold[Any],
    whose: Mapping[int, tuple[str, Identity]],
    retention: Retention,
) -> LiveRows | None:
    """Return the rows of the publications among *events* that end at once; None if the hold must apply all events.

    *events* is a table of ``EVENT`` in the order of seqs, and *hold* has the state before them, without any policy.
    *whose* has the session and identity of each interest.
    """
    kinds = events.column("kind").to_numpy()
    if any(isinstance(fact, PolicyChanged) for fact in facts.values()) or not np.any(kinds == PUBLISHED):
        return None
    if not _is_in_order(events, kinds, facts, hold.now):
        return None  # a publication would be applied at another time than its own
    published = events.filter(pa.array(kinds == PUBLISHED)).combine_chunks().to_batches()[0]
    matches = _Matches(published, hold, whose, retention)
    spans = _Spans(hold.live_spans(matches.names, facts.values()), matches)
    is_live = matches.is_held & (spans.present_count[spans.of_group] > 0)
    if not np.any(is_live):
        return None
    left, received = _left(published, matches, spans, is_live)
    rows = _rows(hold.node, published, matches, spans, np.flatnonzero(is_live))
    return LiveRows(rows, _with_interests(events, kinds, left), received)


def _is_in_order(events: Arrow, kinds: Numbers, facts: Mapping[int, Fact], now: int) -> bool:
    """Return whether no event is earlier than the one before it."""
    at = _numbers(events.column("at")).copy()
    places = np.flatnonzero(kinds == FACT)
    at[places] = [time_of(facts[seq]) for seq in events.column("seq").to_numpy()[places].tolist()]
    return bool(at[0] >= now and np.all(at[1:] >= at[:-1]))


def _numbers(column: Arrow, null: int = 0) -> Numbers:
    """Return a column of integers, or of times in microseconds, with *null* in place of nulls."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_timestamp(column.type):
        column = column.cast(TIME_TYPE).cast(pa.int64())
    return pc.fill_null(column, null).to_numpy(zero_copy_only=False)


class _Matches:
    """Matches of publications, sorted by publication, session and identity, and in groups of publication and session.

    Attributes that begin with *group* have one item per group, and so has ``is_held``; the others one per match.
    """

    def __init__(
        self, published: Arrow, hold: Hold[Any], whose: Mapping[int, tuple[str, Identity]], retention: Retention
    ) -> None:
        lists = published.column("interests")
        offsets = lists.offsets.to_numpy()
        publication = np.repeat(np.arange(len(lists)), np.diff(offsets))
        seqs, inverse = np.unique(lists.values.to_numpy()[offsets[0] : offsets[-1]], return_inverse=True)
        known = [(*whose[seq], seq) for seq in seqs.tolist()]
        order = sorted(range(len(known)), key=lambda place: _sort_key(*known[place][:2]))
        known = [known[place] for place in order]
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        place_of = {name: place for place, name in enumerate(dict.fromkeys(session for session, _, _ in known))}
        self.names = list(place_of)
        self.identities = [identity for _, identity, _ in known]
        by_rank = np.argsort(publication * len(order) + rank[inverse], kind="stable")
        self.publication, self.subscription = publication[by_rank], rank[inverse][by_rank]
        """Places in *published* and in ``identities``."""
        self.interest = seqs[order][self.subscription]
        session = np.array([place_of[name] for name, _, _ in known])[self.subscription]
        is_first = np.ones(session.size, bool)
        is_first[1:] = (self.publication[1:] != self.publication[:-1]) | (session[1:] != session[:-1])
        self.group_start = np.flatnonzero(is_first)
        self.group_size = np.diff(np.append(self.group_start, session.size))
        self.group_publication, self.group_session = self.publication[self.group_start], session[self.group_start]
        self.group_seq = published.column("seq").to_numpy()[self.group_publication]
        ttl, most = np.array([_bounds(hold, retention, *each) for each in known], np.int64)[self.subscription].T
        at = _numbers(published.column("at"))[self.publication]
        lapses_at = at + np.minimum(ttl, np.where(at > 0, INT64_MAX - at, INT64_MAX))
        lapses_at = np.minimum(lapses_at, _numbers(published.column("expires_at"), INT64_MAX)[self.publication])
        self.lapses_at = np.maximum.reduceat(lapses_at, self.group_start)
        """Per group: until when the notification would be held for the session."""
        self.is_held = np.logical_and.reduceat((most > 0) & (lapses_at > at), self.group_start)
        """Whether each subscription would hold the notification; otherwise it ends in another way than delivered."""


def _sort_key(session: str, identity: Identity) -> tuple[str, str, str]:
    subject_filter, name = identity
    return session, subject_filter or "", name


def _bounds(hold: Hold[Any], retention: Retention, session: str, identity: Identity, seq: int) -> tuple[int, int]:
    """Return time to live and maximum count of an interest; a count of 0, left to the hold, if it is not in force."""
    subscription = hold.subscription(session, identity)
    return (0, 0) if subscription is None or subscription.seq != seq else retention.of(subscription)


class _Spans:
    """Live spans as arrays; the last one stands for times without a span."""

    def __init__(self, spans: Sequence[LiveSpan], matches: _Matches) -> None:
        place_of = {name: place for place, name in enumerate(matches.names)}
        session = np.array([place_of[each.session] for each in spans], np.int64)
        first = np.array([each.first for each in spans], np.int64)
        order = np.lexsort((first, session))
        self.spans = [*(spans[place] for place in order.tolist()), LiveSpan("", 0, (), ())]
        devices = [(*each.present, *each.absent) for each in self.spans]
        self.devices = pa.array([device for each in devices for device in each], pa.string())
        self.size = np.array([len(each) for each in devices])
        self.start = np.cumsum(self.size) - self.size
        """Place in ``devices`` of the first device of each span; the present devices stand before the absent ones."""
        self.present_count = np.array([len(each.present) for each in self.spans])
        self.of_group = self._of(matches, session[order], first[order])
        """The span that is in force for each group of *matches*."""

    def _of(self, matches: _Matches, session: Numbers, first: Numbers) -> Numbers:
        none = len(self.spans) - 1
        found = np.full(matches.group_session.size, none)
        places = np.arange(len(matches.names) + 1)
        span_ends = np.searchsorted(session, places)
        order = np.argsort(matches.group_session, kind="stable")
        group_ends = np.searchsorted(matches.group_session[order], places)
        for (begin, end), (own_begin, own_end) in zip(pairwise(span_ends), pairwise(group_ends), strict=True):
            own = order[own_begin:own_end]
            last = begin + np.searchsorted(first[begin:end], matches.group_seq[own], side="right") - 1
            found[own] = np.where(last >= begin, last, none)
        return found


def _rows(node: str, published: Arrow, matches: _Matches, spans: _Spans, live: Numbers) -> Iterator[Arrow]:
    """Yield the rows of the groups *live*."""
    schema = TABLES["deliveries"].schema
    item = schema.field("subscriptions").type.value_type
    structs = pa.array([dict(zip(("subject_filter", "name"), each, strict=True)) for each in matches.identities], item)
    names = pa.array(matches.names, pa.string())
    columns = {name: published.column(name) for name in ("seq", "at", "subject", "deadline_at", "body_hash")}
    row_ends = np.cumsum(spans.size[spans.of_group[live]])
    begin = 0
    while begin < live.size:
        done = row_ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(row_ends, done + _ROWS_AT_ONCE, side="right")))
        sizes = spans.size[spans.of_group[live[begin:end]]]
        group = np.repeat(live[begin:end], sizes)
        span, within = spans.of_group[group], np.arange(group.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        is_present = within < spans.present_count[span]
        publication = pa.array(matches.group_publication[group])
        lengths = matches.group_size[group]
        offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
        match = np.repeat(matches.group_start[group] - offsets[:-1], lengths) + np.arange(offsets[-1])
        at = columns["at"].take(publication)
        given = {
            "notification_node": pa.repeat(node, group.size),
            "notification_seq": columns["seq"].take(publication),
            "published_at": at,
            "subject": columns["subject"].take(publication),
            "deadline_at": columns["deadline_at"].take(publication),
            "session": names.take(pa.array(matches.group_session[group])),
            "device": spans.devices.take(pa.array(spans.start[span] + within)),
            "subscriptions": pa.ListArray.from_arrays(offsets, structs.take(pa.array(matches.subscription[match]))),
            "outcome": _one_of(is_present, Outcome.DELIVERED.value, Outcome.TAKEN_ELSEWHERE.value),
            "body_hash": columns["body_hash"].take(_where(publication, is_present)),
            "decided_at": at,
            "lapses_at": pa.array(matches.lapses_at[group]).cast(TIME_TYPE),
            "via": _one_of(is_present, "live", None),
            "difference": pa.nulls(group.size, pa.string()),
        }
        yield pa.RecordBatch.from_arrays([given[f.name].cast(f.type) for f in schema], schema=schema)
        begin = end


def _one_of(is_first: Numbers, first: str, second: str | None) -> Arrow:
    return pa.array([first, second], pa.string()).take(pa.array(np.where(is_first, 0, 1)))


def _where(places: Arrow, is_kept: Numbers) -> Arrow:
    """Return *places* with nulls where they are not kept."""
    return pc.if_else(pa.array(is_kept), places, pa.scalar(None, places.type))


def _left(
    published: Arrow, matches: _Matches, spans: _Spans, is_live: Numbers
) -> tuple[Arrow, dict[int, list[LiveSpan]]]:
    """Return the interests that are left per publication, and the live spans of the publications that have some."""
    is_left = np.repeat(~is_live, matches.group_size)
    counts = np.bincount(matches.publication[is_left], minlength=published.num_rows)
    left = pa.ListArray.from_arrays(
        np.append(0, np.cumsum(counts)).astype(np.int32), pa.array(matches.interest[is_left])
    )
    seqs = published.column("seq").to_numpy()
    received: dict[int, list[LiveSpan]] = {}
    mixed = np.flatnonzero(is_live & (counts[matches.group_publication] > 0))
    for seq, place in zip(seqs[matches.group_publication[mixed]].tolist(), spans.of_group[mixed].tolist(), strict=True):
        received.setdefault(seq, []).append(spans.spans[place])
    return left, received


def _with_interests(events: Arrow, kinds: Numbers, interests: Arrow) -> Arrow:
    """Return *events* with other *interests*, given per publication, without publications that have none."""
    is_published = kinds == PUBLISHED
    counts = np.zeros(kinds.size, np.int64)
    counts[is_published] = np.diff(interests.offsets.to_numpy())
    offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
    column = pa.ListArray.from_arrays(offsets, interests.values)
    place = events.schema.get_field_index("interests")
    events = events.set_column(place, events.schema.field(place), column.cast(events.schema.field(place).type))
    return events.filter(pa.array(~is_published | (counts > 0)))
