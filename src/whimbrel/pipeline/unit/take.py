"""The unit of work: ``take`` reads, validates, matches and folds a span of one node's log, as Arrow tables.

The caller (a stream's operator or a batch worker) passes the node's state and the span of seqs that follows it. It gets
rows of the tables and the counts for windows. Then it commits the state, which writes only the changed rows.

Rule: a span is processed in pieces (chunks) of bounded size (``spans``). How it is cut does not change the rows.
Rule: the cost of a piece depends on its facts, not on the number of subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from whimbrel.model.facts import Fact
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files.snapshots import Missing
from whimbrel.pipeline.files.spans import Piece, SpanReader
from whimbrel.pipeline.fold.contact_fold import Meeting
from whimbrel.pipeline.fold.events import EVENT_TABLES, Seen, fact_events, published_events, receipt_events
from whimbrel.pipeline.fold.folds import EVENT
from whimbrel.pipeline.fold.shards import Shard
from whimbrel.pipeline.subscriptions.moves import MEMBERS, SEEN
from whimbrel.pipeline.subscriptions.versions import CHANGED, DELETED, PackedVersions
from whimbrel.pipeline.tables.latency import TALLY, tally_deliveries
from whimbrel.pipeline.tables.link_quality import link_rows
from whimbrel.pipeline.tables.matches import match_rows
from whimbrel.pipeline.tables.popularity import COUNT, counts_of
from whimbrel.pipeline.unit.matchers import Matchers
from whimbrel.pipeline.unit.node_share import NodeShare

__all__ = ["TakenPiece", "begun_piece", "take"]

Arrow = Any
"""A ``pyarrow`` batch, table or schema; pyarrow ships no types."""

_REPORTS_AT_ONCE = 50_000
"""Reports that are collected before contacts are searched, because each search may look at all devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenPiece:
    """Output of one piece (chunk) of a node's log."""

    last: int
    """The last seq of the piece."""
    rows: dict[str, list[Arrow]] = field(default_factory=dict)
    """Arrow batches per table: ``matches``, ``deliveries``, ``link_quality``, ``contacts``, ``dead_letters``."""
    counts: Arrow
    """Publications per subject and window, with the schema ``popularity.COUNT``."""
    tally: Arrow
    """Latencies per subject and window, with the schema ``latency.TALLY``."""
    intervals: Arrow
    """Time in force of each subscription that this piece added, changed or removed."""
    meetings: dict[tuple[str, str], Meeting] = field(default_factory=dict)
    """Sums over the contacts that ended, per pair of devices."""


def begun_piece(state: NodeShare, seq: int) -> TakenPiece:
    """Return the output for a state that starts at a checkpoint: the intervals of its subscriptions, and no rows."""
    counts, tally = COUNT.empty_table(), TALLY.empty_table()
    return TakenPiece(last=seq, counts=counts, tally=tally, intervals=state.in_force.intervals())


def take(  # input, state, options
    reader: SpanReader,
    first: int,
    last: int,
    state: NodeShare,
    matchers: Matchers,
    *,
    window_us: int | None,
    now: int,
    shard: Shard | None = None,
    folds: bool = True,
    missing: Sequence[Missing] = (),
) -> Iterator[TakenPiece]:
    """Apply the seqs *first* to *last* of a node's log to its *state*, and yield the output, piece by piece.

    *window_us* is the length of windows, or None if nothing is counted for windows. *now* is the time that dead letters
    get. Both are in microseconds. Nothing is committed: the caller calls ``NodeShare.commit`` once the output is safe.
    With a *shard*, the state has only the sessions of that shard, and the rows are about them. Without *folds*, nothing
    is matched and folded: only ``link_quality``, ``contacts`` and ``dead_letters`` get rows. Every seq must be present,
    except those that are known to be *missing*.
    """
    for whole in reader.pieces(first, last, now=now, missing=missing):
        piece = whole if shard is None else shard.own(whole)
        rows: dict[str, list[Arrow]] = {"matches": [], "deliveries": []}
        changed, deleted = piece.table("interests", CHANGED), piece.table("sessions", DELETED)
        intervals = state.in_force.no_intervals()
        if folds:
            state.moves.take(piece.table("reports", SEEN), piece.table("presence", MEMBERS), deleted)
            has_policies = shard is None or shard.has_policies
            events, facts = _events(piece, rows["matches"], state, matchers, has_policies=has_policies)
            intervals = state.in_force.changing(changed, deleted)
            rows["deliveries"] = list(state.fold(events.to_batches(), facts, whole.ends_at))
            del events, facts  # frees memory before the next piece is read: a piece is as large as memory allows
            if intervals.num_rows or deleted.num_rows:
                state.in_force.remove_ended()
        rows["link_quality"] = [link_rows(state.node, state.links, piece.table("reports"))]
        rows["dead_letters"] = [batch for dead in piece.dead for batch in dead.to_batches()]
        rows["contacts"], met = _contacts(whole, state, is_last=piece.last == last)
        yield TakenPiece(
            last=piece.last,
            rows=rows,
            counts=_count_publications(piece, window_us),
            tally=_tally(rows["deliveries"], window_us),
            intervals=intervals,
            meetings=met,
        )
        del whole, piece, changed, deleted


def _contacts(piece: Piece, state: NodeShare, *, is_last: bool) -> tuple[list[Arrow], dict[tuple[str, str], Meeting]]:
    """Return the contacts that ended, and per pair their sums.

    Contacts are searched only at the end of a range of seqs, or after many reports.
    """
    if state.contacts is None:
        return [], {}
    state.contacts.take(piece.table("reports", ("seq", "reported_at", "device", "place")).sort_by("seq"))
    if state.last_at is None or not (is_last or state.contacts.waiting >= _REPORTS_AT_ONCE):
        return [], {}
    over, met = state.contacts.advance(state.last_at)
    return over.to_batches(), met


def _events(
    piece: Piece, matched: list[Arrow], state: NodeShare, matchers: Matchers, *, has_policies: bool
) -> tuple[Arrow, dict[int, Fact]]:
    """Return all events of a piece (chunk) of the log in order, and facts by seq; append its matches to *matched*.

    If the whole log has no policy (not *has_policies*), reports and the content of publications are left out.
    """
    changed, deleted = piece.table("interests", CHANGED), piece.table("sessions", DELETED)
    events: list[Arrow] = []
    facts: dict[int, Fact] = {}
    for name in EVENT_TABLES:
        rows = piece.table(name)
        if name == "receipts":
            events += map(receipt_events, rows.to_batches())
        elif rows.num_rows and (has_policies or name != "reports"):
            some, own = fact_events(name, rows)
            events.append(some)
            facts |= own
    publications = piece.table("publications")
    if not publications.num_rows:
        matchers.note(state, changed, deleted)
        return pa.Table.from_batches(events, EVENT).sort_by("seq").combine_chunks(), facts
    found = PackedVersions.map(matchers.ship(state, piece.first, changed, deleted).files[piece.node], piece.node)
    seen = state.seen_content(piece.table("policies", ("text",))) if has_policies else Seen.NOTHING
    for batch in publications.to_batches():
        places, handles = found.match(batch, state.moves)
        if places.size:
            matched += match_rows(batch, found, places, handles)
            events += published_events(batch, found, places, handles, seen=seen)
    return pa.Table.from_batches(events, EVENT).sort_by("seq").combine_chunks(), facts


def _count_publications(piece: Piece, window_us: int | None) -> Arrow:
    return COUNT.empty_table() if window_us is None else counts_of(piece.table("publications"), window_us)


def _tally(delivered: list[Arrow], window_us: int | None) -> Arrow:
    if window_us is None:
        return TALLY.empty_table()
    return tally_deliveries(pa.Table.from_batches(delivered, TABLES["deliveries"].schema), window_us=window_us)
