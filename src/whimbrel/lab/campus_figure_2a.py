"""Figure 2a of Campus++: mean delivery delay against used memory, for 100, 70, 50 and 20 topics of equal popularity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from whimbrel.lab.confidence import Estimate, estimate
from whimbrel.lab.experiment import Experiment, Findings, Table
from whimbrel.lab.points import Place, Point, Row
from whimbrel.sim.campus.scenario import Campus

__all__ = ["SWEPT", "figure_2a"]

_TOPICS = (100, 70, 50, 20)
_WORKLOADS = tuple(tenth / 10 for tenth in range(1, 11))
_SEEDS = (1, 2, 3, 4, 5)
_NEAR = (0.7, 0.8, 0.9)
"""Workloads that count as near 80 %."""
SWEPT: dict[str, dict[str, Any]] = {
    "as in the figure": {},
    "2 subscribers a topic": {"subscribers": 2.0},
    "20 subscribers a topic": {"subscribers": 20.0},
    "a sample every 1,000 s": {"interval_s": 1_000.0},
    "a sample every 16,000 s": {"interval_s": 16_000.0},
    "Hello every 10 s": {"hello_s": 10.0},
    "a transfer takes 3 s": {"transfer_s": 3.0},
    "subscribers show what they retrieved": {"shows_retrieved": True},
}
"""Settings that the paper leaves open, varied one by one, for 100 topics."""
_SWEPT_WORKLOADS = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
_SWEPT_SEEDS = (1, 2, 3)


def figure_2a(*, is_quick: bool = False) -> Experiment:
    """Return the experiment; a quick one only shows that it runs."""
    topics = (100, 20) if is_quick else _TOPICS
    workloads = (0.2, 0.8, 1.0) if is_quick else _WORKLOADS
    seeds = (1, 2) if is_quick else _SEEDS
    place = Place(seconds=50_000.0) if is_quick else Place()
    points = [
        Point(campus=Campus(topics=count, workload=workload), seed=seed, place=place)
        for count in topics
        for workload in workloads
        for seed in seeds
    ]
    if not is_quick:
        points += [
            Point(campus=replace(Campus(workload=workload), **changed), seed=seed, place=place)
            for changed in SWEPT.values()
            for workload in _SWEPT_WORKLOADS
            for seed in _SWEPT_SEEDS
        ]
    return Experiment(
        name="campus-figure-2a",
        title="Campus++, Figure 2a: mean delivery delay against used memory",
        points=list(dict.fromkeys(points)),
        find=_find,
        plot=_plot,
        assumptions={"seeds": len(seeds), "simulated_s": place.seconds, "nodes": 100} | Campus().assumptions(),
    )


def _base(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the figure itself, without those of the varied settings."""
    return [row for row in rows if all(row[name] == value for name, value in _defaults().items())]


def _defaults() -> dict[str, Any]:
    campus = Campus()
    names = ("subscribers", "interval_s", "hello_s", "transfer_s", "shows_retrieved")
    return {name: getattr(campus, name) for name in names}


def _curves(rows: Sequence[Row], figure: str) -> dict[int, dict[float, Estimate]]:
    """Return the mean of column *figure*, by topics and workload."""
    found: dict[int, dict[float, list[Any]]] = {}
    for row in rows:
        found.setdefault(row["topics"], {}).setdefault(row["workload"], []).append(row[figure])
    return {
        topics: {workload: estimate(values) for workload, values in sorted(curve.items())}
        for topics, curve in sorted(found.items(), reverse=True)
    }


def _find(rows: Sequence[Row]) -> Findings:
    base = _base(rows)
    delay, spray, seen = (_curves(base, name) for name in ("delay_mean_s", "spray_time_s", "replicas_seen"))
    best = {topics: min(curve, key=lambda load, curve=curve: curve[load].mean) for topics, curve in delay.items()}  # type: ignore[misc] # a default is bound
    near = {topics: min(curve[load].mean for load in curve if load in _NEAR) for topics, curve in delay.items()}
    claims = {
        "the delay falls with the workload up to 70 %": all(
            curve[low].mean > curve[high].mean
            for curve in delay.values()
            for low, high in zip(list(curve), list(curve)[1:], strict=False)
            if high <= 0.7
        ),
        "the delay is best near 80 % (70 to 90)": all(load in _NEAR for load in best.values()),
        "at 100 % it is above the best": all(curve[1.0].mean > near[topics] for topics, curve in delay.items()),
        "the spray time explains it: it grows with the workload, and fastest at the end": all(
            curve[1.0].mean > 1.5 * curve[0.8].mean for curve in spray.values()
        ),
    }
    notes = [
        f"{topics} topics: best at {best[topics]:.0%} with {curve[best[topics]]} s; at 100 % {curve[1.0]} s, where "
        f"spraying takes {spray[topics][1.0]} s instead of {spray[topics][0.8]} s at 80 % and subscribers see "
        f"{seen[topics][1.0]} replicas instead of {seen[topics][0.8]}"
        for topics, curve in delay.items()
    ]
    tables = [
        _table("Mean delivery delay in s, ± 95 %", delay, has_paper=True),
        _table("Spray time in s: from publication until the last of the L copies is stored", spray),
        _table("Replicas at the moment of retrieval", seen),
    ]
    swept = _swept(rows)
    return Findings(tables=[*tables, swept] if swept.rows else tables, claims=claims, notes=notes)


def _table(title: str, curves: dict[int, dict[float, Estimate]], *, has_paper: bool = False) -> Table:
    loads = sorted({load for curve in curves.values() for load in curve})
    head = ("workload", *(f"{topics} topics" for topics in curves), *(["paper"] if has_paper else []))
    rows = []
    for load in loads:
        cells = [str(curve[load]) if load in curve else "" for curve in curves.values()]
        rows.append((f"{load:.0%}", *cells, *([_paper(load)] if has_paper else [])))
    return Table(title, head, rows)


def _paper(load: float) -> str:
    return "best" if load == 0.8 else "worse again" if load > 0.8 else "falls"


def _swept(rows: Sequence[Row]) -> Table:
    lines = []
    for name, changed in SWEPT.items():
        wanted = _defaults() | changed | {"topics": 100}
        mine = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
        mine = [row for row in mine if row["seed"] in _SWEPT_SEEDS and row["workload"] in _SWEPT_WORKLOADS]
        curve = _curves(mine, "delay_mean_s").get(100, {})
        if all(load in curve for load in _SWEPT_WORKLOADS):
            best = min(curve, key=lambda load, curve=curve: curve[load].mean)  # type: ignore[misc] # a default is bound
            lines.append((name, *(str(curve[load]) for load in _SWEPT_WORKLOADS), f"{best:.0%}"))
    head = ("100 topics", *(f"{load:.0%}" for load in _SWEPT_WORKLOADS), "best at")
    return Table("What the paper leaves open, swept: mean delivery delay in s by workload", head, lines)


def _plot(rows: Sequence[Row], figure: Any) -> None:  # noqa: ANN401 # matplotlib's own
    axes = figure.subplots()
    for topics, curve in _curves(_base(rows), "delay_mean_s").items():
        loads = [100 * load for load in curve]
        means = [each.mean for each in curve.values()]
        [line] = axes.plot(loads, means, marker="o", markersize=3, label=f"{topics} topics")
        low = [each.mean - each.margin for each in curve.values()]
        high = [each.mean + each.margin for each in curve.values()]
        axes.fill_between(loads, low, high, alpha=0.25, color=line.get_color())
    axes.axvline(80, linestyle=":", color="grey", label="the paper's best: 80 %")
    axes.set(xlabel="used memory in %", ylabel="mean delivery delay in s", yscale="log")
    for axis_format in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        axis_format("{x:.0f}")
    axes.set_title("Campus++, Figure 2a: means over seeds, bands of 95 % confidence")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
