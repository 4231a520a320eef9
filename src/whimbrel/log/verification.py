"""Verification: read all files of a log, and report what is damaged, missing or inconsistent.

Rule: a torn tail (an incomplete last write) is not a problem, only a note: the next opening cuts it, and nothing in it
was acknowledged.
Rule: if segments and Parquet both hold a seq, they must hold the same fact. They are compared by digests of the
records' bytes, so that memory does not grow with the log.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from whimbrel.errors import InvalidValueError, WhimbrelError
from whimbrel.log import layout
from whimbrel.log.checkpoints.folder import checked
from whimbrel.log.errors import CorruptLogError
from whimbrel.log.layout import Part
from whimbrel.log.parts import batches, part_rows
from whimbrel.log.reader import named_header
from whimbrel.log.records import body_of, row_from
from whimbrel.log.segments import NEVER, Scan, is_proven_later, is_torn_creation
from whimbrel.model.facts import Fact
from whimbrel.model.rows import COLUMNS, fact_of, values_of

__all__ = ["Verified", "verify"]


@dataclass(slots=True)
class Verified:
    """Result of a verification: counts of what was read, the problems, and the notes."""

    segments: int = 0
    records: int = 0
    parts: int = 0
    rows: int = 0
    checkpoints: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Suppress a ``WhimbrelError`` or ``OSError`` in the ``with`` block, and record it as a problem."""
        try:
            yield
        except WhimbrelError as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(f"{error.filename}: {error.strerror}")


class _Digest:
    """SHA-256 over a sequence of facts, and their number."""

    def __init__(self) -> None:
        self.count, self._hash = 0, hashlib.sha256()

    def add(self, body: bytes) -> None:
        self.count += 1
        self._hash.update(len(body).to_bytes(8, "big") + body)

    def __str__(self) -> str:
        return f"{self.count} rows {self._hash.hexdigest()}"


def verify(directory: Path) -> Verified:
    """Check every frame, the order of seqs and times, every Parquet file, and that Parquet agrees with segments."""
    layout.check_format(directory)
    result = Verified()
    for node in layout.nodes(directory):
        _Node(directory, node, result).verify()
    for part in layout.all_parts(directory, layout.DEAD_LETTERS):
        with result.noting():
            result.rows += sum(batch.num_rows for batch in batches(part))
            result.parts += 1
    return result


class _Node:
    """Verification of one node: one pass over its segments, one over its Parquet files."""

    def __init__(self, directory: Path, node: str, result: Verified) -> None:
        self._directory, self._node, self._result = directory, node, result
        self._exported = 0
        with result.noting():
            self._exported = layout.exported_seq(directory, node)
        self._parts: dict[tuple[str, date], list[Part]] = defaultdict(list)
        for table in COLUMNS:
            for part in layout.parts(directory, table):
                if part.node == node:
                    self._parts[table, part.date].append(part)
        self._seen: dict[Path, _Digest] = defaultdict(_Digest)
        self._missing: Counter[tuple[str, date]] = Counter()
        self._next_seq, self._last_at = 0, NEVER

    def verify(self) -> None:
        found = layout.segments(self._directory, self._node)
        before = len(self._result.problems)
        for index, (first, path) in enumerate(found):
            with self._result.noting():
                self._verify_segment(first, path, is_first=index == 0, is_last=index == len(found) - 1)
        is_whole = bool(found) and len(self._result.problems) == before
        for (table, day), parts in sorted(self._parts.items()):
            for part in parts:
                # A part is compared with segments only if they are whole and cover its range.
                is_covered = is_whole and found[0][0] <= part.first and part.last < self._next_seq
                with self._result.noting():
                    self._verify_part(table, day, part, is_covered=is_covered)
        self._tell_missing()
        self._verify_checkpoints(found[0][0] if found else 0)
        if found:
            self._tell_gaps(found[0][0])

    def _verify_checkpoints(self, begin: int) -> None:
        """Read every checkpoint whole; report those that end before the seq *begin* or after the segments' end.

        *begin* is the first seq in the segments.
        """
        for seq, path in layout.checkpoints(self._directory, self._node):
            with self._result.noting():
                checked(path, self._node, seq)
                self._result.checkpoints += 1
                if begin and seq + 1 < begin:
                    note = f"{path}: ends before seq {begin}, where the segments begin: a start cannot use it"
                    self._result.notes.append(note)
                if self._next_seq and seq >= self._next_seq:
                    self._result.problems.append(
                        f"{path}: seq {seq} was durable, and the segments end with {self._next_seq - 1}"
                    )

    def _tell_gaps(self, begin: int) -> None:
        """Report seqs that are neither in Parquet nor in the segments, whose first seq is *begin*."""
        where = layout.segments_folder(self._directory, self._node)
        if self._next_seq and self._exported >= self._next_seq:
            self._result.problems.append(
                f"{where}: ends with seq {self._next_seq - 1}, and {self._exported} is said to be exported: "
                "the segments after it are missing"
            )
        if begin > self._exported + 1:
            known = any(begin <= seq + 1 for seq, _ in layout.checkpoints(self._directory, self._node))
            state = ": they were cut, and what came of them is in a checkpoint" if known else ""
            note = f"{where}: seq {self._exported + 1} to {begin - 1} are neither exported nor there{state}"
            self._result.notes.append(note)

    def _verify_segment(self, first: int, path: Path, *, is_first: bool, is_last: bool) -> None:
        if is_last and is_torn_creation(path):
            self._result.notes.append(f"{path}: a segment that was never begun, which opening will remove")
            return
        with path.open("rb") as stream:
            header = named_header(stream, path, self._node, first)
            if is_first:
                self._last_at = header.last_at
            elif first != self._next_seq:
                self._result.problems.append(f"{path}: begins with seq {first}, where {self._next_seq} comes next")
            elif header.last_at != self._last_at:
                self._result.problems.append(
                    f"{path}: its header says {header.last_at} for the time of the fact before"
                )
            self._result.segments += 1
            scan = Scan(stream, header)
            for offset, seq, number, payload in scan:
                self._next_seq = seq + 1
                try:
                    self._take(fact_of(*row_from(self._node, seq, number, payload)))
                except InvalidValueError as error:
                    raise CorruptLogError(path, offset, str(error)) from None
            self._next_seq = scan.next_seq
            if scan.trouble is not None:
                if not is_last or is_proven_later(stream, header, scan.end, scan.next_seq):
                    raise CorruptLogError(path, scan.end, scan.trouble)
                note = f"{path}: after seq {scan.next_seq - 1} a torn tail at byte {scan.end}, which opening will cut"
                self._result.notes.append(note)

    def _take(self, fact: Fact) -> None:
        self._result.records += 1
        body, at = body_of(fact)
        if at < self._last_at:
            raise InvalidValueError("time", at, f"not before {self._last_at}, the fact before")
        self._last_at = at
        table, _ = values_of(fact)
        parts = self._parts.get((table, layout.date_of(at)), [])
        place = bisect_right(parts, fact.seq, key=lambda part: part.first) - 1
        if place >= 0 and fact.seq <= parts[place].last:
            self._seen[parts[place].path].add(body)
        elif fact.seq <= self._exported:
            self._missing[table, layout.date_of(at)] += 1

    def _verify_part(self, table: str, day: date, part: Part, *, is_covered: bool) -> None:
        digest, seq = _Digest(), part.first - 1
        for row in part_rows(part, table):
            try:
                fact = fact_of(table, row)
                body, at = body_of(fact)
            except InvalidValueError as error:
                raise CorruptLogError(part.path, 0, f"row {digest.count}: {error}") from None
            if not seq < fact.seq <= part.last or fact.node != part.node or layout.date_of(at) != day:
                raise CorruptLogError(part.path, 0, f"row {digest.count}, {fact.node}:{fact.seq}, is out of its place")
            seq = fact.seq
            digest.add(body)
        self._result.parts += 1
        self._result.rows += digest.count
        seen = self._seen[part.path]
        if is_covered and str(seen) != str(digest):
            what = f"holds {digest.count} rows, the segments {seen.count}" if seen.count != digest.count else "differs"
            raise CorruptLogError(part.path, 0, f"does not agree with the segments: it {what}")

    def _tell_missing(self) -> None:
        # Retention removes the oldest days of all tables before it removes segments: such days are not missing.
        oldest = min((day for _, day in self._parts), default=date.max)
        for (table, day), count in sorted(self._missing.items()):
            if day >= oldest:
                self._result.problems.append(
                    f"{self._directory}: {count} rows of {table}, {day.isoformat()}, {self._node} are said to be "
                    "exported, and no part holds them"
                )
