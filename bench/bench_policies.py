"""How fast the policy of the intensive care unit decides, and hands over with and without compression, on one core."""

from __future__ import annotations

import gc
import io
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "reference"))  # the plain twin is the tests' own

from policy_interpreter import interpret

from measure import Check, Comparison, Figure, Report, Timing
from whimbrel.language.policies import DEFAULT_POLICY_LIMITS, Policy, PolicyLimits
from whimbrel.language.policies.values import Arrival, Compression, Level, Run
from whimbrel.model.attributes import Attributes
from whimbrel.model.codecs import attributes_of
from whimbrel.model.notification import Notification
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, Connect, Publish
from whimbrel.mqtt.properties import Properties, Property
from whimbrel.shape.decision import Decision, decide
from whimbrel.shape.transforms import Work, perform
from whimbrel.sim.ward import manual_broker
from whimbrel.sim.ward.doctor import encode_opening, encode_report
from whimbrel.sim.ward.intensive_care import CONTENT_TYPE, SUBJECT
from whimbrel.sim.ward.manual_broker import ManualBroker
from whimbrel.sim.ward.overhead.overhead_run import OverheadRun

__all__ = ["run"]

_SEED = 26
_WANTED = 50_000
"""Decisions a second that the order asks for."""
_NOW = 1_700_000_000_000_000
_POLICIES = Path(__file__).parents[1] / "examples" / "policies"

_Case = tuple[Notification, Attributes, Attributes]


def run(*, quick: bool) -> Report:
    """Measure everything; *quick* only proves that it runs and that the results are right."""
    count, repetitions = (300, 1) if quick else (20_000, 7)
    report = Report("policies", packages=("whimbrel", "pillow"))
    cases = _cases(count)
    policies = {
        "as printed": Policy((_POLICIES / "icu_printed.policy").read_text()),
        "as taught": Policy((_POLICIES / "icu.policy").read_text()),
    }
    decisions = {name: _decided(policy, cases) for name, policy in policies.items()}
    engines: dict[str, Callable[[], object]] = {}
    for name, policy in policies.items():
        engines[f"decide, {name}"] = lambda policy=policy: _decide_each(policy, cases)  # type: ignore[misc]
        engines[f"the compiled program alone, {name}"] = lambda policy=policy: _run_each(policy, cases)  # type: ignore[misc]
    engines["the interpreter, as printed"] = lambda: _interpreted(policies["as printed"], cases)
    timings = _core_times(engines, count, repetitions)
    report.comparisons.append(Comparison(title="decide without compression", item="decision", timings=timings))
    outcomes = Counter(each.outcome.value for each in decisions["as printed"])
    slowest = max(timings[0].us_per_item, timings[2].us_per_item)
    report.figures += [
        Figure("decisions a second, the slower of the two forms, median", 1e6 / slowest, ""),
        Figure("share of the decisions that withhold", 100 * outcomes["withheld"] / count, "%"),
    ]
    _add_images(report, 1 if quick else 20)
    _add_hand_overs(report, is_quick=quick)
    report.checks += [
        Check("both forms decide alike, on every case", _same(decisions["as printed"], decisions["as taught"])),
        Check("the interpreter sends what the compiled form sends", _interpreter_agrees(policies["as printed"], cases)),
        Check("every way through the policy is taken", _are_all_ways(decisions["as printed"])),
        Check(f"at least {_WANTED:,} decisions a second of one core", quick or 1e6 / slowest >= _WANTED),
    ]
    report.notes += [
        "Seconds are processor time of one thread. A decision is decide(): the run, its variables, body and cost.",
        "A third of the patients are the doctor's own; a fifth of the devices have less than a quarter left.",
        "The bodies are JSON, which compress leaves alone without names: no transform is made.",
    ]
    return report


def _cases(count: int) -> list[_Case]:
    rng = random.Random(_SEED)
    cases: list[_Case] = []
    for seq in range(count):
        body = b'{"patientID": "p%d", "pulse": %d}' % (rng.randrange(30), rng.randrange(40, 140))
        arrived = Notification(
            node="n", seq=seq, published_at=_NOW, subject="icu/1", attributes=attributes_of(body), body=body
        )
        battery = rng.uniform(0, 0.24) if rng.random() < 0.2 else rng.uniform(0.25, 1)
        automatic: Attributes = {
            "Battery": battery,
            "NetworkConnection": rng.random(),
            "DisplaySize": 76_800,
            "DisplayWidth": 240,
            "DisplayHeight": 320,
            **{f"responsible.p{patient}": 1 for patient in range(10)},
        }
        stamp = _NOW // 1_000_000 - rng.randrange(600)
        cases.append((arrived, automatic, {"Timestamp": stamp} if rng.random() < 0.8 else {}))
    return cases


def _decided(policy: Policy, cases: Sequence[_Case]) -> list[Decision]:
    return [decide(policy, arrived, automatic, manual, now=_NOW) for arrived, automatic, manual in cases]


def _decide_each(policy: Policy, cases: Sequence[_Case]) -> None:
    """Decide and forget, as a broker does: kept by the ten thousand, they would be the collector's measure."""
    for arrived, automatic, manual in cases:
        decide(policy, arrived, automatic, manual, now=_NOW)


def _run_each(policy: Policy, cases: Sequence[_Case]) -> None:
    for case in cases:
        policy.run(_begun(case))


def _run(policy: Policy, cases: Sequence[_Case]) -> list[object]:
    return [policy.run(_begun(case)) for case in cases]


def _interpreted(policy: Policy, cases: Sequence[_Case]) -> list[object]:
    return [interpret(policy.program, _begun(case)) for case in cases]


def _begun(case: _Case) -> Run:
    arrived, automatic, manual = case
    arrival = Arrival(attributes=arrived.attributes, subject="icu/1", body_bytes=len(arrived.body))
    return Run(arrival, automatic, manual, _NOW)


def _core_times(engines: dict[str, Callable[[], object]], items: int, repetitions: int) -> tuple[Timing, ...]:
    """Return the processor time of each engine; they take turns, so that a busy machine is unfair to none."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(repetitions):
        for name, call in engines.items():
            gc.collect()
            begin = time.thread_time()
            call()
            seconds[name].append(time.thread_time() - begin)
    return tuple(Timing(engine=name, items=items, seconds=tuple(found)) for name, found in seconds.items())


def _add_images(report: Report, repetitions: int) -> None:
    """Measure compression by itself: an electrocardiogram of about 100 KB, as in section 6.3."""
    out = io.BytesIO()
    Image.effect_noise((640, 480), 40).save(out, "JPEG", quality=85)
    for level in (Level.MOST, Level.HALF, Level.QUARTER):
        work = Work(out.getvalue(), (Compression(level, 240, 320),))
        seconds = []
        for _ in range(repetitions):
            begin = time.thread_time()
            made = perform(work, DEFAULT_POLICY_LIMITS)
            seconds.append(time.thread_time() - begin)
        name = level.name.lower()
        report.figures += [
            Figure(
                f"compress a JPEG of {len(work.body):,} bytes to {name}, median", 1e3 * statistics.median(seconds), "ms"
            ),
            Figure(f"its bytes at {name}", len(made), ""),
        ]


class _Reader:
    """A doctor's device that reads and does nothing else."""

    def receive(self, data: bytes) -> bytes:
        """Read *data*."""
        del data
        return b""


class _Ward:
    """A broker's core with doctors, and the processor time that its hand-overs and its transforms take."""

    def __init__(self, folder: Path, run: OverheadRun) -> None:
        self._run, self._broker = run, ManualBroker(folder, now=_NOW)
        self._bodies = run.bodies()
        for each in run.crowd():
            link = self._broker.connect(_Reader())
            self._broker.send(link, encode_opening(each.doctor, each.policy, 0))
            if each.reports:
                self._broker.send(link, encode_report(each.doctor, battery=each.doctor.battery, received=0))
        self._monitor = self._broker.connect(_Reader())
        self._broker.send(self._monitor, encode(Connect("monitor"), V5))
        self.seconds: list[float] = []
        """Of the broker, without transforms."""
        self.transform_s = 0.0
        self.hand_overs = 0

    def publish(self, count: int) -> None:
        """Publish so many readings, and note what they took."""
        packets = []
        for _ in range(count):
            patient, body = next(self._bodies)
            properties = Properties({Property.CONTENT_TYPE: CONTENT_TYPE})
            packets.append(encode(Publish(f"{SUBJECT}/{patient}/1", body, properties=properties), V5))
        sent, spent, transform_s = self._broker.sent, 0.0, 0.0

        def timed(work: Work, limits: PolicyLimits) -> bytes:
            nonlocal transform_s
            begin = time.thread_time()
            try:
                return perform(work, limits)
            finally:
                transform_s += time.thread_time() - begin

        with patch.object(manual_broker, "perform", timed):
            begin = time.thread_time()
            for packet in packets:
                self._broker.send(self._monitor, packet)
            spent = time.thread_time() - begin
        self.hand_overs = self._broker.sent - sent
        self.seconds.append(spent - transform_s)
        self.transform_s += transform_s

    @property
    def transforms(self) -> int:
        """How many bodies were made."""
        return self._broker.counts["transforms"] - self._broker.counts["transforms made already"]

    def close(self) -> None:
        """Close its log."""
        self._broker.close()


def _add_hand_overs(report: Report, *, is_quick: bool) -> None:
    """Measure hand-overs of 100 KB to doctors: no policy, P_ICU, and P_ICU where nobody shares a body."""
    doctors, messages, rounds = (6, 2, 1) if is_quick else (50, 10, 5)
    few = OverheadRun(doctors=doctors, patients=2, own=2, pictures=1)
    kinds = {
        "no policies": replace(few, policy="blind"),
        "P_ICU that sends what arrived": replace(few, policy="unshaped", states="served"),
        "P_ICU, twelve states": replace(few, states="served"),
        "P_ICU, each doctor's picture made for that doctor alone": replace(few, states="each"),
    }
    with tempfile.TemporaryDirectory() as folder:
        wards = {name: _Ward(Path(folder) / str(at), run) for at, (name, run) in enumerate(kinds.items())}
        for _ in range(rounds):
            for ward in wards.values():
                gc.collect()
                ward.publish(messages)
        timings = tuple(
            Timing(engine=name, items=ward.hand_overs, seconds=tuple(ward.seconds)) for name, ward in wards.items()
        )
        title = "hand over 100 KB, without the time of transforms"
        report.comparisons.append(Comparison(title=title, item="hand-over", timings=timings))
        published = messages * rounds
        for name, ward in wards.items():
            ward.close()
            if ward.transforms:
                report.figures += [
                    Figure(f"{name}: transforms a notification", ward.transforms / published, ""),
                    Figure(
                        f"{name}: core time of transforms a hand-over",
                        1e3 * ward.transform_s / (published * doctors),
                        "ms",
                    ),
                ]
    made = [ward.transforms / published for ward in wards.values()]
    report.checks += [
        Check(
            "every doctor is handed every reading", {ward.hand_overs for ward in wards.values()} == {doctors * messages}
        ),
        Check("doctors in twelve states cost at most twelve transforms a notification", made[2] <= 12),
        Check("doctors who share nothing cost one transform each", made[3] == doctors),
    ]


def _same(left: Sequence[Decision], right: Sequence[Decision]) -> bool:
    pairs = zip(left, right, strict=True)
    return all((a.outcome, a.body, a.changed, a.fault) == (b.outcome, b.body, b.changed, b.fault) for a, b in pairs)


def _interpreter_agrees(policy: Policy, cases: Sequence[_Case]) -> bool:
    return _run(policy, cases) == _interpreted(policy, cases)


def _are_all_ways(decisions: Sequence[Decision]) -> bool:
    ways = {(each.outcome.value, bool(each.changed), each.is_original) for each in decisions}
    sent, withheld = "delivered", "withheld"
    return ways == {(withheld, False, False), (withheld, True, False), (sent, True, False), (sent, False, True)}
