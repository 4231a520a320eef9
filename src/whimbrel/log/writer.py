"""The writer: appends facts to a node's log and says when they are durable.

Rule: ``append`` only remembers; ``sync`` writes everything remembered as one group and waits for the disk. Nobody is
told of a fact before the sync that covers it has returned.
Rule: one thread may append while another syncs (a broker appends on its event loop and syncs beside it). Two that
append, or two writers of one node, are refused or undefined: a node has one order.
Rule: after an error what was durable still is, the file ends where that ends, and the facts of the group are still
remembered: not accepted, but not forgotten. After a failed fsync nothing more is written until the log is reopened,
because the system may have dropped the pages it could not write and would call the next fsync a success.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from zlib import crc32

from whimbrel.errors import InvalidValueError
from whimbrel.log import layout
from whimbrel.log.errors import CorruptLogError, LogError, LogWriteError
from whimbrel.log.files import lock_folder, make_folder, put, sync_file, write_all
from whimbrel.log.layout import FIRST_TIME, LAST_TIME
from whimbrel.log.records import HEAD, body_of, mark, time_from
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
from whimbrel.model.bounds import INT64_MAX, whole
from whimbrel.model.facts import Fact
from whimbrel.model.notification import NotificationId

__all__ = ["SEGMENT_BYTES", "LogWriter", "Recovery"]

SEGMENT_BYTES = 64 << 20
_FIRST_SEQ = 1
_REOPEN = "reopen the log to go on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What was found when a log was opened."""

    last_seq: int
    """The last whole record; 0 in a new log."""
    records: int
    """How many records the last segment holds."""
    cut_bytes: int
    """The torn tail that was cut off: what was being written when the node died. Nobody was told of it."""
    cut_from: Path | None = None


class LogWriter:
    """The one writer of *node*'s log in *directory*; use it in a ``with`` block, or ``open`` and ``close`` it."""

    def __init__(self, directory: Path, node: str, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        NotificationId(node, 0)
        self.directory, self.node = directory, node
        self._segment_bytes = whole("segment_bytes", segment_bytes, 1, INT64_MAX)
        self._folder = layout.segments_folder(directory, node)
        self._syncing = threading.Lock()
        self._fault: str | None = "it is not open"
        self._lock_file = self._file = -1
        self._buffer: list[tuple[bytes, int]] = []
        self._next_seq, self._last_at = _FIRST_SEQ, NEVER
        self._durable_seq, self._durable_at, self._is_marked = _FIRST_SEQ - 1, NEVER, True
        self._size = self._salt = 0
        self._path = self._folder

    # -- opening and closing -----------------------------------------------------------------------------------------

    def open(self) -> Recovery:
        """Open the log, making it if need be; find the last whole record and cut what is torn after it."""
        if self._lock_file >= 0:
            raise LogError(f"{self._folder}: this writer is open already")
        layout.create(self.directory)
        make_folder(self._folder)
        self._lock_file = lock_folder(self._folder, "writing this log")
        try:
            recovery = self._recover()
        except OSError as error:
            self._release()
            raise LogWriteError(self._folder, error.strerror or str(error)) from error
        except BaseException:
            self._release()
            raise
        self._fault = None
        return recovery

    def close(self) -> None:
        """Sync what is left, mark that all is durable, and let the log go."""
        try:
            if self._fault is None:
                self.sync()
                with self._syncing:
                    self._mark()
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
        return self._durable_seq

    @property
    def pending(self) -> int:
        """How many facts are remembered and not yet durable."""
        return len(self._buffer)

    def append(self, fact: Fact) -> None:
        """Remember *fact* for the next sync; it must be the next in seq and not earlier than the last."""
        if fact.seq != self._next_seq or fact.node != self.node:
            raise InvalidValueError(
                "seq", f"{fact.node}:{fact.seq}", f"{self.node}:{self._next_seq}, the next of the log"
            )
        body, at = body_of(fact)
        if not self._last_at <= at <= LAST_TIME or at < FIRST_TIME:
            low = max(self._last_at, FIRST_TIME)
            raise InvalidValueError("time", at, f"from {low}, the last fact's, to {LAST_TIME}: time does not go back")
        if self._fault is not None:
            raise LogWriteError(self._folder, self._fault, _REOPEN)
        self._buffer.append((body, at))
        self._next_seq += 1
        self._last_at = at

    def sync(self) -> int:
        """Write and fsync all that is remembered; return the last durable seq."""
        with self._syncing:
            if self._fault is not None:
                raise LogWriteError(self._folder, self._fault, _REOPEN)
            # Slices of one list, never another list: an append on another thread is in this group or in the next.
            group = self._buffer[:]
            if group:
                self._commit(group)
                del self._buffer[: len(group)]
            return self._durable_seq

    def _commit(self, group: list[tuple[bytes, int]]) -> None:
        if self._size >= self._segment_bytes:
            self._roll(self._durable_seq + 1, self._durable_at)
        salt, pack = self._salt, HEAD.pack
        frames = [] if self._is_marked else [mark(self._durable_seq, salt)]
        for body, _ in group:
            frames += (pack(len(body), crc32(body, salt)), body)
        self._write(b"".join(frames))
        self._durable_seq += len(group)
        self._durable_at = group[-1][1]
        self._is_marked = False

    def _mark(self) -> None:
        if not self._is_marked:
            self._write(mark(self._durable_seq, self._salt))
            self._is_marked = True

    def _write(self, data: bytes) -> None:
        try:
            write_all(self._file, data)
        except OSError as error:
            self._take_back()
            raise self._write_error(error) from error
        except BaseException:  # Ctrl-C: how much was written is not known
            self._fault = "a write was interrupted"
            raise
        try:
            os.fsync(self._file)
        except OSError as error:
            self._take_back()
            self._fault = "an earlier fsync failed"
            raise self._write_error(error, _REOPEN) from error
        except BaseException:
            self._fault = "an fsync was interrupted"
            raise
        self._size += len(data)

    def _take_back(self) -> None:
        """Cut the file to what is durable; where even that fails, reopening will do it."""
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self._fault = "what was half written could not be taken back"

    def _write_error(self, error: OSError, advice: str = "") -> LogWriteError:
        first, last = self._durable_seq + 1, self._next_seq - 1
        kept = f"seq {first} to {last} not accepted, all before is durable" if first <= last else ""
        return LogWriteError(self._path, error.strerror or str(error), "; ".join(filter(None, (kept, advice))))

    # -- segments ----------------------------------------------------------------------------------------------------

    def _roll(self, first: int, last_at: int) -> None:
        """Begin a new segment; the one before is whole and durable."""
        header = Header(node=self.node, first=first, last_at=last_at, salt=int.from_bytes(os.urandom(4)))
        path = layout.segment_path(self.directory, self.node, first)
        put(path, header.packed())
        try:
            file = os.open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise LogWriteError(path, error.strerror or str(error)) from error
        self._drop_file()
        self._file, self._path, self._salt = file, path, header.salt
        self._size, self._is_marked = HEADER_BYTES, True
        self._durable_seq, self._durable_at = first - 1, last_at

    def _recover(self) -> Recovery:
        self._buffer.clear()
        found = layout.segments(self.directory, self.node)
        cut_bytes, cut_from = 0, None
        if found and is_torn_creation(found[-1][1]):
            first, cut_from = found.pop()
            cut_bytes = cut_from.stat().st_size
            cut_from.unlink()
            sync_file(self._folder)
            if not found:
                self._roll(first, NEVER)
        elif not found:
            # Seqs are never given twice, even where somebody removed every segment.
            self._roll(layout.exported_seq(self.directory, self.node) + 1, NEVER)
        records = 0
        if found:
            records, torn = self._recover_segment(*found[-1])
            if torn:
                cut_bytes, cut_from = cut_bytes + torn, self._path
        self._next_seq, self._last_at = self._durable_seq + 1, self._durable_at
        return Recovery(last_seq=self._durable_seq, records=records, cut_bytes=cut_bytes, cut_from=cut_from)

    def _recover_segment(self, first: int, path: Path) -> tuple[int, int]:
        """Take up the segment at *path*; return how many records it holds and how many bytes were cut."""
        self._path, self._file = path, os.open(path, os.O_RDWR | os.O_APPEND)
        with path.open("rb") as stream:
            header = read_header(stream, path)
            if (header.node, header.first) != (self.node, first):
                raise CorruptLogError(path, 0, f"its header says {header.node}:{header.first}")
            scan = Scan(stream, header)
            last = deque(scan, maxlen=1)
            if scan.trouble is not None and is_proven_later(stream, header, scan.end, scan.next_seq):
                raise CorruptLogError(path, scan.end, scan.trouble)
        torn = os.fstat(self._file).st_size - scan.end
        if torn:
            os.ftruncate(self._file, scan.end)
        os.fsync(self._file)  # what survived the node's death may still be in memory only
        self._salt, self._size, self._is_marked = header.salt, scan.end, scan.is_marked
        self._durable_seq = scan.next_seq - 1
        self._durable_at = _time_of(last[0], path) if last else header.last_at
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
        return time_from(record.payload)
    except InvalidValueError as error:
        raise CorruptLogError(path, record.offset, str(error)) from None
