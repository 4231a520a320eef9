"""How fast the broker passes on what is published, beside its peers (``peer_brokers``); what it holds and withstands.

Every broker is a process of its own with its data in a temporary directory; ours writes its log, as it always does.
The load is that of ``whimbrel bench broker`` (``whimbrel.sim.load``), the same for all, in MQTT 3.1.1.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from measure import Check, Comparison, Figure, Grid, Report, Timing
from peer_brokers import AMQTT, MOSQUITTO, NATS, OURS, SAVING_MOSQUITTO, ours, peers
from whimbrel.sim.load.generator import Generator
from whimbrel.sim.load.load import Idle, Latency, Load, Throughput
from whimbrel.sim.load.processes import cpu_s, raise_file_limit

__all__ = ["run"]

_SEED = 20_243
_LATENCY_RATES = (100.0, 1_000.0, 10_000.0)
_LATENCY_SIZES = (64, 4_096)
_QUIET_S = 60.0
_FILTERS_PER_KIND = 100
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scenario:
    """Who publishes to whom, and how often ours must be as fast as Mosquitto."""

    name: str
    qos: int = 0
    publishers: int = 1
    subscribers: int = 1
    is_stored: bool = False
    """Whether the sessions of the subscribers outlive their connections."""
    peer: str = MOSQUITTO
    """The peer of the aim."""
    aim: float
    counts: Mapping[str, int]
    """Publications in one repetition, by broker; a slow one is given fewer, one that is not measured none."""

    def load(self, port: int, count: int) -> Load:
        """Return what is sent to the broker on *port*."""
        return Load(
            port=port,
            count=count,
            qos=self.qos,
            publishers=self.publishers,
            subscribers=self.subscribers,
            is_stored=self.is_stored,
        )


_SCENARIOS = (
    _Scenario(
        name="1 → 1, QoS 0", aim=2.0, counts={OURS: 300_000, MOSQUITTO: 300_000, NATS: 100_000, AMQTT: 6_000}
    ),
    _Scenario(
        name="1 → 1, QoS 1", qos=1, aim=0.8, counts={OURS: 80_000, MOSQUITTO: 80_000, NATS: 4_000, AMQTT: 4_000}
    ),
    _Scenario(
        name="100 → 1, QoS 0", publishers=100, aim=1.3,
        counts={OURS: 100_000, MOSQUITTO: 100_000, NATS: 100_000, AMQTT: 6_000}
    ),
    _Scenario(
        name="1 → 100, QoS 0", subscribers=100, aim=10.0,
        counts={OURS: 15_000, MOSQUITTO: 15_000, NATS: 3_000, AMQTT: 200}
    ),
    _Scenario(
        name="1 → 1 stored session, QoS 1", qos=1, is_stored=True, peer=NATS, aim=1.3,
        counts={OURS: 40_000, MOSQUITTO: 40_000, SAVING_MOSQUITTO: 400, NATS: 4_000},
    ),
    _Scenario(
        name="1 → 10 stored sessions, QoS 1", qos=1, subscribers=10, is_stored=True, peer=NATS, aim=1.3,
        counts={OURS: 8_000, MOSQUITTO: 8_000, SAVING_MOSQUITTO: 100, NATS: 1_000},
    ),
)  # fmt: skip
_AMQTT_AIM = 20.0


@dataclass(frozen=True, slots=True)
class _Pace:
    """A load below what a broker can take, to measure how long deliveries take."""

    rate: float
    size_bytes: int = 64
    qos: int = 0
    is_stored: bool = False

    def __str__(self) -> str:
        size = "4 KB" if self.size_bytes == _LATENCY_SIZES[-1] else f"{self.size_bytes} B"
        return f"{self.rate:,.0f}/s, {size}, QoS {self.qos}, {'stored' if self.is_stored else 'clean'} session"

    def load(self, port: int, seconds: float) -> Load:
        """Return what is sent to the broker on *port*."""
        count = max(20, int(self.rate * seconds))
        return Load(port=port, count=count, qos=self.qos, is_stored=self.is_stored, bodies=(bytes(self.size_bytes),))

    def is_for(self, engine: str) -> bool:
        """Return whether a broker can keep this pace: some fsync or rewrite their file for each message."""
        if engine == AMQTT:
            return self == _PACES[_AIMED]
        if engine == SAVING_MOSQUITTO:
            return self.is_stored and self.rate == _LATENCY_RATES[0]
        return engine != NATS or self.rate < _LATENCY_RATES[-1] or not self.qos


_PACES = tuple(
    _Pace(rate, size, qos, is_stored)
    for qos, is_stored in ((0, False), (1, False), (1, True))
    for size in _LATENCY_SIZES
    for rate in _LATENCY_RATES
)
_AIMED = 1
"""The pace of the aims for latency: 1,000 a second of 64 bytes at QoS 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    repetitions: int
    part: float
    """How much of the publications of a scenario are sent."""
    latency_s: float
    filters: int
    filter_holders: int
    events: int
    """Publications in one repetition that are matched by content."""
    held: int
    publishers_of_held: int
    syncs: int
    idle: int


_FULL = _Sizes(
    repetitions=5,
    part=1.0,
    latency_s=1.5,
    filters=100_000,
    filter_holders=10,  # ten thousand each, which is what a session may have
    events=50_000,
    held=50_000,
    publishers_of_held=10,
    syncs=500,
    idle=10_000,
)
_QUICK = _Sizes(
    repetitions=1,
    part=0.01,
    latency_s=0.2,
    filters=300,
    filter_holders=3,
    events=300,
    held=300,
    publishers_of_held=3,
    syncs=10,
    idle=200,
)


def run(*, quick: bool) -> Report:
    """Measure everything; *quick* only proves that it runs and that nothing is lost."""
    sizes = _QUICK if quick else _FULL
    report = Report("broker", packages=("whimbrel", "uvloop"))
    with Generator() as generator:
        compared = _compared(generator, sizes)
        content = _content(generator, sizes)
        held = _held(generator, sizes)
        idle = _idle(generator, sizes)
    report.comparisons += compared.comparisons()
    report.grids += [compared.rates(), compared.latencies()]
    report.grids.append(_aims(compared, content, held, idle, is_full=not quick))
    report.figures += [*_content_figures(content, sizes), *_held_figures(held, sizes), *_idle_figures(idle)]
    report.checks += [*compared.checks(), *_own_checks(content, held, idle, sizes)]
    report.notes += [*compared.notes, *_NOTES]
    return report


_NOTES = (
    "Messages of 64 bytes; at most 4,000 are under way at a time, so no broker has a reason to drop any.",
    "1 → n: one publisher, 50 packets in a write. 100 → 1: one packet in a write, publishers in turn.",
    "1 → 100: every delivery is counted as a message. QoS 1: until the last delivery and the last acknowledgement.",
    "Processor time is the broker's own, all its threads, per delivery, in steps of a hundredth of a second.",
    "Ours has its log on: everything is written to disk, and synced within 50 ms where nobody waits for it.",
    "Mosquitto has its persistence off, which is its default, and no limit of what it queues or has under way.",
    "Mosquitto that saves writes all it holds to its file after every change (autosave), without an fsync.",
    "NATS with JetStream fsyncs every message (sync_interval: always), as ours does for stored sessions.",
    "amqtt has the plugin for anonymous clients and no other; it is given fewer messages, being slower.",
    "Content: all filters are kind == … && ward == … && level > …; an event matches about five, of one subscriber.",
    "Held: acknowledged means on disk (fsync). Returned: until the broker has taken in the last acknowledgement.",
)


# -- side by side ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Compared:
    """What all brokers did, by scenario and broker, a value for each repetition."""

    passed: Mapping[tuple[str, str], Sequence[Throughput]]
    paced: Mapping[tuple[_Pace, str], Sequence[Latency]]
    engines: tuple[str, ...]
    """The brokers that were measured, ours first."""
    notes: tuple[str, ...]

    def rate(self, scenario: str, engine: str = OURS) -> float | None:
        """Return deliveries a second."""
        found = self.passed.get((scenario, engine))
        return None if found is None else statistics.median(each.rate for each in found)

    def cpu_us(self, scenario: str, engine: str) -> float | None:
        """Return the processor time of a delivery."""
        times = [each.cpu_us for each in self.passed.get((scenario, engine), ()) if each.cpu_us is not None]
        return statistics.median(times) if times else None

    def latency_us(self, pace: _Pace, engine: str) -> tuple[float, float] | None:
        """Return what half and 99 of 100 deliveries are within."""
        found = self.paced.get((pace, engine))
        if found is None:
            return None
        return statistics.median(each.p50_us for each in found), statistics.median(each.p99_us for each in found)

    def slower(self, pace: _Pace, engine: str = MOSQUITTO) -> tuple[float | None, float | None]:
        """Return both of our latencies divided by those of another broker."""
        own, theirs = self.latency_us(pace, OURS), self.latency_us(pace, engine)
        return (None, None) if own is None or theirs is None else (own[0] / theirs[0], own[1] / theirs[1])

    def comparisons(self) -> Iterator[Comparison]:
        """Yield rates side by side; none where there is nobody beside us."""
        for scenario in _SCENARIOS:
            engines = [engine for engine in self.engines if (scenario.name, engine) in self.passed]
            timings = tuple(self._timing(scenario, engine) for engine in engines)
            if len(timings) > 1:
                yield Comparison(title=scenario.name, item="message", timings=timings)

    def _timing(self, scenario: _Scenario, engine: str) -> Timing:
        found = self.passed[scenario.name, engine]
        seconds = tuple(each.seconds[0] for each in found)
        return Timing(engine=engine, items=found[0].expected, seconds=seconds)

    def rates(self) -> Grid:
        """Return rates and the brokers' processor time."""
        engines = self.engines
        headings = ("scenario", *(f"{each} /s" for each in engines), *(f"{each} CPU µs" for each in engines))
        rows = tuple(
            (
                scenario.name,
                *(self.rate(scenario.name, engine) for engine in engines),
                *(self.cpu_us(scenario.name, engine) for engine in engines),
            )
            for scenario in _SCENARIOS
        )
        return Grid("Deliveries a second, and the broker's processor time for one", headings, rows)

    def latencies(self) -> Grid:
        """Return how long deliveries took, and the brokers' processor time for one."""
        rows = []
        for (pace, engine), found in self.paced.items():
            cpu_us = [each.cpu_us for each in found if each.cpu_us is not None]
            within = self.latency_us(pace, engine)
            assert within is not None
            rows.append((str(pace), engine, *within, statistics.median(cpu_us) if cpu_us else None))
        headings = ("load", "broker", "median µs", "99 of 100 within µs", "CPU µs")
        return Grid("Latency, 1 → 1, and the broker's processor time for a message", headings, tuple(rows))

    def checks(self) -> Iterator[Check]:
        """Claim that nothing was lost, by any broker: a rate with losses is none."""
        for (scenario, engine), passed in self.passed.items():
            sent, lost = passed[0].sent, sum(each.lost for each in passed)
            is_whole = not lost and all(each.sent == sent for each in passed)
            yield Check(f"{scenario}, {engine}: {len(passed)} × {sent:,} sent, {lost:,} lost", is_whole)
        for (pace, engine), paced in self.paced.items():
            lost = sum(each.lost for each in paced)
            sent = sum(each.expected for each in paced)
            yield Check(f"latency at {pace}, {engine}: {sent:,} sent, {lost:,} lost", not lost)


def _compared(generator: Generator, sizes: _Sizes) -> _Compared:
    with ExitStack() as stack:

        def folder() -> Path:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whimbrel-bench-")))

        found = peers()
        brokers = {OURS: stack.enter_context(ours(folder()))}
        brokers |= {each.name: stack.enter_context(each.run(folder())) for each in found if each.release is not None}
        passed: dict[tuple[str, str], list[Throughput]] = {}
        paced: dict[tuple[_Pace, str], list[Latency]] = {}
        for scenario in _SCENARIOS:
            for repetition in range(sizes.repetitions):
                for engine in scenario.counts:
                    if (broker := brokers.get(engine)) is None:
                        continue
                    load = scenario.load(broker.port, _count(scenario, engine, sizes))
                    if not repetition and sizes.repetitions > 1:  # the first messages are not like the others
                        generator.throughput(replace(load, count=max(1, load.count // 10)))
                    result = generator.throughput(load, pid=broker.pid)
                    passed.setdefault((scenario.name, engine), []).append(result)
        for pace in _PACES if sizes.repetitions > 1 else (_PACES[_AIMED], _PACES[-1]):
            for _ in range(sizes.repetitions):
                for engine, broker in brokers.items():
                    if pace.is_for(engine):
                        timed = generator.latency(
                            pace.load(broker.port, sizes.latency_s), rate=pace.rate, pid=broker.pid
                        )
                        paced.setdefault((pace, engine), []).append(timed)
        return _Compared(passed, paced, tuple(brokers), tuple(each.note for each in found))


def _count(scenario: _Scenario, engine: str, sizes: _Sizes) -> int:
    return max(20, int(scenario.counts[engine] * sizes.part))


# -- by content --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """How publications found their way by content."""

    subscribe_s: float
    quiet_s: float
    """How long the broker worked on after the last subscription was answered."""
    passed: Throughput


def _content(generator: Generator, sizes: _Sizes) -> _Content:
    """Publish to subscribers with many filters by content; every event is for exactly one of them."""
    kinds = sizes.filters // _FILTERS_PER_KIND
    filters: list[list[str]] = [[] for _ in range(sizes.filter_holders)]
    for number in range(sizes.filters):
        kind, rest = number % kinds, number // kinds
        text = f'kind == "x{kind}" && ward == {rest % 10} && level > {rest // 10}'
        filters[kind % sizes.filter_holders].append(text)
    # Subscribers that only listen are not to be taken for dead while the filters are sent.
    with (
        tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name,
        ours(Path(name), "[mqtt]\nkeep_alive_s = 0\n") as broker,
    ):
        began = time.monotonic()
        at: list[float] = []

        def once_subscribed() -> None:
            at.append(time.monotonic())
            _wait_until_quiet(broker.pid)
            at.append(time.monotonic())

        load = Load(
            port=broker.port,
            bodies=tuple(_bodies(kinds, 2_000)),
            count=sizes.events,
            subscribers=sizes.filter_holders,
            filters=tuple(map(tuple, filters)),
        )
        passed = generator.throughput(load, rounds=sizes.repetitions, pid=broker.pid, once_subscribed=once_subscribed)
        return _Content(subscribe_s=at[0] - began, quiet_s=at[1] - at[0], passed=passed)


def _bodies(kinds: int, count: int) -> Iterator[bytes]:
    """Yield events of ten attributes as JSON, all of one length."""
    rng = random.Random(_SEED)
    texts = [
        json.dumps({
            "kind": f"x{rng.randrange(kinds)}",
            "ward": rng.randrange(10),
            "level": rng.randint(1, 9),
            "bed": rng.randrange(100),
            "pulse": rng.randint(30, 220),
            "steps": rng.randrange(20_000),
            "signal": -rng.randint(20, 100),
            "temperature": round(rng.uniform(30, 45), 1),
            "battery": rng.randrange(100),
            "model": f"m-{rng.randrange(50)}",
        })
        for _ in range(count)
    ]  # fmt: skip
    longest = max(map(len, texts))
    return (text.ljust(longest).encode() for text in texts)


def _wait_until_quiet(pid: int) -> None:
    """Wait until the process *pid* and its children are idle: filters are packed behind the scenes."""
    deadline, quiet = time.monotonic() + _QUIET_S, 0
    before = _family_cpu_s(pid)
    while quiet < 3 and time.monotonic() < deadline:
        time.sleep(0.2)
        now = _family_cpu_s(pid)
        quiet = quiet + 1 if now - before <= 0.02 else 0
        before = now


def _family_cpu_s(pid: int) -> float:
    children = {child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()}
    return sum(cpu_s(each) or 0.0 for each in (pid, *map(int, children)))


def _content_figures(content: _Content, sizes: _Sizes) -> Iterator[Figure]:
    name = f"content, {sizes.filters:,} filters of {sizes.filter_holders} subscribers"
    yield Figure(f"{name}: events passed on", content.passed.rate, "/s")
    if content.passed.cpu_us is not None:
        yield Figure(f"{name}: processor time of the broker for one", content.passed.cpu_us, "µs")
    yield Figure(f"{name}: subscribing", content.subscribe_s, "s")
    yield Figure(f"{name}: until the broker was quiet after that", content.quiet_s, "s")


# -- held for whoever is away ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What was held for a subscriber that was away, and handed over."""

    accepted: tuple[Throughput, ...]
    returned: tuple[tuple[int, float], ...]
    """How many were handed over when it returned, and in how many seconds."""
    sync_ms: tuple[float, ...]
    """How long this disk takes for a write and fsync, ascending."""

    @property
    def accepted_per_s(self) -> float:
        """How many were acknowledged a second."""
        return statistics.median(each.rate for each in self.accepted)

    @property
    def returned_per_s(self) -> float:
        """How many were handed over and acknowledged a second."""
        return statistics.median(count / seconds for count, seconds in self.returned)


def _held(generator: Generator, sizes: _Sizes) -> _Held:
    """Publish for a subscriber that is away and let it return, again and again."""
    accepted, returned = [], []
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        sync_ms = tuple(sorted(_sync_ms(Path(name), sizes.syncs)))
        with ours(Path(name)) as broker:
            for number in range(sizes.repetitions):
                load = Load(
                    port=broker.port,
                    topic=f"held/{number}",
                    count=sizes.held,
                    qos=1,
                    publishers=sizes.publishers_of_held,
                    subscribers=0,
                )
                client = f"away-{number}"
                generator.leave(load, client)
                accepted.append(generator.throughput(load, pid=broker.pid))
                returned.append(generator.collect(load, client))
    return _Held(accepted=tuple(accepted), returned=tuple(returned), sync_ms=sync_ms)


def _sync_ms(folder: Path, count: int) -> Iterator[float]:
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(count):
            began = time.perf_counter()
            file.write(bytes(4_096))
            os.fsync(file.fileno())
            yield (time.perf_counter() - began) * 1e3


def _held_figures(held: _Held, sizes: _Sizes) -> Iterator[Figure]:
    name = f"held, {sizes.held:,} for a subscriber that is away"
    yield Figure(f"{name}: accepted from {sizes.publishers_of_held} publishers, QoS 1", held.accepted_per_s, "/s")
    yield Figure(f"{name}: handed over and acknowledged when it returns", held.returned_per_s, "/s")
    yield Figure("this disk, 4 KiB written and synced: median", statistics.median(held.sync_ms), "ms")
    yield Figure("this disk, 99 of 100 within", held.sync_ms[int(len(held.sync_ms) * 0.99)], "ms")


# -- idle --------------------------------------------------------------------------------------------------------------


def _idle(generator: Generator, sizes: _Sizes) -> Idle:
    """Hold connections that say nothing; as many as there may be files, if that is fewer."""
    spare = 1_000
    connections = min(sizes.idle, raise_file_limit(sizes.idle + spare) - spare)  # the broker inherits the limit
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name, ours(Path(name)) as broker:
        return generator.idle(Load(port=broker.port), connections=connections, pid=broker.pid)


def _idle_figures(idle: Idle) -> Iterator[Figure]:
    name = f"{idle.connections:,} idle connections"
    yield Figure(f"{name}: resident memory of the broker", idle.after_bytes / _MEGABYTE, "MB")
    yield Figure(f"{name}: of that before they came", idle.before_bytes / _MEGABYTE, "MB")
    yield Figure(f"{name}: each", (idle.after_bytes - idle.before_bytes) / idle.connections, "bytes")


# -- checks and aims ---------------------------------------------------------------------------------------------------


def _own_checks(content: _Content, held: _Held, idle: Idle, sizes: _Sizes) -> Iterator[Check]:
    passed = content.passed
    is_whole = not passed.lost and passed.sent == sizes.events * sizes.repetitions
    yield Check(f"content: {passed.sent:,} sent, each reached one subscriber, {passed.lost:,} lost", is_whole)
    all_held = sizes.held * sizes.repetitions
    accepted = sum(each.arrived for each in held.accepted)
    yield Check(f"held: {accepted:,} of {all_held:,} were acknowledged", accepted == all_held)
    returned = sum(count for count, _ in held.returned)
    yield Check(f"held: {returned:,} of {all_held:,} were handed over", returned == all_held)
    claim = f"idle: {idle.answered:,} of {idle.connections:,} connections are answered, {sizes.idle:,} were wanted"
    yield Check(claim, idle.answered == idle.connections == sizes.idle)


def _aims(compared: _Compared, content: _Content, held: _Held, idle: Idle, *, is_full: bool) -> Grid:
    """Set what was measured beside what the issue asks for; nothing where another size was measured."""

    def ratio(scenario: str, engine: str) -> float | None:
        ours, theirs = compared.rate(scenario), compared.rate(scenario, engine)
        return None if ours is None or theirs is None else ours / theirs

    slower_p50, slower_p99 = compared.slower(_PACES[_AIMED])
    plain = compared.rate(_SCENARIOS[0].name)
    assert plain is not None
    measured: list[tuple[str, float, float | None, str, bool]] = [
        *((f"{s.name}, ÷ {s.peer}", s.aim, ratio(s.name, s.peer), "times", False) for s in _SCENARIOS),
        *((f"{s.name}, ÷ amqtt", _AMQTT_AIM, ratio(s.name, AMQTT), "times", False) for s in _SCENARIOS[:4]),
        ("latency, median, ÷ mosquitto", 2.0, slower_p50, "times", True),
        ("latency, 99 of 100 within, ÷ mosquitto", 2.5, slower_p99, "times", True),
        ("content, 100k filters, ÷ our own 1 → 1, QoS 0", 0.35, content.passed.rate / plain, "times", False),
        ("held: accepted and synced", 20_000, held.accepted_per_s, "/s", False),
        ("held: handed over and acknowledged", 30_000, held.returned_per_s, "/s", False),
        ("10,000 idle connections: resident", 300, idle.after_bytes / _MEGABYTE, "MB", True),
    ]
    rows = tuple(
        (
            what,
            f"{'≤' if at_most else '≥'} {aim:,g} {unit}",
            value if is_full else None,
            None if value is None or not is_full else "yes" if (value <= aim) is at_most or value == aim else "**no**",
        )
        for what, aim, value, unit, at_most in measured
    )
    return Grid("Aims", ("what", "aim", "measured", "met"), rows)
