"""An experiment: points to measure, a table beside the paper's, findings, a plot, and assumptions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whimbrel.errors import MissingDependencyError
from whimbrel.lab.own_processes import OwnPoint, make_points
from whimbrel.lab.points import Point, Row, sweep
from whimbrel.lab.spark_sweep import sweep_own

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Experiment", "Findings", "Result", "Table", "draw", "run"]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a title."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [f"| {' | '.join(self.head)} |", "|---|" + "---:|" * (len(self.head) - 1)]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join([f"**{self.title}**", "", *lines])


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Tables, claims and notes that follow from the rows of an experiment."""

    tables: list[Table]
    claims: dict[str, bool]
    """Claims of the paper, and whether the rows confirm each."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One table or figure of a paper."""

    name: str
    title: str
    points: list[Point]
    find: Callable[[Sequence[Row]], Findings]
    plot: Callable[[Sequence[Row], Any], None]
    """Draws the rows into a matplotlib figure."""
    assumptions: Mapping[str, object]
    make: Callable[[], list[Row]] | None = None
    """Makes the rows in this process if the experiment is not a sweep; then it has no points and needs no Spark."""
    own: Sequence[OwnPoint] = ()
    """Points that run in separate processes without Spark, unless ``is_swept`` is set."""
    is_swept: bool = False
    """Whether Spark runs the points of ``own``, because they are many and small."""
    at_once: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Number of points of ``own`` that run at once; more than the cores if they mostly wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of an experiment, and its files."""

    name: str
    findings: Findings
    text: str
    plot: Path
    points: int
    core_s: float


def run(
    spark: SparkSession | None,
    experiment: Experiment,
    out: Path,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Measure the missing points, then write table, plot and text below *out*."""
    out.mkdir(parents=True, exist_ok=True)
    if experiment.is_swept:
        assert spark is not None
        rows = sweep_own(spark, experiment.own, out / f"{experiment.name}-points", on_progress=on_progress)
    elif experiment.own:
        folder = out / f"{experiment.name}-points"
        rows = make_points(experiment.own, folder, processes=experiment.at_once, on_progress=on_progress)
    elif experiment.make is not None:
        rows = experiment.make()
    else:
        assert spark is not None
        rows = sweep(spark, experiment.points, out, on_progress=on_progress)
    findings = experiment.find(rows)
    picture = out / f"{experiment.name}.png"
    draw(experiment, rows, picture)
    text = _text(experiment, findings, rows)
    (out / f"{experiment.name}.md").write_text(text, encoding="utf-8")
    record = {
        "name": experiment.name,
        "assumptions": dict(experiment.assumptions),
        "claims": findings.claims,
        "notes": findings.notes,
        "tables": [{"title": each.title, "head": each.head, "rows": each.rows} for each in findings.tables],
    }
    (out / f"{experiment.name}.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return Result(
        name=experiment.name,
        findings=findings,
        text=text,
        plot=picture,
        points=len(rows),
        core_s=sum(row["core_s"] for row in rows),
    )


def draw(experiment: Experiment, rows: Sequence[Row], path: Path) -> None:
    """Draw the plot of *rows* into a file."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        remedy = "run: pip install 'whimbrel[lab]'"
        raise MissingDependencyError("a plot", error.name or "matplotlib", remedy) from None
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    FigureCanvasAgg(figure)
    experiment.plot(rows, figure)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _text(experiment: Experiment, findings: Findings, rows: Sequence[Row]) -> str:
    told = ", ".join(f"{name}: {value}" for name, value in experiment.assumptions.items())
    parts = [f"# {experiment.title}", ""]
    for claim, is_so in findings.claims.items():
        parts.append(f"- {'yes' if is_so else 'NO'}: {claim}.")
    parts += [f"- {note}." for note in findings.notes]
    for table in findings.tables:
        parts += ["", table.markdown()]
    core_s = sum(row["core_s"] for row in rows)
    parts += ["", f"Assumed: {told}.", "", f"{len(rows)} simulations, {core_s:,.0f} core seconds."]
    return "\n".join(parts) + "\n"
