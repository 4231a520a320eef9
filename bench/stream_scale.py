"""What a batch of a stream costs when nothing changes, by nodes and subscriptions: core time by step, and memory.

    python bench/stream_scale.py [--nodes N] [--subscriptions N] [--batches N]

One node has one new publication in each batch; all subscriptions are in force, and none changes. The steps are those of
a stream, without Spark around them: the driver's, the fold of the node (worker) and the fold of the windows (worker).
What Spark itself takes for a batch does not depend on any of this.
Memory is that of the driver's process, and of the worker's, at the end; how much the driver grew since it began.
Rule: core time is that of the process; the median of the batches counts, after two that warm up.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from made_logs import START_US, _filled
from whimbrel.log.layout import create, part_path
from whimbrel.pipeline.plans import StreamPlan
from whimbrel.pipeline.stream.batches import Batches
from whimbrel.pipeline.stream.commits import BatchCommits
from whimbrel.pipeline.stream.job import Job
from whimbrel.pipeline.unit.made import WorkerOutput

__all__ = ["main", "scale"]

Work = Callable[[Job, Any], Iterator[WorkerOutput]]
_WARM = 2
_DAY = datetime.fromtimestamp(START_US / 1e6, UTC).date()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--subscriptions", type=int, default=1_000_000, help="of all nodes together")
    parser.add_argument("--batches", type=int, default=12)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        found = scale(Path(name), nodes=options.nodes, subscriptions=options.subscriptions, batches=options.batches)
    print(json.dumps(found))
    return 0


def scale(folder: Path, *, nodes: int, subscriptions: int, batches: int) -> dict[str, float]:
    """Take the subscriptions in, then *batches* that change none; return what one of these costs."""
    log, each = folder / "log", subscriptions // nodes
    create(log)
    names = [f"node{number:03}" for number in range(nodes)]
    for name in names:
        _write(log, "interests", name, _interests(name, each), (1, each))
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as worker:
        stream = _Stream(log, folder / "out", worker)
        began_bytes = _rss_bytes()
        stream.batch()
        loaded_s = sum(took[0] for took in stream.took_s.values())
        for number in range(batches):
            seq = each + 1 + number
            _write(log, "publications", names[0], _publication(names[0], seq), (seq, seq))
            stream.batch()
        worker_bytes = worker.submit(_rss_bytes).result()
    counted = {step: took[1 + _WARM :] for step, took in sorted(stream.took_s.items())}
    steps = {f"{step}_ms": round(1e3 * statistics.median(took), 2) for step, took in counted.items()}
    return {
        "nodes": nodes,
        "subscriptions": subscriptions,
        "all_subscriptions_s": round(loaded_s, 1),
        **steps,
        "driver_mb": round(_rss_bytes() / 1e6),
        "driver_grew_mb": round((_rss_bytes() - began_bytes) / 1e6, 1),
        "worker_mb": round(worker_bytes / 1e6),
        "collected_bytes": stream.collected_bytes,
        "record_bytes": (folder / "out" / "_stream" / "batch.json").stat().st_size,
    }


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _worked(work: Work, job: Job, tasks: Sequence[Any]) -> tuple[list[WorkerOutput], float]:
    """Do what workers do for a job of a batch; return what they send, and the core time."""
    began_s = time.process_time()
    made = [each for task in tasks for each in work(job, task)]
    return made, time.process_time() - began_s


class _Worker:
    """Workers of a stream: one process, which is timed."""

    cores = 1

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self.took_s: dict[str, float] = {}
        self.collected_bytes = 0

    def run(self, work: Work, job: Job, tasks: Sequence[Any]) -> list[WorkerOutput]:
        """Do the tasks, and note their core time."""
        made, took_s = self._pool.submit(_worked, work, job, tasks).result()
        self.took_s[work.__name__] = took_s
        self.collected_bytes = sum(len(each.told) for each in made)
        return made


class _Stream:
    """The batches of a stream, timed; the tasks of workers are in a process of their own."""

    def __init__(self, log: Path, out: Path, worker: ProcessPoolExecutor) -> None:
        state = out / "_stream" / "objects"
        plan = StreamPlan(facts_per_batch=1 << 40, assume_receipts=True, tables=("matches", "deliveries", "popularity"))
        self._worker = _Worker(worker)
        job = Job(stream=str(out), log=str(log), out=str(out), plan=plan, state=str(state))
        self._batches = Batches(job, BatchCommits(out, plan), self._worker)
        self.took_s: dict[str, list[float]] = {}

    @property
    def collected_bytes(self) -> int:
        """What workers sent in the last batch."""
        return self._worker.collected_bytes

    def batch(self) -> None:
        """Take what is new."""
        began_s = time.process_time()
        assert self._batches.take() is not None
        took = {"driver": time.process_time() - began_s, **self._worker.took_s}
        for step, each in took.items():
            self.took_s.setdefault(step, []).append(each)


def _write(log: Path, table: str, node: str, rows: Any, numbers: tuple[int, int]) -> None:
    first, last = numbers
    path = part_path(log, table, day=_DAY, node=node, first=first, last=last)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, compression="zstd")


def _interests(node: str, count: int) -> Any:
    numbers = np.arange(count)
    given = {
        "node": node, "seq": pa.array(numbers + 1), "changed_at": START_US, "change": "added",
        "session": pa.array([f"s{number}" for number in numbers.tolist()]), "name": "all",
        "subject_filter": pa.array([f"ward/{number}/#" for number in numbers.tolist()]), "keys": [],
        "accept_insecure": True,
    }  # fmt: skip
    return _filled("interests", given, count)


def _publication(node: str, seq: int) -> Any:
    given = {
        "node": node, "seq": seq, "published_at": START_US + seq, "subject": "ward/1/pulse", "body": b"{}", "qos": 1,
        "retain": False, "keys": [], "deliver_insecure": True, "attributes": pa.array([[]], _attributes_type()),
    }  # fmt: skip
    return _filled("publications", given, 1)


def _attributes_type() -> Any:
    from whimbrel.model.tables import ATTRIBUTES_TYPE

    return ATTRIBUTES_TYPE


if __name__ == "__main__":
    sys.exit(main())
