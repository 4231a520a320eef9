"""``deliveries``: what became of each publication, for each session and device: matches and presence, folded.

Sessions that share a device, or divide work among them, go to one group (see ``components``); groups are spread over
partitions, each sorted by node and seq, and folded through the hold core one after the other. A worker sees its
partition as a stream of Arrow batches and keeps in memory only what is held in the group it is at.

Publications are matched on the way: a match travels as one row per publication and group, with the seqs of the
interests, not as a row of text for each. Interests travel too, so the fold knows whose they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the usual alias
from pyspark.sql.pandas.types import from_arrow_schema

from whimbrel.hold.private import SHARE, is_shared
from whimbrel.hold.retention import DEFAULT_RETENTION, Retention
from whimbrel.model.bounds import INT64_MIN
from whimbrel.pipeline.files.schemas import SCHEMAS
from whimbrel.pipeline.fold.beginnings import Beginning
from whimbrel.pipeline.fold.components import Components
from whimbrel.pipeline.fold.events import EVENT_TABLES, PUBLISHED_COLUMNS, Seen, other_events, published_events
from whimbrel.pipeline.fold.folds import BEGUN, EVENT, POLICY, fold
from whimbrel.pipeline.fold.garbage import uncollected
from whimbrel.pipeline.fold.group_states import write_group_states
from whimbrel.pipeline.fold.log_policies import LogPolicies
from whimbrel.pipeline.spark.log_frames import LogRows, extents
from whimbrel.pipeline.spark.spark_session import parallelism, send_file
from whimbrel.pipeline.tables.matches import Matching, MovingRows, Shipped, scratch, ship

__all__ = ["LogTables", "deliveries", "last_times"]

_GROUPS_PER_CORE = 4
"""Groups that are folded on their own: a few for each core, so that none waits long for the last, and no more, because
a publication travels once to every group that wants it."""


@dataclass(frozen=True)
class LogTables:
    """The tables of a log that decide who gets what."""

    publications: LogRows
    interests: LogRows
    presence: LogRows
    sessions: LogRows
    receipts: LogRows
    reports: LogRows | None = None
    """Where devices are, and what policies read of them; and time passes with them as with every fact."""
    wills: LogRows | None = None
    policies: LogRows | None = None
    """What devices chose decides which of their hand-overs have receipts;"""
    decisions: LogRows | None = None
    """and what policies decided, which body it was, and what they find the next time."""
    begun: Mapping[str, Beginning] = field(default_factory=dict, kw_only=True)
    """By node whose log was cut, the checkpoint that it begins at."""
    numbers: LogRows | None = None
    """At least node, seq and published_at of every publication, where these can be had at less cost."""

    @property
    def moving(self) -> MovingRows | None:
        """Where sessions are, if there are reports."""
        return None if self.reports is None else MovingRows(self.reports, self.presence, self.begun)

    @property
    def numbered(self) -> LogRows:
        """The publications, without columns beyond their numbers and times."""
        return self.publications if self.numbers is None else self.numbers


def deliveries(
    log: LogTables,
    *,
    retention: Retention = DEFAULT_RETENTION,
    assume_receipts: bool,
    groups: int | None = None,
) -> DataFrame:
    """Return one row per notification, session and device whose outcome is known.

    Where devices do not confirm (a log that was imported or generated), what is handed over counts as received:
    *assume_receipts*. There, policies decide; else what they decided is checked. What is still held at the end has no
    row.
    """
    if groups is None:
        groups = _GROUPS_PER_CORE * parallelism(log.publications.sparkSession)
    policies = LogPolicies(None if log.policies is None else log.policies.select(*LogPolicies.COLUMNS).toArrow())
    components = _components(log, groups, policies if assume_receipts else None)
    events = _events(log, components, groups, policies)
    ends = {node: begun.at for node, begun in log.begun.items()} | last_times(log)
    folding = partial(_folded, ends=ends, retention=retention, assume_receipts=assume_receipts)
    ordered = events.repartitionById(groups, F.col("group")).sortWithinPartitions("group", "node", "seq")
    return ordered.mapInArrow(folding, SCHEMAS["deliveries"])


def _folded(batches: Iterable[Any], **options: Any) -> Iterator[Any]:
    return uncollected(fold(batches, **options))


def _components(log: LogTables, groups: int, deciding: LogPolicies | None) -> dict[str, Components]:
    """Return the groups of sessions; those whose policies may be suspended for one another's failures in one."""
    devices = _pairs(log.presence.select("node", "device", "session"))
    shares = _pairs(log.interests.select("node", "subject_filter", "session"), begins=SHARE)
    for node, pairs in shares.items():
        shares[node] = [(share, session) for share, session in pairs if is_shared(share)]
    for node, begun in log.begun.items():  # what they want is among the interests
        devices[node] = sorted({*devices.get(node, ()), *begun.pairs()})
    if deciding is not None and deciding.are_any:
        named = _pairs(log.interests.select("node", "policy", "session"))
        for node in devices.keys() | named.keys():
            joined = deciding.joined(node, named.get(node, ()), devices.get(node, ()))
            shares.setdefault(node, []).extend(joined)
    nodes = devices.keys() | shares.keys()
    return {node: Components(devices.get(node, ()), shares.get(node, ()), groups=groups) for node in nodes}


def _pairs(rows: LogRows, *, begins: str = "") -> dict[str, list[tuple[str, str]]]:
    """Return for each node, the first column, the distinct pairs of the others, sorted; those that are no nulls."""
    found = rows.mapInArrow(partial(_distinct, begins), from_arrow_schema(_PAIR)).toArrow()
    pairs: dict[str, set[tuple[str, str]]] = {}
    for node, what, session in zip(*(column.to_pylist() for column in found.columns), strict=True):
        pairs.setdefault(node, set()).add((what, session))
    return {node: sorted(each) for node, each in pairs.items()}


_PAIR = pa.schema([("node", pa.string()), ("what", pa.string()), ("session", pa.string())])


def _distinct(begins: str, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        rows = pa.Table.from_batches([batch]).rename_columns(_PAIR.names).drop_null()
        rows = rows.filter(pc.starts_with(rows.column("what"), begins)) if begins else rows
        distinct = rows.group_by(_PAIR.names, use_threads=False).aggregate([]).select(_PAIR.names).cast(_PAIR)
        yield from distinct.combine_chunks().to_batches()


def last_times(log: LogTables) -> dict[str, int]:
    """Return for each node the time of its last fact, in microseconds."""
    times = [(log.numbered, "published_at"), (log.interests, "changed_at"), (log.presence, "changed_at")]
    times += [(log.sessions, "changed_at"), (log.receipts, "handed_at")]
    times += [] if log.reports is None else [(log.reports, "reported_at")]
    others = ((log.wills, "changed_at"), (log.policies, "changed_at"), (log.decisions, "decided_at"))
    times += [(table, at) for table, at in others if table is not None]
    return {node: extent.ends_at for node, extent in extents(times).items()}


# -- events ------------------------------------------------------------------------------------------------------------


def _events(log: LogTables, components: Mapping[str, Components], groups: int, policies: LogPolicies) -> DataFrame:
    """Return everything the fold needs, with the group it belongs to."""

    def numbers(node: str, sessions: Any) -> Any:  # a pyarrow column in, a list out
        known = components.get(node) or Components([], groups=groups)
        return [known.group(session) for session in sessions.to_pylist()]

    shipped = ship(
        log.publications, log.interests, log.sessions, numbers=log.numbers, groups=numbers, moving=log.moving
    )
    events = _published(log.publications, shipped, policies.seen)
    if log.begun:
        events = events.unionByName(_begun(log, components, groups))
    return reduce(DataFrame.unionByName, _other_events(log, components, groups, policies), events)


def _begun(log: LogTables, components: Mapping[str, Components], groups: int) -> DataFrame:
    """Return, for each group of a node whose log begins at a checkpoint, an event that says where its state is."""
    spark, none = log.publications.sparkSession, Components([], groups=groups)
    found = [
        {"group": group, "node": node, "seq": INT64_MIN, "kind": BEGUN, "at": begun.at, "name": send_file(spark, path)}
        for node, begun in log.begun.items()
        for group, path in write_group_states(begun, components.get(node, none), scratch()).items()
    ]
    return spark.createDataFrame(pa.Table.from_pylist(found, schema=EVENT), from_arrow_schema(EVENT))


def _published(publications: LogRows, shipped: Shipped, seen: Seen) -> DataFrame:
    """Return the publications that matched, as events, once for each group that the matchers know."""
    columns = dict.fromkeys([*shipped.columns, *PUBLISHED_COLUMNS])
    work = Matching(shipped, partial(published_events, seen=seen))
    return publications.select(*columns).mapInArrow(work, from_arrow_schema(EVENT))


def _other_events(
    log: LogTables, components: Mapping[str, Components], groups: int, policies: LogPolicies
) -> Iterator[DataFrame]:
    """Yield everything else that happened, as events with their groups."""
    tables = {"interests": log.interests, "sessions": log.sessions, "receipts": log.receipts, "presence": log.presence}
    others = {"policies": log.policies, "decisions": log.decisions}
    others |= {"reports": log.reports} if policies.are_any else {}  # no other events depend on them
    tables |= {name: table for name, table in others.items() if table is not None}
    for name, table in tables.items():
        work = partial(_told, name, components=dict(components), groups=groups)
        yield table.select(*EVENT_TABLES[name]).mapInArrow(work, from_arrow_schema(EVENT))


def _told(name: str, batches: Iterable[Any], *, components: Mapping[str, Components], groups: int) -> Iterator[Any]:
    return _with_group((other_events(name, batch) for batch in batches), components=components, groups=groups)


def _with_group(batches: Iterable[Any], *, components: Mapping[str, Components], groups: int) -> Iterator[Any]:
    """Give each row its group; a device that is in no session belongs to none, a policy that is put to all."""
    no_sessions = Components([], groups=groups)
    for batch in batches:
        rows = zip(*(batch.column(name).to_pylist() for name in ("node", "session", "device", "kind")), strict=True)
        numbers: list[int | None] = []
        places: list[int] = []
        for place, (node, session, device, kind) in enumerate(rows):
            is_for_all = kind == POLICY and device is None
            found = range(groups) if is_for_all else [_group(components.get(node, no_sessions), session, device)]
            numbers += found
            places += [place] * len(found)
        columns = [pa.array(numbers, pa.int32()), *(batch.take(pa.array(places, pa.int64())).columns[1:])]
        made = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        yield made.filter(made.column("group").is_valid())


def _group(components: Components, session: str | None, device: str | None) -> int | None:
    if session is not None:
        return components.group(session)
    return None if device is None else components.group_of_device(device)
