"""A hospital ward that publishes: monitors at the beds, pumps, and badges.

Rule: the same seed gives the same ward. Vital signs change slowly, as real ones do, so alarms come in episodes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from whimbrel.model.attributes import Scalar, checked
from whimbrel.model.clock import microseconds
from whimbrel.model.notification import Notification

__all__ = ["BADGES", "BEDS", "ward"]

_PATIENTS = ("Okafor", "Lindqvist", "Tanaka", "Moreau", "Haddad", "Novak", "Reyes", "Byrne")
_DRUGS = ("Saline", "Morphine sulfate", "Insulin", "Heparin")
_INTENSIVE = 3
BEDS = tuple(f"{'ICU' if i < _INTENSIVE else 'W3'}-{i + 1}" for i in range(len(_PATIENTS)))
"""The beds; each has a monitor and a pump."""
BADGES = ("nurse-1", "nurse-2", "porter-7")
"""People who wear a badge."""


@dataclass(slots=True)
class _Patient:
    """A slow random walk of a patient's vital signs around normal values."""

    name: str
    bed: str
    pulse: float = 78.0
    oxygen: float = 97.0
    temperature: float = 36.9

    def drift(self, rng: random.Random) -> None:
        self.pulse += rng.gauss(0, 12) + 0.12 * (84 - self.pulse)
        self.oxygen = min(100.0, self.oxygen + rng.gauss(0, 1.8) + 0.12 * (96 - self.oxygen))
        self.temperature += rng.gauss(0, 0.4) + 0.08 * (37.4 - self.temperature)


def ward(rng: random.Random, *, start: int, node: str = "ward-3", every_s: float = 0.125) -> Iterator[Notification]:
    """Yield the ward's notifications endlessly from time *start*, with a mean interval of *every_s*."""
    patients = [_Patient(name, bed) for name, bed in zip(_PATIENTS, BEDS, strict=True)]
    batteries = dict.fromkeys(BADGES, 30.0)
    now = start
    seq = 0
    while True:
        now += microseconds(rng.expovariate(1 / every_s))
        seq += 1
        subject, values = _happening(rng, patients, batteries)
        yield Notification(node=node, seq=seq, published_at=now, subject=subject, attributes=checked(values))


def _happening(
    rng: random.Random, patients: list[_Patient], batteries: dict[str, float]
) -> tuple[str, dict[str, Scalar]]:
    patient = rng.choice(patients)
    draw = rng.random()
    if draw < 0.70:
        patient.drift(rng)
        return f"bed/{patient.bed}/vitals", _vitals(rng, patient)
    if draw < 0.85:
        dose = round(rng.uniform(1, 12), 1)
        return f"bed/{patient.bed}/pump", {"bed": patient.bed, "drug": rng.choice(_DRUGS), "dose-mg": dose}
    badge = rng.choice(BADGES)
    batteries[badge] = (batteries[badge] - rng.uniform(2, 9)) % 100
    return f"badge/{badge}", {"badge": badge, "battery": int(batteries[badge]), "charging": int(rng.random() < 0.2)}


def _vitals(rng: random.Random, patient: _Patient) -> dict[str, Scalar]:
    vitals: dict[str, Scalar] = {"bed": patient.bed, "patient": patient.name, "pulse": round(patient.pulse)}
    # Attributes are often missing: a clip slips off, or a patient wears no thermometer.
    if rng.random() < 0.85:
        vitals["spo2"] = round(patient.oxygen)
    if rng.random() < 0.40:
        vitals["temperature"] = round(patient.temperature, 1)
    return vitals
