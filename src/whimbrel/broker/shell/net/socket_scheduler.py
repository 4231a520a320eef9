"""Socket scheduler: bounds the reads of one event-loop turn, and writes to clients at its end.

Rule: all bytes for a client in one turn are written together, at the end of the turn. A read that comes alone is a turn
of its own, and what it causes is written at once.
Rule: a client is not read from (back-pressure) while it is ahead of the broker: it has used up its share of the turn,
sends faster than the disk writes, requests more answers than may wait for it, or exceeds its rate limit (``slowing``).
"""

from __future__ import annotations

from concurrent.futures import Executor
from functools import cached_property, partial
from typing import cast

import structlog

from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.shell.blocking_threads import BlockingThreads, Transforms
from whimbrel.broker.shell.disk.history_reader import HistoryReader
from whimbrel.broker.shell.disk.log_sync import LogSync
from whimbrel.broker.shell.net.connections import MAX_WEB_READ, Stream
from whimbrel.broker.shell.net.slow_readers import SlowReaders
from whimbrel.broker.shell.net.slowing import ReadThrottle
from whimbrel.broker.shell.running import Running, monotonic_us, until_closed
from whimbrel.broker.wire.clients import Link
from whimbrel.broker.wire.listener_rules import ListenerRules
from whimbrel.log.errors import LogWriteError

__all__ = ["SocketScheduler"]

_log = structlog.get_logger("whimbrel")
_MAX_UNWRITTEN = 4 << 20
"""Bytes waiting for the disk above which clients are not read from: a QoS 1 publication waits until all are fsynced."""
_SMALL_READ = 512
"""Reads of at most this many bytes (acknowledgements, pings) are not slowed when the disk fills."""
_MAX_TURN = 256 << 10
_FRAME_BYTES = 256
"""Cost of a WebSocket frame besides its payload: handling its head takes as long as this many bytes."""
_ALONE_US = 30
"""Time since the last work of the event loop after which a read is alone: no other socket was readable with it."""
_MAX_WRITES = 1_000
"""Most connections to which one turn of the event loop writes, at some 5 µs each."""


class SocketScheduler:
    """Scheduler of a server's connections; *pool* has the threads for blocking tasks."""

    def __init__(self, running: Running, log_sync: LogSync, pool: Executor, history: HistoryReader) -> None:
        self.running, self._log_sync, self._history = running, log_sync, history
        self.config = running.config
        self._broker, self._clock = running.broker, running.clock
        self._chores = running.broker.chores
        self._unfinished = (*running.broker.unfinished, log_sync.after_log)
        """Collections of the core; a turn of the event loop in which they are empty has no more to do than to write."""
        log_sync.read_on, log_sync.flush = self._release_held_back, self.flush
        self._blocking_threads = BlockingThreads(running, pool, self.flush_soon)
        self.transforms = Transforms(running, self.flush_soon)
        self.streams: set[Stream] = set()
        self._held_back: set[Stream] = set()
        """Clients that send faster than the disk writes, and are not read from until it has written."""
        self._slowed: set[Stream] = set()
        """Clients that are not read from until the next tick, because the log fills the disk."""
        self.is_slowing = False
        """Whether the log fills the disk, so that publishers are read from only once per tick."""
        self._ahead: set[Stream] = set()
        """Clients not read from now: they used up their turn, sent too much before CONNACK, or do not read answers."""
        self._written: set[Stream] = set()
        """Connections whose buffers may contain bytes that are not sent yet."""
        self.slow_readers = SlowReaders(running)
        self.slowing = ReadThrottle(self._broker.rates, partial(self.receive, is_admitted=True), monotonic_us)
        self._is_flushing = self._is_working = False
        self._unwritten_bytes = self._turn_frames = self._left_at = 0
        most = running.config.limits.send_buffer_bytes
        self._turn_bytes, self._most_turn_bytes = 0, min(_MAX_TURN, most // 4)
        """Bytes read since the last flush, and their limit: so few that their answers do not fill a client's buffer."""
        self._most_buffered = self._most_answers = most
        """Most bytes that may wait for a client; and most bytes of answers in addition, which are never dropped."""
        self._broker.memory.measure = self.measure_outgoing

    @cached_property
    def web_buffer(self) -> memoryview:
        """The buffer into which the bytes of all WebSocket connections are read."""
        return memoryview(bytearray(MAX_WEB_READ))

    @property
    def counters(self) -> Counters:
        """The core's counters, for metrics."""
        return self._broker.counters

    # -- connections -------------------------------------------------------------------------------------------------

    def open(self, stream: Stream, address: str, user: str | None, listener: ListenerRules | None) -> Link:
        """Return the core's object for a new connection; *user* is the name in the client's certificate, or None."""
        return self._broker.open_link(stream, address, self._clock.now(), verified_user=user, listener=listener)

    def choke(self, stream: Stream, *, is_choked: bool) -> None:
        """Pause messages to a client that reads too slowly (back-pressure), or resume them."""
        assert stream.link is not None
        if not is_choked:
            self.slow_readers.discard(stream)
        self._broker.set_choked(stream.link, self._clock.now(), is_choked=is_choked)
        if is_choked:
            self.slow_readers.add(stream)
        else:
            self.flush_soon()

    def lose(self, stream: Stream) -> None:
        """Handle that a connection cannot be written to any more."""
        self.slow_readers.discard(stream)

    def finish(self, stream: Stream) -> None:
        """Report to the core that a connection is closed and that all its packets were handled."""
        if stream.link is not None and self.running.failure is None:
            self._broker.on_connection_closed(stream.link, self._clock.now())
            self.flush_soon()
            stream.link = None  # stream and link would refer to each other until the garbage collector runs

    # -- reading -----------------------------------------------------------------------------------------------------

    def receive(self, link: Link, data: bytes, *, is_admitted: bool = False) -> None:
        """Pass received bytes to the core, within the client's rate limits; pause reading if the client is too fast.

        *is_admitted*: the rate limits have already admitted these bytes.
        """
        broker, clock = self._broker, self._clock
        if self.running.failure is not None:
            return
        now = clock.now()
        is_alone = now - self._left_at > _ALONE_US
        if not is_admitted:
            broker.counters.bytes_received += len(data)
            if link.meter is not None and link.closing is None:
                data = self.slowing.admit(link, data)
                if not data:
                    return
        try:
            broker.receive(link, data, now)
        except LogWriteError as error:  # the disk failed in its thread a moment ago, and this loop has not seen it yet
            self._log_sync.fail(error)
            return
        size = len(data)
        self._turn_bytes += size
        if self._turn_bytes > self._most_turn_bytes:  # so no client fills a buffer in one turn, or uses all of it
            self.flush()
            self._read_later(cast("Stream", link.shell))
        elif not self._is_flushing and (broker.dirty or any(self._unfinished) or any(self._chores)):
            if is_alone:
                self._end_turn()
            else:
                self.flush_soon()
        self._unwritten_bytes += size
        if self._unwritten_bytes > _MAX_UNWRITTEN:
            self._hold_back(cast("Stream", link.shell))
        if self.is_slowing and size > _SMALL_READ:
            self._slow(cast("Stream", link.shell))
        if (
            link.is_busy
            or (self._unfinished[0] and broker.has_backlog)
            or link.room < -self._most_answers
            or (link.parked is not None and link.machine.held_bytes > self.running.config.limits.packet_bytes)
        ):  # the client is far ahead of us, requests more answers than may wait, or sent much before its CONNACK
            self._read_later(cast("Stream", link.shell))
        self._left_at = clock.now()

    @property
    def is_full_of_frames(self) -> bool:
        """Whether the WebSocket frames read in this turn have used up the allowance of one client."""
        return self._turn_frames * _FRAME_BYTES > self._most_turn_bytes

    def count_frames(self, stream: Stream, frames: int) -> None:
        """Add WebSocket frames to the work of this turn; read no more from a client that has sent too many."""
        self._turn_frames += frames
        self.flush_soon()  # which begins a new turn
        self._turn_bytes += frames * _FRAME_BYTES
        if self._turn_bytes > self._most_turn_bytes:
            self.flush()
            self._read_later(stream)
        elif self.is_full_of_frames:
            self._read_later(stream)

    def is_waited_for(self, stream: Stream) -> bool:
        """Return whether a client must not be read from now (back-pressure)."""
        reasons = (self._ahead, self._held_back, self._slowed, self.slowing.connections)
        return any(stream in waiting for waiting in reasons)

    def forget(self, stream: Stream) -> None:
        """Remove a closed connection from all lists."""
        for known in (self.streams, self._ahead, self._held_back, self._slowed):
            known.discard(stream)
        self.slowing.connections.discard(stream)
        self.slow_readers.discard(stream)

    def _read_later(self, stream: Stream) -> None:
        """Pause reading from a client until it may be read again in a later turn of the event loop.

        By then its CONNECT must be answered, and the client must have read enough of its answers.
        """
        if stream.transport is not None and not stream.transport.is_closing():
            stream.pause_reading()
            self._ahead.add(stream)
            self.flush_soon()

    def finish_later(self, stream: Stream) -> None:
        """Report to the core that a connection is closed, once all packets received over it are handled."""
        self._ahead.add(stream)
        self.flush_soon()

    def _read_again(self) -> None:
        """Resume reading from clients whose packets and answers no longer wait; finish connections that are closed."""
        has_backlog = self._broker.has_backlog
        for stream in list(self._ahead):
            link = stream.link
            is_waited_for = link is not None and (
                link.is_busy or (not stream.is_lost and (has_backlog or link.parked is not None or link.is_choked))
            )
            if link is None or link.closing is not None or not is_waited_for:
                self._ahead.discard(stream)
                if stream.is_lost:
                    stream.finish()
                else:
                    stream.resume_reading()

    def _hold_back(self, stream: Stream) -> None:
        """Pause reading from a client until all buffered records are written: this bounds the memory that it fills."""
        if self.running.failure is None and stream.transport is not None and not stream.transport.is_closing():
            stream.pause_reading()
            self._held_back.add(stream)
            self._log_sync.write_now()

    def _slow(self, stream: Stream) -> None:
        """Pause reading from a client until the next tick (a quarter of a second); the disk fills too fast."""
        if stream.transport is not None and not stream.transport.is_closing():
            stream.pause_reading()
            self._slowed.add(stream)

    def read_slowed(self) -> None:
        """Resume reading from the clients that ``_slow`` paused; called once per tick."""
        slowed, self._slowed = self._slowed, set()
        for stream in slowed:
            stream.resume_reading()

    def _release_held_back(self) -> None:
        """Resume reading from the clients that ``_hold_back`` paused, since the disk has written."""
        self._unwritten_bytes = 0
        held_back, self._held_back = self._held_back, set()
        for stream in held_back:
            stream.resume_reading()

    # -- writing -----------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Schedule ``flush`` for the end of this turn of the event loop."""
        if not self._is_flushing:
            self._is_flushing = True
            self.running.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_frames = 0
        self.flush()
        if self._ahead:
            self._read_again()
        self._left_at = self._clock.now()

    def flush(self) -> None:
        """Write the core's packets to clients, close connections, write log lines, and start tasks and fsyncs."""
        self._is_flushing, self._turn_bytes = False, 0
        broker = self._broker
        if any(self._chores):
            self._do_chores()
        if broker.dirty:
            self._write_dirty()
        if any(self._unfinished):
            self._log_sync.sync_if_wanted()
            if broker.has_work and not self._is_working:
                self._is_working = True
                self.running.loop.call_soon(self._work)
        if self.slowing.is_on:
            self.slowing.look_later()

    def _do_chores(self) -> None:
        """Start the tasks that the core has for threads and processes, and write its lines to the process log."""
        broker = self._broker
        if broker.blocking_tasks:
            self._blocking_threads.begin_tasks()
        if broker.transforms:
            self.transforms.begin()
        for notice in broker.take_notices():
            _log.warning(notice.text, client=notice.client, user=notice.user)
        if broker.events:
            for line in broker.events.take(self._clock.now()):
                getattr(_log, line.level)(line.text, **line.values)
        if broker.history.has_questions:
            self._history.turn(self.running.loop, broker.history, self._clock.now, self.flush_soon)

    def _write_dirty(self) -> None:
        """Write waiting packets to connections, and close those that must be closed; at most 1,000 per turn."""
        broker = self._broker
        dirty, most = broker.dirty, self._most_buffered
        half, sent, written = most // 2, 0, self._written
        some = dirty[:_MAX_WRITES]
        del dirty[:_MAX_WRITES]
        for link in some:
            if link.after_seq and self._log_sync.must_wait(link):
                continue
            link.is_dirty = False
            stream = link.shell
            assert isinstance(stream, Stream)
            transport = stream.transport
            if transport is None or transport.is_closing():
                link.out.clear()
                if stream.is_lost and link.closing is not None:
                    stream.finish()
                continue
            out = link.out
            if out:
                data = out[0] if len(out) == 1 else b"".join(out)
                out.clear()
                sent += len(data)
                written.add(stream)
                stream.write(data)
                if link.room < half:
                    if not link.is_choked:
                        broker.on_bytes_written(link, transport.get_write_buffer_size(), self._clock.now())
                    elif transport.get_write_buffer_size() > most + self._most_answers:
                        self._read_later(stream)
            if link.closing is not None and not stream.is_leaving:
                stream.is_leaving = True
                stream.close()
                broker.on_connection_closed(link, self._clock.now())
                if stream in self.slowing.connections:
                    self.slowing.release(stream)
        broker.counters.bytes_sent += sent
        broker.memory.count_outgoing(sent)
        if dirty:  # more connections than one turn writes to, or some for which there is space now
            self.flush_soon()

    @until_closed
    def _work(self) -> None:
        """Do one step of work that is too long for one turn; sockets are read before the next step."""
        self._is_working = False
        if self.running.failure is None:
            try:
                self._broker.go_on(self._clock.now())
            except LogWriteError as error:
                self._log_sync.fail(error)
                return
            self._end_turn()

    def measure_outgoing(self) -> int:
        """Return the bytes that wait to be sent, for all connections together."""
        done = [stream for stream in self._written if stream.is_lost or not stream.waiting_bytes]
        self._written.difference_update(done)  # the same set: a flush may be adding to it
        return sum(stream.waiting_bytes for stream in self._written)
