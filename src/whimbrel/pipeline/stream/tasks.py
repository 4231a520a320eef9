"""The tasks of a batch: what the driver plans and workers do, with states given by the names of their objects.

Rule: a task is a few hundred bytes for each node, and so is its output: rows are in files, and so are large counts.
Rule: the driver sends the nodes with the most facts first, so that no core is left with a large one at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from whimbrel.log.reader import LogPlace
from whimbrel.pipeline.stream.groups.preparing import NodeInGroups
from whimbrel.pipeline.stream.groups.stages import Task, fold_in_groups
from whimbrel.pipeline.stream.job import Job, Span
from whimbrel.pipeline.stream.node_fold import fold_node
from whimbrel.pipeline.stream.state.objects import ObjectBlobs
from whimbrel.pipeline.stream.window_fold import fold_windows
from whimbrel.pipeline.unit.made import WorkerOutput

__all__ = ["NodeTask", "WindowsTask", "divide", "fold_nodes", "fold_tallies", "perform"]

_INLINE_BYTES = 16 << 10
"""Size up to which counts of a node go through the driver, not through a file, in bytes."""
_A_FILE = " file"
_FACTS_A_TASK, _TASKS_A_CORE = 1_000, 4


class NodeTask(NamedTuple):
    """A node's share of a batch, and the name of the object with its state; None for a node that is new."""

    node: str
    span: Span
    state: str | None
    places: tuple[LogPlace, ...] = ()
    """Known places of records in the node's segments."""


class WindowsTask(NamedTuple):
    """The output of all nodes in a batch, and the name of the object with the windows' state."""

    made: Sequence[WorkerOutput]
    state: str | None


def divide(tasks: Iterable[NodeTask | NodeInGroups], cores: int) -> list[list[NodeTask | NodeInGroups]]:
    """Divide nodes among tasks of Spark: about as many facts in each, and the nodes with the most facts first."""
    by_size = sorted(tasks, key=lambda task: (task.span.first - task.span.last, task.node))
    facts = sum(task.span.last - task.span.first + 1 for task in by_size)
    count = max(1, min(len(by_size), _TASKS_A_CORE * cores, -(-facts // _FACTS_A_TASK)))
    found: list[list[NodeTask | NodeInGroups]] = [[] for _ in range(count)]
    loads = [(0, place) for place in range(count)]
    for task in by_size:
        load, place = heappop(loads)
        found[place].append(task)
        heappush(loads, (load + task.span.last - task.span.first + 1, place))
    return found


def fold_nodes(tasks: Sequence[NodeTask | NodeInGroups], job: Job) -> Iterator[WorkerOutput]:
    """Fold the nodes of *tasks*, one after the other; yield their output."""
    for task in tasks:
        if isinstance(task, NodeInGroups):
            yield from fold_in_groups(job, task)
        else:
            blobs = ObjectBlobs(Path(job.state), task.state)
            yield from fold_node(job, task.node, task.span, blobs, places=task.places)


def perform(job: Job, tasks: Sequence[Task]) -> Iterator[WorkerOutput]:
    """Run *tasks*, one after the other; yield their output, with large counts put aside."""
    for task in tasks:
        for made in task(job):
            yield _put_aside(job, made)


def fold_tallies(job: Job, tasks: Iterable[WindowsTask]) -> Iterator[WorkerOutput]:
    """Fold the windows; yield the changed rows, and all output of the nodes but the counts."""
    for made, state in tasks:
        yield from fold_windows(job, map(_fetch, made), ObjectBlobs(Path(job.state), state))


def _put_aside(job: Job, made: WorkerOutput) -> WorkerOutput:
    """Put large counts for the windows to a file, which need not survive a crash."""
    if made.kind not in {"tallies", "meetings"} or len(made.told) <= _INLINE_BYTES:
        return made
    folder = job.scratch
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / uuid4().hex
    path.write_bytes(made.told)
    return made._replace(kind=f"{made.kind}{_A_FILE}", told=str(path).encode())


def _fetch(made: WorkerOutput) -> WorkerOutput:
    if not made.kind.endswith(_A_FILE):
        return made
    path = Path(made.told.decode())
    return made._replace(kind=made.kind.removesuffix(_A_FILE), told=path.read_bytes())
