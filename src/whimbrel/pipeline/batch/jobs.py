"""Jobs: run a batch that makes tables from a log; this module has paths and progress, ``tables`` has the transforms.

Rule: a table is replaced atomically: executors write its files, and one commit replaces the old ones.
Rule: with an interval only its rows are replaced, in one commit per table (``intervals``).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from copy import copy
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from whimbrel.errors import InvalidValueError
from whimbrel.log.layout import assumes_receipts, check_format
from whimbrel.log.parts import statistics
from whimbrel.model.replicas import find_unserved, unserved_note
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.batch.intervals import Interval, has_intervals
from whimbrel.pipeline.batch.node_shards import FOLDED, UNFOLDED, ShardJob, fold_log
from whimbrel.pipeline.batch.worker_files import Mapped, Work, write_files
from whimbrel.pipeline.files.delta import DeltaOutput, check_folder, open_table, replace_table
from whimbrel.pipeline.files.schemas import SCHEMAS, TIMES
from whimbrel.pipeline.files.snapshots import snapshot
from whimbrel.pipeline.fold.start_state import left_out, start_state
from whimbrel.pipeline.plans import Plan
from whimbrel.pipeline.spark.log_frames import LogFrame, extents, may_have
from whimbrel.pipeline.spark.paths import read_parquet
from whimbrel.pipeline.spark.spark_session import session_settings, shuffle_partitions
from whimbrel.pipeline.tables.censuses import last_census
from whimbrel.pipeline.tables.contacts import contacts, meetings, no_contacts, node_contacts
from whimbrel.pipeline.tables.latency import latency
from whimbrel.pipeline.tables.matches import MovingRows, matching
from whimbrel.pipeline.tables.popularity import popularity
from whimbrel.pipeline.tables.replicas import replicas, window_end

__all__ = ["Interval", "Plan", "TableRun", "run"]


@dataclass(frozen=True, slots=True)
class TableRun:
    """Summary of one table that a run made."""

    table: str
    path: str
    rows: int
    seconds: float


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
    log, out = log.absolute(), out.absolute()  # Java has a working directory of its own
    if log == out or log in out.parents:
        raise InvalidValueError("directory for the tables", str(out), f"one outside the log {log}")
    if (out / "_stream").is_dir():
        raise InvalidValueError("directory for the tables", str(out), "one where no stream keeps its tables")
    for name in tables:
        check_folder(out, name)
    made: dict[str, dict[str, object]] = {}
    paths: dict[str, list[Path]] = {}
    together = FOLDED if interval is None and "deliveries" in tables else UNFOLDED
    folded = tuple(name for name in FOLDED if name in tables and name in together)
    doing = on_progress or (lambda _: None)
    with ExitStack() as stack:
        source = stack.enter_context(closing(_Log(spark, log, out, plan or Plan(), folded=folded, doing=doing)))
        partitions = shuffle_partitions(spark, source.facts)
        stack.enter_context(session_settings(spark, {"spark.sql.shuffle.partitions": str(partitions)}))
        for name in (each for each in TABLES_MADE if each in tables):
            source.doing(name)
            begun = time.monotonic()
            paths[name] = _make_table(name, source, paths, interval)
            rows = sum(statistics(path, ())[0] for path in paths[name])
            made[name] = asdict(TableRun(name, str(out / name), rows, round(time.monotonic() - begun, 3)))
            if name == "replicas":
                made[name] |= {"nodes": source.plan.nodes, "slots_per_node": source.plan.slots_per_node}
                if told := _note_of_replicas(paths[name], source.plan):
                    made[name]["note"] = told
    return made


def _note_of_replicas(paths: list[Path], plan: Plan) -> str:
    """Return a sentence about the subjects for which the replica plan has no slot; empty if there are none."""
    rows = (row for path in paths for row in pq.read_table(path, columns=["subject", "subscribers"]).to_pylist())
    subscribers = {row["subject"]: row["subscribers"] for row in rows}
    beyond = find_unserved(subscribers, nodes=plan.nodes, slots_per_node=plan.slots_per_node)
    return unserved_note(beyond, subjects=len(subscribers)) if beyond else ""


def _make_table(name: str, log: _Log, made: Mapping[str, list[Path]], interval: Interval | None) -> list[Path]:
    """Make the table *name*, and return its files."""
    if name in log.folded:
        return _commit(log.folded_files(name, interval), log.out, name, interval)
    if name == "matches":
        return _write_matches(log, interval)
    found = _table_of_interval(name, log, made, interval)
    return _write(found, log.out, name, interval)


def _write_matches(log: _Log, interval: Interval | None) -> list[Path]:
    """Make ``matches`` in parallel tasks over the publications, without replaying the log in order."""
    log = log if interval is None else log.of_days(*interval.days())
    tables = (log.table(each) for each in ("publications", "interests", "sessions"))
    rows, work = matching(*tables, numbers=log.numbers, moving=log.moving)
    return _write(
        rows, log.out, "matches", interval, work=work if interval is None else partial(_within, interval, work)
    )


def _within(interval: Interval, work: Work, batches: Iterable[Any]) -> Iterator[Any]:
    return (interval.within(batch, "matches") for batch in work(batches))


class _Log:
    """A log at one snapshot, as the input of a run that makes tables in the folder *out*.

    The tables in *folded* are computed together, by one replay (fold) of the log.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: Path,
        out: Path,
        plan: Plan,
        *,
        folded: tuple[str, ...],
        doing: Callable[[str], None],
    ) -> None:
        self.spark, self._path, self.out, self.plan, self.folded, self.doing = spark, path, out, plan, folded, doing
        check_format(path)
        found = snapshot(path)  # one snapshot for all tables, because the node continues to write
        self.begun = {node: begun for node in found.last if (begun := start_state(path, node)) is not None}
        """Start state, per node whose log was cut."""
        self._at = replace(found, begins={node: begun.seq + 1 for node, begun in self.begun.items()})
        self._missing = {node: left_out(path, node) for node in found.last}
        """Ranges of seqs that the log lacks, per node."""
        self.now = time.time_ns() // 1_000
        self.days: tuple[date, date] | None = None
        """First and last date of the publications to read; None: all."""
        self._files: dict[str, list[Path]] | None = None
        self._run = f"run-{uuid4().hex}"
        self._scratch: Path | None = None
        self._delivered: list[Path] = []
        self._met: DataFrame | None = None

    @property
    def facts(self) -> int:
        """Number of facts to read, of all nodes."""
        return sum(last - self._at.begins.get(node, 0) for node, last in self._at.last.items())

    def of_days(self, first: date, last: date) -> _Log:
        """Return the same log with only the publications of these days; all other facts stay."""
        found = copy(self)
        found.days = (first, last)
        return found

    @cache  # noqa: B019 # the cache lives as long as the job
    def table(self, name: str) -> LogFrame:
        """Return the valid rows of the log's table *name*."""
        begun: dict[str, Any] = {}
        if name == "interests":
            begun = {node: each.interest_rows() for node, each in self.begun.items()}
        found = LogFrame.at(self.spark, self._path, name, self._at, now=self.now, begun=begun)
        return found.of_days(*self.days) if name == "publications" and self.days is not None else found

    def folded_files(self, name: str, interval: Interval | None) -> list[Path]:
        """Return the files that the fold made for the table *name*; ``close`` will not remove them."""
        if self._files is None:
            for table in self.folded:
                open_table(self.out, table)
            self._files = self._fold(self.out, self._run, self.folded, name, interval)
        return self._files.pop(name)

    def deliveries(self, name: str) -> DataFrame:
        """Return all rows of ``deliveries``; their files are in the folder of the table *name* until ``close``."""
        if self._scratch is None:
            open_table(self.out, name)
            self._scratch = self.out / name / self._run
            self._delivered = self._fold(self._scratch, "", ("deliveries",), name)["deliveries"]
        return read_parquet(self.spark, SCHEMAS["deliveries"], self._delivered)

    def _fold(
        self, out: Path, folder: str, tables: tuple[str, ...], name: str, interval: Interval | None = None
    ) -> dict[str, list[Path]]:
        assumed = self.plan.assume_receipts
        job = ShardJob(
            log=str(self._path),
            out=str(out),
            folder=folder,
            tables=tables,
            retention=self.plan.retention,
            assume_receipts=assumes_receipts(self._path) if assumed is None else assumed,
            now=self.now,
            interval=interval,
        )
        spans = {node: (self._at.begins.get(node, 0), last) for node, last in self._at.last.items()}
        return fold_log(
            self.spark, job, spans, missing=self._missing, on_progress=lambda done: self.doing(f"{name} {done:.0%}")
        )

    def contacts(self) -> DataFrame:
        """Return the contacts of each node, persisted on the workers' disks, because two tables use them."""
        if self._met is None:
            reports = self.table("reports")
            if may_have(reports, "place") or any(begun.places() for begun in self.begun.values()):
                ends = self._ends()
                found = node_contacts(reports.frame(), ends=ends, plan=self.plan.contact, begun=self.begun)
            else:  # no device ever had a place, so nothing is computed
                found = no_contacts(self.spark)
            self._met = found.persist(StorageLevel.DISK_ONLY)
        return self._met

    def _ends(self) -> dict[str, int]:
        """Return the time of the last fact of each node, in microseconds."""
        frames = [(self.numbers if name == "publications" else self.table(name), at) for name, at in TIMES.items()]
        return {node: extent.ends_at for node, extent in extents(frames).items()}

    def close(self) -> None:
        """Release cached contacts, and remove files that are in no commit."""
        if self._met is not None:
            self._met.unpersist()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        for table in self.folded if self._files is None else self._files:
            shutil.rmtree(self.out / table / self._run, ignore_errors=True)  # files that are in no commit

    @property
    def moving(self) -> MovingRows:
        """Rows that determine the positions of sessions: reports, presence, and the checkpoints of cut logs."""
        return MovingRows(self.table("reports"), self.table("presence"), self.begun)

    @property
    def numbers(self) -> LogFrame:
        """Seqs and times of all publications, not validated: validating them means reading their attributes."""
        return self.table("publications").numbers()


def _table_of_interval(name: str, log: _Log, made: Mapping[str, list[Path]], interval: Interval | None) -> DataFrame:
    """Compute the table *name*, or only its rows within an interval.

    *made* has the files of tables that this run has finished; they are read only if there is no interval.
    """
    if interval is None:
        return _table(name, log, made)
    if name == "deliveries":  # an outcome depends on all facts before it
        return interval.rows(log.deliveries(name), name)
    if name == "popularity":
        log = log.of_days(*interval.days(later_us=log.plan.window_us))
    found = _table(name, log, {})
    return interval.rows(found, name) if has_intervals(name) else found


def _table(name: str, log: _Log, made: Mapping[str, list[Path]]) -> DataFrame:
    """Compute a table that is not in ``FOLDED`` (made by the fold); *made* has the files of finished tables."""
    plan = log.plan
    if name in {"contacts", "meetings"}:
        return (contacts if name == "contacts" else meetings)(log.contacts())
    if name == "latency":
        known = "deliveries" in made
        found = read_parquet(log.spark, SCHEMAS["deliveries"], made["deliveries"]) if known else log.deliveries(name)
        return latency(found, window_us=plan.window_us)
    if name == "replicas":
        popular = (
            read_parquet(log.spark, SCHEMAS["popularity"], made["popularity"])
            if "popularity" in made
            else _table("popularity", log, made)
        )
        census = last_census(log.table("publications"), popular, window_us=plan.window_us)
        log.plan = plan = plan.for_census(census)
        return replicas(
            popular,
            nodes=plan.nodes,
            slots_per_node=plan.slots_per_node,
            sample_bytes=plan.sample_bytes,
            horizon_us=plan.horizon_us,
            newest_at=window_end(log.now, plan.window_us),
            subject_filter=plan.replicas_for,
            census=census,
        )
    tables = (log.table(each) for each in ("publications", "interests", "sessions"))
    return popularity(*tables, window_us=plan.window_us)


def _write(rows: Mapped, out: Path, name: str, interval: Interval | None = None, *, work: Work = iter) -> list[Path]:
    """Apply *work* to *rows* in the workers, write and commit the result as the table *name*; return its file paths."""
    open_table(out, name)
    folder = f"run-{uuid4().hex}"
    try:
        return _commit(write_files(rows, out, name, folder, work=work), out, name, interval)
    except BaseException:
        shutil.rmtree(out / name / folder, ignore_errors=True)
        raise


def _commit(files: list[Path], out: Path, name: str, interval: Interval | None) -> list[Path]:
    """Replace a table, or its rows of an *interval*, by *files* in one commit; return the paths of the files."""
    if interval is not None and has_intervals(name):
        DeltaOutput(out, name).replace_between(files, interval.since, interval.until)
    else:
        replace_table(out, name, files)
    return files
