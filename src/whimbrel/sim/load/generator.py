"""Load: what a broker is measured with. Publications of one length, through any broker, counted at the other end.

A generator that took packets apart would be slower than the brokers it measures. So publications are encoded before
the clock starts, all to one length; whoever receives them counts bytes, and makes acknowledgements by slices.
Publishers are one process and subscribers another, which share a few numbers in a file.
Rule: no more than a window is under way at a time, so nothing need be dropped, and what is missing in the end is lost.
Rule: a single publisher writes many packets at a time, as a gateway does; many publishers write one each, in turn, as
a fleet of devices does.
Rule: it speaks MQTT 3.1.1, which all brokers do; only filters by content need 5.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import re
import resource
import secrets
import select
import selectors
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Self

from whimbrel.errors import InvalidValueError, WhimbrelError
from whimbrel.mqtt.codec import decode, encode
from whimbrel.mqtt.packets import (
    V5,
    V311,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties

__all__ = [
    "Generator",
    "Idle",
    "Latency",
    "Load",
    "LoadError",
    "Served",
    "Tally",
    "Throughput",
    "cpu_s",
    "publications",
    "raise_file_limit",
    "serve",
]

_BLOCK = 50
"""Packets in one write of a single publisher."""
_POLL_S = 0.000_2
_PATIENCE_S = 20
"""How long one read, write or answer may take."""
_GRACE_S = 5.0
"""How long what was sent may take to arrive after the last of it was sent."""
_START_S = 300.0  # the first on a machine compiles the matcher; one that ends is noticed at once
_READ_BYTES = 1 << 18
_AT_A_TIME = 200
"""Subscriptions under way at a time."""
_MOST_IDS = 65_535
_PUBACK_BYTES = 4
_SCHEDULED = 2
"""Which of a process's clocks counts what the scheduler gave it: CPUCLOCK_SCHED of Linux."""
_STAMP = struct.Struct(">q")
_TIMEVAL = struct.pack("ll", _PATIENCE_S, 0)
_PORT = re.compile(r"\bmqtt=([0-9]+)")


class LoadError(WhimbrelError):
    """A broker did not do what it must for being measured. Reaction: look at the broker, then measure again."""

    def __init__(self, found: object, wanted: str) -> None:
        super().__init__(found, wanted)
        self.found, self.wanted = found, wanted

    def __str__(self) -> str:
        return f"measuring a broker: found {self.found}, wanted {self.wanted}"


# -- what is sent, and what came of it ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent through a broker: *count* publications at a time, of bodies that are sent in turn."""

    port: int
    host: str = "127.0.0.1"
    topic: str = "whimbrel/bench"
    bodies: tuple[bytes, ...] = (bytes(64),)
    count: int = 100_000
    qos: int = 0
    publishers: int = 1
    subscribers: int = 1
    filters: tuple[tuple[str, ...], ...] = ()
    """The filters by content of each subscriber; with them, every publication must be for exactly one subscriber."""
    window: int = 4_000
    """How many may be under way at a time."""
    limit_s: float = 20.0
    """How long sending may take; what is not sent by then is not sent."""

    def __post_init__(self) -> None:
        if len({len(body) for body in self.bodies}) != 1:
            raise InvalidValueError("bodies", sorted({len(body) for body in self.bodies}), "bodies of one length")
        if self.qos not in {0, 1}:
            raise InvalidValueError("QoS", self.qos, "0 or 1")
        if not 0 < self.window <= _MOST_IDS // 2:
            raise InvalidValueError("window", self.window, f"1 to {_MOST_IDS // 2}")
        if self.filters and len(self.filters) != self.subscribers:
            raise InvalidValueError("filters", f"of {len(self.filters)} subscribers", f"of {self.subscribers}")

    @property
    def version(self) -> int:
        """The version of MQTT that is spoken."""
        return V5 if self.filters else V311

    @property
    def copies(self) -> int:
        """How many subscribers every publication is for."""
        return min(1, self.subscribers) if self.filters else self.subscribers

    @property
    def size_bytes(self) -> int:
        """The length of a body."""
        return len(self.bodies[0])

    def encoded(self, number: int) -> bytes:
        """Return the publication of *number*, counted from 0; its packet identifier is one more."""
        body = self.bodies[number % len(self.bodies)]
        return encode(Publish(self.topic, body, self.qos, packet_id=number + 1 if self.qos else 0), self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """How many went through, and how long each round of them took."""

    sent: int
    expected: int
    """Deliveries, or acknowledgements where nobody subscribed."""
    arrived: int
    seconds: tuple[float, ...]
    broker_cpu_s: float | None
    generator_cpu_s: float

    @property
    def lost(self) -> int:
        """How many did not arrive."""
        return self.expected - self.arrived

    @property
    def rate(self) -> float:
        """How many arrived a second, in the median of the rounds."""
        return self.arrived / len(self.seconds) / statistics.median(self.seconds)

    @property
    def cpu_us(self) -> float | None:
        """How much of a processor the broker took for each that arrived."""
        return None if self.broker_cpu_s is None or not self.arrived else self.broker_cpu_s / self.arrived * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long publications were on their way, at a rate the broker is not strained by."""

    rate: float
    expected: int
    arrived: int
    p50_us: float
    p99_us: float

    @property
    def lost(self) -> int:
        """How many did not arrive."""
        return self.expected - self.arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """What a broker takes for clients that say nothing."""

    connections: int
    answered: int
    """How many of them it still answered in the end."""
    before_bytes: int
    after_bytes: int


def publications(load: Load, block: int) -> list[bytes]:
    """Return the publications of *load* as they are written, *block* packets at a time, to be sent again and again.

    There are so many that a packet identifier does not come again before it was answered.
    """
    needed = max(len(load.bodies), 2 * load.window if load.qos else 1)
    encoded = [load.encoded(number) for number in range(-(-needed // block) * block)]
    return [b"".join(encoded[at : at + block]) for at in range(0, len(encoded), block)]


class Tally:
    """Counts the publications of one subscriber, in a stream of nothing else, and acknowledges them."""

    __slots__ = ("_heads", "_identifier_at", "_rest", "_stride", "count")

    def __init__(self, load: Load) -> None:
        packet = load.encoded(0)
        self._stride = len(packet)
        self._heads = bytes((packet[0], packet[0] | 0x08))  # what comes again is marked
        after_topic = len(packet) - load.size_bytes - (load.version == V5)
        self._identifier_at = after_topic - 2 if load.qos else 0
        self._rest = b""
        self.count = 0

    def receive(self, data: bytes) -> bytes:
        """Count what *data* completes, and return its acknowledgements; none at QoS 0."""
        if self._rest:
            data = self._rest + data
        stride = self._stride
        whole = len(data) // stride
        end = whole * stride
        if data[:end:stride].strip(self._heads):
            raise LoadError(data[:end:stride].strip(self._heads)[:8].hex(), f"only publications of {stride} bytes")
        self._rest = data[end:]
        self.count += whole
        at = self._identifier_at
        if not at:
            return b""
        answer = bytearray(b"\x40\x02\x00\x00" * whole)
        answer[2::4] = data[at:end:stride]
        answer[3::4] = data[at + 1 : end : stride]
        return bytes(answer)


# -- connections -------------------------------------------------------------------------------------------------------


def _exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = link.recv(size - len(data))
        if not more:
            raise LoadError("a closed connection", "an answer")
        data += more
    return data


def _answer(link: socket.socket, version: int) -> Packet:
    """Read one packet and not a byte more: what follows is counted, not read."""
    first, length = _exactly(link, 2)
    shift = 7
    more = length & 0x80
    length &= 0x7F
    while more:
        (byte,) = _exactly(link, 1)
        length |= (byte & 0x7F) << shift
        more = byte & 0x80
        shift += 7
    return decode(first, _exactly(link, length), version)


def _connected(load: Load, client_id: str = "", *, is_clean: bool = True) -> socket.socket:
    name = client_id or f"bench-{secrets.token_hex(8)}"
    link = socket.create_connection((load.host, load.port), timeout=_PATIENCE_S)
    try:
        # A timeout of Python's would ask the system before every read and write; these ask nothing.
        link.settimeout(None)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        marked = Properties(user=(("whimbrel", "1"),)) if load.version == V5 else NO_PROPERTIES
        connect = Connect(name, clean_start=is_clean, version=load.version, properties=marked)
        link.sendall(encode(connect, load.version))
        answer = _answer(link, load.version)
        if not isinstance(answer, Connack) or answer.code:
            raise LoadError(answer, "a CONNACK that lets us in")
    except BaseException:
        link.close()
        raise
    return link


def _subscribe(link: socket.socket, load: Load, filters: Sequence[str] = ()) -> None:
    requests = (SubscriptionRequest(load.topic, load.qos),)
    options = [Properties(user=(("filter", text), ("name", f"n{number}"))) for number, text in enumerate(filters)] or [
        NO_PROPERTIES
    ]
    for begin in range(0, len(options), _AT_A_TIME):
        some = options[begin : begin + _AT_A_TIME]
        link.sendall(b"".join(encode(Subscribe(n + 1, requests, p), load.version) for n, p in enumerate(some)))
        for _ in some:
            answer = _answer(link, load.version)
            if not isinstance(answer, Suback) or any(code != load.qos for code in answer.codes):
                raise LoadError(answer, f"a SUBACK that grants QoS {load.qos}")


# -- what the processes share ------------------------------------------------------------------------------------------


class _Board:
    """Numbers that several processes see, each written by one of them."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._numbers = memoryview(self._memory).cast("q")

    @staticmethod
    def made(folder: Path) -> Path:
        """Return the path of a new one, all zero."""
        path = folder / f"board-{secrets.token_hex(4)}"
        path.write_bytes(bytes(32))
        return path

    def arrived(self, count: int) -> None:
        """Note how many came, and that it was now."""
        self._numbers[1] = time.monotonic_ns()
        self._numbers[0] = count

    @property
    def count(self) -> int:
        """How many have arrived."""
        return self._numbers[0]

    @property
    def last_ns(self) -> int:
        """When the last arrived."""
        return self._numbers[1]

    @property
    def is_ready(self) -> bool:
        """Whether everybody has subscribed."""
        return bool(self._numbers[2])

    def ready(self) -> None:
        """Say so."""
        self._numbers[2] = 1

    @property
    def is_over(self) -> bool:
        """Whether subscribers may go."""
        return bool(self._numbers[3])

    def over(self) -> None:
        """Say so."""
        self._numbers[3] = 1


# -- subscribers -------------------------------------------------------------------------------------------------------


def _receive(path: Path, load: Load) -> float:
    """Be all subscribers until it is over; return the processor time that took."""
    board, began = _Board(path), time.process_time()
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for number in range(load.subscribers):
            link = stack.enter_context(_connected(load))
            _subscribe(link, load, load.filters[number] if load.filters else ())
            selector.register(link, selectors.EVENT_READ, (link, Tally(load)))
        board.ready()
        began, total = time.process_time(), 0
        while not board.is_over:
            for key, _ in selector.select(0.05):
                link, tally = key.data
                before = tally.count
                total += _taken(link, tally) - before
            if total != board.count:
                board.arrived(total)
    return time.process_time() - began


def _taken(link: socket.socket, tally: Tally) -> int:
    data = link.recv(_READ_BYTES)
    if not data:
        raise LoadError("a closed connection", "publications")
    acknowledgements = tally.receive(data)
    if acknowledgements:
        link.sendall(acknowledgements)
    return tally.count


# -- publishers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Published:
    sent: int
    acknowledged: int
    seconds: tuple[float, ...]
    cpu_s: float


class _Publishers:
    """All publishers of a load."""

    def __init__(self, board: _Board, load: Load, links: Sequence[socket.socket]) -> None:
        self._board, self._load, self._links = board, load, links
        self._block = _BLOCK if len(links) == 1 else 1
        blocks = publications(load, self._block)
        self._packet_bytes = len(blocks[0]) // self._block
        # In a round of the links everybody sends the same block, so identifiers are used in order by each.
        self._turns = cycle([(link, block) for block in blocks for link in links])
        self._poll = select.poll()
        for link in links:
            self._poll.register(link, select.POLLIN)
        self._by_number = {link.fileno(): link for link in links}
        self._answered_bytes = 0
        self._answered_ns = 0
        self.sent = 0

    @property
    def acknowledged(self) -> int:
        """How many were acknowledged."""
        return self._answered_bytes // _PUBACK_BYTES

    def round(self, count: int) -> float:
        """Send *count* and wait until all are through; return the seconds that took."""
        load, board = self._load, self._board
        began = time.monotonic_ns()
        deadline = time.monotonic() + load.limit_s
        target = self.sent + count
        turn = 0
        while self.sent < target and time.monotonic() < deadline:
            if load.qos and self.sent - self.acknowledged >= load.window:
                self._hear(1_000)
            elif load.copies and self.sent - board.count // load.copies >= load.window:
                time.sleep(_POLL_S)
                self._hear(0)
            else:
                link, data = next(self._turns)
                some = min(self._block, target - self.sent)
                link.sendall(data if some == self._block else data[: some * self._packet_bytes])
                self.sent += some
                turn += 1
                if not turn % len(self._links):
                    self._hear(0)
        self._settle()
        return (max(board.last_ns, self._answered_ns) - began) / 1e9

    def _settle(self) -> None:
        deadline = time.monotonic() + _GRACE_S
        while not self._is_through() and time.monotonic() < deadline:
            self._hear(0)
            time.sleep(_POLL_S)

    def _is_through(self) -> bool:
        is_answered = not self._load.qos or self.acknowledged >= self.sent
        return is_answered and self._board.count >= self.sent * self._load.copies

    def _hear(self, milliseconds: int) -> None:
        if not self._load.qos:
            return
        for number, _ in self._poll.poll(milliseconds):
            data = self._by_number[number].recv(_READ_BYTES)
            if not data:
                raise LoadError("a closed connection", "acknowledgements")
            self._answered_bytes += len(data)
            self._answered_ns = time.monotonic_ns()


def _publish(path: Path, load: Load, rounds: int) -> _Published:
    """Be all publishers; send everything in *rounds*, each when the one before is through."""
    with ExitStack() as stack:
        links = [stack.enter_context(_connected(load)) for _ in range(load.publishers)]
        publishers = _Publishers(_Board(path), load, links)
        began = time.process_time()
        seconds = tuple(publishers.round(load.count) for _ in range(rounds))
        return _Published(publishers.sent, publishers.acknowledged, seconds, time.process_time() - began)


# -- the other measurements --------------------------------------------------------------------------------------------


def _paced(load: Load, rate: float) -> list[int]:
    """Publish at *rate* and return the nanoseconds that each delivery took; publisher and subscribers are one."""
    times: list[int] = []
    with ExitStack() as stack:
        receivers = [stack.enter_context(_connected(load)) for _ in range(load.subscribers)]
        for link in receivers:
            _subscribe(link, load)
        publisher = stack.enter_context(_connected(load))
        tallies = {link: (_Stamps(load), Tally(load)) for link in receivers}
        wanted = load.count * load.subscribers
        padding = bytes(load.size_bytes - _STAMP.size)
        begin, sent = time.monotonic_ns() + 50_000_000, 0
        end = time.monotonic() + load.count / rate + _GRACE_S
        while len(times) < wanted and time.monotonic() < end:
            ahead = (begin + sent * 1e9 / rate - time.monotonic_ns()) / 1e9 if sent < load.count else 0.1
            if ahead <= 0:
                body = _STAMP.pack(time.monotonic_ns()) + padding
                packet_id = sent % _MOST_IDS + 1 if load.qos else 0
                publisher.sendall(encode(Publish(load.topic, body, load.qos, packet_id=packet_id), load.version))
                sent += 1
                ahead = 0.0
            for link in select.select([*receivers, publisher], [], [], ahead)[0]:
                data = link.recv(_READ_BYTES)
                if not data:
                    raise LoadError("a closed connection", "publications")
                if link is not publisher:
                    stamps, tally = tallies[link]
                    now = time.monotonic_ns()
                    times += [now - stamp for stamp in stamps.receive(data)]
                    acknowledgements = tally.receive(data)
                    if acknowledgements:
                        link.sendall(acknowledgements)
    return times


class _Stamps:
    """Reads the times of sending from a stream of publications."""

    def __init__(self, load: Load) -> None:
        self._stride = len(load.encoded(0))
        self._at = self._stride - load.size_bytes
        self._rest = b""

    def receive(self, data: bytes) -> list[int]:
        """Return the times that stand in the publications that *data* completes."""
        data = self._rest + data
        end = len(data) // self._stride * self._stride
        self._rest = data[end:]
        return [_STAMP.unpack_from(data, at)[0] for at in range(self._at, end, self._stride)]


def _leave(load: Load, client_id: str) -> None:
    """Subscribe in a session that stays, and go."""
    with _connected(load, client_id, is_clean=False) as link:
        _subscribe(link, load)
        link.sendall(encode(Disconnect(), load.version))
        link.recv(1)  # it closes when it has read that we leave


def _return(load: Load, client_id: str) -> tuple[int, float]:
    """Come back; return how many of ``load.count`` were handed over, and the seconds that took, answers included."""
    tally, began = Tally(load), time.monotonic()
    with _connected(load, client_id, is_clean=False) as link:
        while tally.count < load.count and time.monotonic() < began + load.limit_s:
            _taken(link, tally)
        link.sendall(encode(Pingreq(), load.version))  # answered when all that came before it was taken in
        if tally.count == load.count and not isinstance(_answer(link, load.version), Pingresp):
            raise LoadError("another packet", "PINGRESP after the last publication")
        return tally.count, time.monotonic() - began


def _stay(load: Load, count: int, pid: int) -> Idle:
    """Hold *count* connections, look at the memory of the process *pid*, and see that all are still answered."""
    raise_file_limit(count + 100)
    before = resident_bytes(pid)
    with ExitStack() as stack:
        links = [stack.enter_context(_connected(load)) for _ in range(count)]
        after = resident_bytes(pid)
        for link in links:
            link.sendall(encode(Pingreq(), load.version))
        answered = sum(isinstance(_answer(link, load.version), Pingresp) for link in links)
    return Idle(connections=count, answered=answered, before_bytes=before, after_bytes=after)


# -- the generator -----------------------------------------------------------------------------------------------------


class Generator:
    """Two processes that make load, used for one measurement after the other."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="whimbrel-load-")))
        pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
        self._pool = self._stack.enter_context(pool)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def throughput(
        self, load: Load, *, rounds: int = 1, pid: int | None = None, once_subscribed: Callable[[], None] | None = None
    ) -> Throughput:
        """Send *load* as often as there are *rounds*, as fast as it is taken; *pid* is the broker's, if it is known."""
        path = _Board.made(self._folder)
        board = _Board(path)
        subscribers = self._pool.submit(_receive, path, load) if load.subscribers else None
        try:
            while subscribers is not None and not board.is_ready:
                if subscribers.done():
                    subscribers.result()
                time.sleep(0.01)
            if once_subscribed is not None:
                once_subscribed()
            before = cpu_s(pid)
            published = self._published(subscribers, self._pool.submit(_publish, path, load, rounds))
            after = cpu_s(pid)
        finally:
            board.over()
        receiving_s = subscribers.result() if subscribers is not None else 0.0
        copies = load.copies
        return Throughput(
            sent=published.sent,
            expected=published.sent * copies if copies else published.sent,
            arrived=board.count if copies else published.acknowledged,
            seconds=published.seconds,
            broker_cpu_s=None if before is None or after is None else after - before,
            generator_cpu_s=published.cpu_s + receiving_s,
        )

    @staticmethod
    def _published(subscribers: Future[float] | None, publishers: Future[_Published]) -> _Published:
        while not publishers.done():
            if subscribers is not None and subscribers.done():
                subscribers.result()  # it ended before its time: raises
            time.sleep(0.01)
        return publishers.result()

    def latency(self, load: Load, *, rate: float) -> Latency:
        """Send *load* at *rate* a second, and tell how long publications were on their way."""
        if load.size_bytes < _STAMP.size:
            raise InvalidValueError("length of bodies", load.size_bytes, f"at least {_STAMP.size} bytes, for the time")
        times = sorted(self._pool.submit(_paced, load, rate).result())
        if not times:
            raise LoadError("no publications", "some")
        return Latency(
            rate=rate,
            expected=load.count * load.subscribers,
            arrived=len(times),
            p50_us=times[len(times) // 2] / 1e3,
            p99_us=times[int(len(times) * 0.99)] / 1e3,
        )

    def leave(self, load: Load, client_id: str) -> None:
        """Let a subscriber go whose session stays."""
        self._pool.submit(_leave, load, client_id).result()

    def collect(self, load: Load, client_id: str) -> tuple[int, float]:
        """Let it come back; return how many it was given, and how many seconds until all were acknowledged."""
        return self._pool.submit(_return, load, client_id).result()

    def idle(self, load: Load, *, connections: int, pid: int) -> Idle:
        """Tell what *connections* that say nothing take of the memory of the process *pid*."""
        return self._pool.submit(_stay, load, connections, pid).result()


# -- processes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Served:
    """A broker of ours in a process of its own."""

    port: int
    pid: int


@contextmanager
def serve(folder: Path, *options: str) -> Iterator[Served]:
    """Run ``whimbrel serve`` with its data in *folder*, on any free port of this machine."""
    log = folder / "broker.log"
    command = [sys.executable, "-m", "whimbrel", "serve", "--port", "0", "--data", str(folder / "data"), *options]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=file)  # noqa: S603 # our own command
    try:
        yield Served(_listening(process, log), process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listening(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        text = log.read_text(encoding="utf-8", errors="replace")
        found = _PORT.search(text)
        if found is not None:
            return int(found[1])
        if process.poll() is not None:
            raise LoadError(" ".join(text.split()[-60:]) or "nothing", "a broker that listens")
        time.sleep(0.02)
    raise LoadError(f"a broker that is not ready after {_START_S:g} s", "one that listens")


def cpu_s(pid: int | None) -> float | None:
    """Return the processor time of a process; None where the system does not tell.

    Linux has a clock for each process, which counts nanoseconds; ``/proc`` has ticks of 10 ms.
    """
    if pid is None or sys.platform != "linux":
        return None
    try:
        return time.clock_gettime((~pid << 3) | _SCHEDULED)
    except OSError:
        return None


def resident_bytes(pid: int) -> int:
    """Return the memory a process has now; 0 where the system does not tell."""
    statm = Path(f"/proc/{pid}/statm")
    return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def raise_file_limit(count: int) -> int:
    """Let this process, and those it starts from now on, have *count* files open if they may; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        soft = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return count if soft == resource.RLIM_INFINITY else soft
