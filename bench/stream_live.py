"""A broker under a steady load, without and with a stream beside it on the same cores: latency, lag, state and memory.

Ten publishers send to ten subscribers, each pair on subjects of its own, at quality of service 1; the subscribers have
sessions that stay. The stream is ``whimbrel pipeline run --continuous``, a process of its own, as nice as it is by
default.
Rule: publications are due at times that are fixed before; each says when it was written, and who receives it looks at
the same clock.
Rule: how far behind the tables are is told twice: as the stream tells it, right after a batch, and as a reader has it
who looks right before the next one is over, which is the worst.
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import statistics
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the stream's process is that of the tests

from measure import Check, Figure, Grid
from whimbrel.sim.load.links import connect, subscribe
from whimbrel.sim.load.load import Load, LoadError
from whimbrel.sim.load.processes import resident_bytes, serve
from whimbrel.sim.load.tally import Tally

__all__ = ["Live", "LiveSizes", "live"]

PAIRS, SUBJECTS = 10, 5
"""Publishers with a subscriber each, and how many subjects each pair has."""
_TICK_S = 0.004
_GRACE_S = 20.0
_READ_BYTES = 1 << 18
_MAX_IDS = 60_000
_BODY = b'{"at": "%019d", "bed": %d, "pulse": %d, "spo2": 97}'
_AT = len(b'{"at": "')
_DIGITS = 19
_LOOK_EVERY_S = 2.0
_STILL_S = 3.0
"""A log that has not grown for so long has come to its end."""
_SETTLE_S = 60.0
"""The first minute of a stream is not that of a month: Java compiles what it runs often."""
_LAG_S, _RATIO, _GROWTH = 10.0, 2.0, 1.3
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSizes:
    """How much, and for how long."""

    rate: int = 5_000
    alone_s: float = 60.0
    beside_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What the subscribers were given."""

    sent: int
    arrived: int
    p50_us: float
    p99_us: float
    p99s_us: tuple[float, ...]
    """The same of each ten seconds."""


@dataclass(frozen=True, slots=True)
class Look:
    """What processes take of the memory at one moment, in bytes."""

    at_s: float
    broker: int
    python: int
    java: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """How it went."""

    sizes: LiveSizes
    alone: Heard
    beside: Heard
    told: tuple[dict[str, Any], ...]
    """What the stream said of its batches: of the last before the load, and of those while the load went on."""
    begun_at_s: float
    looks: tuple[Look, ...]
    outcomes: dict[str, int]
    """How many rows of ``deliveries`` say what in the end."""
    status: int
    """How the stream ended when it was told to."""

    @property
    def ratio(self) -> float:
        """How much longer 99 of 100 were on their way with the stream beside the broker."""
        return self.beside.p99_us / self.alone.p99_us

    def _behind_s(self) -> list[tuple[float, float]]:
        """Return, for each batch, when it was over and how far behind the tables were right before."""
        found = []
        for before, after in pairwise(self.told):
            since_s = max(before["newest_at"] / 1e6, self.begun_at_s)  # before that, there was nothing to be had
            found.append((after["at"] / 1e6, after["at"] / 1e6 - since_s))
        return found

    def figures(self) -> Iterator[Figure]:
        """Yield what was measured."""
        for name, heard in (("alone", self.alone), ("with the stream", self.beside)):
            yield Figure(f"live: {self.sizes.rate:,} /s, {name}: median", heard.p50_us / 1e3, "ms")
            yield Figure(f"live: {self.sizes.rate:,} /s, {name}: 99 of 100 within", heard.p99_us / 1e3, "ms")
        yield Figure(f"live: 99 of 100, with against alone (aim < {_RATIO:g})", self.ratio, "×")
        behind = self._behind_s()
        late = [lag for at, lag in behind if at > self.begun_at_s + _SETTLE_S]
        yield Figure("live: lag as told after a batch, most", max(each["lag_s"] for each in self.told[1:]), "s")
        most = max(sum(each["lag"].values()) for each in self.told[1:])
        yield Figure("live: lag as told after a batch, most", float(most), "numbers")
        yield Figure("live: tables behind right before a batch is over, most", max(lag for _, lag in behind), "s")
        if late:
            yield Figure(f"live: the same after the first minute (aim < {_LAG_S:g})", max(late), "s")
        yield Figure("live: batches", float(len(self.told) - 1), "")
        yield Figure("live: a batch, median", statistics.median(each["took_s"] for each in self.told[1:]), "s")
        facts = sum(each["facts"] for each in self.told[1:])
        yield Figure("live: facts taken in", facts / (self.told[-1]["at"] / 1e6 - self.begun_at_s), "/s")

    def grid(self) -> Grid:
        """Return how it was over time, in ten rows."""
        headings = (
            "seconds", "behind s, most", "remembered", "state MiB", "broker MiB", "Python MiB", "Java MiB",
            "99 of 100 within ms",
        )  # fmt: skip
        length = (self.told[-1]["at"] / 1e6 - self.begun_at_s) / 10
        rows: list[tuple[str | float | None, ...]] = []
        behind = self._behind_s()
        for number in range(10):
            begin, end = (self.begun_at_s + length * step for step in (number, number + 1))
            told = [each for each in self.told if begin < each["at"] / 1e6 <= end]
            looks = [each for each in self.looks if begin < each.at_s <= end]
            lags = [lag for at, lag in behind if begin < at <= end]
            step = len(self.beside.p99s_us) / 10
            p99s = self.beside.p99s_us[int(number * step) : int((number + 1) * step)]
            rows.append((
                f"{length * number:.0f} to {length * (number + 1):.0f}",
                max(lags, default=None),
                float(told[-1]["state"]) if told else None,
                told[-1]["state_bytes"] / _MIB if told else None,
                *(_most(looks, name) for name in ("broker", "python", "java")),
                max(p99s) / 1e3 if p99s else None,
            ))  # fmt: skip
        return Grid("A stream beside a broker under load, over time", headings, tuple(rows))

    def checks(self, *, is_full: bool) -> Iterator[Check]:
        """Claim that nothing was lost and the tables are whole; of a *full* run, also that the aims were met."""
        sent = self.alone.sent + self.beside.sent
        arrived = self.alone.arrived + self.beside.arrived
        yield Check(f"live: {sent:,} sent, {arrived:,} arrived", sent == arrived)
        told = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self.outcomes.items()))
        yield Check(f"live: the rows of deliveries: {told}", self.outcomes == {"delivered": arrived})
        yield Check(f"live: the stream ended with {self.status} when it was told to stop", not self.status)
        if not is_full:
            return
        behind = max(lag for at, lag in self._behind_s() if at > self.begun_at_s + _SETTLE_S)
        yield Check(f"live: the tables were {behind:.1f} s behind at most; aim < {_LAG_S:g}", behind < _LAG_S)
        yield Check(f"live: 99 of 100 took {self.ratio:.2f} × as long; aim < {_RATIO:g}", self.ratio < _RATIO)
        settled = [each for each in self.told if each["at"] / 1e6 > self.begun_at_s + _SETTLE_S]
        for name in ("state", "state_bytes"):
            yield _flat(name, [each[name] for each in settled])
        looks = [each for each in self.looks if each.at_s > self.begun_at_s + _SETTLE_S]
        for name in ("broker", "python", "java"):
            yield _flat(f"memory of {name}", [getattr(each, name) for each in looks])


def _flat(what: str, values: Sequence[float]) -> Check:
    """Claim that something has stopped growing: SQLite's files, for one, have their size after some minutes."""
    third = max(1, len(values) // 3)
    middle, last = statistics.median(values[third : 2 * third] or values), statistics.median(values[-third:])
    claim = f"live: {what}: median of the middle third {middle:,.0f}, of the last {last:,.0f}; aim ≤ {_GROWTH} ×"
    return Check(claim, last <= _GROWTH * middle)


def _most(looks: Sequence[Look], name: str) -> float | None:
    return max((getattr(each, name) / _MIB for each in looks), default=None)


def live(folder: Path, sizes: LiveSizes) -> Live:
    """Load a broker, first alone, then with a stream beside it."""
    from tests.e2e.stream_kills import StreamProcess

    with ExitStack() as stack:
        served = stack.enter_context(serve(folder))
        pool = stack.enter_context(ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")))
        alone = pool.submit(_load, served.port, sizes.rate, sizes.alone_s).result()
        process = StreamProcess(folder / "data", folder / "tables", "--continuous", "--every", "2s")
        stack.callback(process.kill)
        _await_end(process, folder / "data" / "log")  # it has read what came before, and Java has started
        begun_at_s, before = time.time(), len(process.told)
        loading = pool.submit(_load, served.port, sizes.rate, sizes.beside_s)
        looks = list(_looks(loading, served.pid, process))
        beside, during = loading.result(), len(process.told)
        _await_end(process, folder / "data" / "log")
        status = process.stop()
    return Live(
        sizes=sizes,
        alone=alone,
        beside=beside,
        told=tuple(process.told[max(before - 1, 0) : max(during, before + 1)]),
        begun_at_s=begun_at_s,
        looks=tuple(looks),
        outcomes=_outcomes(folder / "tables"),
        status=status,
    )


def _await_end(process: Any, log: Path) -> None:
    """Wait until the stream has everything, of a broker that is not written to any more."""
    from whimbrel.pipeline.files.snapshots import snapshot

    before: dict[str, int] = {}
    wanted = snapshot(log).last
    while before != wanted:  # a broker marks its last facts as durable within a second or two
        time.sleep(_STILL_S)
        before, wanted = wanted, snapshot(log).last
    while not process.told or any(process.told[-1]["applied"].get(node, -1) < seq for node, seq in wanted.items()):
        if not process.is_running:
            raise LoadError(process.errors.read_text()[-2_000:], "a stream that goes on")
        time.sleep(0.1)


def _looks(loading: Future[Heard], broker: int, process: Any) -> Iterator[Look]:
    java = process.java()
    while not loading.done():
        memory = (resident_bytes(broker), resident_bytes(process.pid), sum(map(resident_bytes, java)))
        yield Look(time.time(), *memory)
        time.sleep(_LOOK_EVERY_S)


def _outcomes(tables: Path) -> dict[str, int]:
    """Return how many rows of ``deliveries`` say what."""
    import pyarrow.dataset as pads

    from whimbrel.pipeline.files.delta import data_files

    found = pads.dataset([str(path) for path in data_files(tables, "deliveries")], format="parquet")
    counted = found.to_table(columns=["outcome"]).column("outcome").value_counts().to_pylist()
    return {each["values"]: each["counts"] for each in counted}


# -- the load ----------------------------------------------------------------------------------------------------------


class _Pair:
    """A publisher and its subscriber, on subjects of their own."""

    def __init__(self, stack: ExitStack, port: int, number: int) -> None:
        self._topics = [f"live/{number}/{subject}" for subject in range(SUBJECTS)]
        self._packets = [self._load(port, topic) for topic in self._topics]
        self._sent = self._packet_id = 0
        wanted = Load(port=port, topic=f"live/{number}/+", qos=1, bodies=(_body(0, 0),))
        self.subscriber = stack.enter_context(connect(wanted, f"live-{number}", is_clean=False))
        subscribe(self.subscriber, wanted)
        self.publisher = stack.enter_context(connect(wanted, f"live-sensor-{number}"))
        self._tally = Tally(self._packets[0])
        packet = self._packets[0].encode(0)
        self._heads = [load.encode(0)[: -load.size_bytes - 2] for load in self._packets]
        self._stride, self._rest = len(packet), b""
        self._stamp_at = self._stride - len(_body(0, 0)) + _AT

    @staticmethod
    def _load(port: int, topic: str) -> Load:
        return Load(port=port, topic=topic, qos=1, bodies=(_body(0, 0),))

    def publish(self, count: int, now_ns: int) -> None:
        """Send *count* publications in one write."""
        packets = []
        for _ in range(count):
            self._packet_id = self._packet_id % _MAX_IDS + 1
            head = self._heads[self._sent % SUBJECTS]
            packets.append(head + self._packet_id.to_bytes(2, "big") + _body(now_ns, self._sent))
            self._sent += 1
        self.publisher.sendall(b"".join(packets))

    def receive(self, times: array[int]) -> None:
        """Take in what came for the subscriber: when each was sent, and acknowledgements of all."""
        data = _some(self.subscriber)
        acknowledgements = self._tally.receive(data)
        now, data = time.monotonic_ns(), self._rest + data
        end = len(data) // self._stride * self._stride
        at = self._stamp_at
        times.extend(now - int(data[place : place + _DIGITS]) for place in range(at, end, self._stride))
        self._rest = data[end:]
        if acknowledgements:
            self.subscriber.sendall(acknowledgements)


def _body(now_ns: int, number: int) -> bytes:
    return _BODY % (now_ns, 1_000 + number % 9_000, 100 + number % 100)  # all bodies are as long, and JSON


def _some(link: socket.socket) -> bytes:
    data = link.recv(_READ_BYTES)
    if not data:
        raise LoadError("a closed connection", "an answer")
    return data


def _load(port: int, rate: int, seconds: float) -> Heard:
    """Publish at *rate*, and return how long deliveries took; publishers and subscribers are one process."""
    times: array[int] = array("q")
    ends: list[int] = []
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        pairs = [_Pair(stack, port, number) for number in range(PAIRS)]
        for pair in pairs:
            selector.register(pair.subscriber, selectors.EVENT_READ, pair)
            selector.register(pair.publisher, selectors.EVENT_READ, None)
        count, sent = int(rate * seconds), 0
        begun = time.monotonic()
        mark_s, tick = 10.0, begun
        while len(times) < count and time.monotonic() < begun + seconds + _GRACE_S:
            now = time.monotonic()
            if sent < count and now >= tick:
                due = min(int((now - begun) * rate) + PAIRS, count) - sent
                for number, pair in enumerate(pairs):
                    some = (due + number) // PAIRS
                    if some:
                        pair.publish(some, time.monotonic_ns())
                        sent += some
                tick = now + _TICK_S
            for key, _ in selector.select(max(0.0, tick - time.monotonic()) if sent < count else 0.05):
                if key.data is None:
                    _some(key.fileobj)  # type: ignore[arg-type] # acknowledgements, which are not counted
                else:
                    key.data.receive(times)
            if now - begun > mark_s:
                ends.append(len(times))
                mark_s += 10
    return _heard(sent, times, ends)


def _heard(sent: int, times: array[int], ends: list[int]) -> Heard:
    import numpy as np

    if not times:
        raise LoadError("no publications", "some")
    every = np.array(times) / 1e3
    parts = [part for part in np.split(every, ends) if len(part)]
    return Heard(
        sent=sent,
        arrived=len(times),
        p50_us=float(np.percentile(every, 50)),
        p99_us=float(np.percentile(every, 99)),
        p99s_us=tuple(float(np.percentile(part, 99)) for part in parts),
    )
