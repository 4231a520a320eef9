"""A batch whose rows fit neither the driver's limit for results nor a worker's memory, with Spark's own settings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest
from tests.e2e.stream_kills import _environment

from whimbrel.log.export import export
from whimbrel.log.writer import LogWriter
from whimbrel.model.facts import Fact, InterestChanged, Mode, PresenceChange, PresenceChanged
from whimbrel.model.notification import Notification
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.pipeline.files.delta import read

pytestmark = pytest.mark.slow

BODY, COUNT = bytes(256 << 10), 2_000
RESULTS, WORKER_MIB = "64k", 2_600
"""What the driver takes of all tasks together, and a worker's address space: libraries need most of it."""


def _facts() -> list[Fact]:
    wanted = Subscription(session="s", subject_filter="t/#", name="all")
    added = InterestChanged(node="n", seq=1, changed_at=1, change=InterestChange.ADDED, subscription=wanted)
    joined = PresenceChanged(
        node="n", seq=2, changed_at=2, device="d", session="s", change=PresenceChange.JOINED, receipt=Mode.TAKE
    )
    return [added, joined]


def test_a_batch_beyond_every_limit_is_done_all_the_same(tmp_path: Path) -> None:
    """Spark has written what a batch has before it is made: one that does not fit would fail again for ever.

    Half a gigabyte of bodies, which Parquet keeps in a few kilobytes, in one batch; to work on them takes a few copies.
    """
    log, out, conf = tmp_path / "log", tmp_path / "out", tmp_path / "conf"
    with LogWriter(log, "n") as writer:
        for fact in _facts():
            writer.append(fact)
        for seq in range(3, COUNT + 3):
            writer.append(Notification(node="n", seq=seq, published_at=seq, subject=f"t/{seq % 100}", body=BODY))
            if seq % 200 == 0:  # the log is on the disk once only, and small
                writer.sync()
                export(log, "n", closed_only=False)
    conf.mkdir()
    settings = {"spark.driver.maxResultSize": RESULTS, "spark.executor.pyspark.memory": f"{WORKER_MIB}m"}
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    command = [sys.executable, "-m", "whimbrel", "pipeline", "run", "--log", str(log), "--out", str(out), "--json"]
    options = ("--available-now", "--assume-receipts", "--facts-per-batch", "1000000", "--master", "local[1]")
    environment = _environment() | {"SPARK_CONF_DIR": str(conf), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    batches = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["batch"], each["facts"]) for each in batches] == [(0, COUNT + 2)]
    delivered = read(out, "deliveries").column("notification_seq")
    assert (len(delivered), pc.count_distinct(delivered).as_py()) == (COUNT, COUNT)
    assert read(out, "matches").nbytes > int(RESULTS[:-1]) << 10
