"""What a backfill costs: one of thirty days, from a checkpoint on, beside the whole log: core seconds, and the rows.

The log is that of a made-up ward (``month``), with receipts, exported, with a checkpoint of each midnight as an export
has them. All tasks run in this process, so that the start of Java counts for neither.

    python bench/backfill_cost.py [FOLDER] [--publications N]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from month import DAY_US, START_US, MonthSizes, write_month
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.hold.sessions import Hold
from whimbrel.log.checkpoints.codec import CheckpointHeader
from whimbrel.log.checkpoints.folder import put
from whimbrel.log.export import export
from whimbrel.log.reader import read as read_log
from whimbrel.model.facts import time_of
from whimbrel.pipeline.batch.intervals import Interval
from whimbrel.pipeline.batch.job import BatchJob, NodeSpan
from whimbrel.pipeline.batch.resuming import narrow_span
from whimbrel.pipeline.batch.stages import make_files
from whimbrel.pipeline.batch.tasks import Here
from whimbrel.pipeline.files.snapshots import snapshot
from whimbrel.pipeline.plans import Plan

_TABLES = ("matches", "deliveries", "popularity", "link_quality")


def main() -> None:
    """Measure, and print a line of JSON per run."""
    parser = argparse.ArgumentParser(description="What a backfill of one of thirty days costs.")
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--publications", type=int, default=3_000, help="publications of a day")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        folder = options.folder or Path(name)
        log = folder / "log"
        if not log.exists():
            _write(log, MonthSizes(publications_per_day=options.publications, nodes=("a",)))
        tables = ("latency", *_TABLES)
        wholes = {each: _cost(log, folder / "whole", each, None) for each in (_TABLES, tables)}
        for day, made in ((14, _TABLES), (29, tables)):
            since = START_US + day * DAY_US
            interval = Interval(since=since, until=since + DAY_US if day < 29 else None)
            core_s, rows = _cost(log, folder / f"day-{day}", made, interval)
            whole_s, whole_rows = wholes[made]
            told = {"day": day + 1, "tables": made, "core_s": round(core_s, 2), "rows": rows}
            print(json.dumps(told | {"whole_core_s": round(whole_s, 2), "whole_rows": whole_rows}))
            print(f"day {day + 1}: {core_s / whole_s:.3f} of the whole")


def _write(log: Path, sizes: MonthSizes) -> None:
    write_month(log, sizes, seed=1)
    for node in sizes.nodes:
        state = BrokerState(node, hold=Hold(node, heeds_places=True))
        for fact, following in pairwise(read_log(log, node)):
            state.apply(fact)
            if time_of(fact) // DAY_US != time_of(following) // DAY_US:
                state.view.touch_all()
                header = CheckpointHeader(node=node, seq=fact.seq, state_at=state.hold.now, made_at=0, salt=1)
                put(log, header, state.view.changes()[0].items())
        export(log, node, closed_only=False)


def _cost(log: Path, out: Path, tables: Sequence[str], interval: Interval | None) -> tuple[float, int]:
    """Return the core seconds of a run, and the number of rows of ``deliveries`` that it made."""
    import pyarrow.parquet as pq

    best_s, rows = float("inf"), 0
    for attempt in range(3):
        folder = f"run-{len(tables)}-{attempt}"
        job = BatchJob(
            log=str(log),
            out=str(out),
            folder=folder,
            scratch=str(out / folder),
            tables=tuple(tables),
            plan=Plan(assume_receipts=False),
            now=0,
            interval=interval,
        )
        Path(job.scratch).mkdir(parents=True)
        begun_s = time.process_time()
        spans = [
            narrow_span(log, NodeSpan(node, 0, last), interval, tables=tables, window_us=job.plan.window_us)
            for node, last in snapshot(log).last.items()
        ]
        made = make_files(Here(), job, spans)
        best_s = min(best_s, time.process_time() - begun_s)
        rows = sum(pq.read_metadata(path).num_rows for path in made.files["deliveries"])
    return best_s, rows


if __name__ == "__main__":
    main()
