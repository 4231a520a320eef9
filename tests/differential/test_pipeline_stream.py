"""The stream against one process: wherever batches are cut or interrupted, the tables are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from pyspark.sql import SparkSession
from random_logs import random_log

from whimbrel.hold.retention import Retention
from whimbrel.log.export import export
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Fact, Outcome
from whimbrel.pipeline.outputs import Output
from whimbrel.pipeline.single import Delivery, Match, SingleProcess
from whimbrel.pipeline.standing import Standing
from whimbrel.pipeline.stream import LostStateError, Stream, StreamPlan

NODES, FACTS, CUTS = 4, 100, 1
RETENTION = Retention(ttl_us=30, max_held=3)


def _logs(random: Random, *, has_receipts: bool) -> dict[str, list[Fact]]:
    names = [f"node{number}" for number in range(NODES)]
    return {name: list(random_log(random, name, facts=FACTS, has_receipts=has_receipts)) for name in names}


def _write(folder: Path, logs: dict[str, list[Fact]], random: Random) -> None:
    """Write each node's log, some of it exported already."""
    for node, facts in logs.items():
        log = LogWriter(folder, node)
        log.open()
        split = random.randrange(len(facts))
        for number, fact in enumerate(facts):
            if number == split:
                log.sync()
                export(folder, node)
            log.append(fact)
        log.sync()
        log.close()


def _cuts(random: Random, logs: dict[str, list[Fact]]) -> Iterator[dict[str, tuple[int, int]]]:
    """Yield spans that cover every node's numbers, cut anywhere; not every node has something in every batch."""
    ends = {node: facts[-1].seq for node, facts in logs.items()}
    at = dict.fromkeys(logs, 0)
    for cut in range(CUTS + 1):
        spans: dict[str, tuple[int, int]] = {}
        for node, end in ends.items():
            last = end if cut == CUTS else random.randrange(at[node] - 1, end + 1)
            if last >= at[node]:
                spans[node] = (at[node], last)
                at[node] = last + 1
        yield spans


def _rows(output: Path) -> list[dict[str, Any]]:
    paths = [str(file) for span in Output(output).spans() for file in span.path.glob("*.parquet")]
    return pads.dataset(paths).to_table().to_pylist() if paths else []


def _matches(out: Path) -> list[Match]:
    return [
        Match(
            row["notification_node"],
            row["notification_seq"],
            row["session"],
            (row["subject_filter"], row["name"]),
            row["interest_seq"],
        )
        for row in _rows(out / "matches")
    ]


def _us(moment: Any) -> int | None:
    return None if moment is None else pa.scalar(moment, pa.timestamp("us", "UTC")).cast(pa.int64()).as_py()


def _deliveries(out: Path) -> list[Delivery]:
    return [
        Delivery(
            row["notification_node"],
            row["notification_seq"],
            row["session"],
            row["device"],
            frozenset((each["subject_filter"], each["name"]) for each in row["subscriptions"]),
            Outcome(row["outcome"]),
            row["body_hash"],
            _us(row["decided_at"]) or 0,
            _us(row["lapses_at"]),
        )
        for row in _rows(out / "deliveries")
    ]


def _check(out: Path, logs: dict[str, list[Fact]], *, has_receipts: bool) -> None:
    single = SingleProcess(retention=RETENTION, assume_receipts=not has_receipts)
    wanted = single.run(fact for facts in logs.values() for fact in facts)
    for found, expected in ((_matches(out), wanted.matches), (_deliveries(out), wanted.deliveries)):
        assert len(found) == len(set(found))
        assert set(found) == set(expected)


@pytest.mark.parametrize("has_receipts", [False, True])
def test_batches_may_be_cut_anywhere(spark: SparkSession, tmp_path: Path, *, has_receipts: bool) -> None:
    """Batch is stream: subscriptions and what is held are carried over every cut, and over restarts."""
    random = Random(5 + has_receipts)
    logs = _logs(random, has_receipts=has_receipts)
    _write(tmp_path / "log", logs, random)
    plan = StreamPlan(retention=RETENTION, assume_receipts=not has_receipts)
    stream = Stream(spark, log=tmp_path / "log", out=tmp_path / "out", plan=plan)
    for number, spans in enumerate(_cuts(random, logs)):
        stream.take(spans, number)
        if random.random() < 0.5:
            stream.close()
            stream = Stream(spark, log=tmp_path / "log", out=tmp_path / "out", plan=plan)
    stream.close()
    _check(tmp_path / "out", logs, has_receipts=has_receipts)


class _KilledError(Exception):
    """Stands for the end of the process, at this place."""


def _killing(method: Callable[..., Any], random: Random) -> Callable[..., Any]:
    """Return *method*, which at times ends everything before or after it has done its work."""

    def killed(*arguments: Any, **options: Any) -> Any:
        chance = random.random()
        if chance < 0.1:
            raise _KilledError
        result = method(*arguments, **options)
        if chance > 0.9:
            raise _KilledError
        return result

    return killed


def test_a_stream_that_is_interrupted_goes_on_as_if_it_had_not_been(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two steps of a batch: nothing is there twice, nothing is missing."""
    random = Random(9)
    logs = _logs(random, has_receipts=True)
    _write(tmp_path / "log", logs, random)
    for owner, name in ((Output, "_appear"), (Standing, "commit")):
        monkeypatch.setattr(owner, name, _killing(getattr(owner, name), random))
    plan = StreamPlan(retention=RETENTION)
    kills = 0
    for number, spans in enumerate(_cuts(random, logs)):
        for _ in range(30):
            stream = Stream(spark, log=tmp_path / "log", out=tmp_path / "out", plan=plan)
            try:
                stream.take(spans, number)
                break
            except _KilledError:
                kills += 1
            finally:
                stream.close()
        else:
            pytest.fail("it never came through")
    assert kills
    monkeypatch.undo()
    _check(tmp_path / "out", logs, has_receipts=True)


def test_the_query_reads_what_there_is_and_goes_on_later(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own checkpoint says where; a second start reads only what came meanwhile, in bounded batches."""
    random = Random(3)
    logs = {name: facts for name, facts in _logs(random, has_receipts=True).items() if name in {"node1", "node2"}}
    halves = {node: facts[: len(facts) // 2] for node, facts in logs.items()}
    _write(tmp_path / "log", halves, random)
    plan = StreamPlan(retention=RETENTION, facts_per_batch=30)
    for part in (None, {node: facts[len(facts) // 2 :] for node, facts in logs.items()}):
        if part is not None:
            _write(tmp_path / "log", part, random)
        stream = Stream(spark, log=tmp_path / "log", out=tmp_path / "out", plan=plan)
        stream.start().awaitTermination()
        stream.close()
    assert len(Output(tmp_path / "out" / "matches").spans()) > 1
    _check(tmp_path / "out", logs, has_receipts=True)


def test_state_that_does_not_fit_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A table with a hole in it would look like one without."""
    random = Random(4)
    logs = _logs(random, has_receipts=False)
    _write(tmp_path / "log", logs, random)
    stream = Stream(spark, log=tmp_path / "log", out=tmp_path / "out")
    with pytest.raises(LostStateError, match="start the stream anew"):
        stream.take({"node0": (50, 60)}, 7)
    stream.close()
