"""The pipeline as a stream that is killed again and again, on this machine and on a standalone cluster."""

from __future__ import annotations

from measure import Check, Report
from stream_soak import LOCAL, STANDALONE, soak

__all__ = ["run"]

_SEED = 47
_KILLS, _QUICK = 20, 2


def run(*, quick: bool) -> Report:
    """Kill, and compare the tables with the batch job's; *quick* kills twice, and on this machine alone."""
    report = Report("kills", packages=("whimbrel", "pyspark", "pyarrow"))
    for master in (LOCAL,) if quick else (LOCAL, STANDALONE):
        found = soak(kills=_QUICK if quick else _KILLS, master=master, seed=_SEED)
        violations = found["violations"]
        assert isinstance(violations, list)
        claim = f"{master}: {found['kills']} kills in {found['batches']} batches, hit {found['hit']}: no row differs"
        report.checks.append(Check("; ".join((claim, *violations[:3])), not violations))
    report.notes.append("SIGKILL of everything or of workers alone (tests/e2e/stream_kills.py).")
    return report
