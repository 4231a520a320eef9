"""The unit of work: ``take`` reads, validates, matches and folds a span of one node's log, as Arrow tables.

The caller (a stream's operator or a batch worker) passes the node's state and the span of seqs that follows it. It gets
rows of the tables and the counts for windows. Then it commits the state, which writes only the changed rows.
It consists of two halves, which may also run apart: ``unit.matching`` and ``unit.folding``.

Rule: a span is processed in pieces (chunks) of bounded size (``spans``). How it is cut does not change the rows.
Rule: the cost of a piece depends on its facts, not on the number of subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whimbrel.pipeline.files.snapshots import Missing
from whimbrel.pipeline.files.spans import Piece, SpanReader
from whimbrel.pipeline.subscriptions.moves import MEMBERS, SEEN
from whimbrel.pipeline.subscriptions.versions import CHANGED, DELETED
from whimbrel.pipeline.unit.folding import TakenPiece, fold_piece
from whimbrel.pipeline.unit.matchers import Matchers
from whimbrel.pipeline.unit.matching import MatchedPiece, match_piece
from whimbrel.pipeline.unit.node_share import NodeShare

__all__ = ["take"]


def take(  # input, state, options
    reader: SpanReader,
    first: int,
    last: int,
    state: NodeShare,
    matchers: Matchers,
    *,
    window_us: int | None,
    now: int,
    missing: Sequence[Missing] = (),
) -> Iterator[TakenPiece]:
    """Apply the seqs *first* to *last* of a node's log to its *state*, and yield the output, piece by piece.

    *window_us* is the length of windows, or None if nothing is counted for windows. *now* is the time that dead letters
    get. Both are in microseconds. Nothing is committed: the caller calls ``NodeShare.commit`` once the output is safe.
    Every seq must be present, except those that are known to be *missing*.
    """
    for piece in reader.pieces(first, last, now=now, missing=missing):
        matched = _match(piece, state, matchers, window_us=window_us)
        del piece  # frees memory before the next piece is read: a piece is as large as memory allows
        taken = fold_piece(matched, state, window_us=window_us, is_last=matched.last == last)
        del matched
        yield taken
        del taken


def _match(piece: Piece, state: NodeShare, matchers: Matchers, *, window_us: int | None) -> MatchedPiece:
    """Match a piece against the subscriptions in force in *state*, and those that the piece adds."""
    changed, deleted = piece.table("interests", CHANGED), piece.table("sessions", DELETED)
    state.moves.take(piece.table("reports", SEEN), piece.table("presence", MEMBERS), deleted)
    found = None
    if "publications" in piece.tables:
        found = matchers.find(state, piece.first, changed, deleted)
    else:
        matchers.note(state, changed, deleted)
    seen = state.seen_content(piece.table("policies", ("text",)))
    return match_piece(piece, found, state.moves, seen=seen, window_us=window_us)
