"""One doctor, one patient and a battery: how long a device lasts under a policy, with the broker's core.

The link is constant and loses nothing. A device without a policy gets everything; *stateless* and *stateful* are the
two policies of the paper, in files beside this module.
Rule: a report due at the same time as a message comes first, so that the order is the same on any clock.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from whimbrel.model.bounds import real
from whimbrel.model.clock import microseconds
from whimbrel.model.device import Display
from whimbrel.sim.ward.bedside_monitor import Monitor, encode_reading
from whimbrel.sim.ward.day_policies import DayPolicy, policy_text
from whimbrel.sim.ward.doctor import DoctorDevice, RefusedError
from whimbrel.sim.ward.energy import Battery, Energy
from whimbrel.sim.ward.intensive_care import DISPLAYS, IntensiveCareUnit, Reading
from whimbrel.sim.ward.manual_broker import ManualBroker

__all__ = ["BatteryDay", "Life", "make_life", "play"]

_NOON = 1_700_000_000_000_000
"""Start of a day, in microseconds UTC; no result depends on it."""


@dataclass(frozen=True, kw_only=True)
class BatteryDay:
    """A day of a device that starts with a full battery."""

    policy: DayPolicy = DayPolicy.STATEFUL
    per_minute: float = 60.0
    display: Display = DISPLAYS[0]
    energy: Energy = field(default_factory=Energy)
    report_s: float = 30.0
    pictures: int = 24
    seed: int = 1

    def __post_init__(self) -> None:
        real("report_s", self.report_s, 0.01, 86_400)

    @property
    def unit(self) -> IntensiveCareUnit:
        """The unit: a patient whose monitor publishes, and the doctor."""
        return IntensiveCareUnit(per_minute=self.per_minute, pictures=self.pictures, seed=self.seed)

    def device(self) -> DoctorDevice:
        """Return the doctor's device, with a full battery."""
        doctor = self.unit.staff[0]._replace(display=self.display)
        return DoctorDevice(doctor, battery=Battery(self.energy), policy=policy_text(self.policy))

    def moments(self) -> Iterator[tuple[float, Reading | None]]:
        """Yield each moment with the reading that is published then, or ``None`` for a report of the device."""
        readings = self.unit.readings()
        reading, number = next(readings, None), 0
        while True:
            at_s = number * self.report_s
            while reading is not None and reading.at_s < at_s:
                yield reading.at_s, reading
                reading = next(readings)
            yield at_s, None
            number += 1


class Life(NamedTuple):
    """The life of a device until its battery was empty or the day was over."""

    seconds: float
    is_empty: bool
    device: DoctorDevice
    received: tuple[int, ...]
    """Number of messages that the device had received after each moment."""
    transforms: int


def play(day: BatteryDay, folder: Path, *, most_s: float = 7 * 86_400.0) -> Life:
    """Simulate *day* until the battery is empty, at most *most_s* seconds; the broker's log is in *folder*."""
    broker, device, monitor = ManualBroker(folder, now=_NOON), day.device(), Monitor()
    try:
        link, source = broker.connect(device), broker.connect(monitor)
        broker.send(link, device.begin())
        if not device.is_ready:
            raise RefusedError(device.doctor.name, "nothing")
        broker.send(source, monitor.begin())
        device.battery = Battery(day.energy)  # the day begins when the device has connected
        begun_s, received = 0.0, list[int]()
        for at_s, reading in day.moments():
            left_s = device.battery.idle_left_s
            if begun_s + left_s <= at_s or at_s >= most_s:
                seconds = min(begun_s + left_s, most_s)
                device.battery.wait(seconds - begun_s)
                return Life(seconds, seconds < most_s, device, tuple(received), broker.counts["transforms"])
            device.battery.wait(at_s - begun_s)
            begun_s = at_s
            broker.move_to(_NOON + microseconds(at_s))
            if reading is None:
                broker.send(link, device.report())
            else:
                broker.send(source, encode_reading(reading))
            received.append(device.counts["messages"])
        raise AssertionError("moments never end")
    finally:
        broker.close()


def make_life(
    *, policy: str, per_minute: float, display: Sequence[int], pictures: int, **constants: float
) -> dict[str, Any]:
    """Simulate a device until its battery is empty; return its row, for JSON. *constants* are those of ``Energy``."""
    begun = time.process_time()
    day = BatteryDay(
        policy=DayPolicy(policy),
        per_minute=per_minute,
        display=Display(*display),
        energy=Energy(**constants),
        pictures=pictures,
    )
    with tempfile.TemporaryDirectory(prefix="whimbrel-lab-") as folder:
        life = play(day, Path(folder))
    counts, used = life.device.counts, life.device.battery.used_j
    return {
        "policy": policy,
        "per_minute": per_minute,
        "life_s": life.seconds,
        "messages": counts["messages"],
        "bytes": counts["bytes"],
        "pictures": counts["pictures"],
        "pixels": counts["pixels"],
        "reports": counts["reports"],
        "transforms": life.transforms,
        "used_j": used,
        "core_s": time.process_time() - begun,
    }
