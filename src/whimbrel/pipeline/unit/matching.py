"""The matching half of the unit: match the publications of a piece of a node's log, without the state of its sessions.

A piece can be matched by any task that has the subscriptions in force and the places of devices. The *folding* half
(``unit.folding``) then applies the result to the node's state, in the order of the log.

Rule: of the publications only those that matched go on; all other facts of the piece do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whimbrel.pipeline.files.spans import Piece
from whimbrel.pipeline.fold.events import Seen, published_events
from whimbrel.pipeline.subscriptions.moves import Moves
from whimbrel.pipeline.subscriptions.versions import PackedVersions
from whimbrel.pipeline.tables.matches import match_rows
from whimbrel.pipeline.tables.popularity import COUNT, counts_of

__all__ = ["MatchedPiece", "match_piece"]

Arrow = Any
"""A ``pyarrow`` batch, table or schema; pyarrow ships no types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedPiece:
    """Piece (chunk) of a node's log whose publications were matched: the input of the folding half."""

    node: str
    first: int
    last: int
    """The last seq of the piece."""
    ends_at: int | None
    """The time of the last fact, in microseconds; None if the piece has no valid rows."""
    tables: dict[str, Arrow]
    """Valid rows, ordered by seq, per table that has rows; ``publications`` is left out."""
    published: list[Arrow]
    """Batches of ``folds.EVENT``, in the order of seq: one row per publication that matched."""
    matches: list[Arrow]
    """Batches of ``matches``."""
    dead: list[Arrow]
    """Rows of ``dead_letters``."""
    counts: Arrow
    """Publications per subject and window, with the schema ``popularity.COUNT``."""

    def table(self, name: str, columns: tuple[str, ...] | None = None) -> Arrow:
        """Return the rows of the table *name*, all columns or *columns*; an empty table if there are none."""
        return Piece(self.node, self.first, self.last, self.tables).table(name, columns)


def match_piece(
    piece: Piece, found: PackedVersions | None, moves: Moves | None, *, seen: Seen, window_us: int | None
) -> MatchedPiece:
    """Match the publications of *piece*; with no matcher *found*, leave them out.

    *moves* has the tracks of devices, unless the matcher has them. *seen* is the content of publications that policies
    may read. *window_us* is the length of windows, or None if nothing is counted for windows.
    """
    publications = piece.table("publications")
    published: list[Arrow] = []
    matches: list[Arrow] = []
    if found is not None:
        for batch in publications.to_batches():
            places, handles = found.match(batch, moves)
            if places.size:
                matches += match_rows(batch, found, places, handles)
                published += published_events(batch, found, places, handles, seen=seen)
    return MatchedPiece(
        node=piece.node,
        first=piece.first,
        last=piece.last,
        ends_at=piece.ends_at,
        tables={name: rows for name, rows in piece.tables.items() if name != "publications"},
        published=published,
        matches=matches,
        dead=[batch for dead in piece.dead for batch in dead.to_batches()],
        counts=COUNT.empty_table() if window_us is None else counts_of(publications, window_us),
    )
