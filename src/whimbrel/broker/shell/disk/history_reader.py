"""History reader: reads old publications from the log, in its own thread, for clients that subscribe with ``since``.

Rule: the thread reads one chunk at a time, for one replay after the other, however many clients replay. After each
chunk it sleeps as long as it worked, so that the event loop has the interpreter lock at least half of the time.
Rule: a chunk is bounded in records, bytes and messages, so no client waits long for its next chunk, and memory does not
grow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from whimbrel.broker.state.history import HistoryChunk, HistoryQuestion
from whimbrel.broker.subscribe.history import History
from whimbrel.errors import WhimbrelError
from whimbrel.log.keeping.cutting import on_disk
from whimbrel.log.reader import LogReader
from whimbrel.node.publication import KeptNotification

__all__ = ["HistoryReader", "read_chunk"]

_MAX_RECORDS, _MAX_BYTES = 1_000, 1 << 20
_MAX_MESSAGES, _MAX_MESSAGE_BYTES = 50, 64 << 10
_TURN_S = 0.002


def read_chunk(directory: Path, node: str, question: HistoryQuestion) -> HistoryChunk:
    """Read the next chunk of a replay from the log, and return the publications in it that the subscription matches."""
    first, matches, now = question.first, question.matches, question.now
    place = question.place.reader
    if place is None:
        first = _first_of(directory, node, question)
        place = question.place.reader = LogReader(directory, node, first=first)
    place.extend(question.last)
    messages: list[KeptNotification] = []
    size, until = 0, place.read_bytes + _MAX_BYTES
    next_seq, missing = first, 0
    for count, (_, seq, number, payload) in enumerate(place.records(), start=1):
        if count == 1 and seq > first:
            missing = seq - first
        next_seq = seq + 1
        message = matches.message(seq, number, payload, now)
        if message is not None:
            messages.append(message)
            size += len(payload)
        if (
            count >= _MAX_RECORDS
            or place.read_bytes >= until
            or len(messages) >= _MAX_MESSAGES
            or size >= _MAX_MESSAGE_BYTES
        ):
            break
    if next_seq == question.first <= question.last:
        return HistoryChunk([], next_seq, trouble=f"no record has the number {next_seq}")
    return HistoryChunk(messages, next_seq, missing)


def _first_of(directory: Path, node: str, question: HistoryQuestion) -> int:
    """Return the first seq to read; skip the log segments that end before the time at which the replay begins."""
    disk = on_disk(directory, node)
    since_at = question.matches.since_at
    later = (each.last + 1 for each in disk.segments if each.last_at < since_at)
    return max(question.first, disk.oldest, max(later, default=0))


class HistoryReader:
    """Reader thread for the replays of old publications; reads the log of *node* in *directory*."""

    def __init__(self, directory: Path, node: str, *, sleep: Callable[[float], object] = time.sleep) -> None:
        self._directory, self._node, self._sleep = directory, node, sleep
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._is_reading = False

    def turn(
        self, loop: asyncio.AbstractEventLoop, history: History, now: Callable[[], int], done: Callable[[], None]
    ) -> None:
        """Begin to read the next chunk of the log that *history* asks for, unless a read is under way.

        *history* has the replays of all clients. It gets the chunk when that has been read, and then *done* is called.
        """
        if self._is_reading or (question := history.next_question(now())) is None:
            return
        self._is_reading = True

        def read(future: asyncio.Future[HistoryChunk]) -> None:
            self._is_reading = False
            if not future.cancelled() and not loop.is_closed():
                history.on_chunk(question, future.result())
                done()

        loop.run_in_executor(self._pool, self.read, question).add_done_callback(read)

    def read(self, question: HistoryQuestion) -> HistoryChunk:
        """Read one chunk of the log; then sleep as long as that took, if over 2 ms, to leave the GIL free."""
        began = time.monotonic()
        try:
            chunk = read_chunk(self._directory, self._node, question)
        except FileNotFoundError:
            chunk = HistoryChunk([], question.first, trouble="it was cut from the log while it was sent")
        except (WhimbrelError, OSError) as error:
            chunk = HistoryChunk([], question.first, trouble=str(error))
        worked = time.monotonic() - began
        if worked > _TURN_S:
            self._sleep(worked)
        return chunk

    def close(self) -> None:
        """Stop the thread, after the read that is under way."""
        self._pool.shutdown(wait=True, cancel_futures=True)
