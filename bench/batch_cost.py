"""What a batch run costs in core time, of Spark and its workers together, beside one that only scans and writes.

    python bench/batch_cost.py [--events N] [--subscriptions N] [--delivered N] [--runs N]

The baseline reads the same columns of the same rows in workers, and writes them: no table of them can cost less.
*listed* is one row an event with its list of subscriptions, from rows that are not judged and, as ``pipeline run`` does
it, from rows that are; *exploded* is the table ``matches``. Packing the matcher is told apart. Deliveries are from the
log to the table, everything included but for the start of Spark. Each is run once to warm up, then they take turns.
Rule: core time is what the system says of this process and all below it; the least of the runs counts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what is below this process is found by the tests' own

__all__ = ["main"]

_TICKS = os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--subscriptions", type=int, default=100_000)
    parser.add_argument("--delivered", type=int, default=200_000, help="events of the log that deliveries are made of")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--master", default="local[1]")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        print(json.dumps(_costs(Path(name), options)), flush=True)
    return 0


def _costs(folder: Path, options: Any) -> dict[str, Any]:  # an argparse.Namespace
    from bench_pipeline import _made, _session
    from mapped import MATCHED, Judged, Matching, listed, scanned, unchanged
    from whimbrel.pipeline.batch import jobs
    from whimbrel.pipeline.tables.matches import match_rows
    from workloads import WORKLOAD_U10

    log, delivered = folder / "events", folder / "delivered"
    _made(log, WORKLOAD_U10, options.subscriptions, options.events)
    _made(delivered, WORKLOAD_U10, options.subscriptions, options.delivered)
    spark = _session(options.master)
    before_s = _core_s()
    listing = Matching(log, listed, folder)
    packing_s = _core_s() - before_s
    exploding = Matching(log, match_rows, folder)
    rows: dict[str, int] = {}

    def deliver() -> None:
        made = jobs.run(spark, log=delivered, out=folder / "tables", tables=["deliveries"])
        rows["deliveries"] = int(str(made["deliveries"]["rows"]))

    works: dict[str, Callable[[], object]] = {
        "baseline": lambda: scanned(spark, log, MATCHED, unchanged, folder / "baseline"),
        "listed": lambda: scanned(spark, log, MATCHED, listing, folder / "listed"),
        "listed, judged": lambda: scanned(spark, log, None, Judged(listing), folder / "judged"),
        "exploded, judged": lambda: scanned(spark, log, None, Judged(exploding), folder / "exploded"),
        "deliveries": deliver,
    }
    took_s: dict[str, list[float]] = {name: [] for name in works}
    for number in range(options.runs + 1):
        for name, work in works.items():
            before_s = _core_s()
            work()
            print(f"{name}: {_core_s() - before_s:.1f} core s", file=sys.stderr, flush=True)
            if number:
                took_s[name].append(_core_s() - before_s)
    events = dict.fromkeys(works, options.events) | rows
    return {
        "events": options.events,
        "subscriptions": options.subscriptions,
        "hand-overs": rows["deliveries"],
        "packing_s": round(packing_s, 1),
        "us": {name: [round(1e6 * each / events[name], 1) for each in took] for name, took in took_s.items()},
    }


def _core_s() -> float:
    """Return the core time of this process and all below it, with those that ended."""
    from tests.e2e.stream_kills import _status, below

    ticks = sum(sum(map(int, status[11:15])) for pid in below([os.getpid()]) if len(status := _status(pid)) > 14)
    return ticks / _TICKS


if __name__ == "__main__":
    sys.exit(main())
