"""What a change costs the broker: its core time per message, this checkout beside another revision, in one run.

    BEFORE=v0.3 python bench/run.py versions      # any revision that git knows; HEAD if none is named

Both run from their own sources with the same Python and the same load. In every repetition their brokers run side by
side and take the same load in turn, seconds apart: the speed of a shared machine drifts by a factor of two over
minutes, and what is measured seconds apart drifts together. Core time is the broker's own, all its threads.
Rule: the ratio is the median of the ratios of each repetition, after divided by before: above one, the change costs.
A second table has the core alone, without sockets (``core_time``): the least of all repetitions, which the other
programs of a machine disturb far less. A third has what one member of a named session, or one policy, costs the 99
others: cost(99 + 1) without cost(1 alone), divided by cost(99).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from core_time import SCENARIOS as CORE
from core_time import SHARES, cost_of_others
from measure import Check, Grid, Report
from whimbrel.sim.load.generator import Generator
from whimbrel.sim.load.load import Load
from whimbrel.sim.load.processes import Served, serve

__all__ = ["run"]

_ROOT = Path(__file__).parents[1]
_BEFORE, _AFTER = "before", "after"
_RULES = 100
_CORE_RUNS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scenario:
    """Who publishes to whom, and how often in one repetition."""

    name: str
    count: int
    qos: int = 0
    publishers: int = 1
    subscribers: int = 1

    def load(self, port: int, part: float) -> Load:
        """Return what is sent to the broker on *port*."""
        count = max(self.publishers, int(self.count * part))
        return Load(port=port, count=count, qos=self.qos, publishers=self.publishers, subscribers=self.subscribers)


_SCENARIOS = (
    _Scenario(name="1 → 1, QoS 0", count=100_000),
    _Scenario(name="1 → 1, QoS 1", count=40_000, qos=1),
    _Scenario(name="100 → 1, QoS 0", count=40_000, publishers=100),
    _Scenario(name="1 → 100, QoS 0", count=40_000, subscribers=100),
    _Scenario(name="1 → 100, QoS 1", count=4_000, qos=1, subscribers=100),
)


def run(*, quick: bool) -> Report:
    """Measure both; *quick* holds this checkout against itself, and only proves that nothing is lost."""
    repetitions, part = (1, 0.01) if quick else (9, 1.0)
    report = Report("versions", packages=("whimbrel", "uvloop"))
    revision = os.environ.get("BEFORE", "HEAD")
    with ExitStack() as stack, Generator() as generator:
        before = _ROOT if quick else stack.enter_context(_checkout(revision))
        took: dict[tuple[str, str], list[float]] = {}
        lost: Counter[str] = Counter()
        for repetition in range(repetitions):
            with ExitStack() as brokers:
                sides = {
                    side: brokers.enter_context(_served(root, rights))
                    for side, root, rights in (
                        (_BEFORE, before, ""),
                        (_AFTER, _ROOT, ""),
                        (_WITH_RULES, _ROOT, _rules()),
                    )
                }
                for scenario in _SCENARIOS:
                    # Which side comes first takes turns too.
                    for side in tuple(sides)[:: -1 if repetition % 2 else 1]:
                        served = sides[side]
                        found = generator.throughput(scenario.load(served.port, part), pid=served.pid)
                        lost[f"{scenario.name}, {side}"] += found.lost
                        took.setdefault((scenario.name, side), []).append(found.cpu_us or 0.0)
        core = [_core_times({_BEFORE: before, _AFTER: _ROOT}, quick=quick) for _ in range(1 if quick else _CORE_RUNS)]
    report.checks += [Check(f"{name}: everything that was sent arrived", not count) for name, count in lost.items()]
    report.grids += [_grid(took), _core_grid(core)]
    if not quick:
        report.grids.append(_shares_grid(core))
    report.notes += [
        f"Before is {revision}; after is this checkout. Microseconds of the broker's core time for each delivery.",
        f"Median of {repetitions} interleaved repetitions, each with brokers of its own; in brackets the extremes.",
        "A ratio is the median of the repetitions' own ratios.",
        f"With rules: after, with a rights file of {_RULES} rules, of which the last allows what is published.",
    ]
    return report


_WITH_RULES = "with rules"


def _core_times(roots: dict[str, Path], *, quick: bool) -> dict[tuple[str, str], float]:
    """Return what a delivery takes of each core, by scenario and side; each side in a process of its own."""
    found: dict[tuple[str, str], float] = {}
    names = [next(iter(CORE))] if quick else list(CORE)
    for side, root in roots.items():
        words = [sys.executable, str(_ROOT / "bench" / "core_time.py"), str(root), *names]
        ended = subprocess.run(words, check=True, capture_output=True, text=True)  # noqa: S603 # our own program
        found |= {(name, side): took for name, took in json.loads(ended.stdout).items()}
    return found


def _core_grid(runs: list[dict[tuple[str, str], float]]) -> Grid:
    rows = []
    for name in dict.fromkeys(name for name, _ in runs[0]):
        before, after = (_least(runs, side)[name] for side in (_BEFORE, _AFTER))
        rows.append((name, f"{before:.3f}", f"{after:.3f}", f"{after / before:.3f}"))
    return Grid("The core alone: least time per delivery, µs", ("", "before", "after", "after / before"), tuple(rows))


def _shares_grid(runs: list[dict[tuple[str, str], float]]) -> Grid:
    sides = [_least(runs, side) for side in (_BEFORE, _AFTER)]
    rows = [(name, *(f"{cost_of_others(found, name):.3f}" for found in sides)) for name in SHARES]
    title = "The core alone: cost of 99 others beside one more subscriber, divided by their cost without"
    return Grid(title, ("one more", "before", "after"), tuple(rows))


def _least(runs: list[dict[tuple[str, str], float]], side: str) -> dict[str, float]:
    """Return the least time of each scenario on one side."""
    return {name: min(run[name, side] for run in runs) for name, each in runs[0] if each == side}


def _grid(took: dict[tuple[str, str], list[float]]) -> Grid:
    rows = []
    for scenario in _SCENARIOS:
        medians = {side: statistics.median(took[scenario.name, side]) for side in (_BEFORE, _AFTER, _WITH_RULES)}
        told = [
            f"{medians[side]:.2f} ({min(took[scenario.name, side]):.2f}–{max(took[scenario.name, side]):.2f})"
            for side in (_BEFORE, _AFTER, _WITH_RULES)
        ]
        before = took[scenario.name, _BEFORE]
        ratios = [
            statistics.median(
                now / was if was else 0.0 for was, now in zip(before, took[scenario.name, side], strict=True)
            )
            for side in (_AFTER, _WITH_RULES)
        ]
        rows.append((scenario.name, *told, *(f"{ratio:.3f}" for ratio in ratios)))
    columns = ("", "before", "after", "with rules", "after / before", "with rules / before")
    return Grid("Core time per delivery, µs", columns, tuple(rows))


@contextmanager
def _checkout(revision: str) -> Iterator[Path]:
    """Yield a checkout of *revision* that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="whimbrel-before-") as folder:
        path = Path(folder) / "tree"
        _git("worktree", "add", "--detach", str(path), revision)
        try:
            yield path
        finally:
            _git("worktree", "remove", "--force", str(path))


def _git(*words: str) -> None:
    subprocess.run(["git", *words], cwd=_ROOT, check=True, capture_output=True)  # noqa: S603, S607 # fixed words


@contextmanager
def _served(root: Path, rights: str) -> Iterator[Served]:
    """Run a broker from the sources in *root*."""
    was = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(root / "src")
    try:
        with tempfile.TemporaryDirectory(prefix="whimbrel-versions-") as folder:
            config = Path(folder) / "broker.toml"
            config.write_text(_settings(Path(folder), rights), encoding="utf-8")
            with serve(Path(folder), "--config", str(config)) as served:
                yield served
    finally:
        if was is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = was


def _settings(folder: Path, rights: str) -> str:
    if not rights:
        return ""
    (folder / "rights.toml").write_text(rights, encoding="utf-8")
    return f'[access]\nrights = "{folder / "rights.toml"}"\n'


def _rules() -> str:
    """Return a rights file that is about everybody else, and allows at its end."""
    others = "".join(
        f'[[rule]]\nuser = "user{number}"\ntopics = ["home/{number}/#"]\nallow = ["publish", "subscribe"]\n\n'
        for number in range(_RULES - 1)
    )
    return f'default = "deny"\n\n{others}[[rule]]\ntopics = ["#"]\nallow = ["publish", "subscribe"]\n'
