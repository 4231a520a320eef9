"""Streams and batch runs whose workers see a log late: the rows are the undisturbed run's, or the error has a name.

    python bench/late_workers.py [--runs N] [--seed N] [--facts N] [--json]

Logs of random traffic (publications, subscriptions, presence, policies, decisions, reports, receipts), with and without
exports, cuts and compactions. A worker sees each folder of the log as it was at some random moment, often only the
beginning of a file, and sees more of it as it waits; one view in ten never comes nearer. The driver sees the whole log.
Each run is a stream in batches that are cut at random, or a batch run; time is moved by hand. No Spark.
Exit status: 0 if every run's rows are right or its error is one of those that are expected, 1 if not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "differential"))  # the tests' own logs and views

__all__ = ["main"]

NODE = "n"
TABLES = ("matches", "deliveries", "popularity", "latency", "link_quality", "contacts", "dead_letters")
LOGS = 4
NOW = 1_900_000_000_000_000
"""Later than all facts."""
Rows = dict[str, list[str]]
"""By table."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    from measure import machine_facts

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=38)
    parser.add_argument("--facts", type=int, default=150)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        found = _ran(Path(name), options.runs, options.seed, options.facts)
    command = f"python bench/late_workers.py --runs {options.runs} --seed {options.seed} --facts {options.facts}"
    if options.json:
        print(json.dumps({**machine_facts(command), **found}, indent=1))
    else:
        print(", ".join(f"{name}: {value}" for name, value in found.items()))
    return 1 if found["wrong"] else 0


@dataclass(frozen=True, kw_only=True)
class _Log:
    """One log, and how many facts it has."""

    path: Path
    facts: int
    assume_receipts: bool


def _ran(folder: Path, runs: int, seed: int, facts: int) -> dict[str, Any]:
    from late_views import LateView, lived
    from random_logs import placed_log

    from whimbrel.log.errors import CorruptLogError
    from whimbrel.pipeline.batch.job import CutLogError
    from whimbrel.pipeline.files.visibility import PATIENT, UnseenNumbersError
    from whimbrel.pipeline.stream.state.batch_record import LostLogError, OtherLogError

    named = (UnseenNumbersError, CorruptLogError, CutLogError, LostLogError, OtherLogError)
    kinds = {"stream": _stream, "batch": _batch}
    random, out = Random(seed), folder / "out"
    logs, histories, wanted = [], [], {}
    for number in range(LOGS):
        has_receipts = number // 2 > 0
        made = placed_log(random, NODE, facts=facts, has_receipts=has_receipts)
        log = _Log(path=folder / "logs" / str(number), facts=facts, assume_receipts=not has_receipts)
        histories.append(lived(log.path, made, exports=number % 2 == 1))
        logs.append(log)
        for kind, rows_of in kinds.items():
            wanted[number, kind] = rows_of(log, log.path, out, Random(0), PATIENT)
            assert wanted[number, kind]["deliveries"], "a log of which nothing is delivered shows little"
    outcomes: Counter[str] = Counter()
    delays, wrong = 0, []
    for run in range(runs):
        random = Random(f"{seed} {run}")
        number, kind = run % LOGS, ("stream", "batch")[run // LOGS % 2]
        view = LateView(histories[number], folder / "view", random)
        try:
            if kinds[kind](logs[number], view.folder, out, random, view.patience()) == wanted[number, kind]:
                outcomes[f"{kind}: the undisturbed rows"] += 1
            else:
                wrong.append(f"run {run}: {kind} of log {number} has other rows")
        except named as error:
            outcomes[f"{kind}: {type(error).__name__}"] += 1
        except Exception as error:  # noqa: BLE001 # it is told
            wrong.append(f"run {run}: {kind} of log {number}: {type(error).__name__}: {error}")
        delays += view.delays
        shutil.rmtree(view.folder)
    return {"runs": runs, "delays": delays, "outcomes": dict(sorted(outcomes.items())), "wrong": wrong}


def _stream(log: _Log, seen: Path, out: Path, random: Random, patience: Any) -> Rows:
    """Return the rows of a stream whose workers see *seen*, in batches that are cut at random."""
    from stream_rig import StreamRig, forget

    from whimbrel.pipeline.files.delta import read
    from whimbrel.pipeline.plans import StreamPlan

    shutil.rmtree(out, ignore_errors=True)
    forget()
    for end in (*sorted(random.sample(range(1, log.facts), 2)), log.facts):
        if random.random() < 0.5:
            forget()  # another worker has it
        plan = StreamPlan(tables=TABLES, assume_receipts=log.assume_receipts)
        stream = StreamRig(log=log.path, out=out, plan=plan, now=NOW)
        stream.job = replace(stream.job, log=str(seen), patience=patience)
        stream.take({NODE: end})
    return {table: _as_texts(read(out, table)) for table in TABLES}


def _batch(log: _Log, seen: Path, out: Path, random: Random, patience: Any) -> Rows:
    """Return the rows of a batch run whose workers see *seen*."""
    import pyarrow.dataset as pads

    from whimbrel.pipeline.batch.job import BatchJob, NodeSpan
    from whimbrel.pipeline.batch.stages import make_files
    from whimbrel.pipeline.batch.tasks import Here
    from whimbrel.pipeline.files.delta import delta_schema
    from whimbrel.pipeline.plans import Plan

    del random
    shutil.rmtree(out, ignore_errors=True)
    scratch = out / "scratch"
    scratch.mkdir(parents=True)
    job = BatchJob(
        log=str(seen),
        out=str(out),
        folder="",
        scratch=str(scratch),
        tables=TABLES,
        plan=Plan(assume_receipts=log.assume_receipts),
        now=NOW,
        patience=patience,
    )
    made = make_files(Here(), job, [NodeSpan(NODE, 0, log.facts)])
    return {
        table: _as_texts(pads.dataset([*map(str, files)], schema=delta_schema(table), format="parquet").to_table())
        for table, files in made.files.items()
    }


def _as_texts(rows: Any) -> list[str]:  # a pyarrow.Table
    """Return rows in an order of their own; when a dead letter was found is left out."""
    return sorted(map(repr, rows.select([name for name in rows.schema.names if name != "found_at"]).to_pylist()))


if __name__ == "__main__":
    sys.exit(main())
