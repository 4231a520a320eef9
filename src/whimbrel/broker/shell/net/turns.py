"""Turns: what one turn of the event loop reads from clients, and what it writes to them at its end.

Rule: what one turn has for a client is written at once, at its end.
Rule: a client is not read from while it is ahead: it has had its turn, fills the memory faster than the disk takes it,
asks for more answers than may wait for it, or sends more than its rate allows (``slowing``).
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
from whimbrel.broker.shell.net.slowing import Slowing
from whimbrel.broker.shell.running import Running, monotonic_us, until_closed
from whimbrel.broker.wire.clients import Link
from whimbrel.broker.wire.listener_rules import ListenerRules
from whimbrel.log.errors import LogWriteError

__all__ = ["Turns"]

_log = structlog.get_logger("whimbrel")
_MAX_UNWRITTEN = 4 << 20
_SMALL_READ = 512
"""Bytes of acknowledgements and pings: who sends no more is not slowed where the disk fills."""
"""How many bytes may wait for the disk before no more is read: a publication of QoS 1 waits until all are synced."""
_MAX_TURN = 256 << 10
_FRAME_BYTES = 256
"""As how many bytes a frame of WebSocket counts, beside what it carries: so many take as long as its head."""
_MAX_WRITES = 1_000
"""To how many connections one turn of the event loop writes: some 5 µs each."""


class Turns:
    """The connections of a server; *pool* has the threads for blocking tasks."""

    def __init__(self, running: Running, log_sync: LogSync, pool: Executor, history: HistoryReader) -> None:
        self.running, self._log_sync, self._history = running, log_sync, history
        self.config = running.config
        self._broker, self._clock = running.broker, running.clock
        log_sync.read_on, log_sync.flush = self._release_held_back, self.flush
        self._blocking_threads = BlockingThreads(running, pool, self.flush_soon)
        self.transforms = Transforms(running, self.flush_soon)
        self.streams: set[Stream] = set()
        self._held_back: set[Stream] = set()
        self._slowed: set[Stream] = set()
        self.is_slowing = False
        """Whether the log fills the disk, so that publishers are read from once a tick."""
        """Clients that send faster than the disk writes, and are not read from until it has written."""
        self._ahead: set[Stream] = set()
        """Clients that are not read from for now: they had their turn, are far ahead of CONNACK, or do not read."""
        self._written: set[Stream] = set()
        """Connections that something may wait to be written to."""
        self.slow_readers = SlowReaders(running)
        self.slowing = Slowing(self._broker.rates, partial(self.received, is_admitted=True), monotonic_us)
        self._is_flushing = self._is_working = False
        self._unwritten_bytes = self._turn_frames = 0
        most = running.config.limits.send_buffer_bytes
        self._turn_bytes, self._most_turn_bytes = 0, min(_MAX_TURN, most // 4)
        """What came since everything was last written: not so much that it fills a client's buffer by itself."""
        self._most_buffered = self._most_answers = most
        """How many bytes may wait for a client, and as many answers beside: these are neither dropped nor put off."""
        self._broker.memory.measure = self.measure_outgoing

    @cached_property
    def web_buffer(self) -> memoryview:
        """Where WebSockets are read to."""
        return memoryview(bytearray(MAX_WEB_READ))

    @property
    def counters(self) -> Counters:
        """What the core counts."""
        return self._broker.counters

    # -- connections -------------------------------------------------------------------------------------------------

    def open(self, stream: Stream, address: str, user: str | None, listener: ListenerRules | None) -> Link:
        """Return the link of a connection that was opened; *user* is whom its certificate names."""
        return self._broker.open_link(stream, address, self._clock.now(), verified_user=user, listener=listener)

    def choke(self, stream: Stream, *, is_choked: bool) -> None:
        """Take in that a client reads too slowly, or reads again."""
        assert stream.link is not None
        if not is_choked:
            self.slow_readers.discard(stream)
        self._broker.set_choked(stream.link, self._clock.now(), is_choked=is_choked)
        if is_choked:
            self.slow_readers.add(stream)
        else:
            self.flush_soon()

    def lose(self, stream: Stream) -> None:
        """Take in that nothing more can be written to a connection."""
        self.slow_readers.discard(stream)

    def finish(self, stream: Stream) -> None:
        """Let the core know that a connection is gone and that nothing more comes of it."""
        if stream.link is not None and self.running.failure is None:
            self._broker.on_connection_closed(stream.link, self._clock.now())
            self.flush_soon()
            stream.link = None  # else the two would hold each other until the garbage collector comes by

    # -- reading -----------------------------------------------------------------------------------------------------

    def received(self, link: Link, data: bytes, *, is_admitted: bool = False) -> None:
        """Give the core what a client sent: as much as may be handled now, unless it *is_admitted* already."""
        broker = self._broker
        if self.running.failure is not None:
            return
        if not is_admitted:
            broker.counters.bytes_received += len(data)
            if link.meter is not None and link.closing is None:
                data = self.slowing.received(link, data)
                if not data:
                    return
        try:
            broker.receive(link, data, self._clock.now())
        except LogWriteError as error:  # the disk failed beside us a moment ago, and we had not heard of it yet
            self._log_sync.fail(error)
            return
        self._turn_bytes += len(data)
        if self._turn_bytes > self._most_turn_bytes:  # no client fills a buffer in one turn, nor has all of it
            self.flush()
            self._read_later(cast("Stream", link.shell))
        elif not self._is_flushing:
            self.flush_soon()
        self._unwritten_bytes += len(data)
        if self._unwritten_bytes > _MAX_UNWRITTEN:
            self._hold_back(cast("Stream", link.shell))
        if self.is_slowing and len(data) > _SMALL_READ:
            self._slow(cast("Stream", link.shell))
        if (
            link.is_busy
            or broker.has_backlog
            or link.room < -self._most_answers
            or (link.parked is not None and link.machine.held_bytes > self.running.config.limits.packet_bytes)
        ):  # it is far ahead of us, asks for more answers than may wait for it, or is far ahead of its CONNACK
            self._read_later(cast("Stream", link.shell))

    @property
    def is_full_of_frames(self) -> bool:
        """Whether so many frames of WebSocket were read in this turn as end that of one client."""
        return self._turn_frames * _FRAME_BYTES > self._most_turn_bytes

    def count_frames(self, stream: Stream, frames: int) -> None:
        """Count frames of WebSocket as work of this turn; a client that has sent many of them has had its turn."""
        self._turn_frames += frames
        self._turn_bytes += frames * _FRAME_BYTES
        if self._turn_bytes > self._most_turn_bytes:
            self.flush()
            self._read_later(stream)
        elif self.is_full_of_frames:
            self._read_later(stream)

    def is_waited_for(self, stream: Stream) -> bool:
        """Tell whether there is a reason not to read from a client now."""
        reasons = (self._ahead, self._held_back, self._slowed, self.slowing.connections)
        return any(stream in waiting for waiting in reasons)

    def forget(self, stream: Stream) -> None:
        """Forget a connection that is gone."""
        for known in (self.streams, self._ahead, self._held_back, self._slowed):
            known.discard(stream)
        self.slowing.connections.discard(stream)
        self.slow_readers.discard(stream)

    def _read_later(self, stream: Stream) -> None:
        """Read no more from a client in this turn, and until its CONNECT is answered and it reads its answers."""
        if stream.transport is not None and not stream.transport.is_closing():
            stream.pause_reading()
            self._ahead.add(stream)
            self.flush_soon()

    def finish_later(self, stream: Stream) -> None:
        """Let the core know that a connection is gone once it has handled the packets that came over it."""
        self._ahead.add(stream)
        self.flush_soon()

    def _read_again(self) -> None:
        """Read on from clients that there is no reason to wait for any more; finish connections that are gone."""
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
        """Read no more from a client until the disk has written what there is: that bounds the memory it fills."""
        if self.running.failure is None and stream.transport is not None and not stream.transport.is_closing():
            stream.pause_reading()
            self._held_back.add(stream)
            self._log_sync.write_now()

    def _slow(self, stream: Stream) -> None:
        """Read no more from a client until the next tick: the disk fills faster than the log can be cut."""
        if stream.transport is not None and not stream.transport.is_closing():
            stream.pause_reading()
            self._slowed.add(stream)

    def read_slowed(self) -> None:
        """Read on from clients that are read from more slowly because the disk fills."""
        slowed, self._slowed = self._slowed, set()
        for stream in slowed:
            stream.resume_reading()

    def _release_held_back(self) -> None:
        """Read on from clients that waited for the disk."""
        self._unwritten_bytes = 0
        held_back, self._held_back = self._held_back, set()
        for stream in held_back:
            stream.resume_reading()

    # -- writing -----------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Write what there is at the end of this turn."""
        if not self._is_flushing:
            self._is_flushing = True
            self.running.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_frames = 0
        self.flush()
        if self._ahead:
            self._read_again()

    def flush(self) -> None:
        """Write what the core has for clients, close what is to be closed, and begin what else waits."""
        self._is_flushing, self._turn_bytes = False, 0
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
        self._write_dirty()
        self._log_sync.sync_if_wanted()
        if broker.history.has_questions:
            self._history.turn(self.running.loop, broker.history, self._clock.now, self.flush_soon)
        if self.slowing.is_on:
            self.slowing.look_later()
        if broker.has_work and not self._is_working:
            self._is_working = True
            self.running.loop.call_soon(self._work)

    def _write_dirty(self) -> None:
        """Write to links that have something to write, or are to be closed; to so many as one turn may."""
        broker = self._broker
        dirty, most = broker.dirty, self._most_buffered
        half, sent, written = most // 2, 0, self._written
        some = self._log_sync.that_may_be_written(dirty[:_MAX_WRITES])
        del dirty[:_MAX_WRITES]
        for link in some:
            link.is_dirty = False
            stream = link.shell
            assert isinstance(stream, Stream)
            transport = stream.transport
            if transport is None or transport.is_closing():
                link.out.clear()
                if stream.is_lost and link.closing is not None:
                    stream.finish()
                continue
            if link.out:
                data = b"".join(link.out)
                link.out.clear()
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
        if dirty:  # more than one turn may write to, or some that may go on now that there is room
            self.flush_soon()

    @until_closed
    def _work(self) -> None:
        """Do a piece of what is too long for one turn; sockets are read before the next."""
        self._is_working = False
        if self.running.failure is None:
            try:
                self._broker.go_on(self._clock.now())
            except LogWriteError as error:
                self._log_sync.fail(error)
                return
            self._end_turn()

    def measure_outgoing(self) -> int:
        """Return how many bytes wait to be written to all connections together."""
        done = [stream for stream in self._written if stream.is_lost or not stream.waiting_bytes]
        self._written.difference_update(done)  # the same set: a flush may be adding to it
        return sum(stream.waiting_bytes for stream in self._written)
