"""How fast the broker passes on what is published, beside Mosquitto and amqtt; what it holds, and what it withstands.

Every broker is a process of its own with its data in a temporary directory; ours writes its log, as it always does.
The load is that of ``whimbrel bench broker`` (``whimbrel.sim.load``), the same for all, in MQTT 3.1.1.
Rule: a peer that is not installed is named in the notes and its ratios are left out.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from measure import Check, Comparison, Figure, Grid, Report, Timing
from whimbrel.sim.load.generator import Generator
from whimbrel.sim.load.load import Idle, Latency, Load, Throughput
from whimbrel.sim.load.processes import Served, cpu_s, raise_file_limit, serve

__all__ = ["run"]

_SEED = 20_243
_OURS, _MOSQUITTO, _AMQTT = "whimbrel", "mosquitto", "amqtt"
_LATENCY_RATE = 1_000.0
_START_S = 30.0
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
    aim: float
    counts: Mapping[str, int]
    """Publications in one repetition, by broker; a slow one is given fewer."""

    def load(self, port: int, count: int) -> Load:
        """Return what is sent to the broker on *port*."""
        return Load(port=port, count=count, qos=self.qos, publishers=self.publishers, subscribers=self.subscribers)


_SCENARIOS = (
    _Scenario(
        name="1 → 1, QoS 0", aim=1.0, counts={_OURS: 300_000, _MOSQUITTO: 300_000, _AMQTT: 6_000}
    ),
    _Scenario(
        name="1 → 1, QoS 1", qos=1, aim=0.8, counts={_OURS: 80_000, _MOSQUITTO: 80_000, _AMQTT: 4_000}
    ),
    _Scenario(
        name="100 → 1, QoS 0", publishers=100, aim=0.8, counts={_OURS: 100_000, _MOSQUITTO: 100_000, _AMQTT: 6_000}
    ),
    _Scenario(
        name="1 → 100, QoS 0", subscribers=100, aim=1.0, counts={_OURS: 15_000, _MOSQUITTO: 15_000, _AMQTT: 200}
    ),
)  # fmt: skip
_AMQTT_AIM = 20.0


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
    latency_s=3.0,
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
    report = Report("broker", packages=("whimbrel", "uvloop", *((_AMQTT,) if find_spec(_AMQTT) else ())))
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
    "amqtt has the plugin for anonymous clients and no other; it is given fewer messages, being slower.",
    "Content: all filters are kind == … && ward == … && level > …; an event matches about five, of one subscriber.",
    "Held: acknowledged means on disk (fsync). Returned: until the broker has taken in the last acknowledgement.",
)


# -- brokers -----------------------------------------------------------------------------------------------------------


def _serve(folder: Path, settings: str = "") -> AbstractContextManager[Served]:
    """Run a broker of ours in *folder*; *settings* are lines of its configuration file."""
    config = folder / "broker.toml"
    config.write_text(settings, encoding="utf-8")
    return serve(folder, "--config", str(config))


@contextmanager
def _mosquitto(folder: Path) -> Iterator[Served]:
    program = _mosquitto_program()
    assert program is not None
    port = _free_port()
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 0\n",
        encoding="ascii",
    )
    with _started([program, "-c", str(config)], port, folder) as served:
        yield served


@contextmanager
def _amqtt(folder: Path) -> Iterator[Served]:
    port = _free_port()
    config = folder / "amqtt.yaml"
    plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    listeners = {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}}
    # JSON is YAML, too.
    config.write_text(json.dumps({"listeners": listeners, "plugins": plugins}), encoding="utf-8")
    command = [sys.executable, "-m", "amqtt.scripts.broker_script", "-c", str(config)]
    with _started(command, port, folder) as served:
        yield served


def _mosquitto_program() -> str | None:
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def _started(command: Sequence[str], port: int, folder: Path) -> Iterator[Served]:
    """Run *command* until it is no longer needed; what it writes is kept beside its data."""
    with (folder / "output.log").open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 # fixed words, no shell
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + _START_S
        while not _is_listening(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not listen:\n{(folder / 'output.log').read_text()[-2_000:]}")
            time.sleep(0.02)
        yield Served(port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_listening(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


# -- side by side ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Compared:
    """What all brokers did, by scenario and broker, a value for each repetition."""

    passed: Mapping[tuple[str, str], Sequence[Throughput]]
    paced: Mapping[str, Sequence[Latency]]
    notes: tuple[str, ...]

    @property
    def engines(self) -> list[str]:
        """The brokers that were measured, ours first."""
        return list(self.paced)

    def rate(self, scenario: str, engine: str = _OURS) -> float | None:
        """Return deliveries a second."""
        found = self.passed.get((scenario, engine))
        return None if found is None else statistics.median(each.rate for each in found)

    def cpu_us(self, scenario: str, engine: str) -> float | None:
        """Return the processor time of a delivery."""
        times = [each.cpu_us for each in self.passed.get((scenario, engine), ()) if each.cpu_us is not None]
        return statistics.median(times) if times else None

    def p99_us(self, engine: str) -> float | None:
        """Return what 99 of 100 deliveries are within."""
        found = self.paced.get(engine)
        return None if found is None else statistics.median(each.p99_us for each in found)

    def comparisons(self) -> Iterator[Comparison]:
        """Yield rates side by side; none where there is nobody beside us."""
        for scenario in _SCENARIOS:
            timings = tuple(self._timing(scenario, engine) for engine in self.engines)
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
        """Return how long deliveries took."""
        rows = tuple(
            (engine, statistics.median(each.p50_us for each in found), statistics.median(each.p99_us for each in found))
            for engine, found in self.paced.items()
        )
        title = f"Latency at {_LATENCY_RATE:,.0f} a second, QoS 0, 1 → 1"
        return Grid(title, ("broker", "median µs", "99 of 100 within µs"), rows)

    def checks(self) -> Iterator[Check]:
        """Claim that nothing was lost, by any broker: a rate with losses is none."""
        for scenario in _SCENARIOS:
            for engine in self.engines:
                found = self.passed[scenario.name, engine]
                sent, lost = found[0].sent, sum(each.lost for each in found)
                is_whole = not lost and all(each.sent == sent for each in found)
                yield Check(f"{scenario.name}, {engine}: {len(found)} × {sent:,} sent, {lost:,} lost", is_whole)
        for engine, paced in self.paced.items():
            lost = sum(each.lost for each in paced)
            yield Check(f"latency, {engine}: {sum(each.expected for each in paced):,} sent, {lost:,} lost", not lost)


def _compared(generator: Generator, sizes: _Sizes) -> _Compared:
    with ExitStack() as stack:

        def folder() -> Path:
            return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whimbrel-bench-")))

        brokers = {_OURS: stack.enter_context(_serve(folder()))}
        notes = []
        program = _mosquitto_program()
        if program is None:
            notes.append("Mosquitto is not installed: it was not measured, and there are no ratios to it.")
        else:
            brokers[_MOSQUITTO] = stack.enter_context(_mosquitto(folder()))
            notes.append(f"Mosquitto is {_mosquitto_version(program)}.")
        if find_spec(_AMQTT) is None:
            notes.append("amqtt is not installed: it was not measured, and there are no ratios to it.")
        else:
            brokers[_AMQTT] = stack.enter_context(_amqtt(folder()))
        passed: dict[tuple[str, str], list[Throughput]] = {}
        paced: dict[str, list[Latency]] = {engine: [] for engine in brokers}
        for scenario in _SCENARIOS:
            for repetition in range(sizes.repetitions):
                for engine, broker in brokers.items():
                    load = scenario.load(broker.port, _count(scenario, engine, sizes))
                    if not repetition and sizes.repetitions > 1:  # the first messages are not like the others
                        generator.throughput(replace(load, count=max(1, load.count // 10)))
                    found = generator.throughput(load, pid=broker.pid)
                    passed.setdefault((scenario.name, engine), []).append(found)
        for _ in range(sizes.repetitions):
            for engine, broker in brokers.items():
                load = Load(port=broker.port, count=int(_LATENCY_RATE * sizes.latency_s))
                paced[engine].append(generator.latency(load, rate=_LATENCY_RATE))
        return _Compared(passed, paced, tuple(notes))


def _count(scenario: _Scenario, engine: str, sizes: _Sizes) -> int:
    return max(20, int(scenario.counts[engine] * sizes.part))


def _mosquitto_version(program: str) -> str:
    shown = subprocess.run([program, "-h"], capture_output=True, text=True, check=False)  # noqa: S603 # see above
    return shown.stdout.partition("\n")[0].removeprefix("mosquitto ") or "of an unknown version"


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
        _serve(Path(name), "[mqtt]\nkeep_alive_s = 0\n") as broker,
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
        with _serve(Path(name)) as broker:
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
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name, _serve(Path(name)) as broker:
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

    ours_p99, theirs_p99 = compared.p99_us(_OURS), compared.p99_us(_MOSQUITTO)
    slower = None if ours_p99 is None or theirs_p99 is None else ours_p99 / theirs_p99
    plain = compared.rate(_SCENARIOS[0].name)
    assert plain is not None
    measured: list[tuple[str, float, float | None, str, bool]] = [
        *((f"{s.name}, ÷ Mosquitto", s.aim, ratio(s.name, _MOSQUITTO), "times", False) for s in _SCENARIOS),
        *((f"{s.name}, ÷ amqtt", _AMQTT_AIM, ratio(s.name, _AMQTT), "times", False) for s in _SCENARIOS),
        ("latency, 99 of 100 within, ÷ Mosquitto", 2.5, slower, "times", True),
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
