"""The pipeline as a stream, beside a broker under load on the same cores."""

from __future__ import annotations

import tempfile
from pathlib import Path

from measure import Report
from stream_live import LiveSizes, live

__all__ = ["run"]

_QUICK = LiveSizes(rate=200, alone_s=2, beside_s=4)


def run(*, quick: bool) -> Report:
    """Measure; *quick* only proves that it runs and that the results are right."""
    report = Report("live", packages=("whimbrel", "pyspark", "pyarrow"))
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        found = live(Path(name), _QUICK if quick else LiveSizes())
    report.grids.append(found.grid())
    report.figures += found.figures()
    report.checks += found.checks(is_full=not quick)
    report.notes += [
        "10 publishers to 10 subscribers, 50 subjects, JSON of 60 bytes, QoS 1, sessions that stay.",
        "The load is a process of its own on the same cores, and so is the stream (nice 10).",
        "Every publication is two facts of the log, itself and its receipt.",
    ]
    return report
