"""Dumb devices: a headset and its phone, in both orders of arrival (Huang, 5.4.4).

The thesis suggests that a controller could stand in for the phone, so that a headset's pages are answered. This
experiment measures what that saves the headset, what it costs the phone, and how long a page takes to be heard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from whimbrel.lab.confidence import Estimate, estimate
from whimbrel.lab.experiment import Experiment, Findings, Table
from whimbrel.lab.rendezvous.breaking_even import Crossing, find_crossing
from whimbrel.lab.rendezvous.points import make_point
from whimbrel.lab.spark_sweep import Row
from whimbrel.rendezvous.energy import Power, PowerClass, compute_energy, make_power
from whimbrel.sim.rendezvous import headsets
from whimbrel.sim.rendezvous.headset import PAGE_US
from whimbrel.sim.rendezvous.headsets import Arrival

__all__ = ["dumb"]

_GAPS_S = (0.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3_600.0)
_PAUSES_S = (0.0, 10.0, 60.0)
_SEEDS = 12
_Key = tuple[str, float, bool, float]


def dumb(*, is_quick: bool = False) -> Experiment:
    """Return the experiment; a quick one has three gaps."""
    gaps, pauses, seeds = ((0.0, 60.0, 600.0), (10.0,), 3) if is_quick else (_GAPS_S, _PAUSES_S, _SEEDS)
    points = [
        make_point(
            headsets.play_headset,
            first=first.value,
            gap_s=gap,
            has_controller=has_controller,
            pause_s=pause,
            seed=seed,
        )
        for first in Arrival
        for gap in gaps
        for pause in pauses
        for has_controller in (False, True)
        for seed in range(seeds)
    ]
    return Experiment(
        name="rendezvous-dumb",
        title="Huang, 5.4.4: headsets and phones, with a controller in the phone's place",
        points=[],
        own=points,
        is_swept=True,
        find=partial(_find, gaps=gaps, pauses=pauses),
        plot=partial(_plot, gaps=gaps, pauses=pauses),
        assumptions={
            "seeds": seeds,
            "a page of the headset, s": PAGE_US / 1e6,
            "the headset rests after a page in vain for, s (assumed, varied)": ", ".join(
                f"{each:g}" for each in pauses
            ),
            "power": PowerClass.CLASS_2.value,
            "without a controller": "the phone listens for pages all the time",
        },
    )


def _by_case(rows: Sequence[Row]) -> dict[_Key, list[Row]]:
    found: dict[_Key, list[Row]] = {}
    for row in sorted(rows, key=lambda each: each["seed"]):
        found.setdefault((row["first"], row["gap_s"], row["has_controller"], row["pause_s"]), []).append(row)
    return found


def _joules(rows: Sequence[Row], who: str, power: Power) -> list[float]:
    return [compute_energy(row[who], power).total_j for row in rows]


def _find(rows: Sequence[Row], *, gaps: Sequence[float], pauses: Sequence[float]) -> Findings:
    cases, power = _by_case(rows), make_power(PowerClass.CLASS_2)
    tables = [_energy_table(cases, power, first, gaps, pauses) for first in Arrival]
    tables += [_crossing_table(cases, power, gaps, pauses), _time_table(rows)]
    return Findings(tables=tables, claims=_claims(rows, cases, power, gaps, pauses), notes=_notes(rows))


def _energy_table(
    cases: dict[_Key, list[Row]], power: Power, first: Arrival, gaps: Sequence[float], pauses: Sequence[float]
) -> Table:
    lines = []
    for pause in pauses:
        for gap in gaps:
            cells: list[str] = []
            for who in ("headset", "phone"):
                found = [cases[first.value, gap, has_controller, pause] for has_controller in (False, True)]
                cells += [_text(estimate(_joules(each, who, power))) for each in found]
            pages = [estimate([row["pages"] for row in cases[first.value, gap, each, pause]]) for each in (False, True)]
            lines.append((f"{pause:g}", f"{gap:,.0f}", *cells, *(f"{each.mean:.1f}" for each in pages)))
    heads = (
        "pause, s",
        "gap, s",
        "headset J, without",
        "headset J, with",
        "phone J, without",
        "phone J, with",
        "pages, without",
        "pages, with",
    )
    return Table(f"Until they are connected, first comes {first.value}", heads, lines)


def _crossing(
    cases: dict[_Key, list[Row]],
    power: Power,
    first: Arrival,
    gaps: Sequence[float],
    *,
    pause: float,
    who: Sequence[str],
) -> Crossing:
    def difference(gap: float) -> list[float]:
        with_us, without = (cases[first.value, gap, each, pause] for each in (True, False))
        ours = [sum(each) for each in zip(*(_joules(with_us, name, power) for name in who), strict=True)]
        theirs = [sum(each) for each in zip(*(_joules(without, name, power) for name in who), strict=True)]
        return [one - other for one, other in zip(ours, theirs, strict=True)]

    return find_crossing(list(gaps), difference)


def _crossing_table(
    cases: dict[_Key, list[Row]], power: Power, gaps: Sequence[float], pauses: Sequence[float]
) -> Table:
    lines = [
        (
            f"{first.value} first",
            f"{pause:g} s",
            _crossing(cases, power, first, gaps, pause=pause, who=("headset",)).describe("s"),
            _crossing(cases, power, first, gaps, pause=pause, who=("headset", "phone")).describe("s"),
        )
        for first in Arrival
        for pause in pauses
    ]
    heads = ("", "pause", "of the headset", "of both")
    return Table("From which gap on the controller saves energy (95 %: from, to)", heads, lines)


def _time_table(rows: Sequence[Row]) -> Table:
    lines = []
    for first in Arrival:
        found = {
            each: [r for r in rows if r["first"] == first.value and r["has_controller"] is each]
            for each in (False, True)
        }
        lines.append(
            (
                f"{first.value} first",
                _text(estimate([row["wait_s"] for row in found[False]])),
                _text(estimate([row["wait_s"] for row in found[True]])),
                _text(estimate([row["heard_s"] for row in found[True]])),
            )
        )
    heads = ("", "connected after s, without", "with", "the controller heard the first page after s")
    return Table("From the second arrival, over all gaps and pauses", heads, lines)


def _text(value: Estimate) -> str:
    margin = f" ± {value.margin:.2f}" if math.isfinite(value.margin) else ""
    return f"{value.mean:.2f}{margin}"


def _estimate_time_to_hear(rows: Sequence[Row], first: Arrival) -> Estimate:
    return estimate([row["heard_s"] for row in rows if row["first"] == first.value and row["has_controller"]])


def _claims(
    rows: Sequence[Row],
    cases: dict[_Key, list[Row]],
    power: Power,
    gaps: Sequence[float],
    pauses: Sequence[float],
) -> dict[str, bool]:
    longest, pause = max(gaps), pauses[len(pauses) // 2]

    def mean(who: str, first: Arrival, *, has_controller: bool) -> float:
        return estimate(_joules(cases[first.value, longest, has_controller, pause], who, power)).mean

    return {
        "every headset is connected to its own phone, in both orders": all(row["wait_s"] is not None for row in rows),
        "the headset first: it spends less with the controller from some gap on": all(
            _crossing(cases, power, Arrival.DUMB, gaps, pause=each, who=("headset",)).at < math.inf for each in pauses
        ),
        "the headset first: it pages at most three times, however long it waits": all(
            row["pages"] <= 3 for row in rows if row["has_controller"] and row["first"] == Arrival.DUMB.value
        ),
        "the phone first: it spends less where it sleeps, at the longest gap": mean(
            "phone", Arrival.SMART, has_controller=True
        )
        < mean("phone", Arrival.SMART, has_controller=False),
        "a page is heard later where the phone's clock is not known (5.4.4)": _estimate_time_to_hear(
            rows, Arrival.DUMB
        ).mean
        > _estimate_time_to_hear(rows, Arrival.SMART).mean,
    }


def _notes(rows: Sequence[Row]) -> list[str]:
    known, unknown = _estimate_time_to_hear(rows, Arrival.SMART), _estimate_time_to_hear(rows, Arrival.DUMB)
    return [
        f"the controller hears a page after {_text(known)} s where it knows the phone's clock",
        f"and holds the headset after {_text(unknown)} s where it does not: it goes through all page scan frequencies",
        "the headset asks for its maker's PIN each time; one that keeps a link key would have to be paired anew",
    ]


def _plot(rows: Sequence[Row], figure: Any, *, gaps: Sequence[float], pauses: Sequence[float]) -> None:  # noqa: ANN401 # matplotlib's own
    cases, power = _by_case(rows), make_power(PowerClass.CLASS_2)
    figure.set_size_inches(11, 5)
    for axes, first in zip(figure.subplots(1, 2), Arrival, strict=True):
        told = []
        for number, pause in enumerate(pauses):
            for has_controller in (False, True):
                found = [
                    estimate(_joules(cases[first.value, gap, has_controller, pause], "headset", power)) for gap in gaps
                ]
                axes.errorbar(
                    [max(1.0, gap) for gap in gaps],
                    [each.mean for each in found],
                    yerr=[each.margin for each in found],
                    color=f"C{number}",
                    linestyle="-" if has_controller else "--",
                    marker="o",
                    label=f"headset {'with' if has_controller else 'without'} controller, pause {pause:g} s",
                )
            at = _crossing(cases, power, first, gaps, pause=pause, who=("headset",)).at
            told.append(f"{pause:g} s: {'at every gap' if at == math.inf else f'up to {max(at, 0):.0f} s'}")
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="gap between arrivals, s (0 at 1)",
            ylabel="J of the headset until connected",
            title=f"{first.value} first; DEARER with the controller, by pause:\n{'; '.join(told)}",
        )
        axes.title.set_fontsize(8)
        axes.legend(fontsize=6)
