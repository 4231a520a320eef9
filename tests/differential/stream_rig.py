"""A stream without Spark: the same batches, folds and commits, with tasks that run in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whimbrel.pipeline.files.visibility import NO_PATIENCE
from whimbrel.pipeline.plans import StreamPlan, settled_plan
from whimbrel.pipeline.stream import window_fold
from whimbrel.pipeline.stream.batches import Batches
from whimbrel.pipeline.stream.commits import BatchCommits, BatchSummary
from whimbrel.pipeline.stream.job import Job
from whimbrel.pipeline.stream.state.cache import states
from whimbrel.pipeline.stream.windows import Windows
from whimbrel.pipeline.unit.node_share import Held, NodeShare

__all__ = ["StreamRig", "forget"]


def forget() -> None:
    """Be a new worker, which remembers nothing."""
    states.kept.clear()
    window_fold._kept.clear()


class Here:
    """Workers that are this process; as many as the test says."""

    def __init__(self) -> None:
        self.cores = 2
        self.most = 0
        """Most tasks of a job so far."""

    def run(self, work: Callable[[Job, Any], Iterator[Any]], job: Job, given: Sequence[Any]) -> list[Any]:
        """Do the tasks, one after the other."""
        self.most = max(self.most, len(given))
        return [made for task in given for made in work(job, task)]


class StreamRig:
    """The tables of *log* below *out*, and the state in a folder beside them."""

    def __init__(self, *, log: Path, out: Path, plan: StreamPlan, now: int | None = None, **given: Any) -> None:
        folder = out / "_stream"
        folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint = folder / "checkpoint"
        self.plan = settled_plan(folder / "plan.json", plan)
        self.commits = BatchCommits(out, self.plan)
        state = str(self.checkpoint / "objects")
        job = Job(stream=str(out), log=str(log), out=str(out), plan=self.plan, state=state, patience=NO_PATIENCE)
        self.workers = Here()
        self.batches = Batches(replace(job, **given), self.commits, self.workers)
        if now is not None:
            self.batches.clock_ns = lambda: 1_000 * now
        self.last: BatchSummary | None = None

    @property
    def job(self) -> Job:
        """What workers are told; the driver sees the log as it was first told."""
        return self.batches.job

    @job.setter
    def job(self, job: Job) -> None:
        self.batches.job = job

    def take(self, ends: Mapping[str, int]) -> None:
        """Make everything that is new up to *ends*."""
        while (found := self.batches.take(ends)) is not None:
            self.last = found

    @property
    def batch(self) -> int:
        """The last batch that is over."""
        record = self.commits.record
        return -1 if record is None else record.batch if record.is_done else record.batch - 1

    def states(self) -> list[NodeShare]:
        """Return what is remembered of the nodes."""
        own = (kept for (stream, *_), kept in states.kept.items() if stream == self.job.stream)
        return [each for kept in own if isinstance(each := getattr(kept, "state", None), NodeShare)]

    def find_held(self) -> list[Held]:
        """Return the notifications that have no outcome after the last batch."""
        return [held for state in self.batches.states() for held in state.find_held()]

    def windows(self) -> Windows:
        """Return what is remembered of time."""
        return window_fold._kept[self.job.stream, self.job.out].windows
