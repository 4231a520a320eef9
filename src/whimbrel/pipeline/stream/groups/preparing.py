"""The first step of a node in groups: read the changes of its directory, and leave the files that the next steps need.

The task reads the small tables of the span and the reports, not the publications and receipts. It assigns new sessions
and devices to groups, packs the matcher, and writes the directory. In the node's first batch in groups, it divides the
state among the groups: the state of the node until then, or that of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import cbor2
import pyarrow as pa

from whimbrel.log.incarnation import incarnation
from whimbrel.pipeline.batch.event_files import NODE, EventWriter
from whimbrel.pipeline.batch.match_slices import Ready
from whimbrel.pipeline.batch.node_subscriptions import NodeSubscriptions, read_moves
from whimbrel.pipeline.fold.events import Seen
from whimbrel.pipeline.fold.shards import LogPolicies, Shards
from whimbrel.pipeline.fold.start_state import StartState, seen_start_state
from whimbrel.pipeline.stream.groups.assignment import Assignment, OlderLinksError, assign
from whimbrel.pipeline.stream.groups.directory import Directory, Kind
from whimbrel.pipeline.stream.groups.group_rows import GroupStates, join_rows, read_rows
from whimbrel.pipeline.stream.groups.span_changes import SpanTables
from whimbrel.pipeline.stream.job import Job, Span, check_log, named_trouble
from whimbrel.pipeline.stream.state.batch_record import LostLogError, NodeRecord
from whimbrel.pipeline.stream.state.cache import states
from whimbrel.pipeline.subscriptions.versions import PackedVersions, open_intervals
from whimbrel.pipeline.unit.made import WorkerOutput
from whimbrel.pipeline.unit.matchers import Matchers
from whimbrel.pipeline.unit.node_share import LogMark
from whimbrel.pipeline.unit.old_rows import upgrade
from whimbrel.pipeline.unit.tallies import Tallies

__all__ = ["NodeInGroups", "Prepared", "prepare"]

_DIVIDED = (Kind.SESSION, Kind.DEVICE, Kind.SHARE)
"""Kinds of names that have a group."""


class NodeInGroups(NamedTuple):
    """A node's share of a batch, to be folded in groups."""

    node: str
    span: Span
    of: int
    """Number of groups."""
    record: NodeRecord | None
    """The node's record after the last batch; None for a new node."""


class Prepared(NamedTuple):
    """Report on the first step."""

    first: int
    """First seq that is folded."""
    known: bytes
    """The node's subscriptions, for the next steps: the content of ``NodeSubscriptions.output``."""
    directory: str
    """Name of the object with the directory."""
    groups: dict[int, str]
    """Names of the objects with the states of groups, before the batch; a group without a state is left out."""
    reports: str | None
    """Name of the object with the state of the reports, before the batch."""
    size: int
    size_bytes: int
    """Size of the directory: number of subscriptions, and bytes."""
    dropped: tuple[str, ...]
    matchers: tuple[int, int]
    is_cached: bool
    incarnation: str | None
    """Incarnation of the log."""
    places: tuple[tuple[int, int, int], ...]
    """Places of some records of the span in the node's segments, as ``LogPlace``."""

    @property
    def subscriptions(self) -> NodeSubscriptions:
        """The node's subscriptions, for the next steps."""
        return NodeSubscriptions.from_told(self.known)


@dataclass(slots=True)
class _Kept:
    directory: Directory
    matchers: Matchers = field(default_factory=Matchers)

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def size_bytes(self) -> int:
        return self.directory.size_bytes

    def forget(self) -> None:
        self.matchers.forget()


def prepare(job: Job, task: NodeInGroups, scratch: Path, *, is_shipped: bool) -> Iterator[WorkerOutput | Ready]:
    """Prepare a node; yield the report ``Prepared``, and counts for windows if its log begins at a checkpoint.

    If *is_shipped*, leave all that other processes need in the folder *scratch*. Else yield what the next steps in
    this process need, as ``Ready``.
    """
    node, span = task.node, task.span
    with named_trouble(Path(job.log), node, span):
        begun = _begin(job, task)
        first = span.first if begun is None else begun.seq + 1
        tables = SpanTables.read(job, node, first, span, places=task.record.places if task.record else ())
    kept, is_cached = _directory(job, task)
    directory, uses = kept.directory, kept.matchers.files.uses
    if begun is not None and task.record is None:
        tallies = Tallies(node)
        yield from tallies.add(intervals=open_intervals(begun.interest_rows()))
        yield from tallies.end()
    groups = GroupStates(Path(job.state), task.of, task.record)
    made, seen = _assign(task, directory, tables, groups, begun=begun)
    matcher = kept.matchers.find(directory, first, tables.changed, tables.deleted)
    shards = Shards(task.of, directory.groups[Kind.SESSION], directory.groups[Kind.DEVICE])
    with EventWriter(scratch) as events:
        events.add(NODE, tables.moves(directory))
        if is_shipped:
            events.add(NODE, {"sessions": _as_table(shards.sessions), "devices": _as_table(shards.devices)})
    path = _ship(kept.matchers, matcher, directory, tables, scratch) if is_shipped else matcher.path
    # Without receipts, a policy that comes while a notification is held decides about it.
    read = Seen.BODIES if job.plan.assume_receipts else seen
    known = NodeSubscriptions(path=str(events.path), matcher=path, of=task.of, seen=read)
    directory.change(tables.changes(directory, made, seen), span.last)
    if not is_shipped:
        yield Ready(matcher, shards, read_moves(known))
    report = Prepared(
        first=first,
        known=known.output(node).told,
        directory=directory.name,
        groups=groups.names,
        reports=groups.reports,
        size=directory.in_force.rows().num_rows,
        size_bytes=directory.size_bytes,
        dropped=(*groups.dropped, *directory.dropped),
        matchers=kept.matchers.files.uses.since(uses),
        is_cached=is_cached,
        incarnation=directory.mark.incarnation,
        places=tables.places,
    )
    states.put(job.key(node, "directory"), kept)
    yield WorkerOutput("prepared", node, None, 0, cbor2.dumps(report))


def _begin(job: Job, task: NodeInGroups) -> StartState | None:
    """Return the state to divide: that of a cut log, or that of a node that was not in groups; else None."""
    node, span, record = task.node, task.span, task.record
    if record is None:
        begun = seen_start_state(Path(job.log), node, span.missing, last=span.last, patience=job.patience)
        if begun is not None and begun.seq > span.last:  # the log was cut after the batch began
            raise LostLogError(node, span.last)
        return begun
    check_log(job, job.reader(node, places=record.places), LogMark(record.incarnation, record.digest), record.applied)
    if record.groups:
        return None
    rows, _ = upgrade(node, [*read_rows(Path(job.state), record.state).items()])
    return StartState(node=node, seq=record.applied, name="", at=record.last_at or 0, rows=tuple(rows))


def _directory(job: Job, task: NodeInGroups) -> tuple[_Kept, bool]:
    """Return the node's directory before the batch, and whether the process had it."""
    node, record = task.node, task.record
    name = record.state if record is not None and record.groups else None
    cached = None if name is None else states.take(job.key(node, "directory"), name)
    kept = cached if isinstance(cached, _Kept) else _Kept(Directory(node, Path(job.state), name))
    kept.directory.begin()
    kept.directory.mark = LogMark(incarnation(Path(job.log), node))
    return kept, cached is not None


def _assign(
    task: NodeInGroups,
    directory: Directory,
    tables: SpanTables,
    groups: GroupStates,
    *,
    begun: StartState | None,
) -> tuple[Assignment, Seen]:
    """Assign what is new to groups, and divide or move the rows of states; return also what policies may read."""
    names, links, policies = tables.names(), tables.links(), [tables.policies]
    if begun is not None:
        initial = tables.initial(begun)
        directory.change(initial, begun.seq)
        names |= {name for name in initial.groups if name[0] != Kind.KEPT_DEVICE}
        links += initial.links
        policies.append(begun.policy_rows())
        known: dict[int, dict[str, int]] = {kind: {} for kind in Kind}
    else:
        known = directory.groups
    seen = max(directory.seen, *(LogPolicies(rows).seen for rows in policies), key=lambda seen: seen.value)
    is_divided = begun is not None
    if task.record is not None and task.record.groups and len(task.record.groups) != task.of:
        names |= {(kind, name) for kind in _DIVIDED for name in directory.groups[kind]}
        links += [(*other, session) for session, own in directory.links().items() for other in own]
        known, is_divided = {kind: {} for kind in Kind}, True
    try:
        made = assign(known, names, links, of=task.of)
    except OlderLinksError:
        made = assign(known, names, links, of=task.of, older=directory.links())
    for (kind, name), group in made.groups.items():
        directory.groups[kind][name] = group
    if is_divided:
        rows = dict(begun.rows) if begun is not None else join_rows(map(groups.rows, groups.names))
        seq = task.span.first - 1 if begun is None else begun.seq
        groups.divide(rows, lambda kind, name: directory.groups[kind].get(name, 0), seq)
        if begun is not None:
            groups.put_reports(rows, seq)
    elif made.moved:
        groups.move(made.moved, made.groups, task.span.first - 1)
    return made, seen


def _ship(matchers: Matchers, found: PackedVersions, directory: Directory, tables: SpanTables, scratch: Path) -> str:
    """Leave the files of a matcher in *scratch*, for the workers of other machines; return its path there."""
    while (path := matchers.files.copy(found, scratch)) is None:  # it was evicted, although this process has it mapped
        matchers.forget()
        PackedVersions.forget(directory.node)
        found = matchers.find(directory, tables.first, tables.changed, tables.deleted)
    return str(path)


def _as_table(groups: Mapping[str, int]) -> Any:  # a pyarrow.Table
    return pa.table({"name": pa.array(list(groups), pa.string()), "shard": pa.array(list(groups.values()), pa.int64())})
