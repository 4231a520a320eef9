"""One point of SUBLIM's Figures 5, 8a and 8b: a real broker, doctors in client processes, and one publisher.

The publisher runs in this process. It publishes at a fixed rate. If the run is saturated, it publishes whenever every
doctor has received all but the last few messages. D is the time from the first publication sent to the last reading
received, so it includes this machine's network, equally for every broker.
"""

from __future__ import annotations

import os
import selectors
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cached_property
from itertools import count, product
from pathlib import Path
from typing import Any, Self

import cbor2

from whimbrel.log.reader import read
from whimbrel.model.bounds import real, whole
from whimbrel.model.facts import Decided, Receipt
from whimbrel.mqtt.codec import Decoder, encode
from whimbrel.mqtt.packets import V5, Connect, Puback, Publish
from whimbrel.mqtt.properties import Properties, Property
from whimbrel.sim.ward.broker_run import NODE, BrokerRun, CoreTimes
from whimbrel.sim.ward.day_policies import DayPolicy, policy_text
from whimbrel.sim.ward.doctor import RefusedError
from whimbrel.sim.ward.intensive_care import DISPLAYS, Doctor, IntensiveCareUnit
from whimbrel.sim.ward.overhead.client_processes import CrowdProcess, Publisher, quantile
from whimbrel.sim.ward.overhead.crowd import CrowdDoctor
from whimbrel.sim.ward.overhead.malicious import ENDLESS, FAILING, costliest_accepted

__all__ = ["HOST", "MAX_PROCESSES", "OverheadRun", "States", "crowd_jobs", "make_overhead"]

MAX_PROCESSES = 8
"""Most client processes beside the broker."""
_QUIET_S = 6.0
"""Seconds without an arrival after which a run is over, if the number of copies to expect is unknown."""
_BUSY_SHARE = 0.02
"""Share of a core above which the broker counts as busy; an idle broker uses less."""
_MAX_TAIL_S = 300.0
_READY_S = 300.0
_POLL_S = 0.25
HOST = "127.0.0.1"
_AHEAD = 4
"""Number of publications by which a saturated run is ahead of the slowest doctor."""
_COMPRESSING = "return compress("


class States(Enum):
    """The states of the doctors' devices."""

    MIXED = "mixed"
    """All combinations of three batteries, two links and three displays; a third of the doctors gets the pulse only."""
    SERVED = "served"
    """The twelve of these combinations whose battery is not nearly empty."""
    EACH = "each"
    """Every doctor has a display of a different size, so that no two share a body."""


class PointPolicy(Enum):
    """Policy of the honest doctors."""

    BLIND = "blind"
    STATEFUL = "stateful"
    UNSHAPED = "unshaped"
    """The stateful policy, changed to send the original where it would compress."""


@dataclass(frozen=True, kw_only=True)
class OverheadRun:
    """Settings of one point: doctors, publications and their rate, and the length of the run."""

    policy: str = PointPolicy.STATEFUL.value
    doctors: int = 20
    per_minute: float = 60.0
    """Messages per minute of all patients together; 0: as many as the slowest doctor receives."""
    seconds: float = 60.0
    own: int = 20
    """Patients for whom a doctor is responsible."""
    patients: int = 20
    states: str = States.MIXED.value
    malicious: float = 0.0
    """Share of the doctors whose policy is malicious."""
    is_failing: bool = False
    """Whether a malicious policy is one that always fails, instead of the most expensive accepted one."""
    is_limited: bool = True
    """Whether the broker counts the steps of a policy before it accepts the policy."""
    steps_per_second: int = 50_000
    """Most steps per second of all policies together that the broker runs."""
    repeats_bodies: bool = False
    """Whether readings repeat, so that the broker has already made every body."""
    report_s: float = 30.0
    pictures: int = 2
    """Number of different pictures of each patient."""
    qos: int = 0
    processes: int = MAX_PROCESSES
    seed: int = 1
    run: int = 1
    """Distinguishes runs with the same settings."""

    def __post_init__(self) -> None:
        PointPolicy(self.policy)
        States(self.states)
        real("per_minute", self.per_minute, 0, 100_000)
        real("seconds", self.seconds, 0.1, 86_400)
        real("report_s", self.report_s, 0.01, 86_400)
        real("malicious", self.malicious, 0, 1)
        whole("processes", self.processes, 1, MAX_PROCESSES)
        whole("qos", self.qos, 0, 1)

    @cached_property
    def unit(self) -> IntensiveCareUnit:
        """The patients and their doctors."""
        return IntensiveCareUnit(
            patients=self.patients, doctors=self.doctors, own=self.own, pictures=self.pictures, seed=self.seed
        )

    def is_malicious(self, number: int) -> bool:
        """Return whether the policy of doctor *number* is malicious; malicious doctors are spread evenly."""
        return int((number + 1) * self.malicious + 1e-9) > int(number * self.malicious + 1e-9)

    def crowd(self) -> list[CrowdDoctor]:
        """Return the doctors, with their policies."""
        return [
            CrowdDoctor(
                doctor=self._in_state(doctor, number),
                policy=self._policy_of(number),
                reports=self.policy != PointPolicy.BLIND.value,
                is_waited_for=not self.is_malicious(number),
            )
            for number, doctor in enumerate(self.unit.staff)
        ]

    def _in_state(self, doctor: Doctor, number: int) -> Doctor:
        if self.states == States.MIXED.value:
            return doctor
        if self.states == States.EACH.value:
            display = type(doctor.display)(DISPLAYS[0].width_px + number, DISPLAYS[0].height_px + number)
            return doctor._replace(battery=1.0, link=1.0, display=display)
        mixture = list(product((1.0, 0.5), (1.0, 0.6), DISPLAYS))
        battery, link, display = mixture[number % len(mixture)]
        return doctor._replace(battery=battery, link=link, display=display)

    def _policy_of(self, number: int) -> str | None:
        if self.policy == PointPolicy.BLIND.value:
            return None
        if self.is_malicious(number):
            if not self.is_limited:
                return ENDLESS
            return FAILING if self.is_failing else costliest_accepted()
        text = policy_text(DayPolicy.STATEFUL)
        assert text is not None
        if self.policy == PointPolicy.UNSHAPED.value:
            text = text[: text.index(_COMPRESSING)] + "return m;\n"
        return text

    @property
    def knows_its_end(self) -> bool:
        """Whether counting copies or receipts shows the end of the run; a throttled device may take minutes longer."""
        is_slowing = bool(self.malicious) and not self.is_failing
        return self.policy == PointPolicy.BLIND.value or (self.is_limited and not is_slowing)

    def bodies(self) -> Iterator[tuple[str, bytes]]:
        """Yield patient and body of each publication, endlessly; all bodies differ unless ``repeats_bodies`` is set."""
        drawn = [[cbor2.loads(body) for body in bodies] for bodies in self.unit.bodies]
        for number in count():
            turn, patient = divmod(number, self.patients)
            told = drawn[patient][turn % self.pictures]
            if not self.repeats_bodies:
                told = {"number": number, **told}
            yield self.unit.names[patient], cbor2.dumps(told)


class _Idleness:
    """Detects the end of a run: a while without arrivals, in which broker and workers use almost no processor time.

    On a busy machine, making a body may take seconds, so a pause alone does not prove the end.
    """

    def __init__(self, broker: BrokerRun, *, takes_processor_for_work: bool = True) -> None:
        self._broker, self._asks_processor = broker, takes_processor_for_work
        self._received, self._since_s, self._core_s = -1, time.monotonic(), 0.0

    def look(self, received: int, *, is_busy: bool = False) -> bool:
        """Return whether the run is over, from the readings *received* by all doctors so far; False while *is_busy*."""
        now_s, core_s = time.monotonic(), sum(self._broker.core_times())
        has_worked = self._asks_processor and core_s - self._core_s > _BUSY_SHARE * _QUIET_S
        if received != self._received or is_busy or has_worked:
            self._received, self._since_s, self._core_s = received, now_s, core_s
        return now_s - self._since_s >= _QUIET_S


def crowd_jobs(run: OverheadRun, port: int, *, expiry_s: int = 0) -> list[dict[str, object]]:
    """Return the job of each client process; *expiry_s* is the session expiry interval of the doctors."""
    doctors = run.crowd()
    job = {
        "host": HOST,
        "port": port,
        "qos": run.qos,
        "report_s": run.report_s,
        "expiry_s": expiry_s,
        "tells_progress": not run.per_minute,
    }
    processes = min(run.processes, len(doctors))
    return [{**job, "doctors": [each.as_json() for each in doctors[number::processes]]} for number in range(processes)]


class _Run:
    """A running measurement."""

    def __init__(self, run: OverheadRun, broker: BrokerRun) -> None:
        self._run, self._broker = run, broker
        self._crowds: list[CrowdProcess] = []
        self._bodies = run.bodies()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for crowd in self._crowds:
            crowd.end()

    def begin(self) -> None:
        """Start the doctors' processes, and wait until the broker has answered every doctor."""
        self._crowds += [CrowdProcess(job) for job in crowd_jobs(self._run, self._broker.port)]
        assert self._run.unit.bodies  # drawn before the time starts
        for crowd in self._crowds:
            crowd.hear_until("ready")

    def measure(self) -> dict[str, Any]:
        """Publish, wait for the last delivery, and return the row."""
        publisher = Publisher(lambda: socket.create_connection((HOST, self._broker.port), timeout=_READY_S))
        try:
            if self._run.repeats_bodies:
                self._warm_up(publisher)
            first = len(publisher.sent_at)
            load_before, before, metrics = os.getloadavg()[0], self._broker.core_times(), self._broker.metrics()
            if self._run.per_minute:
                self._publish_paced(publisher)
            else:
                self._publish_saturated(publisher)
            self._published = len(publisher.sent_at) - first
            self._wait_until_over(publisher, metrics["whimbrel_receipts_total"] if self._run.is_limited else 0)
            after = self._broker.core_times()
            doctors = self._end_crowds()
        finally:
            publisher.close()
        row = self._row(publisher, doctors, before, after, first=first)
        if self._run.is_limited:
            told = self._broker.metrics()
            row |= {
                name: int(told[f"whimbrel_{name}_total"] - metrics[f"whimbrel_{name}_total"])
                for name in ("transforms", "transforms_wanted", "dropped", "syncs")
            }
        return row | {"load": [load_before, os.getloadavg()[0]]}

    def _warm_up(self, publisher: Publisher) -> None:
        """Publish each body once, so that the broker has made all shaped bodies."""
        for _ in range(self._run.patients * self._run.pictures):
            publisher.publish(*next(self._bodies))
            wanted = len(publisher.sent_at)
            while min(crowd.progress for crowd in self._crowds) < wanted:
                self._go_on(publisher)

    def _publish_paced(self, publisher: Publisher) -> None:
        """Publish at the rate of the run, independently of the broker's progress."""
        every_s, begun_s = 60.0 / self._run.per_minute, time.monotonic()
        for number in range(round(self._run.seconds / every_s)):
            body = next(self._bodies)
            while (left_s := begun_s + number * every_s - time.monotonic()) > 0:
                publisher.go_on(left_s)
            publisher.publish(*body)

    def _publish_saturated(self, publisher: Publisher) -> None:
        """Publish whenever every doctor has received all but the last publications."""
        until_s = time.monotonic() + self._run.seconds
        while time.monotonic() < until_s:
            if len(publisher.sent_at) - min(crowd.progress for crowd in self._crowds) < _AHEAD:
                publisher.publish(*next(self._bodies))
            self._go_on(publisher)

    def _go_on(self, publisher: Publisher) -> None:
        """Write, and read the progress of the doctors."""
        publisher.go_on(0)
        with selectors.DefaultSelector() as selector:
            for crowd in self._crowds:
                assert crowd.process.stdout is not None
                selector.register(crowd.process.stdout, selectors.EVENT_READ, crowd)
            for key, _ in selector.select(0.005):
                key.data.hear()

    def _wait_until_over(self, publisher: Publisher, receipts_before: float) -> None:
        """Wait until every copy has its outcome; if devices are throttled, until the others receive nothing more."""
        idle = _Idleness(self._broker, takes_processor_for_work=self._run.is_limited)
        until_s = time.monotonic() + _MAX_TAIL_S
        while time.monotonic() < until_s:
            for crowd in self._crowds:
                crowd.say({"count": True})
            received = sum(crowd.hear_until("count") for crowd in self._crowds)
            if self._run.knows_its_end:
                if publisher.has_all_acknowledged and self._is_complete(publisher, received, receipts_before):
                    return
            elif idle.look(received, is_busy=self._run.is_limited and not publisher.has_all_acknowledged):
                return
            publisher.go_on(_POLL_S)

    def _is_complete(self, publisher: Publisher, received: int, receipts_before: float) -> bool:
        """Return whether all copies have been received or, if policies decide, have a receipt."""
        copies = self._run.doctors * len(publisher.acknowledged)
        if self._run.policy == PointPolicy.BLIND.value:
            return received == copies
        receipts = self._broker.metrics()["whimbrel_receipts_total"] - receipts_before
        warmed_up = len(publisher.sent_at) - self._published
        return receipts == copies - self._run.doctors * warmed_up

    def _end_crowds(self) -> dict[str, Any]:
        """End the client processes; return the arrivals of every doctor."""
        doctors: dict[str, Any] = {}
        for crowd in self._crowds:
            crowd.say({"end": True})
        for crowd in self._crowds:
            doctors |= crowd.hear_until("doctors")
        return doctors

    def _row(
        self, publisher: Publisher, doctors: Mapping[str, Any], before: CoreTimes, after: CoreTimes, *, first: int
    ) -> dict[str, Any]:
        run = self._run
        bad = {each.name for number, each in enumerate(run.unit.staff) if run.is_malicious(number)}
        sent_at = publisher.sent_at
        arrivals = {name: [each for each in told["arrivals"] if each[0] >= first] for name, told in doctors.items()}
        received = {name: len(each) for name, each in arrivals.items()}
        late_ms = {
            name: sorted(1e3 * (at_s - sent_at[number]) for number, at_s, _ in each) for name, each in arrivals.items()
        }
        honest_ms = sorted(each for name, some in late_ms.items() if name not in bad for each in some)
        last_s = {name: max((at_s for _, at_s, _ in each), default=sent_at[first]) for name, each in arrivals.items()}
        return {
            **asdict(run),
            "published": len(sent_at) - first,
            "accepted": sum(number >= first for number in publisher.acknowledged),
            "duration_s": max(last_s.values()) - sent_at[first],
            "duration_honest_s": max(at_s for name, at_s in last_s.items() if name not in bad) - sent_at[first],
            "delivered": sum(received.values()),
            "bytes": sum(size for each in arrivals.values() for _, _, size in each),
            "delivered_honest": sum(count for name, count in received.items() if name not in bad),
            "delivered_malicious": sum(count for name, count in received.items() if name in bad),
            "malicious_doctors": len(bad),
            "told": {name: doctors[name]["notices"] for name in sorted(bad)},
            "broker_core_s": after.broker_s - before.broker_s,
            "workers_core_s": after.workers_s - before.workers_s,
            "p50_ms": quantile(honest_ms, 0.5),
            "p99_ms": quantile(honest_ms, 0.99),
            "p99_ms_of_each": {
                name: round(quantile(each, 0.99), 3) for name, each in late_ms.items() if name not in bad and each
            },
        }


def make_overhead(**told: Any) -> dict[str, Any]:  # noqa: ANN401 # of ``OverheadRun``
    """Measure one point; return its row. The calling process should do nothing else."""
    run, begun = OverheadRun(**told), os.times()
    module = ("whimbrel", "serve") if run.is_limited else ("whimbrel.sim.ward.overhead.unlimited_broker",)
    with tempfile.TemporaryDirectory(prefix="whimbrel-lab-") as folder:
        settings = {"policies": {"steps_per_second": run.steps_per_second}}
        broker = BrokerRun(Path(folder), host=HOST, settings=settings, module=module)
        with broker:
            refusal = _refusal_of(ENDLESS, broker.port) if run.is_limited and run.malicious else None
            with _Run(run, broker) as under_way:
                under_way.begin()
                row = under_way.measure()
            if not run.is_limited:
                broker.kill()  # a malicious policy keeps it from stopping
        row |= {"refusal": refusal, "warnings": len(broker.warnings), "warning": (broker.warnings or [""])[0]}
        row |= _account(broker.log)
    row["core_s"] = sum(os.times()[:4]) - sum(begun[:4])
    return row


def _refusal_of(text: str, port: int) -> str | None:
    """Return the broker's reason for refusing a policy, or None if it accepts the policy."""
    with socket.create_connection((HOST, port), timeout=_READY_S) as end:
        connect = Connect("trial", properties=Properties(user=(("whimbrel", "1"),)))
        put = Publish("$whimbrel/policy/trial", text.encode(), 1, packet_id=1)
        end.sendall(encode(connect, V5) + encode(put, V5))
        decoder = Decoder(version=V5)
        while data := end.recv(1 << 16):
            for packet in decoder.receive(data):
                if isinstance(packet, Puback):
                    return packet.properties.text(Property.REASON_STRING) if packet.code >= 0x80 else None
    raise RefusedError("the trial of a policy", "the end of its connection")


def _account(log: Path) -> dict[str, Any]:
    """Count the outcomes of copies in the log, and the decisions by reason of failure or outcome."""
    outcomes: Counter[str] = Counter()
    decisions: Counter[str] = Counter()
    for fact in read(log, NODE):
        if isinstance(fact, Receipt):
            outcomes[fact.outcome.value] += 1
        elif isinstance(fact, Decided):
            decisions[fact.reason or fact.outcome.value] += 1
    return {"outcomes": dict(outcomes), "decisions": dict(decisions)}
