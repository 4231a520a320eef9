"""The plot of ``rendezvous-energy``: energy over gap and room size, and where ours costs more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from whimbrel.lab.confidence import estimate
from whimbrel.lab.rendezvous.energy_findings import (
    WHOLE,
    Plan,
    Rows,
    every_of,
    gap_crossing,
    pair_j,
    phone_j,
    room_crossing,
)
from whimbrel.lab.spark_sweep import Row
from whimbrel.rendezvous.energy import Power, PowerClass, make_power
from whimbrel.sim.rendezvous.pairs import First, System

__all__ = ["plot"]

_COLOURS = {
    System.PLAIN: "tab:red",
    System.PARK: "tab:blue",
    System.RELEASE: "tab:green",
    System.FOUND: "tab:purple",
}
_STYLES = {True: "-", False: "--"}


def plot(all_rows: Sequence[Row], figure: Any, *, plan: Plan) -> None:  # noqa: ANN401 # matplotlib's own
    """Draw both orders of arrival, the room, and the unwanted answers."""
    rows, power = Rows(all_rows), make_power(PowerClass.CLASS_2)
    figure.set_size_inches(12, 10)
    ((left, right), (room, answers)) = figure.subplots(2, 2)
    for axes, first in ((left, First.SOUGHT), (right, First.SEEKER)):
        _draw_gaps(axes, rows, plan, power, first)
    _draw_rooms(room, rows, plan, power)
    for system in System:
        found = [rows.room(system, phones, is_whole=True, every_s=plan.middle_s) for phones in plan.phones]
        values = [estimate([row["unwanted"] for row in each]) for each in found]
        answers.errorbar(
            plan.phones,
            [each.mean for each in values],
            yerr=[_bar(each.margin) for each in values],
            color=_COLOURS[system],
            label=system.value,
        )
    answers.set(xlabel="phones in the room", ylabel="answers nobody wanted, per phone")
    answers.legend(fontsize=7)


def _draw_gaps(axes: Any, rows: Rows, plan: Plan, power: Power, first: First) -> None:  # noqa: ANN401 # see above
    every = every_of(plan, first)[len(every_of(plan, first)) // 2]
    for system in System:
        for whole, lasts in WHOLE.items():
            found = [
                estimate(pair_j(rows.pair(system, first, gap, is_whole=whole, every_s=every), power))
                for gap in plan.gaps_s
            ]
            axes.errorbar(
                [max(gap, 1) for gap in plan.gaps_s],
                [each.mean for each in found],
                yerr=[_bar(each.margin) for each in found],
                color=_COLOURS[system],
                linestyle=_STYLES[whole],
                label=f"{system.value}, inquiry {lasts}",
            )
    ends = {
        whole: gap_crossing(rows, plan, power, System.PARK, first, is_whole=whole, every_s=every).at for whole in WHOLE
    }
    longest = max(plan.gaps_s)
    for whole, end in ends.items():
        if end > 0:
            axes.axvspan(1, min(end, longest), alpha=0.08, color="tab:red")
            axes.axvline(min(end, longest), color="tab:red", linestyle=_STYLES[whole], linewidth=0.8)
    told = ", ".join(
        f"{'nowhere' if end == math.inf else f'{max(end, 0):.0f} s'} ({WHOLE[w]})" for w, end in ends.items()
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="gap between arrivals, s (0 at 1)",
        ylabel="J of both radios until connected",
        title=f"first comes {first.value}\nshaded: ours, with park, is DEARER than plain, up to {told}",
    )
    axes.title.set_fontsize(9)
    axes.legend(fontsize=6)


def _draw_rooms(axes: Any, rows: Rows, plan: Plan, power: Power) -> None:  # noqa: ANN401 # see above
    dearer = []
    for system in System:
        for whole, lasts in WHOLE.items():
            found = [
                estimate(phone_j(rows.room(system, phones, is_whole=whole, every_s=plan.middle_s), power))
                for phones in plan.phones
            ]
            axes.errorbar(
                plan.phones,
                [each.mean for each in found],
                yerr=[_bar(each.margin) for each in found],
                color=_COLOURS[system],
                linestyle=_STYLES[whole],
                label=f"{system.value}, inquiry {lasts}",
            )
            if system is not System.PLAIN:
                at = room_crossing(rows, plan, power, system, is_whole=whole, every_s=plan.middle_s).at
                if at > min(plan.phones):
                    dearer.append(f"{system.value}, {lasts}: {'all' if at == math.inf else f'up to {at:.0f}'}")
    told = "ours is DEARER than plain:\n" + "\n".join(dearer) if dearer else "ours is never dearer than plain"
    axes.set(xlabel="phones in the room", ylabel="J of a phone in ten minutes", ylim=(0, None), title=told)
    axes.title.set_fontsize(9)
    axes.legend(fontsize=6)


def _bar(margin: float) -> float:
    return margin if math.isfinite(margin) else 0.0
