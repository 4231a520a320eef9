"""The writer: append facts to a node's log, and report which of them are durable.

Rule: ``append`` only buffers a fact; ``sync`` writes all buffered facts as one group and fsyncs it (group commit). A
caller acknowledges a fact only after the sync that covers it has returned.
Rule: ``sync(wait=False)`` writes the group without an fsync. The facts survive the end of the process, but not a power
failure or a failing disk; so only facts that may be lost are written so. They become durable with the next sync that
waits, at the latest when their segment is full. A mark, which proves all records before it, is written only when no
record before it still lacks an fsync. So the rules that distinguish torn from damaged (``segments``) stay valid.
Rule: one thread may append while another syncs (a broker appends on its event loop and syncs in a thread). Two threads
must not append at once: the result is undefined. A second writer of a node is refused: a node's log has one order.
Rule: after a failed write the file is cut back to its old end, and the facts of the group stay buffered. They are not
accepted, but another sync may write them, or ``discard`` drops them.
Rule: after a failed fsync the file is cut back to its durable end, and nothing is written until the log is reopened.
The reason: the system may have dropped the pages that it could not write, and report the next fsync as a success.
Rule: no seq is given twice. An export, a checkpoint or a view may prove that seqs were given whose records are missing
here. Then the log is not opened, and no file of it is changed, unless its owner accepts the loss and chooses the next
seq (``begin_at``).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from zlib import crc32

from whimbrel.errors import InvalidValueError, Phrase, WhimbrelError
from whimbrel.log import layout
from whimbrel.log.descriptors import open_descriptor
from whimbrel.log.errors import CorruptLogError, LogError, LogWriteError, MissingRecordsError
from whimbrel.log.files import lock_folder, make_folder, put, rename, sync_file, write_all
from whimbrel.log.incarnation import ensure_incarnation, renew_incarnation
from whimbrel.log.records import HEAD, MAX_BODY_BYTES, body_of, mark, pieces_of, time_from
from whimbrel.log.segments import (
    HEADER_BYTES,
    NEVER,
    Header,
    Record,
    Scan,
    is_proven_later,
    is_torn_creation,
    read_header,
)
from whimbrel.model.bounds import FIRST_TIME, INT64_MAX, LAST_TIME, whole
from whimbrel.model.facts import Fact
from whimbrel.model.notification import NotificationId

__all__ = ["SEGMENT_BYTES", "LogWriter", "Recovery"]

SEGMENT_BYTES = 64 << 20
_FIRST_SEQ = 1
_REOPEN = "reopen the log to go on"
_MISSING = "records are missing, and no number was given to go on with"
_LOST = ".lost-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Result of opening a log: its last record, and what was cut or is missing."""

    last_seq: int
    """The seq of the last whole record; 0 in a new log."""
    records: int
    """Number of records in the last segment."""
    cut_bytes: int
    """Size of the torn tail that was cut off: records being written when the node died, none of them acknowledged."""
    cut_from: Path | None = None
    missing_to: int = 0
    """The last seq that was assigned to a fact whose record is missing; 0 if none is missing."""


class _End(NamedTuple):
    """A possible end of the log: seq and time of its last fact, and the size of the segment there."""

    seq: int
    at: int
    size: int


class LogWriter:
    """The one writer of *node*'s log in *directory*; use it in a ``with`` block, or ``open`` and ``close`` it.

    A segment ends once it has *segment_bytes*. If *segment_us* is not 0, a segment also ends before a record that is at
    least that much younger than the segment's first record. Otherwise a slowly growing log could not be cut by age.
    """

    def __init__(self, directory: Path, node: str, *, segment_bytes: int = SEGMENT_BYTES, segment_us: int = 0) -> None:
        NotificationId(node, 0)
        self.directory, self.node = directory, node
        self._segment_bytes = whole("segment_bytes", segment_bytes, 1, INT64_MAX)
        self._segment_us = whole("segment_us", segment_us, 0, INT64_MAX)
        self._begun_at: int | None = None
        """The time of the first record of the open segment."""
        self._folder = layout.segments_folder(directory, node)
        self._syncing = threading.Lock()
        self._fault: str | None = "it is not open"
        self._lock_file = self._file = -1
        self._buffer: list[tuple[bytes, int]] = []
        self._next_seq, self._last_at = _FIRST_SEQ, NEVER
        self._durable = self._written = _End(_FIRST_SEQ - 1, NEVER, 0)
        self._is_marked, self._salt = True, 0
        self._path = self._folder
        self.grown_bytes = 0
        """Number of bytes that this writer has written to segments, headers not counted."""

    # -- opening and closing -----------------------------------------------------------------------------------------

    def open(self, *, given_by: Callable[[], tuple[int, str]] | None = None, accepts_loss: bool = False) -> Recovery:
        """Open the log, or create it; find the last whole record, and cut the torn tail (an incomplete write) after it.

        *given_by* is called once the log is locked. It returns the last seq that another system knows to be durable,
        and the name of that system. If the log ends before that seq, or before the last exported seq, records are
        missing: an error or, if the owner *accepts_loss*, ``Recovery.missing_to``. In the second case nothing can be
        written before ``begin_at`` is called.
        """
        if self._lock_file >= 0:
            raise LogError(f"{self._folder}: this writer is open already")
        layout.create(self.directory)
        make_folder(self._folder)
        self._lock_file = lock_folder(self._folder, "writing this log")
        try:
            recovery = self._recover(*self._resolve(given_by), accepts_loss=accepts_loss)
            with suppress(LogWriteError):  # a full disk must not keep the node from serving what it has
                ensure_incarnation(self.directory, self.node)
        except OSError as error:
            self._release()
            raise LogWriteError(self._folder, error.strerror or str(error)) from error
        except BaseException:
            self._release()
            raise
        self._fault = _MISSING if recovery.missing_to else None
        return recovery

    def begin_at(self, first: int) -> None:
        """Continue with the seq *first* after records were lost; move the existing segments to a folder aside.

        Readers see a log that begins with *first*, as if all older records had been cut: a log has no gaps.
        """
        assert self._fault == _MISSING, self._fault
        renew_incarnation(self.directory, self.node)  # first, so that a crash never leaves it with new facts
        last_at, old = self._durable.at, layout.segments(self.directory, self.node)
        self._drop_file()
        aside = next(path for number in count(1) if not (path := self._folder / f"{_LOST}{number}").exists())
        make_folder(aside)
        try:
            for _, path in old:
                rename(path, aside / path.name)
            sync_file(self._folder)
        except OSError as error:
            raise LogWriteError(aside, error.strerror or str(error)) from error
        self._roll(first, last_at)
        self._next_seq, self._last_at, self._fault = first, last_at, None

    def close(self) -> None:
        """Sync the buffered facts, write a last mark (a commit marker), and release the file and the lock."""
        try:
            if self._fault is None:
                self.settle()
        finally:
            self._release()

    def __enter__(self) -> Self:
        if self._lock_file < 0:
            self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            with suppress(LogError):  # the first error is the one to report
                self.close()

    # -- appending ---------------------------------------------------------------------------------------------------

    @property
    def next_seq(self) -> int:
        """The seq that the next fact must have."""
        return self._next_seq

    @property
    def last_at(self) -> int:
        """The time of the last fact; the next must not be earlier (``model.facts.later``)."""
        return self._last_at

    @property
    def durable_seq(self) -> int:
        """The last seq that is durable (fsynced)."""
        return self._durable.seq

    @property
    def written_seq(self) -> int:
        """The last seq that is written to the file; a power failure or a failing disk may still lose it."""
        return self._written.seq

    @property
    def pending(self) -> int:
        """Number of facts that are buffered and not yet written."""
        return len(self._buffer)

    @property
    def is_settled(self) -> bool:
        """Whether ``settle`` would write nothing: no fact is buffered, and a mark proves all records."""
        return self._is_marked and not self._buffer

    @property
    def is_faulty(self) -> bool:
        """Whether the log must be reopened before anything can be written."""
        return self._fault is not None

    def append(self, fact: Fact) -> None:
        """Buffer *fact* for the next sync; its seq must be the next, and its time not earlier than the last fact's."""
        if fact.seq != self._next_seq or fact.node != self.node:
            raise InvalidValueError(
                "seq", f"{fact.node}:{fact.seq}", f"{self.node}:{self._next_seq}, the next of the log"
            )
        self.append_body(*body_of(fact))

    def append_body(self, body: bytes, at: int) -> int:
        """Buffer the record *body* of a fact of the time *at*; return the fact's seq.

        The caller has built *body* with the seq ``next_seq`` (``compact.publication_body``); this is not checked.
        """
        if not (self._last_at <= at <= LAST_TIME and at >= FIRST_TIME and len(body) <= MAX_BODY_BYTES) or self._fault:
            raise self._append_error(at, len(body))
        seq = self._next_seq
        self._buffer.append((body, at))
        self._next_seq = seq + 1
        self._last_at = at
        return seq

    def append_bodies(self, bodies: Sequence[bytes], at: int) -> int:
        """Buffer the records of several facts of the time *at*, as ``append_body`` does; return the seq of the first.

        The seqs of the facts are ``next_seq`` and those that follow it.
        """
        longest = max(map(len, bodies), default=0)
        if not (self._last_at <= at <= LAST_TIME and at >= FIRST_TIME and longest <= MAX_BODY_BYTES) or self._fault:
            raise self._append_error(at, longest)
        seq = self._next_seq
        self._buffer += [(body, at) for body in bodies]  # in one step: another thread may take them at any time
        self._next_seq = seq + len(bodies)
        self._last_at = at
        return seq

    def _append_error(self, at: int, longest: int) -> WhimbrelError:
        """Return why a record of the time *at* with *longest* bytes cannot be buffered."""
        low = max(self._last_at, FIRST_TIME)
        if not low <= at <= LAST_TIME:
            return InvalidValueError("time", at, f"from {low}, the last fact's, to {LAST_TIME}: time does not go back")
        if longest > MAX_BODY_BYTES:
            return InvalidValueError("record", Phrase(f"{longest} bytes"), f"at most {MAX_BODY_BYTES} bytes")
        return LogWriteError(self._folder, self._fault or "", _REOPEN)

    def discard(self) -> int:
        """Drop the buffered facts that are not written, and return how many were dropped.

        The appending thread calls this after a failed sync, once it has told the publishers that the facts are not
        accepted: new facts get their seqs. A running sync is waited for; facts that it wrote are not dropped.
        """
        with self._syncing:
            before = self._next_seq
            self._buffer.clear()
            self._next_seq, self._last_at = self._written.seq + 1, self._written.at
            return before - self._next_seq

    def sync(self, *, wait: bool = True) -> int:
        """Write all buffered facts and, if *wait*, fsync all that is written.

        Return the last durable seq or, without *wait*, the last written seq. A running sync is waited for.
        If the disk takes only the first of the buffered facts, the error names the facts that stay buffered. The facts
        before them are written and, if *wait*, durable.
        """
        with self._syncing:
            if self._fault is not None:
                raise LogWriteError(self._folder, self._fault, _REOPEN)
            # The buffer stays one list object: a fact that another thread appends is in this group or in the next.
            before = self._written.seq
            for piece in pieces_of(self._buffer[:]):
                try:
                    self._commit(piece)
                except LogWriteError:
                    if wait and self._fault is None and self._written.seq > before:
                        self._make_durable(self._written)
                    raise
                del self._buffer[: len(piece)]
            if wait:
                self._make_durable(self._written)
            return self._durable.seq if wait else self._written.seq

    def settle(self) -> int:
        """Write and fsync the buffered facts, then a mark if one is due; return the last durable seq.

        The mark proves to readers that the facts are durable. Before it, a reader cannot know whether the facts that
        were written last will survive a crash. So the broker calls this about once a second, if it is needed and
        possible; ``close`` calls it, too.
        """
        self.sync()
        with self._syncing:
            if self._fault is not None:
                raise LogWriteError(self._folder, self._fault, _REOPEN)
            self._mark()
            return self._durable.seq

    def end_segment(self, least_bytes: int) -> bool:
        """Close the open segment if it has *least_bytes*, so that it can be cut; return whether it was closed."""
        with self._syncing:
            if self._fault is not None or self._written.size < max(least_bytes, HEADER_BYTES + 1):
                return False
            self._make_durable(self._written)
            self._roll(self._durable.seq + 1, self._durable.at)
            return True

    def _commit(self, group: list[tuple[bytes, int]]) -> None:
        if self._written.size >= self._segment_bytes or self._is_old(group[0][1]):
            self._make_durable(self._written)  # needs no mark: the next segment proves it
            self._roll(self._durable.seq + 1, self._durable.at)
        if self._begun_at is None:
            self._begun_at = group[0][1]
        salt, pack = self._salt, HEAD.pack
        frames = [mark(self._durable.seq, salt)] if self._is_mark_due() else []
        for body, _ in group:
            frames += (pack(len(body), crc32(body, salt)), body)
        self._write(b"".join(frames), _End(self._written.seq + len(group), group[-1][1], 0))
        self._is_marked = False

    def _is_old(self, at: int) -> bool:
        """Return whether the open segment is too old for a record of the time *at*."""
        return bool(self._segment_us) and self._begun_at is not None and at - self._begun_at >= self._segment_us

    def _is_mark_due(self) -> bool:
        """Return whether every written record is durable, but no mark that proves the last ones is written yet."""
        return not self._is_marked and self._durable.seq == self._written.seq

    def _mark(self) -> None:
        if self._is_mark_due():
            self._write(mark(self._durable.seq, self._salt), self._durable)
            self._make_durable(self._written)
            self._is_marked = True

    def _write(self, data: bytes, end: _End) -> None:
        """Append *data*, whole frames; then the log ends at ``end.seq``. On failure restore the file's old size."""
        try:
            write_all(self._file, data)
        except OSError as error:
            self._cut_to(self._written)
            raise self._write_error(error) from error
        except BaseException:  # Ctrl-C: an unknown part was written
            self._fault = "a write was interrupted"
            raise
        self._written = _End(end.seq, end.at, self._written.size + len(data))
        self.grown_bytes += len(data)

    def _make_durable(self, end: _End) -> None:
        """Fsync the file, whose last record has the seq in *end*; on failure truncate it to its durable part."""
        if end == self._durable:
            return
        try:
            os.fsync(self._file)
        except OSError as error:
            self._cut_to(self._durable)
            # Facts that were written without an fsync are lost too: no promise covers a failing disk.
            self._written, self._fault = self._durable, "an earlier fsync failed"
            raise self._write_error(error, _REOPEN) from error
        except BaseException:
            self._fault = "an fsync was interrupted"
            raise
        self._durable = end

    def _cut_to(self, end: _End) -> None:
        """After a failed write or fsync truncate the file to the size in *end*; if this fails, reopening does it."""
        try:
            os.ftruncate(self._file, end.size)
        except OSError:
            self._fault = "what was half written could not be taken back"

    def _write_error(self, error: OSError, advice: str = "") -> LogWriteError:
        first, last = self._written.seq + 1, self._next_seq - 1
        before = "durable" if self._written == self._durable else f"written, to {self._durable.seq} durable"
        kept = f"seq {first} to {last} not accepted, all before is {before}" if first <= last else ""
        return LogWriteError(self._path, error.strerror or str(error), "; ".join(filter(None, (kept, advice))))

    # -- segments ----------------------------------------------------------------------------------------------------

    def _roll(self, first: int, last_at: int) -> None:
        """Create the segment that begins with the seq *first*; the segment before it is whole and durable."""
        header = Header(node=self.node, first=first, last_at=last_at, salt=int.from_bytes(os.urandom(4)))
        path = layout.segment_path(self.directory, self.node, first)
        put(path, header.pack())
        try:
            file = open_descriptor(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise LogWriteError(path, error.strerror or str(error)) from error
        self._drop_file()
        self._file, self._path, self._salt = file, path, header.salt
        self._durable = self._written = _End(first - 1, last_at, HEADER_BYTES)
        self._is_marked, self._begun_at = True, None

    def _resolve(self, given_by: Callable[[], tuple[int, str]] | None) -> tuple[int, str]:
        """Return the last seq that is known to be assigned, and the name of the file or system that proves it."""
        exported = layout.exported_seq(self.directory, self.node), f"its export, {layout.EXPORTED_FILE},"
        state = max(layout.checkpoints(self.directory, self.node), default=(0, self._folder))  # its facts are durable
        known = max(exported, (state[0], f"its checkpoint, {state[1].name},"))
        return known if given_by is None else max(known, given_by())

    def _recover(self, given: int, knower: str, *, accepts_loss: bool) -> Recovery:
        self._buffer.clear()
        found = layout.segments(self.directory, self.node)
        cut_bytes, cut_from, begin = 0, None, layout.exported_seq(self.directory, self.node) + 1
        if found and is_torn_creation(found[-1][1]):
            begin, cut_from = found.pop()
            cut_bytes = cut_from.stat().st_size
            cut_from.unlink()
            sync_file(self._folder)
        if not found:  # seqs are never given twice, even after every segment was removed
            if begin <= given and not accepts_loss:
                raise self._missing(begin - 1, given, knower)
            self._roll(begin, NEVER)
        records = 0
        if found:
            records, torn = self._recover_segment(*found[-1], given, knower, accepts_loss=accepts_loss)
            if torn:
                cut_bytes, cut_from = cut_bytes + torn, self._path
        last = self._durable.seq
        self._next_seq, self._last_at = last + 1, self._durable.at
        return Recovery(
            last_seq=last,
            records=records,
            cut_bytes=cut_bytes,
            cut_from=cut_from,
            missing_to=given if last < given else 0,
        )

    def _missing(self, last: int, given: int, knower: str) -> MissingRecordsError:
        reason = f"the log of {self.node} ends with {last}, and {knower} proves that there were {given}"
        advice = (
            "restore the segments, or start with --accept-loss: "
            "sessions go on as the view knows them, and none of these numbers is given again"
        )
        return MissingRecordsError(self._folder, last + 1, given, reason, advice)

    def _recover_segment(
        self, first: int, path: Path, given: int, knower: str, *, accepts_loss: bool
    ) -> tuple[int, int]:
        """Open the segment at *path* to append to it; return its number of records and the size of the tail cut off."""
        self._path, self._file = path, open_descriptor(path, os.O_RDWR | os.O_APPEND)
        with path.open("rb") as stream:
            header = read_header(stream, path)
            if (header.node, header.first) != (self.node, first):
                raise CorruptLogError(path, 0, f"its header says {header.node}:{header.first}")
            scan = Scan(stream, header)
            records = iter(scan)
            begun = next(records, None)
            last = deque(records, maxlen=1) or ([] if begun is None else [begun])
            if scan.trouble is not None and is_proven_later(stream, header, scan.end, scan.next_seq):
                raise CorruptLogError(path, scan.end, scan.trouble)
        is_short = scan.next_seq - 1 < given
        if is_short and not accepts_loss:
            raise self._missing(scan.next_seq - 1, given, knower)
        torn = 0 if is_short else os.fstat(self._file).st_size - scan.end  # a segment to set aside is not cut
        if torn:
            os.ftruncate(self._file, scan.end)
        os.fsync(self._file)  # records that survived the node's death may not be on disk yet
        self._salt, self._is_marked = header.salt, scan.is_marked
        last_at = _time_of(last[0], path) if last else header.last_at
        self._begun_at = None if begun is None else _time_of(begun, path)
        self._durable = self._written = _End(scan.next_seq - 1, last_at, scan.end)
        if not is_short:
            self._mark()
        return scan.next_seq - header.first, torn

    def _drop_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _release(self) -> None:
        self._fault = self._fault or "it is not open"
        self._drop_file()
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1


def _time_of(record: Record, path: Path) -> int:
    try:
        return time_from(record.table, record.payload)
    except InvalidValueError as error:
        raise CorruptLogError(path, record.offset, str(error)) from None
