"""Findings of ``rendezvous-energy``: energy in joules, and the gap and room size from which ours is cheaper."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from whimbrel.lab.confidence import Estimate, estimate
from whimbrel.lab.experiment import Findings, Table
from whimbrel.lab.rendezvous.breaking_even import Crossing, find_crossing
from whimbrel.lab.spark_sweep import Row
from whimbrel.rendezvous.energy import Power, PowerClass, compute_energy, make_power
from whimbrel.sim.rendezvous.pairs import First, System

__all__ = ["EVERY_S", "GAPS_S", "PHONES", "Plan", "Rows", "find"]

GAPS_S = (0, 10, 30, 60, 150, 300, 600, 1_200, 3_600)
PHONES = (2, 6, 10, 20, 35, 50)
EVERY_S = (10.0, 30.0, 60.0)
SERVED = (System.PARK, System.RELEASE, System.FOUND)
WHOLE = {True: "10.24 s", False: "until the answer"}
"""Length of an inquiry."""
VARIED: Mapping[str, dict[str, float]] = {
    "as sourced": {},
    "a parked slave draws 4 mA, as Socket's Table 4 has it with its UART on": {"beacon_ms": 26.8},
    "inquiry and page draw 31.5 mA, as transmitter and receiver alone would": {"inquire_ma": 31.5, "page_ma": 31.5},
    "the receiver draws 50 mA, as Socket's Table 5 has it": {"receive_ma": 50.0},
    "a slave without data draws 10 mA": {"slave_ma": 10.0},
}
"""Variations of the model by their meaning: inputs that are assumed, or on which two manufacturers differ."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a sweep: gaps, rooms, and intervals of plain inquiries."""

    gaps_s: Sequence[float]
    phones: Sequence[int]
    every_s: Sequence[float]

    @property
    def middle_s(self) -> float:
        """Interval of plain inquiries, where one value stands for all."""
        return self.every_s[len(self.every_s) // 2]


class Rows:
    """The rows of a sweep by their settings; energy is computed on demand."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    @cached_property
    def _by_case(self) -> dict[tuple[object, ...], list[Row]]:
        found: dict[tuple[object, ...], list[Row]] = {}
        for row in sorted(self._rows, key=lambda each: each["seed"]):
            found.setdefault(_case_of(row), []).append(row)
        return found

    def kind(self, kind: str) -> list[Row]:
        """Return the rows of one kind."""
        return [row for row in self._rows if row["kind"] == kind]

    def pair(self, system: System, first: First, gap_s: float, *, is_whole: bool, every_s: float = 30.0) -> list[Row]:
        """Return the rows of one case of two devices, ordered by seed."""
        every = every_s if system is System.PLAIN else 30.0
        return self._by_case["pair", system.value, first.value, float(gap_s), is_whole, every]

    def room(self, system: System, phones: int, *, is_whole: bool, every_s: float = 30.0) -> list[Row]:
        """Return the rows of one case of a room."""
        every = every_s if system is System.PLAIN else 30.0
        return self._by_case["room", system.value, phones, is_whole, every]

    def waiting(self, system: System, *, is_whole: bool, every_s: float = 30.0) -> list[Row]:
        """Return the rows of a seeker whose target never arrives."""
        every = every_s if system is System.PLAIN else 30.0
        return self._by_case["waiting", system.value, is_whole, every]


def _case_of(row: Row) -> tuple[object, ...]:
    match row["kind"]:
        case "pair":
            return "pair", row["system"], row["first"], row["gap_s"], row["is_whole"], row["every_s"]
        case "room":
            return "room", row["system"], row["phones"], row["is_whole"], row["every_s"]
        case "waiting":
            return "waiting", row["system"], row["is_whole"], row["every_s"]
        case _:
            return "caches", row["has_removed"], row["has_members"]


def pair_j(rows: Sequence[Row], power: Power) -> list[float]:
    """Return the energy of both devices of each pair, in joules."""
    return [sum(compute_energy(row[who], power).total_j for who in ("seeker", "sought")) for row in rows]


def phone_j(rows: Sequence[Row], power: Power) -> list[float]:
    """Return the energy of an average phone of each room, in joules."""
    return [compute_energy(row["phone"], power).total_j for row in rows]


def seeker_j(rows: Sequence[Row], power: Power) -> list[float]:
    """Return the energy of each seeker, in joules."""
    return [compute_energy(row["seeker"], power).total_j for row in rows]


def less(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return *ours* minus *theirs*, seed by seed."""
    return [one - other for one, other in zip(ours, theirs, strict=True)]


def gap_crossing(
    rows: Rows, plan: Plan, power: Power, system: System, first: First, *, is_whole: bool, every_s: float
) -> Crossing:
    """Return the gap from which *system* uses less energy than plain Bluetooth."""

    def difference(gap_s: float) -> list[float]:
        plain = rows.pair(System.PLAIN, first, gap_s, is_whole=is_whole, every_s=every_s)
        return less(pair_j(rows.pair(system, first, gap_s, is_whole=is_whole), power), pair_j(plain, power))

    return find_crossing(list(plan.gaps_s), difference)


def room_crossing(rows: Rows, plan: Plan, power: Power, system: System, *, is_whole: bool, every_s: float) -> Crossing:
    """Return the number of phones from which a phone of *system* uses less energy than one of plain Bluetooth."""

    def difference(phones: float) -> list[float]:
        plain = rows.room(System.PLAIN, int(phones), is_whole=is_whole, every_s=every_s)
        return less(phone_j(rows.room(system, int(phones), is_whole=is_whole), power), phone_j(plain, power))

    return find_crossing(list(plan.phones), difference)


def every_of(plan: Plan, first: First) -> Sequence[float]:
    """Return the inquiry intervals of plain seekers that this order of arrival varies."""
    return plan.every_s if first is First.SEEKER else (plan.middle_s,)


def find(all_rows: Sequence[Row], plan: Plan) -> Findings:
    """Return tables, claims and notes."""
    rows, power = Rows(all_rows), make_power(PowerClass.CLASS_2)
    tables = [
        *(_pair_table(rows, plan, power, first) for first in First),
        _caveat_table(rows, plan, power),
        *(_gap_table(rows, plan, first) for first in First),
        _room_table(rows, plan, power),
        _answer_table(rows, plan),
        _room_crossing_table(rows, plan),
        _waiting_table(rows, plan, power),
        _wait_table(rows, plan),
        _cache_table(rows),
        _varied_table(rows, plan),
    ]
    return Findings(tables=tables, claims=_claims(rows, plan, power), notes=_notes(rows, plan, power))


def _text(value: Estimate, *, digits: int = 2) -> str:
    if not math.isfinite(value.margin):
        return f"{value.mean:.{digits}f}"
    return f"{value.mean:.{digits}f} ± {value.margin:.{digits}f}"


def _pair_table(rows: Rows, plan: Plan, power: Power, first: First) -> Table:
    cases = [(System.PLAIN, whole, every) for every in every_of(plan, first) for whole in WHOLE]
    cases += [(system, whole, 30.0) for system in SERVED for whole in WHOLE]
    heads = [
        f"{system.value}{f' every {every:g} s' if system is System.PLAIN else ''}, inquiry {WHOLE[whole]}"
        for system, whole, every in cases
    ]
    lines = [
        (
            f"{gap:,}",
            *(
                _text(estimate(pair_j(rows.pair(system, first, gap, is_whole=whole, every_s=every), power)))
                for system, whole, every in cases
            ),
        )
        for gap in plan.gaps_s
    ]
    title = f"Joules of both devices until they are connected, class 2, first comes {first.value}"
    return Table(title, ("gap, s", *heads), lines)


def _caveat_table(rows: Rows, plan: Plan, power: Power) -> Table:
    lines = []
    for whole, lasts in WHOLE.items():
        for system in SERVED:
            ours = pair_j(rows.pair(system, First.SOUGHT, 0, is_whole=whole), power)
            theirs = pair_j(rows.pair(System.PLAIN, First.SOUGHT, 0, is_whole=whole, every_s=plan.middle_s), power)
            more = estimate(less(ours, theirs))
            factor = sum(ours) / sum(theirs)
            lines.append(
                (lasts, system.value, _text(estimate(theirs)), _text(estimate(ours)), _text(more), f"{factor:.2f}")
            )
    heads = ("inquiry", "system", "plain, J", "ours, J", "ours less plain, J", "ours / plain")
    return Table("Both devices are present: the caveat of 5.1, and its size", heads, lines)


def _gap_table(rows: Rows, plan: Plan, first: First) -> Table:
    lines = []
    for whole, lasts in WHOLE.items():
        for every in every_of(plan, first):
            for system in SERVED:
                cells = [
                    gap_crossing(rows, plan, make_power(each), system, first, is_whole=whole, every_s=every).describe(
                        "s"
                    )
                    for each in PowerClass
                ]
                lines.append((lasts, f"{every:g} s", system.value, *cells))
    heads = ("inquiry", "plain repeats every", "system", *(each.value for each in PowerClass))
    title = f"From which gap on ours takes less energy, first comes {first.value} (95 %: from, to)"
    return Table(title, heads, lines)


def _room_table(rows: Rows, plan: Plan, power: Power) -> Table:
    cases = [(System.PLAIN, whole, every) for every in plan.every_s for whole in WHOLE]
    cases += [(system, whole, 30.0) for system in SERVED for whole in WHOLE]
    heads = [
        f"{system.value}{f' every {every:g} s' if system is System.PLAIN else ''}, inquiry {WHOLE[whole]}"
        for system, whole, every in cases
    ]
    lines = [
        (
            str(phones),
            *(
                _text(estimate(phone_j(rows.room(system, phones, is_whole=whole, every_s=every), power)))
                for system, whole, every in cases
            ),
        )
        for phones in plan.phones
    ]
    return Table("A room: joules of a phone in ten minutes, class 2", ("phones", *heads), lines)


def _answer_table(rows: Rows, plan: Plan) -> Table:
    def unwanted(found: Sequence[Row]) -> str:
        return _text(estimate([row["unwanted"] for row in found]), digits=1)

    lines = [
        (
            str(phones),
            *(unwanted(rows.room(System.PLAIN, phones, is_whole=True, every_s=each)) for each in plan.every_s),
            *(unwanted(rows.room(system, phones, is_whole=True)) for system in SERVED),
        )
        for phones in plan.phones
    ]
    heads = (*(f"plain, every {each:g} s" for each in plan.every_s), *(each.value for each in SERVED))
    return Table("A room: answers of a phone that nobody wanted", ("phones", *heads), lines)


def _room_crossing_table(rows: Rows, plan: Plan) -> Table:
    lines = [
        (
            lasts,
            f"{every:g} s",
            system.value,
            *(
                room_crossing(rows, plan, make_power(each), system, is_whole=whole, every_s=every).describe("phones")
                for each in PowerClass
            ),
        )
        for whole, lasts in WHOLE.items()
        for every in plan.every_s
        for system in SERVED
    ]
    heads = ("inquiry", "plain repeats every", "system", *(each.value for each in PowerClass))
    return Table("From how many phones of a room on ours takes less energy (95 %: from, to)", heads, lines)


def _waiting_table(rows: Rows, plan: Plan, power: Power) -> Table:
    seconds = rows.kind("waiting")[0]["seconds"]
    plain = [
        (f"plain Bluetooth, every {each:g} s", rows.waiting(System.PLAIN, is_whole=True, every_s=each))
        for each in plan.every_s
    ]
    ours = [
        (f"{system.value}, inquiry {lasts}", rows.waiting(system, is_whole=whole))
        for system in (System.PARK, System.RELEASE)
        for whole, lasts in WHOLE.items()
    ]
    lines = [(name, _text(estimate(seeker_j(found, power)))) for name, found in (*plain, *ours)]
    return Table(f"A target that never comes: joules of the seeker in {seconds:,.0f} s, class 2", ("", "J"), lines)


def _wait_table(rows: Rows, plan: Plan) -> Table:
    def waits(found: Sequence[Row]) -> str:
        return _text(estimate([row["wait_s"] for row in found]), digits=1)

    lines = []
    for first in First:
        for whole, lasts in WHOLE.items():
            every = every_of(plan, first)
            told = [
                waits(
                    [
                        row
                        for gap in plan.gaps_s
                        for row in rows.pair(System.PLAIN, first, gap, is_whole=whole, every_s=e)
                    ]
                )
                for e in every
            ]
            plain = [told[list(every).index(each)] if each in every else "–" for each in plan.every_s]
            ours = [
                waits([row for gap in plan.gaps_s for row in rows.pair(system, first, gap, is_whole=whole)])
                for system in SERVED
            ]
            lines.append((f"{first.value} first, inquiry {lasts}", *plain, *ours))
    heads = (*(f"plain, every {each:g} s" for each in plan.every_s), *(each.value for each in SERVED))
    return Table("From the second arrival to the connection, s, over all gaps", ("", *heads), lines)


def _cache_table(rows: Rows) -> Table:
    found = rows.kind("caches")

    def mean(name: str, **settings: bool) -> str:
        return _text(estimate([r[name] for r in found if all(r[k] is v for k, v in settings.items())]), digits=0)

    words = {True: "on", False: "off"}
    lines = [
        (
            f"cache of removed events {words[is_on]}",
            mean("lost_bytes", has_removed=is_on),
            mean("lost_packets", has_removed=is_on),
        )
        for is_on in words
    ]
    lines += [
        (
            f"list of verified members {words[is_on]}",
            mean("asked_bytes", has_members=is_on),
            mean("asked_packets", has_members=is_on),
        )
        for is_on in words
    ]
    title = "Bytes and packets that a device sends, for each loss of the controller and for each friend it asks for"
    return Table(title, ("", "bytes", "packets"), lines)


def _varied_table(rows: Rows, plan: Plan) -> Table:
    lines = []
    for meaning, changed in VARIED.items():
        power = make_power(PowerClass.CLASS_2, **changed)
        cells = [
            gap_crossing(rows, plan, power, System.PARK, first, is_whole=whole, every_s=plan.middle_s).describe("s")
            for first in First
            for whole in WHOLE
        ]
        lines.append((meaning, *cells))
    heads = [f"{first.value} first, inquiry {lasts}" for first in First for lasts in WHOLE.values()]
    return Table("What is assumed, varied: from which gap on ours takes less, with park, class 2", ("", *heads), lines)


def _claims(rows: Rows, plan: Plan, power: Power) -> dict[str, bool]:
    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    def is_dearer(system: System, *, is_whole: bool) -> bool:
        plain = rows.pair(System.PLAIN, First.SOUGHT, 0, is_whole=is_whole, every_s=plan.middle_s)
        return mean(pair_j(rows.pair(system, First.SOUGHT, 0, is_whole=is_whole), power)) > mean(pair_j(plain, power))

    def crossing(system: System, first: First, *, is_whole: bool) -> float:
        return gap_crossing(rows, plan, power, system, first, is_whole=is_whole, every_s=plan.middle_s).at

    longest = max(plan.phones)
    unwanted: Callable[[System], float] = lambda system: mean(  # noqa: E731 # one expression, used twice below
        [row["unwanted"] for row in rows.room(system, longest, is_whole=True, every_s=plan.middle_s)]
    )
    caches = rows.kind("caches")

    def sent(name: str, setting: str, *, is_on: bool) -> float:
        return mean([row[name] for row in caches if row[setting] is is_on])

    waits = [row["wait_s"] for row in rows.kind("pair")]
    waiting = max(mean(seeker_j(rows.waiting(System.PARK, is_whole=whole), power)) for whole in WHOLE)
    plain_waiting = min(
        mean(seeker_j(rows.waiting(System.PLAIN, is_whole=True, every_s=each), power)) for each in plan.every_s
    )
    return {
        "both present: a direct publication is dearer than plain Bluetooth (5.1), however long an inquiry lasts": all(
            is_dearer(System.PARK, is_whole=whole) for whole in WHOLE
        ),
        "apart: with park it is cheaper from some gap within the sweep on, in both orders": all(
            crossing(System.PARK, first, is_whole=whole) <= max(plan.gaps_s) for first in First for whole in WHOLE
        ),
        "the seeker first: it is cheaper within a minute, with park and without": all(
            crossing(system, First.SEEKER, is_whole=whole) <= 60 for system in SERVED for whole in WHOLE
        ),
        "a target that never comes costs least where one asks once": waiting < plain_waiting,
        "nobody's answers: a phone of the largest room sends fewer with us": unwanted(System.PARK)
        < unwanted(System.PLAIN),
        "the cache of removed events saves bytes": sent("lost_bytes", "has_removed", is_on=True)
        < sent("lost_bytes", "has_removed", is_on=False),
        "the list of verified members saves bytes": sent("asked_bytes", "has_members", is_on=True)
        < sent("asked_bytes", "has_members", is_on=False),
        "every pair met": all(wait is not None for wait in waits),
    }


def _notes(rows: Rows, plan: Plan, power: Power) -> list[str]:
    dearer = [
        f"{system.value}, inquiry {lasts}, {first.value} first"
        for first in First
        for system in SERVED
        for whole, lasts in WHOLE.items()
        if gap_crossing(rows, plan, power, system, first, is_whole=whole, every_s=plan.middle_s).at == math.inf
    ]
    room_dearer = [
        f"{system.value}, inquiry {lasts}"
        for system in SERVED
        for whole, lasts in WHOLE.items()
        if room_crossing(rows, plan, power, system, is_whole=whole, every_s=plan.middle_s).at == math.inf
    ]
    largest = max(plan.phones)
    plain = rows.room(System.PLAIN, largest, is_whole=True, every_s=plan.middle_s)
    parts = [compute_energy(row["phone"], power) for row in plain]
    share = sum(each.parts_j["answers"] for each in parts) / sum(each.total_j for each in parts)
    notes = [
        f"answers take {share:.2%} of a plain phone's energy in a room of {largest}, listening and inquiring the rest",
        "energy is beyond idle: a radio that does nothing draws its idle power in every system alike",
    ]
    if dearer:
        notes.append(f"**dearer than plain Bluetooth at every gap**: {'; '.join(dearer)}")
    if room_dearer:
        notes.append(f"**dearer than plain Bluetooth in the largest room**: {'; '.join(room_dearer)}")
    return notes
