"""The harness: repeat, take the median, check, and write down what was measured where.

Rule: engines that are compared take turns within every repetition, so that a busy moment of the machine hits all.
Rule: a ratio is our rate divided by the peer's: above one we are faster.
Rule: a number never travels without its machine, versions, command and commit (STYLE 33).
"""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import ParamSpec, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = [
    "Check",
    "Comparison",
    "Figure",
    "Grid",
    "Job",
    "Report",
    "Timing",
    "in_fresh_process",
    "machine_facts",
    "measure",
    "show",
    "source_digest",
    "write",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Job:
    """What one engine does in one repetition, and how many items that is."""

    engine: str
    items: int
    call: Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long one engine took, once per repetition."""

    engine: str
    items: int
    seconds: tuple[float, ...]

    @property
    def us_per_item(self) -> float:
        """Median microseconds per item."""
        return statistics.median(self.seconds) / self.items * 1e6

    @property
    def spread(self) -> float:
        """Slowest repetition divided by the fastest."""
        return max(self.seconds) / min(self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Engines side by side; the first is ours, the one the others are measured against."""

    title: str
    item: str
    timings: tuple[Timing, ...]

    @property
    def ratios(self) -> dict[str, float]:
        """Our rate divided by that of each other engine."""
        ours, *others = self.timings
        return {other.engine: other.us_per_item / ours.us_per_item for other in others}


@dataclass(frozen=True, slots=True)
class Figure:
    """A single number worth keeping."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Grid:
    """Numbers that are read together: a row each, the first cell its name."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]

    @property
    def cells(self) -> Iterable[tuple[str, ...]]:
        """The rows as they are shown."""
        for row in self.rows:
            yield tuple("" if cell is None else cell if isinstance(cell, str) else _number(cell) for cell in row)


@dataclass(frozen=True, slots=True)
class Check:
    """A claim about results; fast and wrong is wrong."""

    claim: str
    passed: bool


@dataclass(slots=True)
class Report:
    """All that one benchmark found."""

    name: str
    packages: tuple[str, ...] = ()
    grids: list[Grid] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether everything that was checked holds."""
        return all(check.passed for check in self.checks)

    def record(self, machine: Mapping[str, object]) -> dict[str, object]:
        """Return the report as it is written to JSON."""
        return {
            "name": self.name,
            "passed": self.passed,
            "machine": dict(machine),
            "versions": {package: version(package) for package in self.packages},
            "tables": [_grid_record(grid) for grid in self.grids],
            "comparisons": [_comparison_record(comparison) for comparison in self.comparisons],
            "figures": [
                {"name": figure.name, "value": _rounded(figure.value), "unit": figure.unit} for figure in self.figures
            ],
            "checks": [{"claim": check.claim, "passed": check.passed} for check in self.checks],
            "notes": self.notes,
        }


def _comparison_record(comparison: Comparison) -> dict[str, object]:
    return {
        "title": comparison.title,
        "item": comparison.item,
        "ours": comparison.timings[0].engine,
        "engines": {
            timing.engine: {
                "items": timing.items,
                "seconds": [_rounded(second) for second in timing.seconds],
                "us_per_item": _rounded(timing.us_per_item),
                "items_per_s": _rounded(1e6 / timing.us_per_item),
            }
            for timing in comparison.timings
        },
        "ratios": {engine: _rounded(ratio) for engine, ratio in comparison.ratios.items()},
    }


def _grid_record(grid: Grid) -> dict[str, object]:
    rows = [[_rounded(cell) if isinstance(cell, float) else cell for cell in row] for row in grid.rows]
    return {"title": grid.title, "headings": list(grid.headings), "rows": rows}


def _rounded(value: float) -> float:
    """Four significant digits: what a benchmark can know."""
    return float(f"{value:.4g}")


def measure(jobs: Sequence[Job], *, repetitions: int) -> tuple[Timing, ...]:
    """Time *jobs* in turns, *repetitions* times, garbage collected before each."""
    seconds: dict[str, list[float]] = {job.engine: [] for job in jobs}
    for _ in range(repetitions):
        for job in jobs:
            gc.collect()
            start = time.perf_counter()
            job.call()
            seconds[job.engine].append(time.perf_counter() - start)
    return tuple(Timing(engine=job.engine, items=job.items, seconds=tuple(seconds[job.engine])) for job in jobs)


def in_fresh_process(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call *function* in a new interpreter: cold caches, and memory that is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


# -- where it was measured ---------------------------------------------------------------------------------------------


def machine_facts(command: str) -> dict[str, object]:
    """Return what a reader must know to judge the numbers; nothing that names the machine."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "commit": _commit(),
        "source_sha256": source_digest(),
        "command": command,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def _commit() -> str:
    commit = _git("rev-parse", "--short", "HEAD") or "unknown"
    # Only what is measured counts: the source and the benchmarks, not the results that this run is about to write.
    changed = [part for part in ("src", "bench") if _git("status", "--porcelain", "--", part, ":!bench/results")]
    return f"{commit} with changes in {' and '.join(changed)}" if changed else commit


def source_digest() -> str:
    """Return a digest of all that is measured; children import it late, so it must not change during a run."""
    digest = hashlib.sha256()
    for path in sorted([*(_ROOT / "src").rglob("*.py"), *(_ROOT / "bench").glob("*.py")]):
        digest.update(f"{path.relative_to(_ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # fixed words, no shell
            ["git", *arguments],  # noqa: S607  # whichever git the developer uses
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip()


# -- how it is told ----------------------------------------------------------------------------------------------------


def write(report: Report, machine: Mapping[str, object], directory: Path) -> None:
    """Write *report* as ``<name>.json`` and ``<name>.md`` into *directory*."""
    directory.mkdir(parents=True, exist_ok=True)
    record = report.record(machine)
    text = json.dumps(record, indent=2, ensure_ascii=False)
    (directory / f"{report.name}.json").write_text(text + "\n", encoding="utf-8")
    (directory / f"{report.name}.md").write_text("\n".join(_markdown(report, machine)), encoding="utf-8")


def _markdown(report: Report, machine: Mapping[str, object]) -> Iterable[str]:
    yield f"# Benchmark: {report.name}\n"
    yield f"Made by `{machine['command']}` on {machine['date']}; do not edit."
    yield f"Commit {machine['commit']}, source digest {machine['source_sha256']}."
    yield (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"load average {machine['load_average']} at the start; {machine['system']}, {machine['python']}; "
        + ", ".join(f"{package} {version(package)}" for package in report.packages)
        + "."
    )
    yield "Times are medians; a ratio is our rate divided by the peer's; spread is the slowest repetition over the"
    yield "fastest.\n"
    for grid in report.grids:
        yield f"## {grid.title}\n"
        yield f"| {' | '.join(grid.headings)} |"
        yield f"|---|{'---:|' * (len(grid.headings) - 1)}"
        yield from (f"| {' | '.join(cells)} |" for cells in grid.cells)
        yield ""
    for comparison in report.comparisons:
        yield f"## {comparison.title}\n"
        yield f"| engine | {' | '.join(_headings(comparison))} |"
        yield "|---|---:|---:|---:|---:|---:|"
        yield from (f"| {' | '.join(row)} |" for row in _rows(comparison))
        yield ""
    if report.figures:
        yield "## Figures\n\n| what | value |\n|---|---:|"
        yield from (f"| {figure.name} | {_number(figure.value)} {figure.unit} |" for figure in report.figures)
        yield ""
    yield "## Checks\n"
    yield from (f"- {'holds' if check.passed else '**FAILS**'}: {check.claim}" for check in report.checks)
    if report.notes:
        yield "\n## Notes\n"
        yield from (f"- {note}" for note in report.notes)
    yield ""


def _headings(comparison: Comparison) -> tuple[str, ...]:
    item = comparison.item
    return f"µs/{item}", f"{item}s/s", "ours ÷ peer", "spread", f"{item}s × repetitions"


def _rows(comparison: Comparison) -> Iterable[tuple[str, ...]]:
    for timing in comparison.timings:
        ratio = comparison.ratios.get(timing.engine)
        yield (
            timing.engine,
            _number(timing.us_per_item),
            _number(1e6 / timing.us_per_item),
            "" if ratio is None else f"{ratio:.3g}×",
            f"{timing.spread:.2f}",
            f"{timing.items:,} × {len(timing.seconds)}",
        )


def _number(value: float) -> str:
    """Three significant digits, never in exponent form."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def show(report: Report, console: Console) -> None:
    """Print *report* as tables."""
    for grid in report.grids:
        table = Table(title=f"{report.name}: {grid.title}", title_justify="left")
        for number, heading in enumerate(grid.headings):
            table.add_column(heading, justify="right" if number else "left")
        for cells in grid.cells:
            table.add_row(*cells)
        console.print(table)
    for comparison in report.comparisons:
        table = Table(title=f"{report.name}: {comparison.title}", title_justify="left")
        table.add_column("engine")
        for heading in _headings(comparison):
            table.add_column(heading, justify="right")
        for row in _rows(comparison):
            table.add_row(*row)
        console.print(table)
    for figure in report.figures:
        console.print(f"{escape(figure.name)}: [bold]{_number(figure.value)} {figure.unit}[/]")
    for check in report.checks:
        console.print(f"{'[green]holds[/]' if check.passed else '[red]FAILS[/]'}: {escape(check.claim)}")
    for note in report.notes:
        console.print(f"[dim]{escape(note)}[/]")
