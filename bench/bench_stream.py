"""The pipeline as a stream: what it remembers over a month, when subscriptions change, and what it survives.

    python bench/bench_stream.py [--part month|churn|kills] [--quick]

runs one part and prints it; ``bench/run.py stream`` runs all, and keeps the results.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from measure import Check, Report, in_fresh_process, show
from month import MonthSizes
from stream_churn import ChurnSizes, churn
from stream_month import month
from stream_soak import LOCAL, STANDALONE, soak

__all__ = ["run"]

_SEED = 47
MONTH, CHURN, KILLS = PARTS = ("month", "churn", "kills")
QUICK = (CHURN,)
"""What the tests try quickly. That nothing is lost by a kill is ``tests/e2e/test_pipeline_kill.py``; a quick month
takes two minutes, and is tried by hand: ``--part month --quick``."""
_QUICK_MONTH = MonthSizes(days=5, publications_per_day=60, visitors_per_day=12, residents=6)
_QUICK_CHURN = ChurnSizes(subscriptions=300, publications=200, changes=5, batches=1)


def run(*, quick: bool, parts: Sequence[str] | None = None) -> Report:
    """Measure *parts*; *quick* only proves that they run and that the results are right."""
    report = Report("stream", packages=("whimbrel", "pyspark", "pyarrow"))
    for part in parts or (QUICK if quick else PARTS):
        with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
            if part == MONTH:
                _measure_month(report, Path(name), quick=quick)
            elif part == CHURN:
                _measure_churn(report, Path(name), quick=quick)
            else:
                _measure_kills(report)
    return report


def _measure_month(report: Report, folder: Path, *, quick: bool) -> None:
    found = in_fresh_process(month, folder, _QUICK_MONTH if quick else MonthSizes(), seed=_SEED)
    report.grids.append(found.grid())
    report.figures += found.figures()
    report.checks += found.checks(is_full=not quick)
    report.notes += [
        "Month: a made-up ward on two nodes (bench/month.py); half of one node's log is Parquet.",
        "Month: devices come every day, or once and their sessions expire; subjects of one day; busy hours.",
        "Month: remembered counts sessions, subscriptions, notifications held, links and windows of both nodes.",
    ]


def _measure_churn(report: Report, folder: Path, *, quick: bool) -> None:
    found = in_fresh_process(churn, folder, _QUICK_CHURN if quick else ChurnSizes(), seed=_SEED)
    report.figures += found.figures()
    report.checks += found.checks(is_full=not quick)
    report.notes.append("Churn: a subscription by subject and content for each session, of which some change.")


def _measure_kills(report: Report) -> None:
    for master in (LOCAL, STANDALONE):
        found = soak(kills=20, master=master, seed=_SEED)
        violations = found["violations"]
        assert isinstance(violations, list)
        claim = f"kills, {master}: {found['kills']} in {found['batches']} batches, hit {found['hit']}: no row differs"
        report.checks.append(Check("; ".join((claim, *violations[:3])), not violations))
    report.notes.append("Kills: SIGKILL of everything or of workers alone (tests/e2e/stream_kills.py).")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="which part; all without")
    parser.add_argument("--quick", action="store_true", help="small sizes: results are checked, times mean little")
    options = parser.parse_args(arguments)
    report = run(quick=options.quick, parts=options.part)
    show(report, Console())
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
