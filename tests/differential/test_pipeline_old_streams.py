"""A stream that an older Whimbrel began: its tables continue as if this one had made them from the start."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from stream_rig import StreamRig, forget

from whimbrel.errors import InvalidValueError
from whimbrel.hold.retention import Retention
from whimbrel.hold.store.interface import RowStore
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.files.delta import read
from whimbrel.pipeline.plans import FORMAT, READABLE, StreamPlan, settled_plan
from whimbrel.pipeline.stream.state.batch_record import BatchRecord, LostStateError
from whimbrel.pipeline.stream.state.blob_store import BlobStore, Head
from whimbrel.pipeline.stream.state.objects import ObjectBlobs
from whimbrel.pipeline.stream.state.old_checkpoint import adopt_states
from whimbrel.pipeline.stream.stream import Stream

NODES, LAST, NOW = ("node0", "node1"), 1_000_000, 1_800_000_000_000_000
RETENTION = Retention(ttl_us=30, max_held=3)
PLAN: dict[str, Any] = {"retention": RETENTION, "window_us": 16, "nodes": 7, "slots_per_node": 3}
PLAN |= {"range_m": 300.0, "stale_us": 40}
OLD = Path(__file__).parents[1] / "data" / "stream-3.tar.xz"
OF_SPARK = Path(__file__).parents[1] / "data" / "stream-4.tar.xz"
"""A stream with Spark's own checkpoint: after a whole batch (``done``), and after some tables had one (``cut``)."""
GONE = {"interest", "shaped body", "difference", "content", "sighting"}
"""Kinds of rows that format 3 had and this version has not."""


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return the folder of a stream that a Whimbrel of format 3 began: its log and tables, and its state as objects."""
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    forget()
    folder = tmp_path / "stream" / "out" / "_stream"
    state = json.loads((folder / "checkpoint" / "1").read_text())["state"]  # without Spark, as the rig was then
    states = {name: ([*map(bytes.fromhex, blobs)], Head(*head)) for name, (blobs, head) in state.items()}
    record = BatchRecord.read(folder / "batch.json")
    assert record is not None
    adopt_states(record, states, folder / "checkpoint" / "objects").put(folder / "batch.json")
    return tmp_path / "stream"


def stream(folder: Path, out: Path) -> StreamRig:
    """Return a stream over the log in *folder*."""
    return StreamRig(log=folder / "log", out=out, plan=StreamPlan(**PLAN), now=NOW)


def stores(rig: StreamRig) -> dict[str, RowStore]:
    """Return what the checkpoint has of each node."""
    record = rig.commits.record
    assert record is not None
    return {node: BlobStore(ObjectBlobs(Path(rig.job.state), record.nodes[node].state)) for node in NODES}


def kinds(rig: StreamRig) -> set[object]:
    """Return the kinds of rows in the checkpoint."""
    return {key[0] for store in stores(rig).values() for key, _ in store.rows()}


def rows(out: Path) -> dict[str, Counter[str]]:
    """Return the rows of all tables; the time at which a dead letter was found is the machine's."""
    found = {name: read(out, name).to_pylist() for name in TABLES_MADE}
    return {name: Counter(repr(row | {"found_at": None}) for row in listed) for name, listed in found.items()}


@pytest.mark.parametrize("first_end", [111, 140, LAST])
def test_its_tables_are_those_of_one_that_this_version_began(begun: Path, tmp_path: Path, first_end: int) -> None:
    """A user upgrades between two batches; no row may be lost, doubled or changed by that."""
    whole = stream(begun, tmp_path / "whole")
    for end in (40, 110, first_end, LAST):
        whole.take(dict.fromkeys(NODES, end))
        forget()
    old = stream(begun, begun / "out")
    assert kinds(old) >= GONE
    for end in (first_end, LAST):
        old.take(dict.fromkeys(NODES, end))
        forget()
    assert rows(begun / "out") == rows(tmp_path / "whole")
    assert all(rows(tmp_path / "whole")[name] for name in ("deliveries", "matches", "contacts", "link_quality"))
    assert not kinds(old) & GONE
    for upgraded, made in zip(stores(old).values(), stores(whole).values(), strict=True):
        assert dict(upgraded.rows()).keys() == dict(made.rows()).keys()


def test_an_older_whimbrel_refuses_it_from_then_on(begun: Path) -> None:
    """It would read subscriptions without their filters, and find no interests."""
    path = begun / "out" / "_stream" / "plan.json"
    assert json.loads(path.read_text())["format"] in READABLE - {FORMAT}
    copied = begun / "plan.json"
    shutil.copy(path, copied)
    settled_plan(path, StreamPlan(**PLAN))
    assert json.loads(path.read_text())["format"] == FORMAT
    with pytest.raises(InvalidValueError):
        settled_plan(copied, StreamPlan(**{**PLAN, "window_us": 17}))
    assert json.loads(copied.read_text())["format"] != FORMAT, "a plan that is refused stays as it is"


@pytest.mark.parametrize("moment", ["done", "cut"])
def test_a_checkpoint_of_spark_is_continued(spark: SparkSession, tmp_path: Path, moment: str) -> None:
    """Also where it was killed between the commits of two tables: that batch is made again, with the same seqs."""
    with tarfile.open(OF_SPARK) as archive:
        archive.extractall(tmp_path, filter="data")
    forget()
    folder, out = tmp_path / "stream", tmp_path / "stream" / moment
    before = BatchRecord.read(out / "_stream" / "batch.json")
    assert before is not None
    assert before.is_done == (moment == "done")
    whole = StreamRig(log=folder / "log", out=tmp_path / "whole", plan=StreamPlan(**PLAN))
    whole.take(dict.fromkeys(NODES, LAST))
    forget()
    going_on = Stream(spark, log=folder / "log", out=out, plan=StreamPlan(**PLAN))
    try:
        going_on.take(dict.fromkeys(NODES, LAST))
    finally:
        going_on.close()
    assert rows(out) == rows(tmp_path / "whole")
    assert [path.name for path in (out / "_stream" / "checkpoint").iterdir()] == ["objects"]


def test_a_checkpoint_of_spark_that_was_lost_is_said(spark: SparkSession, tmp_path: Path) -> None:
    """Its tables cannot be continued; the log has everything for new ones."""
    with tarfile.open(OF_SPARK) as archive:
        archive.extractall(tmp_path, filter="data")
    folder, out = tmp_path / "stream", tmp_path / "stream" / "done"
    shutil.rmtree(out / "_stream" / "checkpoint" / "state")
    with pytest.raises(LostStateError, match="start the stream anew"):
        Stream(spark, log=folder / "log", out=out, plan=StreamPlan(**PLAN))
