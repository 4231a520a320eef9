"""The pipeline as a stream when there are many subscriptions and a few change in every batch."""

from __future__ import annotations

import tempfile
from pathlib import Path

from measure import Report, in_fresh_process
from stream_churn import ChurnSizes, churn

__all__ = ["run"]

_SEED = 47
_QUICK = ChurnSizes(subscriptions=300, publications=200, changes=5, batches=1)


def run(*, quick: bool) -> Report:
    """Measure; *quick* only proves that it runs and that the results are right."""
    report = Report("churn", packages=("whimbrel", "pyspark", "pyarrow"))
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        found = in_fresh_process(churn, Path(name), _QUICK if quick else ChurnSizes(), seed=_SEED)
    report.figures += found.figures()
    report.checks += found.checks(is_full=not quick)
    report.notes.append("A subscription by subject and content for each session, of which some change.")
    return report
