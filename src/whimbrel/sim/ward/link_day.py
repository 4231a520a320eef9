"""One doctor, one patient and a varying link: how much arrives, and how much in time, over sockets in real time.

Every few seconds the rate of the link is drawn from two values, in the same order for every policy. A message is *in
time* if it has arrived completely before the patient's next one is published. The battery stays full, and the display
is as large as the picture, so that only the link makes a policy compress.
"""

from __future__ import annotations

import select
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from whimbrel.errors import InvalidValueError
from whimbrel.log.reader import read
from whimbrel.model.bounds import real
from whimbrel.model.facts import Reported
from whimbrel.sim.ward.bedside_monitor import Monitor, encode_reading
from whimbrel.sim.ward.broker_run import NODE, BrokerRun
from whimbrel.sim.ward.day_policies import DayPolicy, policy_text
from whimbrel.sim.ward.doctor import DoctorDevice, RefusedError
from whimbrel.sim.ward.energy import Battery, Energy
from whimbrel.sim.ward.intensive_care import DISPLAYS, IntensiveCareUnit, Reading
from whimbrel.sim.ward.slow_links import QUEUE_BYTES, RelayedLink, ShapedLink, SlowLink, drawn_rates

__all__ = ["LINKS", "LinkDay", "make_link_day"]

LINKS: Mapping[str, Callable[[], SlowLink]] = {"tc": ShapedLink, "relay": RelayedLink}
_READY_S = 60.0
_READ_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class LinkDay:
    """The publications, the link, and the policy of an experiment of *seconds* seconds."""

    policy: DayPolicy = DayPolicy.STATEFUL
    per_minute: float = 60.0
    seconds: float = 300.0
    redrawn_s: float = 5.0
    """Seconds between two changes of the link's rate."""
    report_s: float = 30.0
    link: str = "relay"
    send_buffer_bytes: int = 65_536
    """Most bytes that may wait in the broker for the device."""
    kernel_unsent_bytes: int = 16_384
    """Most unsent bytes in the broker's kernel, in addition; 0: no limit."""
    pictures: int = 24
    seed: int = 1

    def __post_init__(self) -> None:
        real("seconds", self.seconds, 0.1, 86_400)
        real("redrawn_s", self.redrawn_s, 0.01, 86_400)
        real("report_s", self.report_s, 0.01, 86_400)
        if self.link not in LINKS:
            raise InvalidValueError("link", self.link, ", ".join(LINKS))

    @cached_property
    def unit(self) -> IntensiveCareUnit:
        """The unit with the patient; its pictures are drawn once."""
        return IntensiveCareUnit(per_minute=self.per_minute, pictures=self.pictures, seed=self.seed)

    def device(self) -> DoctorDevice:
        """Return the doctor's device: the battery stays full, and the display shows the whole picture."""
        doctor = IntensiveCareUnit().staff[0]._replace(display=DISPLAYS[-1])
        return DoctorDevice(doctor, battery=Battery(Energy(capacity_wh=1e6)), policy=policy_text(self.policy))

    def readings(self) -> Iterator[Reading]:
        """Yield the readings; the topic carries the reading's number, to identify it on arrival."""
        for number, reading in enumerate(self.unit.readings()):
            yield reading._replace(patient=f"{reading.patient}/{number}")


class _Day:
    """A running experiment."""

    def __init__(self, day: LinkDay, link: SlowLink, device: DoctorDevice, doctor: socket.socket) -> None:
        self._day, self._link, self._device, self._doctor = day, link, device, doctor
        self._draw = drawn_rates(Random(day.seed))
        self.rates: list[int] = []
        self.published: list[float] = []
        """Time of each publication, since the start."""
        self.arrived: dict[int, tuple[float, int]] = {}
        """By number of the reading: the time at which it had arrived completely, and the bytes of its body."""

    def run(self, monitor: socket.socket) -> None:
        """Publish, report and change the link's rate as time passes; then listen for one more interval.

        On a busy machine everything is published, but some readings late.
        """
        begun = time.monotonic()
        readings = self._day.readings()
        reading, reported, drawn = next(readings), count(), count()
        report_s, draw_s = next(reported) * self._day.report_s, next(drawn) * self._day.redrawn_s
        every_s = 60.0 / self._day.per_minute
        last_s = self._day.seconds + every_s
        while (now_s := time.monotonic() - begun) < last_s or reading.at_s < self._day.seconds:
            if draw_s <= now_s:
                self.rates.append(self._draw())
                self._link.set_rate(self.rates[-1])
                draw_s = next(drawn) * self._day.redrawn_s
            if report_s <= now_s:
                self._doctor.sendall(self._device.report())
                report_s = next(reported) * self._day.report_s
            if reading.at_s <= now_s and reading.at_s < self._day.seconds:
                self.published.append(now_s)
                last_s = max(last_s, now_s + every_s)
                monitor.sendall(encode_reading(reading))
                reading = next(readings)
            due_s = min(draw_s, report_s, last_s, reading.at_s if reading.at_s < self._day.seconds else last_s)
            self._listen(begun, due_s)

    def _listen(self, begun: float, until_s: float) -> None:
        """Receive messages until *until_s*."""
        while (left_s := until_s - (time.monotonic() - begun)) > 0:
            if not select.select([self._doctor], [], [], left_s)[0]:
                return
            before = len(self._device.topics)
            self._doctor.sendall(self._device.receive(_some(self._doctor)))
            now_s = time.monotonic() - begun
            for topic, size in zip(self._device.topics[before:], self._device.sizes[before:], strict=True):
                self.arrived[int(topic.rsplit("/", 1)[1])] = (now_s, size)

    @property
    def in_time(self) -> int:
        """Number of readings that had arrived before the next one was published."""
        every_s = 60.0 / self._day.per_minute
        return sum(
            arrived_s
            < (self.published[number + 1] if number + 1 < len(self.published) else self.published[-1] + every_s)
            for number, (arrived_s, _) in self.arrived.items()
        )


def make_link_day(*, policy: str, **settings: Any) -> dict[str, Any]:  # noqa: ANN401 # of ``LinkDay``
    """Run an experiment over a slow link; return its row. The calling process should do nothing else."""
    begun = time.process_time()
    day = LinkDay(policy=DayPolicy(policy), **settings)
    next(day.readings())  # drawn before the time starts
    link: SlowLink = LINKS[day.link]()
    device = day.device()
    with tempfile.TemporaryDirectory(prefix="whimbrel-lab-") as folder:
        settings = {
            "limits": {"send_buffer_bytes": day.send_buffer_bytes, "kernel_unsent_bytes": day.kernel_unsent_bytes}
        }
        with BrokerRun(Path(folder), host=link.host, settings=settings) as broker:
            monitor = socket.create_connection((link.host, broker.port), timeout=_READY_S)
            monitor.sendall(Monitor().begin())
            _some(monitor)
            link.set_rate(3_000_000)
            doctor = link.connect(broker.port)
            doctor.settimeout(_READY_S)
            doctor.sendall(device.begin())
            while not device.is_ready:
                doctor.sendall(device.receive(_some(doctor)))
            under_way = _Day(day, link, device, doctor)
            under_way.run(monitor)
            for end in (doctor, monitor):
                end.close()
        reports = [fact.state for fact in read(broker.log, NODE) if isinstance(fact, Reported)]
    link.close()
    return _row(day, under_way, reports) | {"core_s": time.process_time() - begun}


def _row(day: LinkDay, done: _Day, reports: list[Any]) -> dict[str, Any]:  # of DeviceState
    series = []
    for number, report in enumerate(reports[1:], start=1):
        begin_s, end_s = (number - 1) * day.report_s, number * day.report_s
        sizes = [size for arrived_s, size in done.arrived.values() if begin_s <= arrived_s < end_s]
        series.append(
            {
                "at_s": end_s,
                "network_connection": report.network_connection,
                "mean_bytes": sum(sizes) / len(sizes) if sizes else 0.0,
                "received": len(sizes),
            }
        )
    return {
        "policy": day.policy.value,
        "per_minute": day.per_minute,
        "redrawn_s": day.redrawn_s,
        "link": day.link,
        "published": len(done.published),
        "received": len(done.arrived),
        "in_time": done.in_time,
        "mean_rate": sum(done.rates) / len(done.rates),
        "queue_bytes": QUEUE_BYTES,
        "send_buffer_bytes": day.send_buffer_bytes,
        "kernel_unsent_bytes": day.kernel_unsent_bytes,
        "series": series,
    }


def _some(end: socket.socket) -> bytes:
    data = end.recv(_READ_BYTES)
    if not data:
        raise RefusedError("a device", "the end of its connection")
    return data
