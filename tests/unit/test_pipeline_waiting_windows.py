"""Rows of time windows that wait for their commit: once a minute instead of in each batch, and none is lost."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files.delta import read
from whimbrel.pipeline.files.delta_files.commit_log import CommitLog
from whimbrel.pipeline.plans import StreamPlan
from whimbrel.pipeline.stream.commits import TableCommits
from whimbrel.pipeline.stream.job import scratch_of
from whimbrel.pipeline.stream.window_fold import WINDOWS
from whimbrel.pipeline.unit.made import WorkerOutput

TABLES_OF = ("popularity", "meetings", "matches")
PLAN = StreamPlan(tables=TABLES_OF, assume_receipts=False)


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, so nobody waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


def popular(begin: int, subject: str, publications: int) -> Any:
    """Return a row of ``popularity``."""
    row = {"window_start": begin, "window_end": begin + 10, "subject": subject, "publications": publications}
    return pa.Table.from_pylist([row | {"subscribers": 1, "rate_per_s": 0.0}], schema=TABLES["popularity"].schema)


def met(contacts: int) -> Any:
    """Return all of ``meetings``."""
    row = dict.fromkeys(TABLES["meetings"].schema.names, 0) | {"device_low": "a", "device_high": "b"}
    return pa.Table.from_pylist([row | {"contacts": contacts}], schema=TABLES["meetings"].schema)


def changed(out: Path, batch: int, table: str, rows: Any) -> WorkerOutput:
    """Return what a worker makes of changed rows of windows."""
    folder = scratch_of(out)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{table}-{batch}.parquet"
    pq.write_table(rows, path)
    return WorkerOutput("window", WINDOWS, table, rows.num_rows, str(path).encode())


def tables(out: Path, slow_s: float) -> TableCommits:
    """Return the tables of a stream that begins, or begins again."""
    found = TableCommits(out, PLAN)
    found.slow_s = slow_s
    found.clear()
    found.create()
    return found


def shown(out: Path) -> Counter[Any]:
    """Return the rows that a reader sees."""
    found = read(out, "popularity").select(["window_start", "subject", "publications"])
    starts = found.column("window_start").cast(pa.int64())
    rows = found.set_column(0, "window_start", starts).to_pylist()
    rows += read(out, "meetings").select(["contacts"]).to_pylist()
    return Counter(tuple(row.values()) for row in rows)


def test_rows_of_windows_are_committed_once_a_minute(tmp_path: Path) -> None:
    """Of the batches in between the table says nothing; at the end it says what it would have said at once."""
    commits = tables(tmp_path, 60.0)
    for batch in range(5):
        commits.commit(batch, [changed(tmp_path, batch, "popularity", popular(0, "a", batch))])
        commits.clear()
    assert [count for *_, count in shown(tmp_path)] == [0]
    assert commits.last_batches()["popularity"] == 0
    commits.commit_waiting(all_of_them=True)
    assert [count for *_, count in shown(tmp_path)] == [4]
    assert commits.last_batches() == {"popularity": 4, "meetings": -1, "matches": -1}
    assert not CommitLog(tmp_path / "popularity").has(3)
    assert list(scratch_of(tmp_path).iterdir()) == []


@pytest.mark.parametrize("seed", range(12))
def test_what_waits_is_there_in_the_end_whatever_is_interrupted(tmp_path: Path, seed: int) -> None:
    """A stream that is killed and started again, with and without waiting rows, ends with the rows of each batch."""
    random, model = Random(seed), dict[Any, Any]()
    commits = tables(tmp_path, 60.0)
    for batch in range(20):
        made = []
        if random.random() < 0.7:
            begin, subject = random.randrange(3) * 10, random.choice("ab")
            made.append(changed(tmp_path, batch, "popularity", popular(begin, subject, batch)))
            model[begin, subject] = batch
        if random.random() < 0.5:
            made.append(changed(tmp_path, batch, "meetings", met(batch)))
            model["meetings"] = batch
        commits.commit(batch, made)
        if random.random() < 0.3:  # killed before it is recorded: the batch is committed again
            commits = TableCommits(tmp_path, PLAN)
            commits.slow_s = random.choice([0.0, 60.0])
            commits.create()
            commits.commit(batch, made)
        commits.clear()
        if random.random() < 0.3:
            commits = tables(tmp_path, random.choice([0.0, 60.0]))
            commits.commit_waiting()
    commits.commit_waiting(all_of_them=True)
    windows = {(*key, count) for key, count in model.items() if key != "meetings"}
    meetings = {(model["meetings"],)} if "meetings" in model else set()
    assert shown(tmp_path) == Counter(windows | meetings)


def test_a_new_stream_takes_nothing_from_an_older_one(tmp_path: Path) -> None:
    """Its record is gone, and with it the batches that the rows were of."""
    commits = tables(tmp_path, 60.0)
    for batch in range(2):
        commits.commit(batch, [changed(tmp_path, batch, "popularity", popular(0, "a", batch))])
    commits = TableCommits(tmp_path, PLAN)
    commits.clear(is_new=True)
    commits.commit_waiting(all_of_them=True)
    assert [count for *_, count in shown(tmp_path)] == [0]
