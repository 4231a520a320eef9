"""The folding half of the unit: apply a matched piece of a node's log to the node's state, and return rows of tables.

Rule: the pieces of a node are folded in the order of its log; how it is cut into pieces does not change the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from whimbrel.model.facts import Fact
from whimbrel.pipeline.fold.contact_fold import Meeting
from whimbrel.pipeline.fold.events import EVENT_TABLES, fact_events, receipt_events
from whimbrel.pipeline.fold.folds import EVENT
from whimbrel.pipeline.subscriptions.versions import CHANGED, DELETED
from whimbrel.pipeline.tables.latency import TALLY, tally_deliveries
from whimbrel.pipeline.tables.link_quality import link_rows
from whimbrel.pipeline.unit.matching import MatchedPiece
from whimbrel.pipeline.unit.node_share import NodeShare

__all__ = ["Reported", "TakenPiece", "fold_piece", "fold_reports", "fold_sessions", "tally_of"]

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


def fold_piece(matched: MatchedPiece, state: NodeShare, *, window_us: int | None, is_last: bool = True) -> TakenPiece:
    """Apply a *matched* piece to the *state* of its node, and return the output.

    *window_us* is the length of windows, or None if nothing is counted for windows. *is_last* is whether the piece is
    the last of a range of seqs: contacts are searched only there, or after many reports.
    """
    deliveries, intervals = fold_sessions(matched, state)
    reported = fold_reports(matched, state, is_last=is_last)
    rows = {"matches": matched.matches, "deliveries": deliveries, "dead_letters": matched.dead}
    return TakenPiece(
        last=matched.last,
        rows={**rows, "link_quality": reported.link_quality, "contacts": reported.contacts},
        counts=matched.counts,
        tally=tally_of(deliveries, window_us=window_us),
        intervals=intervals,
        meetings=reported.meetings,
    )


def fold_sessions(matched: MatchedPiece, state: NodeShare, *, has_policies: bool = True) -> tuple[list[Arrow], Arrow]:
    """Apply a piece to the sessions; return batches of ``deliveries``, and the changed subscriptions' time in force.

    If the whole log has no policy (not *has_policies*), reports change no session, and are left out.
    """
    changed, deleted = matched.table("interests", CHANGED), matched.table("sessions", DELETED)
    events, facts = _events(matched, has_policies=has_policies)
    intervals = state.in_force.changing(changed, deleted)
    deliveries = list(state.fold(events.to_batches(), facts, matched.ends_at))
    if intervals.num_rows or deleted.num_rows:
        state.in_force.remove_ended()
    return deliveries, intervals


class Reported(NamedTuple):
    """Output of the reports in one piece."""

    link_quality: list[Arrow]
    contacts: list[Arrow]
    meetings: dict[tuple[str, str], Meeting]


def fold_reports(matched: MatchedPiece, state: NodeShare, *, is_last: bool) -> Reported:
    """Apply the reports of a piece to the quality of links and the contacts of a node; no session is changed."""
    state.pass_time(matched.ends_at)
    links = [link_rows(state.node, state.links, matched.table("reports"))]
    return Reported(links, *_contacts(matched, state, is_last=is_last))


def _events(matched: MatchedPiece, *, has_policies: bool) -> tuple[Arrow, dict[int, Fact]]:
    """Return all events of a piece (chunk) of the log in order, and facts by seq."""
    events = list(matched.published)
    facts: dict[int, Fact] = {}
    for name in EVENT_TABLES:
        rows = matched.table(name)
        if name == "receipts":
            events += map(receipt_events, rows.to_batches())
        elif rows.num_rows and (has_policies or name != "reports"):
            some, own = fact_events(name, rows)
            events.append(some)
            facts |= own
    return pa.Table.from_batches(events, EVENT).sort_by("seq").combine_chunks(), facts


def _contacts(
    matched: MatchedPiece, state: NodeShare, *, is_last: bool
) -> tuple[list[Arrow], dict[tuple[str, str], Meeting]]:
    """Return the contacts that ended, and per pair their sums."""
    if state.contacts is None:
        return [], {}
    state.contacts.take(matched.table("reports", ("seq", "reported_at", "device", "place")).sort_by("seq"))
    if state.last_at is None or not (is_last or state.contacts.waiting >= _REPORTS_AT_ONCE):
        return [], {}
    over, met = state.contacts.advance(state.last_at)
    return over.to_batches(), met


def tally_of(deliveries: list[Arrow], *, window_us: int | None) -> Arrow:
    """Return the latencies of batches of ``deliveries`` per subject and window, with the schema ``latency.TALLY``."""
    if window_us is None or not deliveries:
        return TALLY.empty_table()
    return tally_deliveries(pa.Table.from_batches(deliveries), window_us=window_us)
