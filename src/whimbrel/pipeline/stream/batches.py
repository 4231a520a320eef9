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
from whimbrel.pipeline.stream.groups.preparing import NodeInGroups
from whimbrel.pipeline.stream.groups.stages import Task, fold_by_stages
from whimbrel.pipeline.stream.job import Job, Span
from whimbrel.pipeline.stream.state.blob_store import BlobStore
from whimbrel.pipeline.stream.state.objects import ObjectBlobs, live_objects, sweep
from whimbrel.pipeline.stream.tasks import NodeTask, WindowsTask, divide, fold_nodes, fold_tallies, perform
from whimbrel.pipeline.unit.made import WorkerOutput
from whimbrel.pipeline.unit.node_share import NodeShare

__all__ = ["Batches", "Workers"]

_SWEEP_EVERY = 512
"""Batches after which objects of failed tasks are looked for."""
_BUSY = 1.25
"""Least ratio of a busy node's facts in a batch to each core's share of all facts; ``group_facts`` is another bound."""
_LEAST_CORES = 3
"""Least number of cores on which a busy node is folded in groups: with two, the steps cost most of the gain."""
_MOST_GROUPS = 64


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
        tasks = self._tasks(start, end)
        if not tasks:
            return None
        made = self._fold(tasks)
        windows = WindowsTask(made, None if record is None else record.windows_state)
        made = self._workers.run(fold_tallies, self.job, [[windows]])
        summary = commits.commit(batch, made, began_s=began_s)
        self._remove_dropped(batch)
        return summary

    def _fold(self, tasks: Sequence[NodeTask | NodeInGroups]) -> list[WorkerOutput]:
        """Fold all nodes: busy ones step by step on all workers, the others whole, several in a task."""
        job, cores = self.job, self._workers.cores
        least = self._least_busy(sum(map(_facts, tasks)))
        busy = [task for task in tasks if isinstance(task, NodeInGroups) and _facts(task) >= least]
        others = [partial(fold_nodes, own) for own in divide([task for task in tasks if task not in busy], cores)]

        def run(tasks: Sequence[Task]) -> list[WorkerOutput]:
            return self._workers.run(perform, job, [[task] for task in tasks])

        return fold_by_stages(job, busy, run, cores=cores, others=others) if busy else run(others)

    def _least_busy(self, facts: int) -> float:
        """Return the least number of facts of a busy node in a batch with this number of *facts*."""
        return max(self.job.group_facts, _BUSY * facts / self._workers.cores)

    def _tasks(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[NodeTask | NodeInGroups]:
        record, cores = self._commits.record, self._workers.cores
        known = {} if record is None else record.nodes
        now = self.clock_ns() // 1_000
        found: list[NodeTask | NodeInGroups] = []
        every = spans(start, end)
        least = self._least_busy(sum(last - first + 1 for _, first, last, _ in every))
        for node, first, last, nodes in every:
            missing = tuple(left_out(self._log, node)) if first == NOTHING_APPLIED + 1 else ()
            span, own = Span(first, last, nodes, now, missing), known.get(node)
            of = 0 if own is None else len(own.groups)
            if cores >= _LEAST_CORES and last - first + 1 >= least:
                of = max(of, _groups(cores))
            if of:
                found.append(NodeInGroups(node, span, of, own))
            elif own is None:
                found.append(NodeTask(node, span, None))
            else:
                found.append(NodeTask(node, span, own.state, own.places))
        return found

    def _remove_dropped(self, batch: int) -> None:
        """Remove objects that the state before this batch needed, and the state after it does not."""
        for name in self._commits.dropped:
            (self._state / name).unlink(missing_ok=True)
        record = self._commits.record
        if record is not None and batch % _SWEEP_EVERY == _SWEEP_EVERY - 1:
            sweep(self._state, live_objects(self._state, record.objects))

    def states(self) -> Iterator[NodeShare]:
        """Yield the state of each node after the last batch, or those of its groups."""
        record = self._commits.record
        for node, each in ({} if record is None else record.nodes).items():
            for name in [group.state for group in each.groups] or [each.state]:
                if name is not None:
                    yield self.job.share(node, BlobStore(ObjectBlobs(self._state, name)))


def _facts(task: NodeTask | NodeInGroups) -> int:
    return task.span.last - task.span.first + 1


def _groups(cores: int) -> int:
    """Return the number of groups of a busy node: at least one per core, and a power of two, so that it changes rarely.

    A publication is folded separately in each group that it matches, so more groups would cost more.
    """
    return min(_MOST_GROUPS, 1 << (cores - 1).bit_length())
