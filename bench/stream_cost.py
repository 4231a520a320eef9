"""What a fact costs a stream in core time: of Python's workers, of Java and of the driver, on a broker's log.

    python bench/stream_cost.py [--log FOLDER] [--facts-per-batch N] [--runs N] [--in-process]

The log is that of ``stream_live``: pairs of publishers and subscribers at quality of service 1, so half of its facts
are publications and half receipts, in segments. The stream is ``whimbrel pipeline run`` in a process of its own, and
reads it in batches. The first batches warm it up, and are not counted.
Rule: core time is what the system says of each process (``/proc``), also of those that ended; a loaded machine makes
it a little more, never less. So the least of some runs counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the stream's process is that of the tests

__all__ = ["Cost", "main", "stream_cost", "take_cost", "write_live_log"]

_TICKS = os.sysconf("SC_CLK_TCK")
_RATE, _SECONDS = 5_000, 30.0
_WARM = 3
"""Batches that are not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Core time a fact, in microseconds."""

    facts: int
    batches: int
    worker_us: float
    java_us: float
    driver_us: float
    first_batch_s: float
    """Core seconds of everything until the first batch is over."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--log", type=Path, default=None, help="a data folder of a broker; made if not given")
    parser.add_argument("--facts-per-batch", type=int, default=20_000, help="default: 20000")
    parser.add_argument("--runs", type=int, default=1, help="the least of so many counts (default: 1)")
    parser.add_argument("--in-process", action="store_true", help="only what a worker does, in this process, no Spark")
    parser.add_argument("--master", default="local[1]", help="where Spark runs (default: local[1])")
    parser.add_argument(
        "--option", action="append", default=[], help="one more of pipeline run, such as --option=--assume-receipts"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        folder = Path(name)
        log = options.log
        if log is None:
            log = folder / "data"
            write_live_log(folder)
        for number in range(options.runs if options.in_process else 0):
            took = take_cost(log, folder / f"take-{number}", facts_per_batch=options.facts_per_batch)
            print(json.dumps({"facts": len(took) * options.facts_per_batch, "worker_us": took}), flush=True)
        for number in range(0 if options.in_process else options.runs):
            out = folder / f"run-{number}" / "tables"
            out.parent.mkdir()
            found = stream_cost(
                log, out, facts_per_batch=options.facts_per_batch, master=options.master, options=options.option
            )
            print(json.dumps(asdict(found)), flush=True)
            shutil.rmtree(out.parent)
    return 0


def write_live_log(folder: Path, *, rate: int = _RATE, seconds: float = _SECONDS) -> None:
    """Let a broker write a log into ``data`` below *folder*: *rate* publications a second with as many receipts."""
    from stream_live import _load
    from whimbrel.sim.load.processes import serve

    with serve(folder) as served:
        _load(served.port, rate, seconds)


def take_cost(log: Path, out: Path, *, facts_per_batch: int) -> list[float]:
    """Let this process do what a worker does with a log of one node; return microseconds a fact, by batch.

    The first batch, in which kernels are loaded, and the last, which may be small, are left out.
    """
    from whimbrel.log.layout import SEGMENTS
    from whimbrel.pipeline import TABLES_MADE
    from whimbrel.pipeline.files.snapshots import snapshot
    from whimbrel.pipeline.plans import StreamPlan
    from whimbrel.pipeline.stream.job import Job, Span
    from whimbrel.pipeline.stream.node_fold import fold_node
    from whimbrel.pipeline.stream.state.blob_store import MemoryBlobs

    log = log if (log / SEGMENTS).exists() else log / "log"
    for table in TABLES_MADE:
        (out / table).mkdir(parents=True)
    plan = StreamPlan(assume_receipts=False, tables=TABLES_MADE)
    job, blobs, took = Job(stream=str(out), log=str(log), out=str(out), plan=plan), MemoryBlobs(), list[float]()
    ((node, last),) = snapshot(log).last.items()
    for first in range(0, last - facts_per_batch, facts_per_batch):
        began_s = time.process_time()
        for _ in fold_node(job, node, Span(first, first + facts_per_batch - 1, 1), blobs):
            pass
        took.append(round(1e6 * (time.process_time() - began_s) / facts_per_batch, 1))
    return took[1:]


def stream_cost(log: Path, out: Path, *, facts_per_batch: int, master: str, options: Sequence[str] = ()) -> Cost:
    """Let a stream read *log* to its end; return what it cost once it was warm."""
    from tests.e2e.stream_kills import StreamProcess

    looks: list[tuple[int, dict[str, float]]] = []
    process: Any = None

    def told(batch: dict[str, Any]) -> None:
        looks.append((batch["facts"], core_seconds(process)))

    process = StreamProcess(
        log,
        out,
        "--available-now",
        *("--facts-per-batch", str(facts_per_batch), "--master", master),
        *options,
        on_told=told,
    )
    try:
        status = process.wait()
        assert status == 0, process.errors.read_text()[-2_000:]
    finally:
        process.kill()
    # The last batch may be small, and Spark ends after it: it is not counted.
    counted = looks[_WARM:-1]
    facts = sum(count for count, _ in counted)
    before, after = looks[_WARM - 1][1], counted[-1][1]
    worker, java, driver = (1e6 * (after[kind] - before[kind]) / facts for kind in ("worker", "java", "driver"))
    return Cost(
        facts=facts,
        batches=len(counted),
        worker_us=round(worker, 1),
        java_us=round(java, 1),
        driver_us=round(driver, 1),
        first_batch_s=round(sum(looks[0][1].values()), 1),
    )


def core_seconds(process: Any) -> dict[str, float]:
    """Return the core time that a stream's processes have taken, by kind, with that of children that ended."""
    from tests.e2e.stream_kills import _of_session, _status

    java, workers = set(process.java()), set(process.workers())
    found = {"worker": 0.0, "java": 0.0, "driver": 0.0}
    for pid in _of_session(process.pid):
        status = _status(pid)
        if len(status) > 14:
            kind = "java" if pid in java else "worker" if pid in workers else "driver"
            own, ended = sum(map(int, status[11:13])), sum(map(int, status[13:15]))
            found[kind] += (own + (ended if kind == "worker" else 0)) / _TICKS
    return found


if __name__ == "__main__":
    sys.exit(main())
