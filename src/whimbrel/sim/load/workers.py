"""The work of the generator's two processes: one runs all publishers, the other all subscribers."""

from __future__ import annotations

import select
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import Disconnect, Pingreq, Pingresp, Publish
from whimbrel.sim.load.board import Board
from whimbrel.sim.load.links import READ_BYTES, connect, read_packet, subscribe, subscribers, take
from whimbrel.sim.load.load import MAX_IDS, Idle, Load, LoadError, publications
from whimbrel.sim.load.processes import raise_file_limit, resident_bytes
from whimbrel.sim.load.tally import STAMP, Stamps, Tally

__all__ = [
    "Published",
    "come_back",
    "publish_all",
    "publish_paced",
    "receive_all",
    "stay_connected",
    "subscribe_and_leave",
]

_BLOCK = 50
"""Packets per write of a single publisher."""
_POLL_S = 0.000_2
_GRACE_S = 5.0
"""Seconds without an arrival, after the last publication was sent, until the missing ones count as lost."""
_PUBACK_BYTES = 4


def receive_all(path: Path, load: Load) -> float:
    """Run all subscribers until the measurement is over; return the processor time used."""
    board, began = Board(path), time.process_time()
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for number, link in enumerate(stack.enter_context(subscribers(load))):
            subscribe(link, load, load.filters[number] if load.filters else ())
            selector.register(link, selectors.EVENT_READ, (link, Tally(load)))
        board.ready()
        began, total = time.process_time(), 0
        while not board.is_over:
            for key, _ in selector.select(0.05):
                link, tally = key.data
                before = tally.count
                total += take(link, tally) - before
            if total != board.count:
                board.record_arrivals(total)
    return time.process_time() - began


@dataclass(frozen=True, slots=True)
class Published:
    """Numbers sent and acknowledged by the publishers, and the duration of each round."""

    sent: int
    acknowledged: int
    seconds: tuple[float, ...]
    cpu_s: float


class _Publishers:
    """All publishers of a load."""

    def __init__(self, board: Board, load: Load, links: Sequence[socket.socket]) -> None:
        self._board, self._load, self._links = board, load, links
        self._block = _BLOCK if len(links) == 1 else 1
        blocks = publications(load, self._block)
        self._packet_bytes = len(blocks[0]) // self._block
        # In each turn of the links all send the same block, so that each link uses its identifiers in order.
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
        """Number of acknowledged publications."""
        return self._answered_bytes // _PUBACK_BYTES

    def round(self, count: int) -> float:
        """Send *count* publications and wait until all have arrived; return the seconds used."""
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
        through, deadline = self._through, time.monotonic() + _GRACE_S
        while not self._is_through() and time.monotonic() < deadline:
            self._hear(0)
            time.sleep(_POLL_S)
            if self._through != through:
                through, deadline = self._through, time.monotonic() + _GRACE_S

    @property
    def _through(self) -> tuple[int, int]:
        """Progress so far: bytes of acknowledgements, and copies that arrived."""
        return self._answered_bytes, self._board.count

    def _is_through(self) -> bool:
        is_answered = not self._load.qos or self.acknowledged >= self.sent
        return is_answered and self._board.count >= self.sent * self._load.copies

    def _hear(self, milliseconds: int) -> None:
        if not self._load.qos:
            return
        for number, _ in self._poll.poll(milliseconds):
            data = self._by_number[number].recv(READ_BYTES)
            if not data:
                raise LoadError("a closed connection", "acknowledgements")
            self._answered_bytes += len(data)
            self._answered_ns = time.monotonic_ns()


def publish_all(path: Path, load: Load, rounds: int) -> Published:
    """Run all publishers: send *load* in *rounds* rounds, each after the one before has arrived."""
    with ExitStack() as stack:
        links = [stack.enter_context(connect(load)) for _ in range(load.publishers)]
        publishers = _Publishers(Board(path), load, links)
        began = time.process_time()
        seconds = tuple(publishers.round(load.count) for _ in range(rounds))
        return Published(publishers.sent, publishers.acknowledged, seconds, time.process_time() - began)


def publish_paced(load: Load, rate: float) -> list[int]:
    """Publish at *rate*; return the nanoseconds of each delivery. One process publishes and subscribes."""
    times: list[int] = []
    with ExitStack() as stack:
        receivers = stack.enter_context(subscribers(load))
        for link in receivers:
            subscribe(link, load)
        publisher = stack.enter_context(connect(load))
        tallies = {link: (Stamps(load), Tally(load)) for link in receivers}
        wanted = load.count * load.subscribers
        padding = bytes(load.size_bytes - STAMP.size)
        begin, sent = time.monotonic_ns() + 50_000_000, 0
        end = time.monotonic() + load.count / rate + _GRACE_S
        while len(times) < wanted and time.monotonic() < end:
            ahead = (begin + sent * 1e9 / rate - time.monotonic_ns()) / 1e9 if sent < load.count else 0.1
            if ahead <= 0:
                body = STAMP.pack(time.monotonic_ns()) + padding
                packet_id = sent % MAX_IDS + 1 if load.qos else 0
                publisher.sendall(encode(Publish(load.topic, body, load.qos, packet_id=packet_id), load.version))
                sent += 1
                ahead = 0.0
            for link in select.select([*receivers, publisher], [], [], ahead)[0]:
                data = link.recv(READ_BYTES)
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


def subscribe_and_leave(load: Load, client_id: str) -> None:
    """Subscribe in a persistent session and disconnect."""
    with connect(load, client_id, is_clean=False) as link:
        subscribe(link, load)
        link.sendall(encode(Disconnect(), load.version))
        link.recv(1)  # the broker closes when it has read the DISCONNECT


def come_back(load: Load, client_id: str) -> tuple[int, float]:
    """Reconnect and receive ``load.count`` deliveries; return their number, and the seconds until acknowledged."""
    tally, began = Tally(load), time.monotonic()
    with connect(load, client_id, is_clean=False) as link:
        while tally.count < load.count and time.monotonic() < began + load.limit_s:
            take(link, tally)
        link.sendall(encode(Pingreq(), load.version))  # answered after the broker has handled all earlier packets
        if tally.count == load.count and not isinstance(read_packet(link, load.version), Pingresp):
            raise LoadError("another packet", "PINGRESP after the last publication")
        return tally.count, time.monotonic() - began


def stay_connected(load: Load, count: int, pid: int) -> Idle:
    """Open *count* idle connections, measure the memory of the process *pid*, and check that all still answer."""
    raise_file_limit(count + 100)
    before = resident_bytes(pid)
    with ExitStack() as stack:
        links = [stack.enter_context(connect(load)) for _ in range(count)]
        after = resident_bytes(pid)
        for link in links:
            link.sendall(encode(Pingreq(), load.version))
        answered = sum(isinstance(read_packet(link, load.version), Pingresp) for link in links)
    return Idle(connections=count, answered=answered, before_bytes=before, after_bytes=after)
