"""What a batch run for an interval reads of a log that an export did not finish."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from whimbrel.log import export
from whimbrel.log.writer import LogWriter
from whimbrel.model.notification import Notification
from whimbrel.pipeline.batch.intervals import Interval
from whimbrel.pipeline.batch.job import NodeSpan
from whimbrel.pipeline.batch.resuming import narrow_span

DAY_US = 86_400_000_000
BEGIN = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


def publish(log: Path) -> None:
    """Write a log with 100 facts of a day and 50 of the next."""
    with LogWriter(log, "n") as writer:
        for seq in range(1, 151):
            at = BEGIN + seq + (DAY_US if seq > 100 else 0)
            writer.append(Notification(node="n", seq=seq, published_at=at, subject="a"))


def test_a_run_for_a_day_ignores_parts_of_an_export_that_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their facts are read from the segments; the run read one fact, and its tables were empty."""
    log = tmp_path / "log"
    publish(log)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    span, day = NodeSpan("n", 1, 150), Interval(since=BEGIN, until=BEGIN + DAY_US)
    monkeypatch.setattr(export.layout, "set_exported_seq", killed)  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        export.export(log, "n", closed_only=False)
    assert narrow_span(log, span, day, tables=("deliveries",), window_us=1) == span
