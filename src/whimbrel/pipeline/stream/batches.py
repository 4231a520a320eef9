"""Batches: the driver's part of a stream: which seqs are next, what the tasks are, and what is committed.

    plan the spans  →  fold the nodes  →  fold the windows  →  record  →  commit each table  →  record
       (driver)           (workers)          (a worker)                  (driver)

Rule: nothing of a batch counts before its record is written; the next attempt may have other seqs. Once it is written,
the batch is only committed, and never made again.
Rule: the driver decides nothing about rows. It remembers the last seq and the name of the state of each node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from whimbrel.hold.store.interface import NOTHING_APPLIED
from whimbrel.pipeline.files.log_watch import LogWatch
from whimbrel.pipeline.files.snapshots import read_undisturbed, snapshot
from whimbrel.pipeline.fold.start_state import first_taken, left_out
from whimbrel.pipeline.stream.batch_spans import next_ends, spans
from whimbrel.pipeline.stream.commits import BatchCommits, BatchSummary
from whimbrel.pipeline.stream.node_fold import Job, Span
from whimbrel.pipeline.stream.state.blob_store import BlobStore
from whimbrel.pipeline.stream.state.objects import ObjectBlobs, live_objects, sweep
from whimbrel.pipeline.stream.tasks import NodeTask, WindowsTask, divide, fold_nodes, fold_tallies
from whimbrel.pipeline.unit.made import WorkerOutput
from whimbrel.pipeline.unit.node_share import NodeShare

__all__ = ["Batches", "Workers"]

_SWEEP_EVERY = 512
"""Batches after which objects of failed tasks are looked for."""


class Workers(Protocol):
    """Protocol: where tasks run."""

    @property
    def cores(self) -> int:
        """Number of tasks that can run at once."""

    def run(
        self, work: Callable[[Job, Any], Iterator[WorkerOutput]], job: Job, tasks: Sequence[Any]
    ) -> list[WorkerOutput]:
        """Call ``work(job, task)`` for each of *tasks*, all at once; return everything that they yield."""


class Batches:
    """Makes the batches of *job* by *workers*, one after the other, and commits them by *commits*."""

    def __init__(self, job: Job, commits: BatchCommits, workers: Workers) -> None:
        self.job, self._commits, self._workers = job, commits, workers
        self._log = Path(job.log)
        self._state = Path(job.state)
        self._watch = LogWatch(self._log)
        self.clock_ns: Callable[[], int] = time.time_ns
        record = commits.record
        live = [] if record is None else record.objects
        self._state.mkdir(parents=True, exist_ok=True)
        found = live_objects(self._state, live)
        commits.begin()
        sweep(self._state, found)

    def ends(self) -> dict[str, int]:
        """Return the last seq of each node that the log has now."""
        return read_undisturbed(partial(snapshot, self._log, self._watch)).last

    def take(self, until: Mapping[str, int] | None = None) -> BatchSummary | None:
        """Make and commit the next batch, with seqs up to *until* per node; return None if there is nothing new."""
        began_s = time.monotonic()
        commits = self._commits
        commits.finish()
        start, record = commits.applied, commits.record
        if record is not None and not record.is_made:  # an older Whimbrel decided the seqs
            batch, end = record.batch, start | {node: last for node, (_, last) in record.spans.items()}
        else:
            batch = 0 if record is None else record.batch + 1
            last = self.ends()
            if until is not None:
                last = {node: min(seq, until.get(node, NOTHING_APPLIED)) for node, seq in last.items()}
            end = next_ends(start, last, self.job.plan.facts_per_batch, partial(first_taken, self._log))
        tasks = list(self._tasks(start, end))
        if not tasks:
            return None
        made = self._workers.run(fold_nodes, self.job, divide(tasks, self._workers.cores))
        windows = WindowsTask(made, None if record is None else record.windows_state)
        made = self._workers.run(fold_tallies, self.job, [[windows]])
        summary = commits.commit(batch, made, began_s=began_s)
        self._remove_dropped(batch)
        return summary

    def _tasks(self, start: Mapping[str, int], end: Mapping[str, int]) -> Iterator[NodeTask]:
        record = self._commits.record
        known = {} if record is None else record.nodes
        now = self.clock_ns() // 1_000
        for node, first, last, nodes in spans(start, end):
            missing = tuple(left_out(self._log, node)) if first == NOTHING_APPLIED + 1 else ()
            state = known[node].state if node in known else None
            yield NodeTask(node, Span(first, last, nodes, now, missing), state)

    def _remove_dropped(self, batch: int) -> None:
        """Remove objects that the state before this batch needed, and the state after it does not."""
        for name in self._commits.dropped:
            (self._state / name).unlink(missing_ok=True)
        record = self._commits.record
        if record is not None and batch % _SWEEP_EVERY == _SWEEP_EVERY - 1:
            sweep(self._state, live_objects(self._state, record.objects))

    def states(self) -> Iterator[NodeShare]:
        """Yield the state of each node after the last batch."""
        record, plan = self._commits.record, self.job.plan
        for node, each in ({} if record is None else record.nodes).items():
            if each.state is not None:
                store = BlobStore(ObjectBlobs(self._state, each.state))
                yield NodeShare(node, store, retention=plan.retention, assume_receipts=bool(plan.assume_receipts))
