"""The last step of a node in groups: fold the matched events of a group, or the reports of the node.

Rule: a task continues the state of its group and writes it as one object; other groups are not read.
Rule: a group without an event has no task, until a notification that it holds may lapse.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import cbor2

from whimbrel.log.incarnation import incarnation
from whimbrel.pipeline.batch.event_files import NODE, SUMS, EventFile
from whimbrel.pipeline.batch.fold_shards import read_pieces
from whimbrel.pipeline.fold.contact_fold import ContactPlan
from whimbrel.pipeline.fold.garbage import pause_collection
from whimbrel.pipeline.stream.job import Job
from whimbrel.pipeline.stream.state.batch_record import GroupRecord
from whimbrel.pipeline.stream.state.blob_store import BlobStore
from whimbrel.pipeline.stream.state.cache import states
from whimbrel.pipeline.stream.state.cached_share import CachedShare
from whimbrel.pipeline.stream.state.objects import ObjectBlobs
from whimbrel.pipeline.tables.popularity import COUNT, sum_counts
from whimbrel.pipeline.unit.folding import fold_reports, fold_sessions, tally_of
from whimbrel.pipeline.unit.made import WorkerOutput
from whimbrel.pipeline.unit.node_share import LogMark, NodeShare
from whimbrel.pipeline.unit.tallies import Tallies

__all__ = ["GroupReport", "GroupTask", "fold_group"]


class GroupTask(NamedTuple):
    """The fold of a group in a batch, or of the node's reports."""

    node: str
    group: int
    """Number of the group; ``NODE`` for the reports."""
    state: str | None
    """Name of the object with the state before the batch."""
    events: tuple[str, ...]
    """Event files of the node's slices, in the order of the log."""
    last: int
    """Last seq of the batch."""
    last_at: int | None = None
    """The time of the node's last fact before the batch, in microseconds."""
    digest: str | None = None
    """For the reports: digest of the last fact of the batch."""


class GroupReport(NamedTuple):
    """Report of a group, or of the reports."""

    group: int
    record: GroupRecord
    dropped: tuple[str, ...]
    is_cached: bool
    last_at: int | None
    """The time of the last fact in this state, in microseconds."""
    away: dict[str, int] | None

    def output(self, node: str) -> WorkerOutput:
        """Return this as a row for the driver."""
        return WorkerOutput("group", node, None, 0, cbor2.dumps(self))

    @classmethod
    def of(cls, made: WorkerOutput) -> GroupReport:
        """Decode an ``output``."""
        group, record, *rest = cbor2.loads(made.told)
        return cls(group, GroupRecord(*record), *rest)


def fold_group(job: Job, task: GroupTask) -> Iterator[WorkerOutput]:
    """Fold the events of a group; yield the data files that were written, counts for windows, and the report."""
    is_of_reports = task.group == NODE
    blobs, key = ObjectBlobs(Path(job.state), task.state), job.key(task.node, str(task.group))
    cached = None if task.state is None else states.take(key, task.state)
    if isinstance(cached, CachedShare):
        kept = cached
        kept.store.follow(blobs)
    else:
        kept = _restore(job, task.node, blobs, contact=job.contact if is_of_reports else None)
    tallies = Tallies(task.node)
    yield from pause_collection((_fold_reports if is_of_reports else _fold_sessions)(job, task, kept.state, tallies))
    yield from tallies.end()
    kept.state.commit(task.last)
    state = kept.state
    yield GroupReport(
        group=task.group,
        record=GroupRecord(kept.name, state.due_at, state.oldest_at, state.size, kept.size_bytes),
        dropped=tuple(blobs.dropped),
        is_cached=cached is not None,
        last_at=state.last_at,
        away=state.away() if job.tells_away and not is_of_reports else None,
    ).output(task.node)
    states.put(key, kept)


def _restore(job: Job, node: str, blobs: ObjectBlobs, *, contact: ContactPlan | None) -> CachedShare:
    store = BlobStore(blobs)
    return CachedShare(store, job.share(node, store, contact=contact))


def _fold_sessions(job: Job, task: GroupTask, state: NodeShare, tallies: Tallies) -> Iterator[WorkerOutput]:
    files = job.files(task.node)
    pieces = (fold_sessions(matched, state) for matched, _ in read_pieces(task.node, task.group, task.events))
    # The facts of other groups may have moved the time since this group's last batch.
    for deliveries, intervals in chain([(list(state.fold((), {}, task.last_at)), None)], pieces):
        yield from files.add("deliveries", deliveries)
        tally = tally_of(deliveries, window_us=job.plan.window_us)
        yield from tallies.add(tally=tally, intervals=intervals)
    yield from files.end()


def _fold_reports(job: Job, task: GroupTask, state: NodeShare, tallies: Tallies) -> Iterator[WorkerOutput]:
    files = job.files(task.node)
    for matched, is_last in read_pieces(task.node, NODE, task.events):
        reported = fold_reports(matched, state, is_last=is_last)
        yield from files.add("link_quality", reported.link_quality)
        yield from files.add("contacts", reported.contacts)
        yield from tallies.add(meetings=reported.meetings)
    yield from files.end()
    counts = [rows for path in task.events for rows in EventFile(Path(path)).tables(SUMS, "counts")]
    yield from tallies.add(counts=sum_counts(counts) if counts else COUNT.empty_table())
    state.mark = LogMark(incarnation(Path(job.log), task.node), task.digest)
