"""The stages of a batch run: subscriptions of each node, matching of slices, fold of shards, windows.

Each stage is a set of tasks that need nothing of each other; files in the run's scratch folder carry its results to the
next stage. A publication is read and matched once, whatever the number of shards.
Rule: a stage that no table needs is left out.
Rule: the driver sees names of files and small reports, never a row of the log.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from whimbrel.pipeline.batch.event_files import NODE
from whimbrel.pipeline.batch.fold_shards import ShardTask, fold_shard
from whimbrel.pipeline.batch.job import BatchJob, NodeSpan
from whimbrel.pipeline.batch.match_slices import MatchedSlice, Slice, cut, match_slice
from whimbrel.pipeline.batch.node_subscriptions import NodeSubscriptions, pack_node
from whimbrel.pipeline.batch.progress import watch_progress
from whimbrel.pipeline.batch.tasks import Tasks
from whimbrel.pipeline.batch.window_tables import make_windows
from whimbrel.pipeline.columnar.first_use import make_ready
from whimbrel.pipeline.subscriptions.matcher_files import Uses
from whimbrel.pipeline.unit.made import WorkerOutput

__all__ = ["Made", "divide", "make_files"]

_NUMBERS_A_SHARD = 50_000
"""Least number of seqs per shard: with fewer, starting a task costs more than it saves."""


@dataclass(slots=True)
class Made:
    """Result of all stages."""

    files: dict[str, list[Path]]
    """Data files per table, which are not committed yet."""
    replicas: dict[str, Any] = field(default_factory=dict)
    """Report on the replica plan: ``nodes``, ``slots_per_node``, and a ``note`` if some subjects have no slot."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds that each table took; work for several tables counts for the first of them."""
    matchers: Uses = Uses()  # noqa: RUF009  # immutable
    """Number of matchers that were found as files of a machine, and that were packed."""


def divide(spans: Sequence[NodeSpan], cores: int) -> dict[str, int]:
    """Return the number of shards of each node: a busy node has more, at most one per core."""
    every = sum(max(0, span.last - span.first + 1) for span in spans) or 1
    shards = {}
    for span in spans:
        numbers = max(0, span.last - span.first + 1)
        shards[span.node] = max(1, min(cores, round(cores * numbers / every), numbers // _NUMBERS_A_SHARD))
    return shards


def make_files(
    tasks: Tasks,
    job: BatchJob,
    spans: Sequence[NodeSpan],
    *,
    shards: Mapping[str, int] | None = None,
    doing: Callable[[str], None] = lambda _: None,
) -> Made:
    """Make the data files of all tables of a job from the logs of some nodes.

    *shards* is the number of shards per node; None chooses it by size. *doing* is called with the name of a stage and,
    later, how much of it is done.
    """
    for table in job.tables:
        Path(job.out, table, job.folder).mkdir(parents=True, exist_ok=True)
    stages = _Stages(tasks, job, doing)
    of = dict.fromkeys((span.node for span in spans), 1)
    if job.folds:
        of |= divide(spans, tasks.cores) if shards is None else shards
    slices = cut(job, spans, tasks.cores)
    known = {}
    if job.folds or job.counts or any(each.matches for each in slices):
        packs = [(span, of[span.node], _range_to_match(slices, span)) for span in spans]
        for made in stages.run("subscriptions", _pack, packs):
            known[made.node] = NodeSubscriptions.from_told(made.told)
    stages.made.matchers = Uses.sum(each.uses for each in known.values())
    if tasks.are_here and any(each.plain for each in known.values()):
        make_ready(doing)
    slices = [each._replace(known=known.get(each.span.node)) for each in slices]
    events: dict[str, list[str]] = {span.node: [] for span in spans}
    for made in stages.run("matches", match_slice, slices, numbers=sum(each.last - each.first + 1 for each in slices)):
        events[made.node].append(MatchedSlice.of(made).events)
    folds = [
        ShardTask(span, shard, tuple(events[span.node]), known.get(span.node))
        for span in sorted(spans, key=lambda span: span.first - span.last)  # the largest first
        for shard in (*([NODE] if job.folds_reports else []), *(range(known[span.node].of) if job.folds else []))
    ]
    numbers = sum(task.span.last - task.span.first + 1 for task in folds)
    sums = [made.told.decode() for made in stages.run("deliveries", fold_shard, folds, numbers=numbers)]
    if job.has_windows:
        matched = [path for own in events.values() for path in own]
        for made in stages.run("windows", _make_windows, [([each.path for each in known.values()], matched, sums)]):
            stages.made.replicas = json.loads(made.told)
    return stages.made


def _range_to_match(slices: Sequence[Slice], span: NodeSpan) -> tuple[int, int] | None:
    """Return the first and last seq of the node's publications that will be matched, or None."""
    own = [each for each in slices if each.span.node == span.node and each.matches]
    return (own[0].first, own[-1].last) if own else None


def _pack(job: BatchJob, task: tuple[NodeSpan, int, tuple[int, int] | None]) -> Iterator[WorkerOutput]:
    span, of, matches = task
    return pack_node(job, span, of=of, matches=matches)


def _make_windows(job: BatchJob, task: tuple[list[str], list[str], list[str]]) -> Iterator[WorkerOutput]:
    return make_windows(job, *task)


class _Stages:
    """Runs stages, and collects the data files that they make."""

    def __init__(self, tasks: Tasks, job: BatchJob, doing: Callable[[str], None]) -> None:
        self._tasks, self._job, self._doing = tasks, job, doing
        self.made = Made({table: [] for table in job.tables})

    def run(
        self, name: str, work: Callable[[BatchJob, Any], Iterator[WorkerOutput]], tasks: Sequence[Any], numbers: int = 0
    ) -> list[WorkerOutput]:
        """Run the stage *name*, whose tasks process *numbers* seqs; return its output without data files."""
        if not tasks:
            return []
        self._doing(name)
        begun_s = time.monotonic()
        with watch_progress(self._job, numbers, lambda done: self._doing(f"{name} {done:.0%}")):
            found = self._tasks.run(partial(work, self._job), tasks)
        self._book(name, time.monotonic() - begun_s, [made for made in found if made.kind == "time"])
        for made in found:
            if made.kind == "file" and made.table is not None:
                path = Path(self._job.out, made.table, json.loads(made.told)["path"])
                self.made.files[made.table].append(path)
        return [made for made in found if made.kind not in {"file", "time"}]

    def _book(self, stage: str, took_s: float, reports: Sequence[WorkerOutput]) -> None:
        """Divide the time of a stage among tables as its tasks report it; without reports, the first table gets it."""
        shares = {made.table: 0.0 for made in reports if made.table is not None}
        for made in reports:
            if made.table is not None:
                shares[made.table] += float(made.told)
        whole = sum(shares.values())
        if not whole:
            preferred = "matches" if stage in {"subscriptions", "matches"} else stage
            shares, whole = {preferred if preferred in self._job.tables else self._job.tables[0]: 1.0}, 1.0
        for table, share in shares.items():
            self.made.seconds[table] = self.made.seconds.get(table, 0.0) + took_s * share / whole
