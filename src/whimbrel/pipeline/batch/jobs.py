"""Jobs: run a batch that makes tables from a log; the work is in ``stages``.

Rule: a table is replaced atomically: workers write its files, and one commit replaces the old ones.
Rule: with an interval only its rows are replaced, in one commit per table (``intervals``), and only the facts that they
depend on are read, if there is a checkpoint (``resuming``).
Rule: tables are committed once all of them are made; a run that fails before changes no table. One that fails between
two commits has replaced the first table, and leaves its files.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession

from whimbrel.errors import InvalidValueError
from whimbrel.log.layout import assumes_receipts, check_format
from whimbrel.log.parts import statistics
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.batch.intervals import Interval, has_intervals
from whimbrel.pipeline.batch.job import BatchJob, NodeSpan
from whimbrel.pipeline.batch.resuming import narrow_span
from whimbrel.pipeline.batch.stages import make_files
from whimbrel.pipeline.batch.tasks import OnSpark
from whimbrel.pipeline.files.delta import DeltaOutput, check_folder, open_table, replace_table
from whimbrel.pipeline.files.snapshots import snapshot
from whimbrel.pipeline.fold.start_state import begin_of, left_out
from whimbrel.pipeline.plans import Plan

__all__ = ["Interval", "Plan", "TableRun", "run"]


@dataclass(frozen=True, slots=True)
class TableRun:
    """Summary of one table that a run made."""

    table: str
    path: str
    rows: int
    seconds: float
    """Seconds that the table took: its part of each stage, and its commit."""


def run(
    spark: SparkSession,
    *,
    log: Path,
    out: Path,
    tables: Sequence[str] = TABLES_MADE,
    plan: Plan | None = None,
    interval: Interval | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, dict[str, object]]:
    """Make *tables* from the log at *log* in the folder *out*; return a summary (``TableRun``) of each table.

    With an *interval*, only rows within it are made. They replace the tables' rows within it, and the other rows stay.
    """
    unknown = [name for name in tables if name not in TABLES_MADE]
    if unknown:
        raise InvalidValueError("table", ", ".join(unknown), ", ".join(TABLES_MADE))
    log, out = log.absolute(), out.absolute()  # workers have a working directory of their own
    if log == out or log in out.parents:
        raise InvalidValueError("directory for the tables", str(out), f"one outside the log {log}")
    if (out / "_stream").is_dir():
        raise InvalidValueError("directory for the tables", str(out), "one where no stream keeps its tables")
    for name in tables:
        check_folder(out, name)
    check_format(log)
    wanted = tuple(name for name in TABLES_MADE if name in tables)
    if not wanted:
        return {}
    for name in wanted:
        open_table(out, name)
    begun = set[str]()
    with _job(log, out, wanted, plan or Plan(), interval, begun=begun) as job:
        window_us = job.plan.window_us
        spans = [narrow_span(log, span, interval, tables=wanted, window_us=window_us) for span in _spans(log)]
        made = make_files(OnSpark(spark), job, spans, doing=on_progress or (lambda _: None))
        told: dict[str, dict[str, object]] = {}
        for name in wanted:
            begun_s = time.monotonic()
            begun.add(name)
            _commit(made.files[name], out, name, interval)
            rows = sum(statistics(path, ())[0] for path in made.files[name])
            took_s = made.seconds.get(name, 0.0) + time.monotonic() - begun_s
            told[name] = asdict(TableRun(name, str(out / name), rows, round(took_s, 3)))
        if "replicas" in told:
            told["replicas"] |= made.replicas
        if "matches" in told:
            told["matches"]["matchers"] = made.matchers._asdict()
    return told


@contextmanager
def _job(
    log: Path, out: Path, tables: tuple[str, ...], plan: Plan, interval: Interval | None, *, begun: set[str]
) -> Iterator[BatchJob]:
    """Yield the description of a run; remove its scratch folder at the end and, if the run fails, its data files.

    The caller adds a table to *begun* before its commit. Its files stay, because the commit may name them; if it does
    not, a later vacuum removes them.
    """
    folder = f"run-{uuid4().hex}"
    assumed = plan.assume_receipts
    job = BatchJob(
        log=str(log),
        out=str(out),
        folder=folder,
        scratch=str(out / tables[0] / folder / "scratch"),  # where a later run removes it if this one is killed
        tables=tables,
        plan=replace(plan, assume_receipts=assumes_receipts(log) if assumed is None else assumed),
        now=time.time_ns() // 1_000,
        interval=interval,
    )
    Path(job.scratch).mkdir(parents=True)
    try:
        yield job
    except BaseException:
        for table in tables:
            if table not in begun:
                shutil.rmtree(out / table / folder, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(job.scratch, ignore_errors=True)


def _spans(log: Path) -> list[NodeSpan]:
    """Return the seqs of each node at this moment; one snapshot for all tables, because nodes continue to write."""
    return [
        NodeSpan(node, _first(log, node), last, tuple(left_out(log, node))) for node, last in snapshot(log).last.items()
    ]


def _first(log: Path, node: str) -> int:
    """Return the first seq to read: 0 or, if the log was cut, that after its checkpoint."""
    first, checkpoint = begin_of(log, node)
    return 0 if checkpoint is None else first


def _commit(files: list[Path], out: Path, name: str, interval: Interval | None) -> None:
    """Replace a table, or its rows of an *interval*, by *files* in one commit."""
    if interval is not None and has_intervals(name):
        DeltaOutput(out, name).replace_between(files, interval.since, interval.until)
    else:
        replace_table(out, name, files)
