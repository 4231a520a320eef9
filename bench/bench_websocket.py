"""What MQTT over WebSocket costs the broker with our frames, with ``websockets`` and with ``wsproto``.

Each engine has a broker of its own (``websocket_engines.py``); they take turns within every repetition, seconds apart,
and what is compared is the broker's core time. Publications of QoS 0 with bodies of 64 bytes go from one WebSocket to
another, each in a frame of its own, as clients send them.
Rule: no more than a window is under way, so nothing is dropped; what is missing in the end is lost.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from measure import Check, Comparison, Job, Report, Timing, measure
from websocket_engines import ENGINES, OURS, WEBSOCKETS, WSPROTO
from websocket_peer import client_frame, upgrade_request
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V311, Connect, Publish, Subscribe, SubscriptionRequest
from whimbrel.sim.load.processes import cpu_s

__all__ = ["run"]

_HERE = Path(__file__).parent
_PORT = re.compile(r"\bws=([0-9]+)")
_TOPIC = "w/s"
_PACKET = encode(Publish(_TOPIC, bytes(64)), V311)
_WINDOW = 2_000
_PATIENCE_S = 30.0
_READ_BYTES = 1 << 18
_MAX_FRAME_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class _Scenario:
    """How publications come."""

    name: str
    publishers: int
    frames: int
    """In one write."""


_SCENARIOS = (
    _Scenario("50 frames in one write, as a gateway sends them", 1, 50),
    _Scenario("one frame in one write, from 50 devices in turn", 50, 1),
)


def run(*, quick: bool) -> Report:
    """Measure frames alone, then brokers; *quick* only proves that everything arrives."""
    report = Report("websocket", packages=("whimbrel", "uvloop", "websockets", "wsproto"))
    repetitions, part = (1, 0.02) if quick else (9, 1.0)
    for comparison in _frames(repetitions, part):
        report.comparisons.append(comparison)
    with ExitStack() as stack:
        brokers = {engine: stack.enter_context(_served(engine)) for engine in (OURS, WEBSOCKETS, WSPROTO)}
        for scenario in _SCENARIOS:
            _measure_brokers(report, scenario, brokers, repetitions=repetitions, count=max(500, int(40_000 * part)))
    report.notes += [
        "Frames alone are timed in one process; with brokers, what is compared is the broker's core time.",
        f"At most {_WINDOW:,} publications are under way; each engine's repetitions take turns with the others'.",
    ]
    return report


# -- frames alone ------------------------------------------------------------------------------------------------------


def _frames(repetitions: int, part: float) -> Iterator[Comparison]:
    reads = (
        ("one frame of 80 bytes a read", 80, 1, 4_000),
        ("50 frames of 80 bytes a read", 80, 50, 80),
        ("frames of one byte, 1,000 a read", 1, 1_000, 4),
        ("frames of 64 KB, 4 a read", 1 << 16, 4, 50),
    )
    for title, size, frames, times in reads:
        data = b"".join(client_frame(os.urandom(size)) for _ in range(frames))
        yield _compared(f"Reading {title}", data, max(1, int(times * part)), frames, repetitions)
    for size in (80, 1 << 16):
        yield _compared(
            f"Writing a frame of {size:,} bytes", os.urandom(size), max(1, int(4_000 * part)), 0, repetitions
        )


def _compared(title: str, data: bytes, times: int, frames: int, repetitions: int) -> Comparison:
    jobs = []
    for engine, make in ENGINES.items():
        framing = make(max_frame_bytes=_MAX_FRAME_BYTES)
        act: Callable[[bytes], object] = framing.receive if frames else framing.wrap
        jobs.append(Job(engine, times * max(1, frames), _repeated(act, data, times)))
    return Comparison(title=title, item="frame", timings=measure(jobs, repetitions=repetitions))


def _repeated(act: Callable[[bytes], object], data: bytes, times: int) -> Callable[[], None]:
    def job() -> None:
        for _ in range(times):
            act(data)

    return job


# -- brokers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Served:
    port: int
    pid: int


@contextmanager
def _served(engine: str) -> Iterator[_Served]:
    """Run a broker with the frames of *engine*."""
    with tempfile.TemporaryDirectory(prefix="whimbrel-websocket-") as name:
        folder = Path(name)
        log = folder / "broker.log"
        options = ["--port", "0", "--ws-port", "0", "--data", str(folder / "data")]
        command = [sys.executable, str(_HERE / "websocket_engines.py"), engine, "serve", *options]
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=file)  # noqa: S603 # our own command
        try:
            yield _Served(_listening(process, log), process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_PATIENCE_S)


def _listening(process: subprocess.Popen[bytes], log: Path) -> int:
    while True:
        text = log.read_text(encoding="utf-8", errors="replace")
        found = _PORT.search(text)
        if found is not None:
            return int(found[1])
        if process.poll() is not None:
            raise RuntimeError(text)
        time.sleep(0.05)


def _measure_brokers(
    report: Report, scenario: _Scenario, brokers: dict[str, _Served], *, repetitions: int, count: int
) -> None:
    seconds: dict[str, list[float]] = {engine: [] for engine in brokers}
    arrived = 0
    for _ in range(repetitions):
        for engine, served in brokers.items():
            before = cpu_s(served.pid) or 0.0
            arrived += _sent_through(served.port, scenario, count)
            seconds[engine].append((cpu_s(served.pid) or 0.0) - before)
    timings = tuple(Timing(engine=each, items=count, seconds=tuple(found)) for each, found in seconds.items())
    report.comparisons.append(Comparison(title=f"A broker: {scenario.name}", item="message", timings=timings))
    expected = count * repetitions * len(brokers)
    report.checks.append(Check(f"{scenario.name}: {expected:,} sent, {expected - arrived:,} lost", arrived == expected))


def _sent_through(port: int, scenario: _Scenario, count: int) -> int:
    """Send *count* publications and return how many of them arrived."""
    with ExitStack() as stack:
        subscriber = stack.enter_context(_opened(port, "subscriber"))
        subscriber.sendall(client_frame(encode(Subscribe(1, (SubscriptionRequest(_TOPIC, 0),)), V311)))
        _answer(subscriber)
        names = [f"publisher-{number}" for number in range(scenario.publishers)]
        links = [stack.enter_context(_opened(port, name)) for name in names]
        return _pump(subscriber, links, client_frame(_PACKET) * scenario.frames, scenario.frames, count)


def _pump(subscriber: socket.socket, links: Sequence[socket.socket], block: bytes, size: int, count: int) -> int:
    tally, sent, turns = _Tally(), 0, cycle(links)
    deadline = time.monotonic() + _PATIENCE_S
    while tally.packets < count and time.monotonic() < deadline:
        while sent < count and sent - tally.packets < _WINDOW:
            next(turns).sendall(block)
            sent += size
        if select.select([subscriber], [], [], 0.5)[0]:
            tally.receive(subscriber.recv(_READ_BYTES))
    return tally.packets


class _Tally:
    """Counts the bytes that a server's frames carry."""

    def __init__(self) -> None:
        self._rest, self._left, self._bytes = b"", 0, 0

    @property
    def packets(self) -> int:
        """How many publications came."""
        return self._bytes // len(_PACKET)

    def receive(self, data: bytes) -> None:
        """Count *data*, which may begin and end within a frame."""
        data, self._rest = self._rest + data, b""
        at = 0
        while at < len(data):
            if not self._left:
                head = _head(data[at : at + 10])
                if head is None:
                    self._rest = data[at:]
                    return
                at, self._left = at + head[0], head[1]
            taken = min(self._left, len(data) - at)
            at, self._left, self._bytes = at + taken, self._left - taken, self._bytes + taken


def _head(data: bytes) -> tuple[int, int] | None:
    """Return the length of a frame's head, and of what it carries; None where the head is not whole."""
    form, size = {126: (">H", 4), 127: (">Q", 10)}.get(data[1] if len(data) > 1 else 0, ("", 2))
    if len(data) < size:
        return None
    return size, data[1] if not form else struct.unpack_from(form, data, 2)[0]


def _opened(port: int, name: str) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.sendall(upgrade_request())
    _answer(link)
    link.sendall(client_frame(encode(Connect(name, version=V311), V311)))
    _answer(link)
    return link


def _answer(link: socket.socket) -> None:
    """Read one answer: nothing else is under way."""
    if not link.recv(_READ_BYTES):
        raise RuntimeError("the broker closed the connection")
