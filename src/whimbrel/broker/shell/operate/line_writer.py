"""Line writer: writes log lines to standard error in a thread, so that a full pipe does not stall the event loop.

Rule: logging a line only appends it to a queue in memory, and never blocks. The queue holds at most *most_bytes*; above
that the oldest lines are dropped, and a line in their place reports how many: after a crash an operator needs the last.
Rule: ``end`` writes the queued lines, and gives up after two seconds in which the reader of the pipe has read nothing.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from functools import partial

__all__ = ["LineWriter", "stderr_from_a_thread"]

_MAX_BYTES = 4 << 20
_AT_ONCE_BYTES = 64 << 10
_CLOSE_S = 2.0


class LineWriter(io.TextIOBase):
    """Text stream in place of standard error: a thread passes the text to *write*, which returns the bytes written."""

    def __init__(self, write: Callable[[bytes], int], *, most_bytes: int = _MAX_BYTES) -> None:
        self._write, self._most_bytes = write, most_bytes
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_writing, self._is_ended = False, False
        self.dropped = 0
        """Number of lines that were dropped and not yet reported."""
        self._changed = threading.Condition()  # its lock is reentrant: a destructor may write within ``write``
        self._thread = threading.Thread(target=self._write_all, name="log-lines", daemon=True)
        self._thread.start()

    @property
    def encoding(self) -> str:  # type: ignore[override] # a property here, an attribute in the stubs
        """The encoding of the written text."""
        return "utf-8"

    def writable(self) -> bool:
        """Return True: this stream can be written to."""
        return True

    def write(self, text: str) -> int:
        """Append *text* to the queue; after ``end``, write it at once."""
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if self._is_ended:  # libraries write as the interpreter ends
                if not self._waiting and not self._is_writing:
                    self._give(data)
                return len(text)
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            while self._waiting_bytes > self._most_bytes:
                self._waiting_bytes -= len(self._waiting.popleft())
                self.dropped += 1
            self._changed.notify_all()
        return len(text)

    def drain(self, timeout_s: float) -> bool:
        """Wait until all lines are written, as long as some are written every *timeout_s*; return whether all are."""
        with self._changed:
            left, ends_at = self._waiting_bytes, time.monotonic() + timeout_s
            while (self._waiting or self._is_writing) and self._thread.is_alive():
                self._changed.wait(max(ends_at - time.monotonic(), 0.0))
                if self._waiting_bytes < left:
                    left, ends_at = self._waiting_bytes, time.monotonic() + timeout_s
                elif time.monotonic() >= ends_at:
                    break
            return not self._waiting and not self._is_writing

    def end(self, timeout_s: float = _CLOSE_S) -> bool:
        """Write the queued lines, and end the thread; return whether all were written."""
        is_done = self.drain(timeout_s)
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        if is_done:
            self._thread.join()
        return is_done

    def _write_all(self) -> None:
        while (data := self._take()) is not None:
            self._give(data)
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()

    def _give(self, data: bytes) -> None:
        with suppress(OSError):  # the reader of the pipe is gone: there is no place to report it
            while data:
                data = data[self._write(data) :]

    def _take(self) -> bytes | None:
        """Return the next lines, after a report of dropped lines before them; None at the end."""
        with self._changed:
            while not self._waiting and not self.dropped:
                if self._is_ended:
                    return None
                self._changed.wait()
            lines, size = [b""], 0
            if self.dropped:
                lines[0] = f"{self.dropped} log lines dropped: standard error was not read fast enough\n".encode()
                self.dropped = 0
            while self._waiting and size < _AT_ONCE_BYTES:
                lines.append(self._waiting.popleft())
                size += len(lines[-1])
            self._waiting_bytes -= size
            self._is_writing = True
        return b"".join(lines)


def _write_blocking(number: int, data: bytes) -> int:
    """Write to a file descriptor; if another process has made it non-blocking, wait until it is writable."""
    while True:
        try:
            return os.write(number, data)
        except BlockingIOError:
            select.select([], [number], [])


@contextmanager
def stderr_from_a_thread() -> Iterator[None]:
    """Replace ``sys.stderr`` by a ``LineWriter`` within the block; at its end all queued lines are written.

    The thread writes to the file descriptor, not to Python's file object, whose lock it would hold when the interpreter
    ends.
    """
    sys.stderr.flush()
    try:
        number = sys.stderr.fileno()
    except OSError:  # a test captures it in memory
        yield
        return
    writer = LineWriter(partial(_write_blocking, number))
    try:
        with redirect_stderr(writer):
            yield
    finally:
        writer.end()
