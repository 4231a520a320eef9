"""The fold of a batch run: replay each node's log with ``unit.take``, in one Spark task per shard of its sessions.

A task reads the log and writes data files of the tables; only the file names return to the driver. A node with many
facts is divided into more shards, at most one per core. Every shard reads the node's whole log, but folds only its own
sessions.
Rule: no row passes through Java, neither when it is read nor when it is written.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from pyspark.sql import SparkSession

from whimbrel.errors import WhimbrelError
from whimbrel.hold.retention import Retention
from whimbrel.hold.store.memory import MemoryStore
from whimbrel.pipeline.batch.intervals import Interval, has_intervals
from whimbrel.pipeline.batch.worker_files import file_paths, made_frame
from whimbrel.pipeline.files.dead_letters import missing_letters
from whimbrel.pipeline.files.part_rows import PIECE_BYTES, PIECE_FACTS
from whimbrel.pipeline.files.snapshots import Missing
from whimbrel.pipeline.files.spans import SpanReader
from whimbrel.pipeline.files.visibility import PATIENT, Patience
from whimbrel.pipeline.fold.garbage import pause_collection
from whimbrel.pipeline.fold.shards import shard_of
from whimbrel.pipeline.fold.start_state import StartState, seen_start_state
from whimbrel.pipeline.spark.spark_session import parallelism
from whimbrel.pipeline.unit.made import FILE_BYTES, TableFiles, WorkerOutput
from whimbrel.pipeline.unit.matchers import Matchers
from whimbrel.pipeline.unit.node_share import NodeShare
from whimbrel.pipeline.unit.take import take

__all__ = ["FOLDED", "UNFOLDED", "CutLogError", "ShardJob", "ShardTask", "divide", "fold_log", "fold_shard"]

FOLDED = ("matches", "deliveries", "link_quality", "dead_letters")
"""Tables that a task makes while it replays a node's log, in one pass."""
UNFOLDED = frozenset({"link_quality", "dead_letters"})
"""Tables of ``FOLDED`` that need neither matching nor the hold (the state of the sessions)."""

_NUMBERS_A_SHARD = 50_000
"""Least number of seqs per shard: with fewer, reading the node's log again costs more than it saves."""
_PROGRESS, _EVERY_S = "progress-", 1.0


class CutLogError(WhimbrelError):
    """A node's log was cut while a run read it. Reaction: run it again."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.node = node

    def __str__(self) -> str:
        return f"the log of {self.node!r} was cut while it was read; run it again"


class ShardTask(NamedTuple):
    """Work of one task: fold one shard of a node (*number*, from 0, of *of* shards), from the seq *first* to *last*."""

    node: str
    first: int
    last: int
    number: int = 0
    of: int = 1
    missing: tuple[Missing, ...] = ()
    """Ranges of seqs that the node's log lacked when the driver looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardJob:
    """Description of a run, sent to all its tasks."""

    log: str
    out: str
    folder: str
    """Folder within each table's folder that gets the files."""
    tables: tuple[str, ...]
    retention: Retention
    assume_receipts: bool
    now: int
    """Time that dead letters get, in microseconds."""
    interval: Interval | None = None
    """Interval of the rows to write, for tables whose rows have times; None: all rows."""
    piece_facts: int = PIECE_FACTS
    piece_bytes: int = PIECE_BYTES
    file_bytes: int = FILE_BYTES
    patience: Patience = PATIENT

    @property
    def folds(self) -> bool:
        """Whether the job makes a table for which publications must be matched and held."""
        return not UNFOLDED.issuperset(self.tables)

    def rows_within(self, table: str, batches: Iterable[Any]) -> Iterable[Any]:
        """Return the rows of a table's Arrow batches that are within the interval."""
        if self.interval is None or not has_intervals(table):
            return batches
        return (self.interval.within(batch, table) for batch in batches)

    @property
    def progress(self) -> Path:
        """Folder of the files in which tasks report their progress."""
        return Path(self.out, self.tables[0], self.folder)


def divide(spans: Mapping[str, tuple[int, int]], cores: int) -> list[ShardTask]:
    """Divide nodes, given with their first and last seq, into tasks; return the largest tasks first."""
    every = sum(max(0, last - first + 1) for first, last in spans.values()) or 1
    tasks = []
    for node, (first, last) in spans.items():
        numbers = max(0, last - first + 1)
        shards = max(1, min(cores, round(cores * numbers / every), numbers // _NUMBERS_A_SHARD))
        tasks += [ShardTask(node, first, last, number, shards) for number in range(shards)]
    return sorted(tasks, key=lambda task: ((task.first - task.last) // task.of, task.node, task.number))


def fold_log(
    spark: SparkSession,
    job: ShardJob,
    spans: Mapping[str, tuple[int, int]],
    *,
    missing: Mapping[str, Sequence[Missing]] | None = None,
    shards: int | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> dict[str, list[Path]]:
    """Replay (fold) the logs of all nodes; return the data files of each table, which are not committed yet.

    *missing* has the seqs that are missing from the log, per node. *shards* is the number of shards per node; None
    chooses it by size. *on_progress* is called with the fraction that is done, from 0 to 1.
    """
    tasks = divide(spans, parallelism(spark) if job.folds else 1)
    if shards is not None:
        tasks = [ShardTask(node, *span, number, shards) for node, span in spans.items() for number in range(shards)]
    tasks = [task._replace(missing=tuple((missing or {}).get(task.node, ()))) for task in tasks]
    for table in job.tables:
        Path(job.out, table, job.folder).mkdir(parents=True, exist_ok=True)
    count = max(1, len(tasks))
    with _watched(job, sum(task.last - task.first + 1 for task in tasks), on_progress):
        made = made_frame(spark.range(0, count, 1, count), partial(_tasks, job, tasks))
    return {table: [] for table in job.tables} | file_paths(Path(job.out), made)


def _tasks(job: ShardJob, tasks: Sequence[ShardTask], batches: Iterable[Any]) -> Iterator[WorkerOutput]:
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        for task in tasks[number : number + 1]:
            yield from fold_shard(job, task)


def fold_shard(job: ShardJob, task: ShardTask) -> Iterator[WorkerOutput]:
    """Replay (fold) a node's log for one shard of its sessions; yield the data files that were written."""
    node, first, log = task.node, task.first, Path(job.log)
    begun = _start_state(job, task)
    reader = SpanReader(log, node, most_facts=job.piece_facts, most_bytes=job.piece_bytes, patience=job.patience)
    shard = shard_of(reader, first, task.last, number=task.number, of=task.of, begun=begun, missing=task.missing)
    store = MemoryStore()
    if begun is not None:
        store.replace(begun.seq, shard.own_rows(begun))
    state = NodeShare(node, store, retention=job.retention, assume_receipts=job.assume_receipts)
    files, progress = TableFiles(Path(job.out), node, job.tables, job.file_bytes, job.folder), _Progress(job, task)
    if shard.is_first:
        yield from files.add("dead_letters", missing_letters(task.missing, job.now).to_batches())
    with tempfile.TemporaryDirectory(prefix="whimbrel-matchers-") as scratch:
        matchers = Matchers(Path(scratch))
        options: dict[str, Any] = {"window_us": None, "now": job.now, "shard": shard, "folds": job.folds}
        options["missing"] = task.missing
        taken = take(reader, first, task.last, state, matchers, **options)
        for piece in pause_collection(taken):
            for table, batches in piece.rows.items():
                yield from files.add(table, job.rows_within(table, batches))
            state.discard_changes()
            progress.note(piece.last - first + 1)
    yield from files.end()


def _start_state(job: ShardJob, task: ShardTask) -> StartState | None:
    """Return the state at which a cut log starts, else None; raise ``CutLogError`` if this run cannot start there."""
    begun = seen_start_state(Path(job.log), task.node, task.missing, last=task.last, patience=job.patience)
    if task.first != (0 if begun is None else begun.seq + 1):
        raise CutLogError(task.node)
    return begun


# -- progress ----------------------------------------------------------------------------------------------------------


class _Progress:
    """Progress of a task, in a file that the driver reads: Spark reports nothing about a running task."""

    def __init__(self, job: ShardJob, task: ShardTask) -> None:
        self._path = job.progress / f"{_PROGRESS}{quote(task.node, safe='')}-{task.number}"
        self._next_s = 0.0

    def note(self, numbers: int) -> None:
        """Write how many seqs were processed, at most once per ``_EVERY_S``."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _EVERY_S
            with suppress(OSError):
                self._path.write_text(str(numbers))


@contextmanager
def _watched(job: ShardJob, numbers: int, on_progress: Callable[[float], None] | None) -> Iterator[None]:
    """Call *on_progress* during the ``with`` block, with the fraction of *numbers* (seqs) that is done."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_EVERY_S):
            done = 0
            for path in job.progress.glob(f"{_PROGRESS}*"):
                with suppress(OSError, ValueError):
                    done += int(path.read_text())
            if done and on_progress is not None:
                on_progress(min(1.0, done / max(1, numbers)))

    watcher = threading.Thread(target=watch, name="whimbrel-fold-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
        for path in job.progress.glob(f"{_PROGRESS}*"):
            path.unlink(missing_ok=True)
