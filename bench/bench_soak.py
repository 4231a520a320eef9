"""What the broker survives: being killed a hundred times among its clients, and a million packets that are none."""

from __future__ import annotations

import tempfile
from pathlib import Path

from crash_soak import malformed
from measure import Check, Figure, Report

__all__ = ["run"]

_SEED = 31


def run(*, quick: bool) -> Report:
    """Kill and attack; *quick* only proves that it can be done."""
    from tests.e2e.crash_checker import crash  # crash_soak has made it importable

    report = Report("soak", packages=("whimbrel", "uvloop"))
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        killed = crash(Path(name), kills=2 if quick else 100, seed=_SEED).summary()
    claim = f"{killed['kills']} kills among clients: {killed['acknowledged']:,} acknowledged, none lost or doubled"
    report.checks.append(_check(claim, killed["violations"]))
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        attacked = malformed(Path(name), count=1_000 if quick else 1_000_000, seed=_SEED, progress=lambda _: None)
    report.checks.append(
        _check(f"{attacked['malformed']:,} malformed packets: others were served", attacked["violations"])
    )
    report.figures.append(Figure("more resident memory after them", float(str(attacked["rss_growth_mib"])), "MiB"))
    report.notes.append("The judge of the kills shares no code with the broker: tests/e2e/crash_checker.py.")
    return report


def _check(claim: str, violations: object) -> Check:
    assert isinstance(violations, list)
    return Check("; ".join((claim, *map(str, violations[:3]))), not violations)
