"""The steps of a node in groups: prepare, match slices of its span, fold its groups.

    directory, matcher  →  matches and events of each slice  →  deliveries of each group  →  report of the node
      (``preparing``)           (``batch.match_slices``)            (``group_fold``)             (here)

Each step is a set of tasks that need nothing of each other. The driver runs them on all workers for a node with many
facts; for one with few, a single task runs them one after the other.
Rule: both ways make the same rows, because they run the same tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import cbor2

from whimbrel.log.reader import LogPlace
from whimbrel.model.bounds import INT64_MAX
from whimbrel.pipeline.batch.event_files import NODE
from whimbrel.pipeline.batch.job import BatchJob, NodeSpan
from whimbrel.pipeline.batch.match_slices import MatchedSlice, Ready, Slice, match_slice
from whimbrel.pipeline.stream.groups.group_fold import GroupReport, GroupTask, fold_group
from whimbrel.pipeline.stream.groups.preparing import NodeInGroups, Prepared, prepare
from whimbrel.pipeline.stream.job import Job, NodeReport, Span, named_trouble
from whimbrel.pipeline.stream.state.batch_record import GroupRecord
from whimbrel.pipeline.unit.made import WorkerOutput

__all__ = ["Run", "Task", "fold_by_stages", "fold_in_groups"]

_SLICE_FACTS = 5_000
"""Least number of facts of a slice that a task of its own matches."""
_SLICES_A_CORE = 1

Task: TypeAlias = Callable[[Job], Iterator[WorkerOutput]]
"""Work of one task."""
Run: TypeAlias = Callable[[Sequence[Task]], list[WorkerOutput]]
"""Function that runs tasks, several at once, and returns their output."""


def fold_by_stages(
    job: Job, nodes: Sequence[NodeInGroups], run: Run, *, cores: int, others: Sequence[Task] = ()
) -> list[WorkerOutput]:
    """Fold *nodes* with many facts, step by step, by *run*, which has *cores*; return all output.

    *others* are tasks that run beside the first step.
    """
    steps = {each.node: _Steps(job, each) for each in nodes}
    scratch = _scratch(job)
    found: list[WorkerOutput] = []

    def pass_on(tasks: Iterable[Task]) -> None:
        found.extend(made for made in run([*tasks]) if made.node not in steps or not steps[made.node].hear(made))

    pass_on([*others, *(partial(_prepare, each, scratch) for each in nodes)])
    pass_on(partial(_match, each.span, part) for own, each in _slices(steps.values(), cores) for part in own)
    tasks = [task for each in steps.values() for task in each.group_tasks()]
    tasks.sort(key=lambda task: -steps[task.node].rows_of(task.group))  # else the last core may wait for the largest
    pass_on(partial(_fold, task) for task in tasks)
    return [*found, *(each.report() for each in steps.values())]


def fold_in_groups(job: Job, node: NodeInGroups) -> Iterator[WorkerOutput]:
    """Fold a node with few facts in this process, step by step; yield the output."""
    steps, ready = _Steps(job, node), None
    for made in prepare(job, node, _scratch(job), is_shipped=False):
        if isinstance(made, Ready):
            ready = made
        elif not steps.hear(made):
            yield made
    for part in steps.slices(1):
        yield from steps.pass_on(_match(node.span, part, job, ready=ready))
    for task in steps.group_tasks():
        yield from steps.pass_on(fold_group(job, task))
    yield steps.report()


# -- tasks -----------------------------------------------------------------------------------------------------------


def _prepare(node: NodeInGroups, scratch: Path, job: Job) -> Iterator[WorkerOutput]:
    for made in prepare(job, node, scratch, is_shipped=True):
        assert isinstance(made, WorkerOutput)
        yield made


def _match(span: Span, part: Slice, job: Job, *, ready: Ready | None = None) -> Iterator[WorkerOutput]:
    given = BatchJob(
        log=job.log,
        out=job.out,
        folder="",
        scratch=str(job.scratch),
        tables=job.plan.tables,
        plan=job.plan,
        now=time.time_ns() // 1_000,
        is_columnar=False,
        keeps_state=True,
        piece_facts=job.piece_facts,
        piece_bytes=job.piece_bytes,
        file_bytes=job.file_bytes,
        patience=job.patience,
    )
    with named_trouble(Path(job.log), part.span.node, span):
        yield from match_slice(given, part, ready)


def _fold(task: GroupTask, job: Job) -> Iterator[WorkerOutput]:
    return fold_group(job, task)


def _scratch(job: Job) -> Path:
    job.scratch.mkdir(parents=True, exist_ok=True)
    return job.scratch


def _slices(steps: Iterable[_Steps], cores: int) -> Iterator[tuple[list[Slice], _Steps]]:
    """Cut the spans of nodes into slices, each node by its share of all facts."""
    every = list(steps)
    facts = sum(each.facts for each in every) or 1
    for each in every:
        yield each.slices(round(_SLICES_A_CORE * cores * each.facts / facts)), each


# -- a node ----------------------------------------------------------------------------------------------------------


class _Steps:
    """The steps of one *node*: what its tasks have reported, and what the next ones are."""

    def __init__(self, job: Job, node: NodeInGroups) -> None:
        self._job, self._node = job, node
        self.span = node.span
        self._prepared: Prepared | None = None
        self._slices: list[MatchedSlice] = []
        self._folded: dict[int, GroupReport] = {}

    @property
    def facts(self) -> int:
        """Number of facts in the span."""
        return self.span.last - self.span.first + 1

    def hear(self, made: WorkerOutput) -> bool:
        """Take the report of a task; return False for any other output, which is to be passed on."""
        if made.kind == "prepared":
            self._prepared = Prepared(*cbor2.loads(made.told))
        elif made.kind == "events":
            self._slices.append(MatchedSlice.of(made))
        elif made.kind == "group":
            found = GroupReport.of(made)
            self._folded[found.group] = found
        else:
            return False
        return True

    def pass_on(self, outputs: Iterable[WorkerOutput]) -> Iterator[WorkerOutput]:
        """Take the reports among *outputs*, and yield the rest."""
        return (made for made in outputs if not self.hear(made))

    def slices(self, most: int) -> list[Slice]:
        """Cut the span into at most *most* slices."""
        prepared = self._after_preparing()
        first, last = prepared.first, self.span.last
        count = max(1, min(most, (last - first + 1) // _SLICE_FACTS))
        ends = [first + (last - first + 1) * number // count for number in range(count + 1)]
        span = NodeSpan(self._node.node, first, last, self.span.missing)
        known, places = prepared.subscriptions, tuple(LogPlace(*each) for each in prepared.places)
        return [
            Slice(span, begin, end - 1, matches=True, counts=True, known=known, places=places)
            for begin, end in pairwise(ends)
        ]

    def rows_of(self, group: int) -> int:
        """Return the number of rows that a group has to fold."""
        return sum(each.rows.get(group, 0) for each in self._slices)

    def group_tasks(self) -> list[GroupTask]:
        """Return the folds of the reports, and of the groups that have something to do."""
        prepared, record = self._after_preparing(), self._node.record
        self._slices.sort(key=lambda each: each.first)
        events = tuple(each.events for each in self._slices)
        ends_at = max((each.ends_at for each in self._slices if each.ends_at is not None), default=None)
        last_at = None if record is None else record.last_at
        node, last = self._node.node, self.span.last
        tasks = [GroupTask(node, NODE, prepared.reports, events, last, last_at, self._slices[-1].digest)]
        for group in range(self._node.of):
            state, before = prepared.groups.get(group), self._group_before(group)
            is_due = ends_at is not None and before.due_at is not None and before.due_at <= ends_at
            if self.rows_of(group) or is_due or state != before.state:
                tasks.append(GroupTask(node, group, state, events, last, last_at))
        return tasks

    def _group_before(self, group: int) -> GroupRecord:
        record = self._node.record
        return record.groups[group] if record is not None and group < len(record.groups) else GroupRecord()

    def report(self) -> WorkerOutput:
        """Return the report of the node, once all of its tasks are done."""
        prepared, reports = self._after_preparing(), self._folded.pop(NODE)
        groups = [
            self._folded[group].record if group in self._folded else self._group_before(group)
            for group in range(self._node.of)
        ]
        parts = [*groups, reports.record]
        every = [reports, *self._folded.values()]
        away = {str(each.group): each.away for each in self._folded.values() if each.away is not None}
        report = NodeReport(
            first=self.span.first,
            last=self.span.last,
            nodes=self.span.nodes,
            last_at=None if reports.last_at is None else min(reports.last_at, self.span.now),
            oldest_at=min((each.oldest_at for each in groups), default=INT64_MAX),
            size=prepared.size + sum(each.size for each in parts),
            size_bytes=prepared.size_bytes + sum(each.size_bytes for each in parts),
            is_cached=prepared.is_cached and all(each.is_cached for each in every),
            notes=tuple(map(str, self.span.missing)),
            away=away if self._job.tells_away else None,
            now=self.span.now,
            incarnation=prepared.incarnation,
            digest=self._slices[-1].digest,
            matchers=prepared.matchers,
            state=prepared.directory,
            dropped=(*prepared.dropped, *(name for each in every for name in each.dropped)),
            groups=tuple(groups),
            reports=reports.record.state,
            place=self._slices[-1].place,
        )
        return WorkerOutput("node", self._node.node, None, 0, cbor2.dumps(report))

    def _after_preparing(self) -> Prepared:
        assert self._prepared is not None, "the first step is over"
        return self._prepared
