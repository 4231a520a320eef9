"""A backfill that begins at a checkpoint: the rows of a run over the whole log, for a part of its cost."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from test_pipeline_beginnings import OPTIONS, RETENTION, logs_of, rows_of, write

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.hold.sessions import Hold
from whimbrel.log.checkpoints.codec import CheckpointHeader
from whimbrel.log.checkpoints.folder import put
from whimbrel.model.facts import Fact, time_of
from whimbrel.pipeline.batch import jobs
from whimbrel.pipeline.batch.intervals import Interval
from whimbrel.pipeline.batch.jobs import run
from whimbrel.pipeline.batch.resuming import RESUMABLE, narrow_span
from whimbrel.pipeline.plans import Plan

pytestmark = pytest.mark.usefixtures("interpreted")


def checkpoints(log: Path, logs: dict[str, list[Fact]], random: Random) -> None:
    """Write some checkpoints of each node but one, as an export has them; all facts stay."""
    for node, facts in list(logs.items())[1:]:
        wanted = {*random.sample(range(20, 240), 5)}
        state = BrokerState(node, hold=Hold(node, retention=RETENTION, heeds_places=True))
        for fact, following in pairwise(facts):
            state.apply(fact)
            if fact.seq in wanted:
                state.tick(random.randint(time_of(fact), time_of(following)))
                state.view.touch_all()
                header = CheckpointHeader(node=node, seq=fact.seq, state_at=state.hold.now, made_at=0, salt=1)
                put(log, header, state.view.changes()[0].items())


def told(out: Path, table: str) -> Counter[str]:
    """Return the rows of a table, without what was found out about decisions from before a checkpoint."""
    return Counter(repr(row | {"difference": None} if "difference" in row else row) for row in rows_of(out, table))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_rows_are_those_of_a_run_over_the_whole_log(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of sessions that began before, of what they held, and of links; and most facts are not read again."""
    logs, random = logs_of(seed), Random(seed)
    write(tmp_path / "log", logs)
    checkpoints(tmp_path / "log", logs, random)
    times = sorted(time_of(fact) for facts in logs.values() for fact in facts)
    begin = times[len(times) * random.randrange(5, 8) // 10]
    interval = Interval(since=begin, until=times[len(times) * 9 // 10] if seed > 1 else None)
    read: list[tuple[str, int]] = []

    def noted(log: Path, span: Any, *arguments: Any, **options: Any) -> Any:
        found = narrow_span(log, span, *arguments, **options)
        read.append((span.node, found.first))
        return found

    options: dict[str, Any] = {"log": tmp_path / "log", "plan": Plan(**OPTIONS), "interval": interval}
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "narrow_span", lambda _, span, *__, **___: span)
        run(spark, out=tmp_path / "whole", tables=RESUMABLE, **options)
    monkeypatch.setattr(jobs, "narrow_span", noted)
    run(spark, out=tmp_path / "resumed", tables=RESUMABLE, **options)
    for table in RESUMABLE:
        assert told(tmp_path / "resumed", table) == told(tmp_path / "whole", table), table
    assert told(tmp_path / "whole", "deliveries")
    assert sum(first > 1 for _, first in read) >= 2
    for name in ("contacts", "dead_letters"):
        span = jobs._spans(tmp_path / "log")[1]
        tables = [*RESUMABLE, name]
        assert narrow_span(tmp_path / "log", span, interval, tables=tables, window_us=16) == span
