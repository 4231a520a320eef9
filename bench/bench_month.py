"""The pipeline as a stream over a month of log: what it remembers, and that its tables are those of the batch job."""

from __future__ import annotations

import tempfile
from pathlib import Path

from measure import Report, in_fresh_process
from month import MonthSizes
from stream_month import month

__all__ = ["run"]

_SEED = 47
_QUICK = MonthSizes(days=5, publications_per_day=60, visitors_per_day=12, residents=6)


def run(*, quick: bool) -> Report:
    """Measure; *quick* only proves that it runs and that the results are right, and takes two minutes."""
    report = Report("month", packages=("whimbrel", "pyspark", "pyarrow"))
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        found = in_fresh_process(month, Path(name), _QUICK if quick else MonthSizes(), seed=_SEED)
    report.grids.append(found.grid())
    report.figures += found.figures()
    report.checks += found.checks(is_full=not quick)
    report.notes += [
        "A made-up ward on two nodes (bench/month.py); half of one node's log is Parquet.",
        "Devices come every day, or once and their sessions expire; subjects of one day; busy hours.",
        "Remembered counts sessions, subscriptions, notifications held, links and windows of both nodes.",
    ]
    return report
