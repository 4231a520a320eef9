"""Beyond Campus++: the best exponent and workload when spraying takes time.

Formula (1) derives an exponent of 0.5 (copies in proportion to the root of the subscribers) from the wait phase alone.
The workload of 80 % was found with equally popular topics. Here both are varied together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whimbrel.lab.confidence import Estimate, estimate
from whimbrel.lab.experiment import Experiment, Findings, Table
from whimbrel.lab.points import Place, Point, Row
from whimbrel.sim.campus.scenario import Campus

__all__ = ["optimum"]

_EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)
_WORKLOADS = (0.6, 0.7, 0.8, 0.9, 1.0)
_SEEDS = (1, 2, 3)


def optimum(*, is_quick: bool = False) -> Experiment:
    """Return the experiment; a quick one only shows that it runs."""
    exponents = (0.0, 0.5) if is_quick else _EXPONENTS
    workloads = (0.8, 1.0) if is_quick else _WORKLOADS
    seeds = (1, 2) if is_quick else _SEEDS
    place = Place(seconds=50_000.0) if is_quick else Place()
    base = Campus(zipf_exponent=0.8)
    points = [
        Point(campus=Campus(zipf_exponent=0.8, exponent=exponent, workload=workload), seed=seed, place=place)
        for exponent in exponents
        for workload in workloads
        for seed in seeds
    ]
    return Experiment(
        name="campus-optimum",
        title="Beyond Campus++: the best exponent and workload once spraying takes time",
        points=points,
        find=_find,
        plot=_plot,
        assumptions={"seeds": len(seeds), "simulated_s": place.seconds, "nodes": 100} | base.assumptions(),
    )


def _cells(rows: Sequence[Row]) -> dict[tuple[float, float], Estimate]:
    found: dict[tuple[float, float], list[float]] = {}
    for row in rows:
        found.setdefault((row["exponent"], row["workload"]), []).append(row["delay_mean_s"])
    return {place: estimate(values) for place, values in sorted(found.items())}


def _find(rows: Sequence[Row]) -> Findings:
    cells = _cells(rows)
    loads = sorted({load for _, load in cells})
    table = Table(
        "Mean delivery delay in s, ± 95 %: exponent by workload",
        ("exponent", *(f"{load:.0%}" for load in loads)),
        [
            (f"{exponent:g}", *(str(cells[exponent, load]) for load in loads))
            for exponent in sorted({exponent for exponent, _ in cells})
        ],
    )
    exponent, load = min(cells, key=lambda place: cells[place].mean)
    papers = cells.get((0.5, 0.8))
    best = cells[exponent, load]
    claims = {
        "the paper's choice, 0.5 and 80 %, is within 5 % of the best": bool(papers and papers.mean < 1.05 * best.mean)
    }
    notes = [f"the best is {best} s with exponent {exponent:g} at {load:.0%}; the paper's 0.5 at 80 % has {papers} s"]
    return Findings(tables=[table], claims=claims, notes=notes)


def _plot(rows: Sequence[Row], figure: Any) -> None:  # noqa: ANN401 # matplotlib's own
    axes = figure.subplots()
    cells = _cells(rows)
    for load in sorted({load for _, load in cells}):
        curve = {exponent: found for (exponent, other), found in cells.items() if other == load}
        means, margins = [each.mean for each in curve.values()], [each.margin for each in curve.values()]
        axes.errorbar(
            list(curve), means, yerr=margins, marker="o", markersize=3, capsize=3, label=f"workload {load:.0%}"
        )
    axes.axvline(0.5, linestyle=":", color="grey", label="formula (1)")
    axes.set(xlabel="exponent: copies in proportion to subscribers to this power", ylabel="mean delivery delay in s")
    axes.set_title("Zipf 0.8, 100 topics; bars of 95 % confidence")
    axes.legend()
