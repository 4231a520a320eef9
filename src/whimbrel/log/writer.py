"""The writer: appends facts to a node's log and says when they are durable.

Rule: ``append`` only remembers; ``sync`` writes everything remembered as one group and waits for the disk. No caller is
told of a fact before the sync that covers it has returned.
Rule: ``sync(wait=False)`` writes the group and does not wait. The end of the process cannot take it back, a power
failure or a failing disk can; the receiver of such a fact must be content with that. It is durable with the next
sync that waits, and at the latest when its segment is full. A mark, which proves all before it, is written only where
nothing unwaited stands before it; so the rules by which torn is told from damaged (``segments``) hold as they are.
Rule: one thread may append while another syncs (a broker appends on its event loop and syncs beside it). Two that
append, or two writers of one node, are refused or undefined: a node has one order.
Rule: after a failed write the file ends where it did before, and the facts of the group are still remembered: not
accepted, but not forgotten, until they are written by another sync or given up (``discard``). After a failed fsync the
file ends where what is durable ends, and nothing more is written until the log is reopened, because the system may
have dropped the pages it could not write and would call the next fsync a success.
Rule: no number is given twice. Where others prove that numbers were given whose records are not here (an export, a
checkpoint, a view), the log is not opened, and nothing of it is changed, unless its owner accepts the loss and says
how to go on (``begin_at``).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from zlib import crc32

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.log import layout
from whimbrel.log.descriptors import open_descriptor
from whimbrel.log.errors import CorruptLogError, LogError, LogWriteError, MissingRecordsError
from whimbrel.log.files import lock_folder, make_folder, put, rename, sync_file, write_all
from whimbrel.log.incarnation import ensure_incarnation, renew_incarnation
from whimbrel.log.records import HEAD, MAX_BODY_BYTES, body_of, mark, time_from
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
_PIECE_BYTES = 256 << 10
"""A group is written in pieces of so many bytes, so that a disk with little room takes the first of them."""
_FIRST_SEQ = 1
_REOPEN = "reopen the log to go on"
_MISSING = "records are missing, and no number was given to go on with"
_LOST = ".lost-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What was found when a log was opened."""

    last_seq: int
    """The last whole record; 0 in a new log."""
    records: int
    """How many records the last segment holds."""
    cut_bytes: int
    """The torn tail that was cut off: what was being written when the node died. None of it was acknowledged."""
    cut_from: Path | None = None
    missing_to: int = 0
    """The last number that was given and whose record is not here; 0 if none is missing."""


class _End(NamedTuple):
    """A place where the log could end: its last fact, and how long the segment is."""

    seq: int
    at: int
    size: int


class LogWriter:
    """The one writer of *node*'s log in *directory*; use it in a ``with`` block, or ``open`` and ``close`` it.

    A segment ends at *segment_bytes* or, if *segment_us* is not 0, before the first record that is so much younger
    than the segment's first: else a log that grows slowly could not be cut by age.
    """

    def __init__(self, directory: Path, node: str, *, segment_bytes: int = SEGMENT_BYTES, segment_us: int = 0) -> None:
        NotificationId(node, 0)
        self.directory, self.node = directory, node
        self._segment_bytes = whole("segment_bytes", segment_bytes, 1, INT64_MAX)
        self._segment_us = whole("segment_us", segment_us, 0, INT64_MAX)
        self._begun_at: int | None = None
        """The time of the first record of the segment that grows."""
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
        """How many bytes were written since it was made."""

    # -- opening and closing -----------------------------------------------------------------------------------------

    def open(self, *, given_by: Callable[[], tuple[int, str]] | None = None, accepts_loss: bool = False) -> Recovery:
        """Open the log, making it if need be; find the last whole record and cut what is torn after it.

        *given_by* is asked, once the log is locked, for the last number that another system knows to be durable, and
        who that is. Where the log ends before it, or before what was exported, records are missing: an error or, where
        the owner *accepts_loss*, ``Recovery.missing_to``; then nothing is written before ``begin_at``.
        """
        if self._lock_file >= 0:
            raise LogError(f"{self._folder}: this writer is open already")
        layout.create(self.directory)
        make_folder(self._folder)
        self._lock_file = lock_folder(self._folder, "writing this log")
        try:
            recovery = self._recover(*self._given(given_by), accepts_loss=accepts_loss)
            with suppress(LogWriteError):  # a disk that is full is no reason not to serve what is there
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
        """Go on with the number *first* after records were lost; the segments that there are, are set aside.

        Readers see a log that begins with *first*, as if what is older had been cut: a log has no gaps.
        """
        assert self._fault == _MISSING, self._fault
        renew_incarnation(self.directory, self.node)  # first: a crash must not leave the old one beside what follows
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
        """Sync what is left, mark that all is durable, and let the log go."""
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
            with suppress(LogError):  # the first error is the one to tell
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
        """The last seq that is on the disk."""
        return self._durable.seq

    @property
    def written_seq(self) -> int:
        """The last seq that is in the file, where only a power failure or the disk itself can take it back."""
        return self._written.seq

    @property
    def pending(self) -> int:
        """How many facts are remembered and not yet written."""
        return len(self._buffer)

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing that ``settle`` would write."""
        return self._is_marked and not self._buffer

    @property
    def is_faulty(self) -> bool:
        """Whether nothing can be written until the log is opened again."""
        return self._fault is not None

    def append(self, fact: Fact) -> None:
        """Remember *fact* for the next sync; it must be the next in seq and not earlier than the last."""
        if fact.seq != self._next_seq or fact.node != self.node:
            raise InvalidValueError(
                "seq", f"{fact.node}:{fact.seq}", f"{self.node}:{self._next_seq}, the next of the log"
            )
        self.append_body(*body_of(fact))

    def append_body(self, body: bytes, at: int) -> int:
        """Remember the record *body* of a fact of the time *at*; return its seq.

        The caller has made it of ``next_seq`` (``records.publication_body``); that it is so is not looked at.
        """
        if not self._last_at <= at <= LAST_TIME or at < FIRST_TIME:
            low = max(self._last_at, FIRST_TIME)
            raise InvalidValueError("time", at, f"from {low}, the last fact's, to {LAST_TIME}: time does not go back")
        if len(body) > MAX_BODY_BYTES:
            raise InvalidValueError("record", Phrase(f"{len(body)} bytes"), f"at most {MAX_BODY_BYTES} bytes")
        if self._fault is not None:
            raise LogWriteError(self._folder, self._fault, _REOPEN)
        seq = self._next_seq
        self._buffer.append((body, at))
        self._next_seq = seq + 1
        self._last_at = at
        return seq

    def discard(self) -> int:
        """Forget what is remembered and not written, and return how many facts are gone.

        For the thread that appends, after a failed sync, once it has told their publishers that they are not accepted:
        their numbers are given again. A running sync is waited for; what it wrote is not forgotten.
        """
        with self._syncing:
            before = self._next_seq
            self._buffer.clear()
            self._next_seq, self._last_at = self._written.seq + 1, self._written.at
            return before - self._next_seq

    def sync(self, *, wait: bool = True) -> int:
        """Write all that is remembered and, where it is to *wait*, fsync all that is written.

        Return the last durable seq or, where it did not wait, the last written one. A running sync is waited for.
        Where the disk takes only the beginning of what is remembered, the error says which facts stay remembered;
        those before them are written, and durable if it was to wait.
        """
        with self._syncing:
            if self._fault is not None:
                raise LogWriteError(self._folder, self._fault, _REOPEN)
            # Slices of one list, never another list: an append on another thread is in this group or in the next.
            before = self._written.seq
            for piece in _pieces(self._buffer[:]):
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
        """Sync what is left and mark that all is durable, so that readers see all of it; return the last seq.

        For a node that has written facts without waiting for them, or has nothing to write for a while: until a mark
        says so, no reader can tell that its last group will stay.
        """
        self.sync()
        with self._syncing:
            if self._fault is not None:
                raise LogWriteError(self._folder, self._fault, _REOPEN)
            self._mark()
            return self._durable.seq

    def end_segment(self, least_bytes: int) -> bool:
        """End the segment that grows if it has *least_bytes*, and return whether it did: a closed one can be cut."""
        with self._syncing:
            if self._fault is not None or self._written.size < max(least_bytes, HEADER_BYTES + 1):
                return False
            self._make_durable(self._written)
            self._roll(self._durable.seq + 1, self._durable.at)
            return True

    def _commit(self, group: list[tuple[bytes, int]]) -> None:
        if self._written.size >= self._segment_bytes or self._is_old(group[0][1]):
            self._make_durable(self._written)  # a segment that another follows is proven by that alone
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
        """Tell whether the segment is too old for a record of the time *at*."""
        return bool(self._segment_us) and self._begun_at is not None and at - self._begun_at >= self._segment_us

    def _is_mark_due(self) -> bool:
        """Tell whether a mark may stand next, all before it being durable, and would say anything new."""
        return not self._is_marked and self._durable.seq == self._written.seq

    def _mark(self) -> None:
        if self._is_mark_due():
            self._write(mark(self._durable.seq, self._salt), self._durable)
            self._make_durable(self._written)
            self._is_marked = True

    def _write(self, data: bytes, end: _End) -> None:
        """Write *data*, after which the file ends with *end*'s fact."""
        try:
            write_all(self._file, data)
        except OSError as error:
            self._cut_to(self._written)
            raise self._write_error(error) from error
        except BaseException:  # Ctrl-C: how much was written is not known
            self._fault = "a write was interrupted"
            raise
        self._written = _End(end.seq, end.at, self._written.size + len(data))
        self.grown_bytes += len(data)

    def _make_durable(self, end: _End) -> None:
        """Wait until the disk has all up to *end*, which is written."""
        if end == self._durable:
            return
        try:
            os.fsync(self._file)
        except OSError as error:
            self._cut_to(self._durable)
            # What was written and not waited for is gone too: the disk failed, and no promise covers that.
            self._written, self._fault = self._durable, "an earlier fsync failed"
            raise self._write_error(error, _REOPEN) from error
        except BaseException:
            self._fault = "an fsync was interrupted"
            raise
        self._durable = end

    def _cut_to(self, end: _End) -> None:
        """Cut the file where *end* says; where even that fails, reopening will do it."""
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
        """Begin a new segment; the one before is whole and durable."""
        header = Header(node=self.node, first=first, last_at=last_at, salt=int.from_bytes(os.urandom(4)))
        path = layout.segment_path(self.directory, self.node, first)
        put(path, header.packed())
        try:
            file = open_descriptor(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise LogWriteError(path, error.strerror or str(error)) from error
        self._drop_file()
        self._file, self._path, self._salt = file, path, header.salt
        self._durable = self._written = _End(first - 1, last_at, HEADER_BYTES)
        self._is_marked, self._begun_at = True, None

    def _given(self, given_by: Callable[[], tuple[int, str]] | None) -> tuple[int, str]:
        """Return the last number that is known to have been given, and who knows it."""
        exported = layout.exported_seq(self.directory, self.node), f"its export, {layout.EXPORTED_FILE},"
        state = max(layout.checkpoints(self.directory, self.node), default=(0, self._folder))  # fsynced before it
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
        """Take up the segment at *path*; return how many records it holds and how many bytes were cut."""
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
        torn = 0 if is_short else os.fstat(self._file).st_size - scan.end  # what is damaged is set aside as it is
        if torn:
            os.ftruncate(self._file, scan.end)
        os.fsync(self._file)  # what survived the node's death may still be in memory only
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


def _pieces(group: list[tuple[bytes, int]]) -> Iterator[list[tuple[bytes, int]]]:
    """Yield the records of a group in pieces that a nearly full disk may take one by one."""
    begin = size = 0
    for at, (body, _) in enumerate(group):
        size += len(body)
        if size > _PIECE_BYTES and at > begin:
            yield group[begin:at]
            begin, size = at, len(body)
    if group:
        yield group[begin:]


def _time_of(record: Record, path: Path) -> int:
    try:
        return time_from(record.table, record.payload)
    except InvalidValueError as error:
        raise CorruptLogError(path, record.offset, str(error)) from None
