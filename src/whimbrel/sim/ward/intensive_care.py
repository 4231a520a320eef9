"""An intensive care unit: publishes each patient's pulse and electrocardiogram, for doctors with three kinds of device.

A notification is a CBOR map of ``pulse``, ``patientID`` and ``ecg``, a JPEG of 100 KB on average (SUBLIM, sections 5
and 6.3). Doctors are responsible for some of the patients; their devices differ in battery, link and display.
Rule: the same seed gives the same unit. A patient's pictures repeat after some dozens, so that a day needs no
thousands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count, product
from typing import NamedTuple

import cbor2
import numpy as np

from whimbrel.model.bounds import real, whole
from whimbrel.model.device import Display
from whimbrel.sim.ward.electrocardiogram import HEIGHT_PX, WIDTH_PX, draw, leads

__all__ = ["CONTENT_TYPE", "DISPLAYS", "PICTURE", "SUBJECT", "Doctor", "IntensiveCareUnit", "Reading"]

SUBJECT = "icu"
CONTENT_TYPE = "application/cbor"
PICTURE = "ecg"
"""Name of the member that is a picture."""
DISPLAYS = (Display(240, 320), Display(320, 240), Display(WIDTH_PX, HEIGHT_PX))
"""Two handheld devices of the paper's time, and a laptop that shows the whole picture."""
_BATTERIES = (1.0, 0.5, 0.15)
_LINKS = (1.0, 0.6)
_USUAL_PULSE, _PULSE_SPREAD = 74.0, 9.0


class Reading(NamedTuple):
    """One publication of a monitor."""

    at_s: float
    patient: str
    body: bytes

    @property
    def topic(self) -> str:
        """Topic of the publication."""
        return f"{SUBJECT}/{self.patient}"


class Doctor(NamedTuple):
    """The initial state of a doctor's device, and the patients for whom the doctor is responsible."""

    name: str
    patients: tuple[str, ...]
    battery: float
    """Initial charge, 0 to 1."""
    link: float
    """Share of the sent messages that the device receives."""
    display: Display


@dataclass(frozen=True, kw_only=True)
class IntensiveCareUnit:
    """Patients whose monitors together publish *per_minute* readings, and doctors with *own* patients each."""

    patients: int = 1
    doctors: int = 1
    own: int = 1
    per_minute: float = 60.0
    pictures: int = 24
    """Number of different readings of each patient, which repeat in order."""
    seed: int = 1

    def __post_init__(self) -> None:
        whole("patients", self.patients, 1, 10_000)
        whole("doctors", self.doctors, 1, 10_000)
        whole("own", self.own, 0, self.patients)
        real("per_minute", self.per_minute, 0, 100_000)
        whole("pictures", self.pictures, 1, 10_000)
        whole("seed", self.seed, 0, 2**31)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the patients."""
        return tuple(f"p{number}" for number in range(self.patients))

    @cached_property
    def staff(self) -> tuple[Doctor, ...]:
        """The doctors, with every combination of battery, link and display in turn, and patients in turn."""
        mixture = list(product(_BATTERIES, _LINKS, DISPLAYS))
        return tuple(
            Doctor(
                f"doctor-{number}",
                tuple(self.names[(number * self.own + each) % self.patients] for each in range(self.own)),
                *mixture[number % len(mixture)],
            )
            for number in range(self.doctors)
        )

    @cached_property
    def bodies(self) -> tuple[tuple[bytes, ...], ...]:
        """The readings of each patient, in the order in which they repeat."""
        return tuple(
            tuple(_bodies(name, self.pictures, np.random.default_rng([self.seed, number])))
            for number, name in enumerate(self.names)
        )

    def readings(self) -> Iterator[Reading]:
        """Yield readings endlessly: one patient after the other, at equal intervals."""
        if not self.per_minute:
            return
        every_s = 60.0 / self.per_minute
        for number in count():
            turn, patient = divmod(number, self.patients)
            bodies = self.bodies[patient]
            yield Reading((number + 0.5) * every_s, self.names[patient], bodies[turn % len(bodies)])


def _bodies(patient: str, pictures: int, rng: np.random.Generator) -> Iterator[bytes]:
    """Yield readings of a patient whose pulse drifts slowly around the usual pulse."""
    pulse = rng.normal(_USUAL_PULSE, _PULSE_SPREAD)
    for _ in range(pictures):
        pulse += rng.normal(0, 4) + 0.1 * (_USUAL_PULSE - pulse)
        beats = max(30.0, pulse)
        told = {"pulse": round(beats), "patientID": patient, PICTURE: draw(leads(beats, rng), rng)}
        yield cbor2.dumps(told)
