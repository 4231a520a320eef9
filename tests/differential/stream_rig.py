"""A stream without Spark: the same folds and commits, with offsets and versions of state as Spark keeps them.

What Spark promises is here in a few lines: the offsets of a batch are written before it is made, a batch begins with
the state that the one before it left, and one that was not over is made again with the same offsets.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from whimbrel.hold.store.interface import NOTHING_APPLIED
from whimbrel.pipeline.files.log_watch import LogWatch
from whimbrel.pipeline.files.snapshots import snapshot
from whimbrel.pipeline.files.visibility import NO_PATIENCE
from whimbrel.pipeline.fold.start_state import first_taken, left_out
from whimbrel.pipeline.plans import StreamPlan, settled_plan
from whimbrel.pipeline.stream import node_fold, window_fold
from whimbrel.pipeline.stream.blob_store import Head, MemoryBlobs
from whimbrel.pipeline.stream.commits import BatchCommits, BatchSummary
from whimbrel.pipeline.stream.node_fold import Job, Span, fold_node
from whimbrel.pipeline.stream.span_source import next_ends, spans
from whimbrel.pipeline.stream.window_fold import WINDOWS, fold_windows
from whimbrel.pipeline.stream.windows import Windows
from whimbrel.pipeline.unit.made import WorkerOutput
from whimbrel.pipeline.unit.node_share import NodeShare

__all__ = ["StreamRig", "forget"]


def forget() -> None:
    """Be a new worker, which remembers nothing."""
    node_fold._kept.clear()
    window_fold._kept.clear()


class StreamRig:
    """The tables of *log* below *out*; Spark's checkpoint is a folder of JSON beside them."""

    def __init__(self, *, log: Path, out: Path, plan: StreamPlan, now: int | None = None, **given: Any) -> None:
        self._log, self._folder, self._now = log, out / "_stream", now
        self._folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint = self._folder / "checkpoint"
        self.checkpoint.mkdir(exist_ok=True)
        self.plan = settled_plan(self._folder / "plan.json", plan)
        self.commits = BatchCommits(out, self.plan)
        self.job = Job(stream=str(out), log=str(log), out=str(out), plan=self.plan, patience=NO_PATIENCE)
        self.job = replace(self.job, **given)
        self.last: BatchSummary | None = None
        self._watch = LogWatch(self._log)

    def take(self, ends: Mapping[str, int]) -> None:
        """Make everything that is new up to *ends*."""
        while self._take(ends):
            pass

    @property
    def batch(self) -> int:
        """The last batch that Spark knows to be over."""
        return max((int(path.name) for path in (self.checkpoint).glob("[0-9]*")), default=-1)

    def _take(self, ends: Mapping[str, int]) -> bool:
        batch = self.batch + 1
        before = _read(self.checkpoint / str(batch - 1)) or {"end": {}, "state": {}}
        start: dict[str, int] = before["end"]
        path = self.checkpoint / f"offsets-{batch}"
        end: dict[str, int] | None = _read(path)
        if end is None:
            there = {node: min(seq, ends.get(node, -1)) for node, seq in snapshot(self._log, self._watch).last.items()}
            end = next_ends(start, there, self.plan.facts_per_batch, partial(first_taken, self._log))
            if not spans(start, end):
                return False
            path.write_text(json.dumps(end))
        state: dict[str, Any] = dict(before["state"])
        began_s = time.monotonic()
        now = time.time_ns() // 1_000 if self._now is None else self._now
        made: list[WorkerOutput] = []
        for node, first, last, nodes in spans(start, end):
            missing = tuple(left_out(self._log, node)) if first == NOTHING_APPLIED + 1 else ()
            blobs = _blobs(state.get(node))
            made += fold_node(self.job, node, Span(first, last, nodes, now, missing), blobs)
            state[node] = _written(blobs)
        blobs = _blobs(state.get(WINDOWS))
        made = list(fold_windows(self.job, made, blobs))
        state[WINDOWS] = _written(blobs)
        metadata = self.checkpoint / "metadata"
        if not metadata.exists():
            metadata.write_text(uuid4().hex)
        self.last = self.commits.commit(metadata.read_text(), batch, made, began_s=began_s)
        (self.checkpoint / str(batch)).write_text(json.dumps({"end": end, "state": state}))
        return True

    def states(self) -> list[NodeShare]:
        """Return what is remembered of the nodes."""
        return [kept.state for (stream, *_), kept in node_fold._kept.items() if stream == self.job.stream]

    def windows(self) -> Windows:
        """Return what is remembered of time."""
        return window_fold._kept[self.job.stream, self.job.out].windows


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _blobs(kept: Any) -> MemoryBlobs:
    return MemoryBlobs() if kept is None else MemoryBlobs(map(bytes.fromhex, kept[0]), Head(*kept[1]))


def _written(blobs: MemoryBlobs) -> Any:
    return [[blob.hex() for blob in blobs.read()], list(blobs.head())]
