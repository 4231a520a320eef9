"""Spans: read a range of seqs of one node's log into Arrow, validated, in pieces (chunks) of bounded size.

All jobs read a log here, so no row passes through Java. Parquet is read row group by row group, each once; segments are
read record by record. Invalid rows become dead letters (``dead_letters``).

Rule: every row is read once. Up to the seq that the node states as exported, rows are read from Parquet; after it, from
segments.
Rule: a span is read whole. The reader waits for seqs that it does not see yet, and then raises an error
(``visibility``).
Rule: a piece has a bounded number of rows and about a bounded number of bytes. It may exceed the bytes by one record,
or by what a Parquet footer understates.
Rule: files are immutable. If a file vanishes during a read, it was merged or exported, and its rows are found again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from whimbrel.log.columns import values_to_arrow
from whimbrel.log.layout import Part, segments_folder
from whimbrel.log.reader import LogPlace, LogReader
from whimbrel.log.record_columns import UNREADABLE, RecordColumns
from whimbrel.log.records import TABLE_NAMES
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.pipeline.files.dead_letters import validate_rows
from whimbrel.pipeline.files.fact_digest import fact_digest
from whimbrel.pipeline.files.part_rows import PIECE_BYTES, PIECE_FACTS, PartCursor, PartNumbers
from whimbrel.pipeline.files.schemas import TIMES
from whimbrel.pipeline.files.snapshots import Missing, parts_up_to, read_undisturbed, settled_seq
from whimbrel.pipeline.files.visibility import PATIENT, Patience, UnseenNumbersError, first_unseen

__all__ = ["Piece", "SpanReader"]

Arrow = Any
"""A ``pyarrow`` batch, table or schema; pyarrow ships no types."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One chunk of a span (range of seqs): the rows of *node*'s log with the seqs *first* to *last*."""

    node: str
    first: int
    last: int
    tables: dict[str, Arrow] = field(default_factory=dict)
    """Valid rows, ordered by seq, per table that has rows."""
    dead: list[Arrow] = field(default_factory=list)
    """Rows of ``dead_letters``."""

    def table(self, name: str, columns: tuple[str, ...] | None = None) -> Arrow:
        """Return the rows of the table *name*, all columns or *columns*; an empty table if there are none."""
        found = self.tables.get(name)
        found = TABLES[name].schema.empty_table() if found is None else found
        return found if columns is None else found.select(list(columns))

    @property
    def ends_at(self) -> int | None:
        """The time of the last fact in this piece, in microseconds; None if the piece has no valid rows."""
        times = (_last_time(rows.column(TIMES[name])) for name, rows in self.tables.items())
        return max(times, default=None)


def _last_time(column: Arrow) -> int:
    latest: int = pc.max(column.cast(TIME_TYPE).cast(pa.int64())).as_py()
    return latest


class SpanReader:
    """Reader of one node's log, which keeps files open so that it can continue where it stopped."""

    def __init__(
        self,
        log: Path,
        node: str,
        *,
        most_facts: int = PIECE_FACTS,
        most_bytes: int = PIECE_BYTES,
        tables: Iterable[str] = TIMES,
        patience: Patience = PATIENT,
        places: Iterable[LogPlace] = (),
    ) -> None:
        self._log, self.node = log, node
        self._known = tuple(places)
        self.places: list[LogPlace] = []
        """Place of the last record of each piece of the last span, as far as it was read from segments."""
        self.patience = patience
        self._most_facts, self._most_bytes = most_facts, most_bytes
        self._wanted = frozenset(tables)
        self._skipped = frozenset(number for number, table in TABLE_NAMES.items() if table not in self._wanted)
        self._segments: LogReader | None = None
        self._cursors: dict[Path, PartCursor] = {}
        self._numbers: dict[Path, PartNumbers] = {}
        """Seqs of the parts of tables that are not read."""
        self._parts: dict[str, list[Part]] = {}
        """Parts per table, as of the last look at the folders."""
        self._settled = -1
        """Last seq to read from Parquet, as of the last look."""
        self._place: tuple[object, ...] = ()
        """Device and inode of each folder that was read."""
        self.digest: str | None = None
        """Digest of the last fact that was read; None if that fact is missing."""

    def only(self, tables: Iterable[str]) -> SpanReader:
        """Return a reader of the same log that reads only *tables*."""
        return SpanReader(
            self._log,
            self.node,
            most_facts=self._most_facts,
            most_bytes=self._most_bytes,
            tables=tables,
            patience=self.patience,
            places=self._known,
        )

    def pieces(self, first: int, last: int, *, now: int, missing: Sequence[Missing] = ()) -> Iterator[Piece]:
        """Yield the seqs from *first* to *last*, in order, as pieces; *now* is the time that dead letters get.

        Seqs that are *missing* from the log may be absent. If other seqs are absent, wait for them; then raise
        ``UnseenNumbersError``.
        """
        self._look()
        self.places.clear()
        while first <= last:
            read = partial(self._undisturbed_piece, first, last, now, missing)
            piece = self.patience.wait_for(read, self._look_again)
            first = piece.last + 1
            if first > last:
                self.digest = fact_digest(last, piece.tables, piece.dead)
            yield piece
            del piece, read  # frees memory before the next piece is read

    def digest_at(self, seq: int) -> str | None:
        """Read the fact *seq* and return its digest; a read that begins after *seq* then reuses the open files."""
        for _ in self.pieces(seq, seq, now=0):
            pass
        return self.digest

    @property
    def last_place(self) -> LogPlace | None:
        """Place of the last record of the last span, if it was read from segments."""
        return self.places[-1] if self.places else None

    @property
    def is_where_it_was(self) -> bool:
        """Whether the folders that were read still exist and were not replaced by others."""
        return self._place == self._places()

    def _places(self) -> tuple[object, ...]:
        return tuple(map(_identity, (self._log, segments_folder(self._log, self.node))))

    def _look(self) -> None:
        """Find the node's Parquet files, and the last seq to read from them; drop readers of vanished files."""
        place = self._places()
        if place != self._place:  # nothing that was read from another folder is valid
            self._forget()
            self._place = place
        settled = settled_seq(self._log, self.node)
        if settled != self._settled or settled == INT64_MAX:  # without segments, no seq shows that parts were added
            self._parts = {table: parts_up_to(self._log, table, self.node, settled) for table in TIMES}
            self._settled = settled
        there = {part.path for own in self._parts.values() for part in own}
        self._cursors = {path: cursor for path, cursor in self._cursors.items() if path in there}
        self._numbers = {path: numbers for path, numbers in self._numbers.items() if path in there}

    def _look_again(self) -> None:
        self._forget()
        self._look()

    def _forget(self) -> None:
        self._settled, self._segments = -1, None
        self._cursors.clear()  # after an error, one cursor may have read further than the other cursors
        self._numbers.clear()

    def _undisturbed_piece(self, first: int, last: int, now: int, missing: Sequence[Missing]) -> Piece:
        try:
            return read_undisturbed(partial(self._piece, first, last, now, missing))
        except FileNotFoundError:
            raise UnseenNumbersError(self._log, self.node, first, last) from None

    def _piece(self, first: int, last: int, now: int, missing: Sequence[Missing]) -> Piece:
        try:
            if first <= self._settled:
                piece = self._from_parquet(first, min(last, self._settled), now)
                self._check_whole(piece, missing)
                return piece
            return self._from_segments(first, last, now)
        except FileNotFoundError:
            self._look_again()
            raise

    def _check_whole(self, piece: Piece, missing: Sequence[Missing]) -> None:
        """Raise ``UnseenNumbersError`` if a seq of *piece* is neither in a Parquet file of any table nor *missing*."""
        found: list[PartNumbers] = []
        for table, own in self._parts.items():
            for part in own:
                if part.first <= piece.last and part.last >= piece.first:
                    numbers = self._cursors.get(part.path) if table in self._wanted else None
                    found.append(numbers or self._numbers.get(part.path) or self._read_numbers(part))
        unseen = first_unseen(
            piece.first,
            piece.last,
            [numbers.seqs for numbers in found],
            missing=missing,
            spare=sum(numbers.unnumbered for numbers in found),
        )
        if unseen is not None:
            raise UnseenNumbersError(self._log, self.node, unseen, piece.last)
        self._cursors = {path: each for path, each in self._cursors.items() if each.last > piece.last}
        self._numbers = {path: each for path, each in self._numbers.items() if each.last > piece.last}

    def _read_numbers(self, part: Part) -> PartNumbers:
        found = self._numbers[part.path] = PartNumbers(part)
        return found

    def _from_parquet(self, first: int, last: int, now: int) -> Piece:
        end = min(last, first + self._most_facts - 1)
        own_parts = [(table, part) for table in self._wanted for part in self._parts[table] if part.last >= first]
        cursors = [(table, self._cursor(table, part, first)) for table, part in own_parts if part.first <= end]
        later = min((part.first for _, part in own_parts if part.first > end), default=INT64_MAX)
        begin = min((cursor.next_seq for _, cursor in cursors), default=INT64_MAX)
        if begin > end:  # these seqs were cut, or no wanted table has them
            piece = Piece(self.node, first, min(last, begin - 1, later - 1))
            for _, cursor in cursors:
                cursor.take(piece.last)  # keeps the cursor valid for the next piece
            return piece
        facts = min(max(1, self._most_bytes // cursor.row_bytes) for _, cursor in cursors)
        piece = Piece(self.node, first, min(end, begin + facts - 1))
        found: dict[str, list[Arrow]] = {}
        for table, cursor in cursors:
            found.setdefault(table, []).extend(cursor.take(piece.last))
        for table, batches in found.items():
            self._judge(piece, table, batches, now)
        return piece

    def _cursor(self, table: str, part: Part, first: int) -> PartCursor:
        found = self._cursors.get(part.path)
        if found is None or found.reads_from != first:
            found = self._cursors[part.path] = PartCursor(table, part, first, self._most_facts, self._most_bytes)
        return found

    def _from_segments(self, first: int, last: int, now: int) -> Piece:
        reader = self._segments
        if reader is None or reader.next_seq != first:
            reader = self._segments = LogReader(self._log, self.node, first=first, places=self._known)
        reader.extend(min(last, first + self._most_facts - 1))
        full, count = reader.read_bytes + self._most_bytes, 0
        found = RecordColumns(self.node)
        for _, seq, number, payload in reader.records():
            count += 1
            if number not in self._skipped:
                found.add(seq, number, payload)
            if reader.read_bytes >= full:
                break
        end = reader.next_seq - 1
        if reader.last_place is not None:
            self.places.append(reader.last_place)
        if not count or count != end - first + 1:
            raise UnseenNumbersError(self._log, self.node, first, last)
        rows = self._tables(found, first, end)
        if settled_seq(self._log, self.node) != self._settled:
            raise FileNotFoundError("an export went on meanwhile, and may have removed what was to be read")
        piece = Piece(self.node, first, end)
        for table, own in rows.items():
            self._judge(piece, table, [batch for each in own for batch in each.to_batches()], now)
        return piece

    def _tables(self, records: RecordColumns, first: int, last: int) -> dict[str, list[Arrow]]:
        """Return the rows of *records* per table; raise ``CorruptLogError`` if a record cannot be decoded."""
        try:
            return records.tables()
        except UNREADABLE:
            rows: dict[str, list[list[object]]] = {}
            for table, values in LogReader(self._log, self.node, first=first, last=last).values():
                if table in self._wanted:
                    rows.setdefault(table, []).append(values)
            return {table: [values_to_arrow(table, own)] for table, own in rows.items()}

    def _judge(self, piece: Piece, table: str, batches: list[Arrow], now: int) -> None:
        good: list[Arrow] = []
        for batch in batches:
            found = validate_rows(table, batch, node=self.node, now=now)
            if found.dead.num_rows:
                piece.dead.append(found.dead)
            if found.good.num_rows:
                good.append(found.good)
        if good:
            rows = pa.Table.from_batches(good).cast(TABLES[table].schema)
            piece.tables[table] = rows if len(good) == 1 else rows.sort_by("seq")


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return device and inode of the folder at this path; None if there is none."""
    try:
        found = os.stat(folder)  # noqa: PTH116 # a batch of one fact should take microseconds here
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
