"""The server: sockets, the clock, the disk and threads around the core.

What may wait for what: everything of the core happens on the event loop and never waits. One thread syncs the log
(``_disk``), one writes the view (``_viewer``, which takes the log's lock while it syncs it), one reads what the
pipeline learned (``_learner``), others verify passwords or pack filters. They come back to the loop with what they
found.
Rule: what one turn of the loop has for a client is written at once, at its end.
"""

from __future__ import annotations

import asyncio
import random
import signal
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial, wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

import structlog

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.blocking_tasks import BlockingTask
from whimbrel.broker.access.topic_rights import Rights
from whimbrel.broker.access.users import Users
from whimbrel.broker.broker import Broker
from whimbrel.broker.config import Config
from whimbrel.broker.handlers.shaping import TransformJob
from whimbrel.broker.shell.connections import MOST_WEB_READ, ObservedStream, Stream, WebStream
from whimbrel.broker.shell.handshakes import TlsContext, Unwanted
from whimbrel.broker.shell.heartbeat import BEAT_US, Beat, beat_of
from whimbrel.broker.shell.http import Answer
from whimbrel.broker.shell.log_clock import LogClock
from whimbrel.broker.shell.metrics import connected, prometheus, system_values
from whimbrel.broker.shell.slowing import Slowing
from whimbrel.broker.shell.storage import Storage
from whimbrel.broker.shell.view_writer import ViewWriter
from whimbrel.broker.state.feedback import Announcements, Lessons
from whimbrel.broker.state.routes import Routes
from whimbrel.broker.wire.clients import Link
from whimbrel.errors import WhimbrelError
from whimbrel.log.errors import LogWriteError
from whimbrel.match.index.packer import PackingProcess
from whimbrel.match.matcher import Matcher
from whimbrel.shape.faults import Fault
from whimbrel.shape.pool import TransformPool

if TYPE_CHECKING:
    from whimbrel.broker.shell.feedback_reader import FeedbackReader

__all__ = ["Server"]

_log = structlog.get_logger("whimbrel")
_TICK_S = 0.25
_MOST_TICK_US = 500_000
"""How much of the time between two ticks counts; ticks come later where the process was stopped."""
_READ_S = 0.01
"""How long after a tick silence is judged: timers and sockets take turns, so everything readable is read between."""
_SETTLE_TICKS = 4
_DRAIN_S = 5.0
_RETRY_S = 1.0
_ASKERS = 2
"""How many passwords are hashed at once, each in 128 MiB."""
_MOST_NAMED = 100
"""Subscriptions that the log names one by one."""
_REFUSED_TODAY = (
    "an older version accepted this subscription's filter; it is beyond today's limits and matches only within the "
    "budget of patterns: subscribe again with a simpler filter"
)
_MOST_UNWRITTEN = 4 << 20
"""How many bytes may wait for the disk before no more is read: a publication of QoS 1 waits until all are synced."""
_MOST_TURN = 256 << 10
_FRAME_BYTES = 256
"""As how many bytes a frame of WebSocket counts, beside what it carries: so many take as long as its head."""
_MOST_WRITES = 1_000
"""To how many connections one turn of the event loop writes: some 5 µs each."""
_FEW_MORE = 64
"""How many connections beyond the limit may be open at least, so that they can be told of it."""
_SET_US = 500_000
"""By how much the machine's clock must be set for the next heartbeat not to wait for its time."""


def monotonic_us() -> int:
    """Return the time by which durations are judged: it never steps."""
    return time.monotonic_ns() // 1_000


def _until_closed(turn: Callable[[Server], None]) -> Callable[[Server], None]:
    """Let a turn that comes again and again not come after the end."""

    @wraps(turn)
    def checked(server: Server) -> None:
        if not server.is_closed:
            turn(server)

    return checked


class Server:
    """A broker on its ports."""

    def __init__(self, config: Config, *, accepts_loss: bool = False) -> None:
        self.config = config
        self.streams: set[Stream] = set()
        self.shaking: dict[Stream, float] = {}
        """Connections of TLS whose handshake is not done, and when it is over."""
        self.ports: dict[str, int] = {}
        """Where it listens, by kind."""
        self._users = Users.read(Path(config.access.users)) if config.access.users else None
        rights = Rights.read(Path(config.access.rights)) if config.access.rights else Rights.OPEN
        self._pack = PackingProcess()
        self._packers = ThreadPoolExecutor(2, thread_name_prefix="packing")
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._viewer = ThreadPoolExecutor(1, thread_name_prefix="view")
        self._askers = ThreadPoolExecutor(_ASKERS, thread_name_prefix="ask")
        self._asking = 0
        self._learner = ThreadPoolExecutor(1, thread_name_prefix="learn")
        self._feedback_reader = _feedback_reader(config)
        self._announcements = Announcements(tells_links=config.pipeline.tells_links)
        self._storage = Storage(config, accepts_loss=accepts_loss)
        state, self.restored = self._storage.open(Routes(self._matcher))
        self.clock = LogClock(self.restored.time.now, say=_tell_time)
        self.broker = Broker(
            config,
            self._storage.log,
            state,
            rng=random.SystemRandom(),
            authorizer=Authorizer(rights, self._groups),
            verify=None if self._users is None else partial(self._users.log_in, cost=config.access.password_cost),
            died_at=self.restored.time.died_at,
            now=self.clock.now(),
        )
        self._view_writer = ViewWriter(self.broker, self._storage, self._viewer, unwritten=self.restored.unwritten)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: list[asyncio.Server] = []
        self._is_flushing = self._is_syncing = self._is_working = self._is_beating = self._is_beat_missed = False
        self._transforms, self._after_log = TransformPool(), list[Link]()  # the latter wait for the log (``after_seq``)
        self._last_beat = Beat(0, 0)
        _name_refused(state.routes)
        self._stopping: asyncio.Event | None = None
        self.failure: str | None = None
        """Why the broker had to stop."""
        self.started_us = self._ticked_us = monotonic_us()
        self.listened_us = 0
        """How long it has listened, as far as ticks have counted it; see ``_tick``."""
        self.is_closed = False
        self._ticks = self._unwritten_bytes = self._turn_frames = 0
        self._held_back: set[Stream] = set()
        """Whoever sends faster than the disk takes it, and is not read from for now."""
        self._ahead: set[Stream] = set()
        """Clients that are not read from for now: they had their turn, are far ahead of CONNACK, or do not read."""
        self._written: set[Stream] = set()
        """Connections that something may wait to be written to."""
        self.broker.memory.measure = self._measure_outgoing
        self._slowing = Slowing(self.broker.rates, partial(self.received, is_admitted=True), monotonic_us)
        self._turn_bytes, self._most_turn_bytes = 0, min(_MOST_TURN, config.limits.send_buffer_bytes // 4)
        """What came since everything was last written: not so much that it fills a client's buffer by itself."""
        self._most_answers = config.limits.send_buffer_bytes
        """How many bytes of answers may wait for a client beside the rest; they are neither dropped nor put off."""
        self.lagging: dict[Stream, tuple[int, int]] = {}
        """Clients for whom nothing more can be written: how many bytes each had taken, and since when no more."""

    @cached_property
    def web_buffer(self) -> memoryview:
        """Where WebSockets are read to."""
        return memoryview(bytearray(MOST_WEB_READ))

    def _matcher(self) -> Matcher:
        return Matcher(run=self._packers.submit, pack=self._pack)

    def _groups(self, user: str | None) -> frozenset[str]:
        return frozenset() if self._users is None or user is None else self._users.groups(user)

    # -- starting and stopping ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen."""
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        listen = self.config.listen
        secured = self._secured()
        self.broker.tick(self.clock.now())  # before anybody comes back to what was over long ago
        await self._listen("mqtt", listen.port, lambda: self.new_stream(Stream))
        await self._listen("ws", listen.ws_port, lambda: self.new_stream(WebStream))
        await self._listen("mqtts", listen.tls_port, partial(self._shaking_hands, Stream, secured), secured=secured)
        await self._listen("wss", listen.wss_port, partial(self._shaking_hands, WebStream, secured), secured=secured)
        await self._listen("http", listen.http_port, lambda: ObservedStream(self), host=listen.http_host)
        self._loop.call_later(_TICK_S, self._tick)
        self._loop.call_later(self.config.log.sync_interval_ms / 1_000, self._write_out)
        self._loop.call_soon(self._view)  # what was replayed now need not be replayed again
        if self.config.observe.sys_interval_s:
            self._tell_system()
        if self._feedback_reader is not None:
            self._learn()
        self._sync_if_wanted()

    def turns_away(self) -> bool:
        """Tell whether a new connection is cut at once: so many are open that it cannot even be told why.

        A few more than are allowed may stay until they have been answered CONNECT.
        """
        most = self.config.limits.connections
        is_crowded = len(self.streams) > most + max(_FEW_MORE, most // 10)
        self.broker.counters.refused_connections += is_crowded
        return is_crowded

    def _shaking_hands(self, kind: type[Stream], secured: TlsContext | None) -> asyncio.BaseProtocol:
        """Return what takes in the bytes of a new connection once its handshake is done; it counts from now on."""
        assert self._loop is not None
        stream = self.new_stream(kind)
        if secured is not None and self.turns_away():
            secured.refuse_next()
            self.streams.discard(stream)
            return Unwanted()
        self.shaking[stream] = self._loop.time() + self.config.limits.connect_timeout_s
        return stream

    def _end_handshakes(self) -> None:
        """Forget the connections whose handshake failed or took too long: the event loop tells nobody of them."""
        assert self._loop is not None
        over = [stream for stream, ends_at in self.shaking.items() if ends_at + _TICK_S < self._loop.time()]
        for stream in over:
            del self.shaking[stream]
            self.streams.discard(stream)
            self.broker.counters.failed_handshakes += 1

    def new_stream(self, kind: type[Stream]) -> Stream:
        """Return what takes in the bytes of a new connection."""
        stream = kind(self)
        self.streams.add(stream)
        return stream

    async def _listen(
        self,
        kind: str,
        port: int,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        secured: ssl.SSLContext | None = None,
        host: str | None = None,
    ) -> None:
        if port < 0:
            return
        assert self._loop is not None
        listen = self.config.listen
        host = listen.host if host is None else host
        try:
            listener = await self._loop.create_server(
                make,
                host,
                port,
                ssl=secured,
                ssl_handshake_timeout=None if secured is None else self.config.limits.connect_timeout_s,
                backlog=listen.backlog,
                reuse_address=True,
            )
        except OSError as error:
            raise ListenError(kind, host, port, error.strerror or str(error)) from error
        self._listeners.append(listener)
        self.ports[kind] = listener.sockets[0].getsockname()[1]

    def _secured(self) -> TlsContext | None:
        tls = self.config.tls
        if not tls.certificate:
            return None
        context = TlsContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3 if tls.minimum_version == "1.3" else ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(tls.certificate, tls.key or None)
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if tls.require_client_certificate else ssl.CERT_OPTIONAL
        return context

    async def serve(self) -> None:
        """Serve until SIGTERM or SIGINT, or until ``stop``; then drain."""
        assert self._loop is not None
        assert self._stopping is not None
        for each in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread
                self._loop.add_signal_handler(each, self.stop)
        await self._stopping.wait()
        await self._drain()

    def stop(self) -> None:
        """Begin to stop."""
        assert self._stopping is not None
        self._stopping.set()

    async def _drain(self) -> None:
        """Send everybody away, and write everything down."""
        for listener in self._listeners:
            listener.close()
        if self.failure is None:
            self.broker.drain()
            self._flush()
        deadline = time.monotonic() + _DRAIN_S
        while self.streams and time.monotonic() < deadline:  # noqa: ASYNC110 # a few turns at the very end
            await asyncio.sleep(0.01)
        for stream in list(self.streams):
            if stream.transport is not None:
                stream.transport.abort()
        await self._transforms.close()
        await asyncio.sleep(0)
        assert self._loop is not None
        deadline = time.monotonic() + _DRAIN_S
        while (self._is_syncing or self._view_writer.is_writing) and time.monotonic() < deadline:  # noqa: ASYNC110 # see above
            await asyncio.sleep(0.005)
        if self.failure is None:
            try:
                seq = await self._loop.run_in_executor(self._disk, self._storage.log.sync)
                self.broker.synced(seq)
                self._view_writer.finish()
            except WhimbrelError as error:  # a full disk: what waits for it was promised to nobody
                _log.error("stopped although the disk takes nothing", reason=str(error))
        self.close()

    def close(self) -> None:
        """Let go of everything."""
        self.is_closed = True
        self._slowing.stop()
        for pool in (self._disk, self._viewer, self._askers, self._packers, self._learner):
            pool.shutdown(wait=True, cancel_futures=True)
        with suppress(WhimbrelError):
            self._storage.close()
        self._pack.close()

    # -- turns of the loop -------------------------------------------------------------------------------------------

    def received(self, link: Link, data: bytes, *, is_admitted: bool = False) -> None:
        """Give the core what a client sent: as much as may be handled now, unless it *is_admitted* already."""
        broker = self.broker
        if self.failure is not None:
            return
        if not is_admitted:
            broker.counters.bytes_received += len(data)
            if link.meter is not None and link.closing is None:
                data = self._slowing.received(link, data)
                if not data:
                    return
        try:
            broker.receive(link, data, self.clock.now())
        except LogWriteError as error:  # the disk failed beside us a moment ago, and we had not heard of it yet
            self._failed(error)
            return
        self._turn_bytes += len(data)
        if self._turn_bytes > self._most_turn_bytes:  # nobody fills a buffer in one turn, nor has all of it
            self._flush()
            self._read_later(cast("Stream", link.shell))
        elif not self._is_flushing:
            self.flush_soon()
        self._unwritten_bytes += len(data)
        if self._unwritten_bytes > _MOST_UNWRITTEN:
            self._hold_back(cast("Stream", link.shell))
        if (
            link.is_busy
            or broker.has_backlog
            or link.room < -self._most_answers
            or (link.parked is not None and link.machine.held_bytes > self.config.limits.packet_bytes)
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
            self._flush()
            self._read_later(stream)
        elif self.is_full_of_frames:
            self._read_later(stream)

    def is_waited_for(self, stream: Stream) -> bool:
        """Tell whether there is a reason not to read from a client now."""
        return stream in self._ahead or stream in self._held_back or stream in self._slowing.connections

    def forget(self, stream: Stream) -> None:
        """Forget a connection that is gone."""
        for known in (self.streams, self._ahead, self._held_back):
            known.discard(stream)
        self._slowing.connections.discard(stream)
        self.lagging.pop(stream, None)

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
        has_backlog = self.broker.has_backlog
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
        """Read no more from a client until the disk has what there is: nobody fills the memory faster than that."""
        if self.failure is None and stream.transport is not None and not stream.transport.is_closing():
            stream.pause_reading()
            self._held_back.add(stream)
            if not self._is_syncing:
                self._sync(wait=False)

    def flush_soon(self) -> None:
        """Write what there is at the end of this turn."""
        if not self._is_flushing:
            self._is_flushing = True
            assert self._loop is not None
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_frames = 0
        self._flush()
        if self._ahead:
            self._read_again()

    def _flush(self) -> None:
        self._is_flushing, self._turn_bytes = False, 0
        broker = self.broker
        if broker.blocking_tasks or broker.transforms:
            self._ask()
        for notice in broker.take_notices():
            _log.warning(notice.text, client=notice.client, user=notice.user)
        dirty = broker.dirty
        most = self.config.limits.send_buffer_bytes
        half, sent, written = most // 2, 0, self._written
        some = self._that_may_be_written(dirty[:_MOST_WRITES])
        del dirty[:_MOST_WRITES]
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
                        broker.drained(link, transport.get_write_buffer_size(), self.clock.now())
                    elif transport.get_write_buffer_size() > most + self._most_answers:
                        self._read_later(stream)
            if link.closing is not None and not stream.is_leaving:
                stream.is_leaving = True
                stream.close()
                broker.closed(link, self.clock.now())
                if stream in self._slowing.connections:
                    self._slowing.release(stream)
        broker.counters.bytes_sent += sent
        broker.memory.count_outgoing(sent)
        if dirty:  # more than one turn may write to, or some that may go on now that there is room
            self.flush_soon()
        self._sync_if_wanted()
        if self._slowing.is_on:
            self._slowing.look_later()
        if broker.has_work and not self._is_working:
            self._is_working = True
            assert self._loop is not None
            self._loop.call_soon(self._work)

    def _that_may_be_written(self, links: list[Link]) -> list[Link]:
        """Return the links of *links* whose decisions are in the log; the others wait until theirs are."""
        written_seq = self._storage.log.written_seq
        early = [link for link in links if link.after_seq > written_seq]
        if not early:
            return links
        self._after_log += early
        return [link for link in links if link.after_seq <= written_seq]

    @_until_closed
    def _work(self) -> None:
        """Do a piece of what is too long for one turn; sockets are read before the next."""
        self._is_working = False
        if self.failure is None:
            try:
                self.broker.go_on(self.clock.now())
            except LogWriteError as error:
                self._failed(error)
                return
            self._end_turn()

    @_until_closed
    def _tick(self) -> None:
        assert self._loop is not None
        if self.failure is not None:
            return
        # The time that this process was stopped, or too busy to read, is nobody's silence.
        now_us = monotonic_us()
        self.listened_us += min(now_us - self._ticked_us, _MOST_TICK_US)
        self._ticked_us = now_us
        self.clock.adjust()
        self.broker.tick(self.clock.now())
        self._beat()
        if self.shaking:
            self._end_handshakes()
        self._loop.call_later(_READ_S, self._end_silent)
        self._ticks += 1
        if self._ticks % _SETTLE_TICKS == 0:
            self.broker.state.routes.settle()
            self._settle()
            self.broker.memory.set_outgoing(self._measure_outgoing())
        self.flush_soon()
        self._loop.call_later(_TICK_S, self._tick)

    def _measure_outgoing(self) -> int:
        """Return how much waits to be written to all connections together."""
        done = [stream for stream in self._written if stream.is_lost or not stream.waiting_bytes]
        self._written.difference_update(done)  # the same set: a flush may be adding to it
        return sum(stream.waiting_bytes for stream in self._written)

    @_until_closed
    def _end_silent(self) -> None:
        """Send away clients that say nothing; what waited in the sockets when time was counted is read by now."""
        if self.failure is None:
            self.broker.end_silent(self.clock.now(), self.listened_us)
            if self.lagging:
                self._end_slow_readers()
            self.flush_soon()

    def _end_slow_readers(self) -> None:
        """Cut off clients that took nothing for too long of what waits for them."""
        now_us = self.listened_us
        patience_us = int(self.config.limits.slow_reader_s * 1_000_000)
        for stream, (taken_bytes, since_us) in list(self.lagging.items()):
            link, transport, taken_now = stream.link, stream.transport, stream.taken_bytes
            if taken_now > taken_bytes:
                self.lagging[stream] = taken_now, now_us
            elif now_us - since_us > patience_us and link is not None and transport is not None:
                self.broker.counters.slow_readers += 1
                _log.warning("slow reader", client=link.client and link.client.id, address=link.address)
                link.closing = link.closing or f"it took nothing for {self.config.limits.slow_reader_s:g} s"
                transport.abort()

    @_until_closed
    def _tell_system(self) -> None:
        """Publish what the broker knows of itself."""
        assert self._loop is not None
        values = system_values(self.broker, monotonic_us() - self.started_us)
        values |= self._announcements.changes(self.broker.feedback, connected(self.broker))
        self.broker.tell_system(values, self.clock.now())
        self.flush_soon()
        self._loop.call_later(self.config.observe.sys_interval_s, self._tell_system)

    @_until_closed
    def _learn(self) -> None:
        """Have a look at what the pipeline learned."""
        assert self._loop is not None
        assert self._feedback_reader is not None
        future = self._loop.run_in_executor(self._learner, self._feedback_reader.look)
        future.add_done_callback(self._learned)

    def _learned(self, done: asyncio.Future[Lessons]) -> None:
        assert self._loop is not None
        if done.cancelled() or self.is_closed:
            return
        learned, lessons = self.broker.feedback, done.result()
        if lessons.troubles and not learned.troubles:
            _log.warning("what the pipeline learned cannot be read; what is known stays", reasons=lessons.troubles)
        elif learned.troubles and not lessons.troubles:
            _log.info("what the pipeline learned can be read again")
        learned.take(lessons)
        self._loop.call_later(self.config.pipeline.interval_s, self._learn)

    # -- the disk ----------------------------------------------------------------------------------------------------

    def _sync_if_wanted(self) -> None:
        if self.broker.wants_sync and not self._is_syncing and self.failure is None:
            self._sync(wait=True)
        elif self._after_log and not self._is_syncing and self.failure is None:
            self._sync(wait=False)

    def _settle(self) -> None:
        """Let readers of the log, the pipeline above all, see what was written last, also if nothing comes after it."""
        if not self._is_syncing and not self._storage.log.is_settled and not self.broker.is_refusing:
            self._disk_does(self._storage.log.settle, wait=True)

    def _sync(self, *, wait: bool) -> None:
        self._disk_does(partial(self._storage.log.sync, wait=wait), wait=wait)

    def _disk_does(self, work: Callable[[], int], *, wait: bool) -> None:
        assert self._loop is not None
        self._is_syncing = True
        future = self._loop.run_in_executor(self._disk, work)
        future.add_done_callback(lambda done: self._synced(done, wait=wait))

    def _synced(self, done: asyncio.Future[int], *, wait: bool) -> None:
        assert self._loop is not None
        try:
            seq = done.result()
        except WhimbrelError as error:
            self._failed(error)
            return
        self._is_syncing = False
        self.broker.counters.syncs += 1
        self._unwritten_bytes = 0
        held_back, self._held_back = self._held_back, set()
        for stream in held_back:
            stream.resume_reading()
        self.broker.dirty.extend(self._after_log)
        self._after_log.clear()
        if wait:
            self.broker.synced(seq)
        else:
            self.broker.refuse(is_refusing=False)
        self._flush()

    def _failed(self, error: WhimbrelError) -> None:
        """Refuse whatever must be held until the disk takes it; where the log must be opened again, stop."""
        assert self._loop is not None
        _log.error("the log cannot be written", reason=str(error))
        self.broker.refuse()
        if self._storage.log.is_faulty:
            self.failure = str(error)
            self._is_syncing = False
            self.stop()
            return
        self._loop.call_later(_RETRY_S, self._sync_again)

    @_until_closed
    def _sync_again(self) -> None:
        self._sync(wait=True)

    @_until_closed
    def _write_out(self) -> None:
        """Write what nobody waits for, so that it does not stay in memory for long."""
        assert self._loop is not None
        if not self._is_syncing and self._storage.log.pending and self.failure is None:
            self._sync(wait=False)
        self._loop.call_later(self.config.log.sync_interval_ms / 1_000, self._write_out)

    @_until_closed
    def _view(self) -> None:
        """Bring the view up to date."""
        assert self._loop is not None
        if self.failure is None:
            self._view_writer.turn(self._loop)
        self._loop.call_later(self.config.log.view_interval_s, self._view)

    def _beat(self) -> None:
        """Have it written down that the broker lives, once in a while, and also if it has nothing else to write."""
        assert self._loop is not None
        beat, last = beat_of(self.clock.now()), self._last_beat
        is_set = abs(beat.at - beat.wall - (last.at - last.wall)) > _SET_US  # how long we are down is told by both
        if self._is_beating or (beat.at - last.at < BEAT_US and not is_set):
            return
        self._last_beat, self._is_beating = beat, True
        write = partial(self._storage.heartbeat.write, beat)
        self._loop.run_in_executor(self._disk, write).add_done_callback(self._beaten)

    def _beaten(self, done: asyncio.Future[None]) -> None:
        self._is_beating = False
        error = None if done.cancelled() else done.exception()
        if error is not None and not self._is_beat_missed:
            _log.warning("the heartbeat cannot be written; after a crash sessions may end early", reason=str(error))
        self._is_beat_missed = error is not None

    # -- users and observers -----------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Do the blocking tasks of the core as long as there is a thread for them."""
        assert self._loop is not None
        while self._asking < _ASKERS and (question := self.broker.blocking_tasks.next(self.listened_us)) is not None:
            self._asking += 1
            future = self._loop.run_in_executor(self._askers, question.ask)
            future.add_done_callback(partial(self._answered, question))
        transforms = self.broker.transforms
        while transforms:
            job = transforms.popleft()
            self._transforms.begin(job.client.id, job.work, partial(self._transformed, job))

    def _transformed(self, job: TransformJob, result: bytes | Fault) -> None:
        if self.failure is None and not self.is_closed:
            self.broker.transformed(job, result, self.clock.now())
            self.flush_soon()

    def _answered(self, question: BlockingTask, done: asyncio.Future[object]) -> None:
        self._asking -= 1
        if self.failure is None and not self.is_closed:
            self.broker.answered(question, done.result(), self.clock.now())
            self.flush_soon()

    def observed(self, method: str, path: str) -> Answer:
        """Answer a request for metrics or health."""
        if method != "GET":
            return Answer(status=405, body=b"only GET\n", headers=(("Allow", "GET"),))
        if path == "/healthz":
            is_well = self.failure is None and not self.broker.is_refusing
            return Answer(status=200 if is_well else 503, body=b"ok\n" if is_well else b"the disk takes nothing\n")
        if path == "/metrics":
            text = prometheus(self.broker, monotonic_us() - self.started_us, self.clock.now())
            return Answer(status=200, body=text.encode(), content_type="text/plain; version=0.0.4; charset=utf-8")
        return Answer(status=404, body=b"there are /metrics and /healthz\n")


def _tell_time(event: str, by_s: float) -> None:
    _log.warning(event, by_s=round(by_s, 1))


def _feedback_reader(config: Config) -> FeedbackReader | None:
    """Return who reads what the pipeline learned, if anybody is to; Arrow is loaded only then."""
    if not config.pipeline.tables:
        return None
    from whimbrel.broker.shell.feedback_reader import FeedbackReader

    return FeedbackReader(Path(config.pipeline.tables), config.node.name, most=config.pipeline.max_rows)


class ListenError(WhimbrelError):
    """A port cannot be listened on. Reaction: choose another, or stop who has it."""

    def __init__(self, kind: str, host: str, port: int, reason: str) -> None:
        super().__init__(kind, host, port, reason)
        self.kind, self.host, self.port, self.reason = kind, host, port, reason

    def __str__(self) -> str:
        return f"cannot listen on {self.host}:{self.port} ({self.kind}): {self.reason}"


def _name_refused(routes: Routes) -> None:
    """Log the subscriptions whose filter this version refuses; they were restored all the same."""
    refused = {key: reason for key, reason in routes.refused_today.items() if key not in routes.unreadable}
    for (session, (subject_filter, name)), reason in islice(refused.items(), _MOST_NAMED):
        _log.warning(_REFUSED_TODAY, session=session, topic_filter=subject_filter, name=name, reason=reason)
    if len(refused) > _MOST_NAMED:
        _log.warning("more filters are beyond today's limits", named=_MOST_NAMED, count=len(refused))
