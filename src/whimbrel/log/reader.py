"""Readers: read the facts of a node's segments in order, also while the node writes.

Rule: a torn tail (an incomplete last write) ends the reading; the next call of ``records`` continues there. Damage
raises ``CorruptLogError``.
Rule: reading starts at the oldest segment that still exists; older facts are in Parquet.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from whimbrel.errors import InvalidValueError
from whimbrel.log import layout
from whimbrel.log.errors import CorruptLogError, ReplacedSegmentError
from whimbrel.log.records import row_from, values_from
from whimbrel.log.segments import HEADER_BYTES, Header, Record, Scan, is_proven_later, is_torn_creation, read_header
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.facts import Fact
from whimbrel.model.rows import COLUMNS, fact_of

__all__ = ["DurableEnd", "LogPlace", "LogReader", "named_header", "proven_seq", "read", "read_rows"]


def read(directory: Path, node: str, *, first: int = 0, last: int | None = None) -> Iterator[Fact]:
    """Yield *node*'s facts with seqs from *first* to *last*, as far as whole records exist now."""
    return LogReader(directory, node, first=first, last=last).facts()


def read_rows(
    directory: Path, node: str, *, first: int = 0, last: int | None = None
) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield table name and row of each record, without building facts: faster, but with fewer checks."""
    return LogReader(directory, node, first=first, last=last).rows()


def proven_seq(directory: Path, node: str) -> int:
    """Return the last seq that is proven durable; a crash may still cut the records after it."""
    return DurableEnd(directory, node).seq()


class DurableEnd:
    """Tracker of the last seq of a node's log that is proven durable; each call of ``seq`` reads only new records.

    Rule: reading continues after the last proven record, which is never cut. The bytes after it may have changed.
    Rule: damage is never mistaken for the end of the log; it raises ``CorruptLogError``.
    """

    def __init__(self, directory: Path, node: str) -> None:
        self._directory, self._node = directory, node
        self._path: Path | None = None
        self._header: Header | None = None
        self._offset, self._next, self._proven = HEADER_BYTES, 0, 0

    def seq(self) -> int:
        """Return the last seq that is proven durable now; 0 if there are no segments."""
        found = layout.segments(self._directory, self._node)
        if not found:
            return 0
        first, path = found[-1]
        if is_torn_creation(path):
            return first - 1
        with path.open("rb") as stream:
            header = named_header(stream, path, self._node, first)
            if (path, header) != (self._path, self._header):  # a log that was deleted and recreated has another salt
                self._path, self._header = path, header
                self._offset, self._next, self._proven = HEADER_BYTES, first, first - 1
            scan = Scan(stream, header, offset=self._offset, seq=self._next)
            proven = scan.proven
            for record in scan:
                if scan.proven != proven:  # a mark stood before this record
                    proven, self._offset, self._next = scan.proven, record.offset, record.seq
            if scan.is_marked:
                self._offset, self._next = scan.end, scan.next_seq
            if scan.trouble is not None:
                self._check_torn(stream, header, path, scan)
        self._proven = max(self._proven, scan.proven)
        return self._proven

    @staticmethod
    def _check_torn(stream: BinaryIO, header: Header, path: Path, scan: Scan) -> None:
        """Raise ``CorruptLogError`` if a later mark proves that the bad frame at which *scan* stopped was durable."""
        if not is_proven_later(stream, header, scan.end, scan.next_seq):
            return
        again = Scan(stream, header, offset=scan.end, seq=scan.next_seq)  # the node may have written on meanwhile
        if next(iter(again), None) is None and again.end == scan.end and again.trouble is not None:
            raise CorruptLogError(path, scan.end, again.trouble)


class LogPlace(NamedTuple):
    """Where a record is in a node's segments, so that a reader need not search it."""

    segment: int
    """First seq of the segment."""
    offset: int
    seq: int


class LogReader:
    """Reader with a position: each call of ``records``, ``rows`` or ``facts`` yields only records not yet read.

    *places* are some known places of records. The reader begins at the last one that is not after the seq *first*.
    """

    def __init__(
        self,
        directory: Path,
        node: str,
        *,
        first: int = 0,
        last: int | None = None,
        places: Iterable[LogPlace] = (),
    ) -> None:
        layout.check_format(directory)
        self._directory, self.node = directory, node
        self._wanted, self._last = first, INT64_MAX if last is None else last
        self._path: Path | None = None
        self._header: Header | None = None
        self._begin = self._offset = self._seq = 0
        self.read_bytes = 0
        """Total size of the payloads that were read, in bytes."""
        self._last_at: tuple[int, int, int] | None = None
        self._begin_at(max((each for each in places if each.seq <= first), key=lambda each: each.seq, default=None))

    def _begin_at(self, place: LogPlace | None) -> None:
        """Begin at a known place, if that record still exists."""
        path = None if place is None else dict(layout.segments(self._directory, self.node)).get(place.segment)
        if place is None or path is None:
            return
        with suppress(FileNotFoundError), path.open("rb") as stream:
            header = named_header(stream, path, self.node, place.segment)
            if next(iter(Scan(stream, header, offset=place.offset, seq=place.seq)), None) is not None:
                self._go_to(place.segment, path)
                self._offset, self._seq = place.offset, place.seq

    def extend(self, last: int) -> None:
        """Set the last seq that ``records``, ``rows`` or ``facts`` may yield from now on."""
        self._last = last

    @property
    def next_seq(self) -> int:
        """The seq at which the next reading starts."""
        return self._wanted

    @property
    def last_place(self) -> LogPlace | None:
        """Place of the last record that was read; None before the first."""
        return None if self._last_at is None else LogPlace(*self._last_at)

    def facts(self) -> Iterator[Fact]:
        """Yield the facts after the last one that was read."""
        for offset, seq, number, payload in self.records():
            try:
                fact = fact_of(*row_from(self.node, seq, number, payload))
            except InvalidValueError as error:
                raise self._corrupt(offset, str(error)) from None
            yield fact

    def rows(self) -> Iterator[tuple[str, dict[str, object]]]:
        """Yield table name and row of the records after the last one that was read."""
        for table, values in self.values():
            yield table, dict(zip(COLUMNS[table], values, strict=False))

    def values(self) -> Iterator[tuple[str, list[object]]]:
        """Yield table name and values, in column order, of the records after the last one that was read."""
        for offset, seq, number, payload in self.records():
            try:
                found = values_from(self.node, seq, number, payload)
            except InvalidValueError as error:
                raise self._corrupt(offset, str(error)) from None
            yield found

    def records(self) -> Iterator[Record]:
        """Yield the records after the last one that was read."""
        while self._wanted <= self._last and (self._path is not None or self._find()):
            has_more = yield from self._segment()
            if not has_more:
                return

    def _find(self) -> bool:
        """Go to the segment that holds the next seq, or to the oldest; return whether any segment exists."""
        found = layout.segments(self._directory, self.node)
        if found:
            self._go_to(*max((each for each in found if each[0] <= self._wanted), default=found[0]))
        return bool(found)

    def _go_to(self, first: int, path: Path) -> None:
        self._path, self._begin, self._offset, self._seq, self._header = path, first, HEADER_BYTES, first, None

    def _segment(self) -> Generator[Record, None, bool]:
        """Yield the new records of this segment; return whether to continue in the next segment."""
        assert self._path is not None
        if is_torn_creation(self._path) and self._follower() is None:
            return False
        stuck_at = -1
        with self._path.open("rb") as stream:
            header = named_header(stream, self._path, self.node, self._begin)
            if self._offset > HEADER_BYTES and self._header not in {None, header}:  # its salt is random
                raise ReplacedSegmentError(self._path)
            self._header = header
            while True:
                scan = Scan(stream, header, offset=self._offset, seq=self._seq)
                for record in scan:
                    if record.seq > self._last:
                        return False
                    begin, self._offset, self._seq = record.offset, scan.end, scan.next_seq
                    if record.seq >= self._wanted:
                        self._last_at = (self._begin, begin, record.seq)
                        self._wanted = scan.next_seq
                        self.read_bytes += len(record.payload)
                        yield record
                        if record.seq == self._last:
                            return False
                self._offset = scan.end
                follower = self._follower()
                if follower is None:
                    if scan.trouble is None or not is_proven_later(stream, header, scan.end, scan.next_seq):
                        return False
                elif scan.trouble is None and follower[0] == scan.next_seq:
                    self._go_to(*follower)
                    return True
                # The node may have written more meanwhile, so scan again; stopping twice at one offset means damage.
                if stuck_at == scan.end:
                    after = "" if follower is None else f", and the next segment begins with {follower[0]}"
                    raise self._corrupt(scan.end, scan.trouble or f"it ends with seq {scan.next_seq - 1}{after}")
                stuck_at = scan.end

    def _follower(self) -> tuple[int, Path] | None:
        later = (each for each in layout.segments(self._directory, self.node) if each[0] > self._begin)
        return min(later, default=None)

    def _corrupt(self, offset: int, reason: str) -> CorruptLogError:
        return CorruptLogError(self._path or self._directory, offset, reason)


def named_header(stream: BinaryIO, path: Path, node: str, first: int) -> Header:
    """Return a segment's header; raise ``CorruptLogError`` unless it has this *node* and this *first* seq."""
    header = read_header(stream, path)
    if (header.node, header.first) != (node, first):
        raise CorruptLogError(path, 0, f"its header says {header.node}:{header.first}")
    return header
