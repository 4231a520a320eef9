"""Figure 2a of Campus++ on a contact trace of real people, given by the user: delay against used memory."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from whimbrel.lab.confidence import estimate
from whimbrel.lab.experiment import Experiment, Findings, Table
from whimbrel.lab.points import Place, Point, Row
from whimbrel.sim.campus.scenario import Campus
from whimbrel.sim.contacts.statistics import contact_statistics
from whimbrel.sim.contacts.traces import read_trace

__all__ = ["trace_experiment"]

_WORKLOADS = tuple(tenth / 10 for tenth in range(1, 11))
_SEEDS = (1, 2, 3, 4, 5)
_SAMPLES_A_TOPIC = 20


def trace_experiment(path: Path, *, shipped: str | None = None, topics: int = 20, is_quick: bool = False) -> Experiment:
    """Return the experiment on the trace at *path*; Spark workers find the file under the name *shipped*."""
    trace = read_trace(path)  # a malformed line is reported before Spark starts
    interval_s = trace.contacts.seconds / _SAMPLES_A_TOPIC
    base = Campus(topics=topics, interval_s=max(interval_s, 1e-3), zipf_exponent=0.8)
    place = Place(
        seconds=trace.contacts.seconds,
        trace=shipped or str(path.absolute()),
        digest=sha256(path.read_bytes()).hexdigest(),
    )
    workloads = (0.2, 0.8) if is_quick else _WORKLOADS
    seeds = _SEEDS[:2] if is_quick else _SEEDS
    campuses = [
        Campus(topics=topics, interval_s=base.interval_s, zipf_exponent=0.8, workload=workload, allocation=allocation)
        for workload in workloads
        for allocation in ("sqrt", "flat")
    ]
    for campus in campuses:
        campus.copies(trace.contacts.nodes)  # so is an impossible plan
    found = contact_statistics(trace.contacts)
    told = {
        "trace": path.name,
        "nodes": trace.contacts.nodes,
        "contacts": found.contacts,
        "simulated_s": trace.contacts.seconds,
        "meeting_time_s": found.meeting_time_s,
        "seeds": len(seeds),
    }
    return Experiment(
        name=f"campus-trace-{path.stem}",
        title=f"Campus++ on {path.name}: mean delivery delay against used memory",
        points=[Point(campus=campus, seed=seed, place=place) for campus in campuses for seed in seeds],
        find=_find,
        plot=_plot,
        assumptions=told | base.assumptions(),
    )


def _find(rows: Sequence[Row]) -> Findings:
    lines = []
    means: dict[float, float] = {}
    for load in sorted({row["workload"] for row in rows}):
        root, flat = (
            [row for row in rows if (row["workload"], row["allocation"]) == (load, kind)] for kind in ("sqrt", "flat")
        )
        delay = estimate(row["delay_mean_s"] for row in root)
        means[load] = delay.mean
        lines.append(
            (
                f"{load:.0%}",
                str(delay),
                str(estimate(row["delay_mean_s"] for row in flat)),
                str(estimate(row["delay_p50_s"] for row in root)),
                f"{estimate(100 * (1 - (row['delivery_prob'] or 0)) for row in root)} %",
                str(estimate(row["spray_time_s"] for row in root)),
                str(estimate(row["replicas_seen"] for row in root)),
            )
        )
    head = ("workload", "√S: mean s", "flat: mean s", "√S: median s", "never retrieved", "spray s", "replicas seen")
    best = min(means, key=lambda load: means[load])
    return Findings(
        tables=[Table("Delay from publication to retrieval, ± 95 %", head, lines)],
        claims={},
        notes=[
            f"the mean delay by formula (1) is best at {best:.0%}",
            "a delay is known only where the sample was retrieved: look at the share that never was beside it",
        ],
    )


def _plot(rows: Sequence[Row], figure: Any) -> None:  # noqa: ANN401 # matplotlib's own
    axes = figure.subplots()
    for kind, label in (("sqrt", "√S"), ("flat", "flat")):
        loads = sorted({row["workload"] for row in rows})
        found = [
            estimate(row["delay_mean_s"] for row in rows if (row["workload"], row["allocation"]) == (load, kind))
            for load in loads
        ]
        means, margins = [each.mean for each in found], [each.margin for each in found]
        axes.errorbar([100 * load for load in loads], means, yerr=margins, marker="o", capsize=3, label=label)
    axes.set(xlabel="used memory in %", ylabel="mean delivery delay in s")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
