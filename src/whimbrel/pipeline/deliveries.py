"""``deliveries``: what became of each publication, for each session and device: matches and presence, folded.

Sessions that share a device, or divide work among them, go to one group (see ``components``); groups are spread over
partitions, each sorted by node and seq, and folded through the hold core one after the other. A worker sees its
partition as a stream of Arrow batches and keeps in memory only what is held in the group it is at.

Publications are matched on the way: a match travels as one row per publication and group, with the seqs of the
interests, not as a row of text for each. Interests travel too, so the fold knows whose they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema

from whimbrel.hold.private import SHARE, is_shared
from whimbrel.hold.retention import DEFAULT_RETENTION, Retention
from whimbrel.model.facts import PresenceChange
from whimbrel.pipeline.components import Components
from whimbrel.pipeline.folds import EVENT, INTEREST, PRESENCE, PUBLISHED, RECEIPT, SESSION, fold
from whimbrel.pipeline.matches import Matching, Shipped, ship
from whimbrel.pipeline.schemas import SCHEMAS
from whimbrel.pipeline.sessions import parallelism
from whimbrel.pipeline.versions import PackedVersions

__all__ = ["EVENT_TABLES", "MOVES", "LogTables", "deliveries", "event_columns", "last_times", "published_events"]

_GROUPS_PER_CORE = 4
"""Groups that are folded on their own: a few for each core, so that none waits long for the last, and no more, because
a publication travels once to every group that wants it."""

Counting: TypeAlias = Callable[[Any], Iterable[Any]]
"""From a batch of publications, batches of events."""

MOVES = [
    PresenceChange.JOINED.value,
    PresenceChange.LEFT.value,
    PresenceChange.DISCONNECTED.value,
    PresenceChange.RECEIPTS.value,
]
"""What devices do that changes who is owed what."""


@dataclass(frozen=True)
class LogTables:
    """The tables of a log that decide who gets what."""

    publications: DataFrame
    interests: DataFrame
    presence: DataFrame
    sessions: DataFrame
    receipts: DataFrame
    reports: DataFrame | None = None
    """These decide nothing, but time passes with them as with every fact."""
    wills: DataFrame | None = None
    """Likewise."""
    numbers: DataFrame | None = None
    """At least node, seq and published_at of every publication, where these can be had at less cost."""

    @property
    def numbered(self) -> DataFrame:
        """The publications, for whoever looks only at their numbers and times."""
        return self.publications if self.numbers is None else self.numbers


def deliveries(
    log: LogTables,
    *,
    retention: Retention = DEFAULT_RETENTION,
    assume_receipts: bool | None = None,
    groups: int | None = None,
) -> DataFrame:
    """Return one row per notification, session and device whose outcome is known.

    Where devices do not confirm (a log that was imported or generated), what is handed over counts as received:
    *assume_receipts*, by default if the log has no receipts at all. What is still held at the end has no row.
    """
    if assume_receipts is None:
        assume_receipts = log.receipts.isEmpty()
    if groups is None:
        groups = _GROUPS_PER_CORE * parallelism(log.publications.sparkSession)
    components = _components(log, groups)
    events = _events(log, components, groups)
    ends = {row["node"]: row["last"] for row in last_times(log)}
    folding = partial(fold, ends=ends, retention=retention, assume_receipts=assume_receipts)
    ordered = events.repartitionById(groups, F.col("group")).sortWithinPartitions("group", "node", "seq")
    return ordered.mapInArrow(folding, SCHEMAS["deliveries"])


def _components(log: LogTables, groups: int) -> dict[str, Components]:
    joined = log.presence.where(F.col("session").isNotNull()).select("node", "device", "session")
    shared = log.interests.where(F.col("subject_filter").startswith(SHARE)).select("node", "subject_filter", "session")
    devices, shares = _pairs(joined.distinct()), _pairs(shared)
    for node, pairs in shares.items():
        shares[node] = [(share, session) for share, session in pairs if is_shared(share)]
    nodes = devices.keys() | shares.keys()
    return {node: Components(devices.get(node, ()), shares.get(node, ()), groups=groups) for node in nodes}


def _pairs(table: DataFrame) -> dict[str, list[tuple[str, str]]]:
    """Return for each node, the first column, the pairs of the others, sorted and each once."""
    pairs: dict[str, set[tuple[str, str]]] = {}
    for node, what, session in zip(*(column.to_pylist() for column in table.toArrow().columns), strict=True):
        pairs.setdefault(node, set()).add((what, session))
    return {node: sorted(found) for node, found in pairs.items()}


def last_times(log: LogTables) -> list[Any]:
    """Return for each node the time of its last fact, in microseconds."""
    times = [(log.numbered, "published_at"), (log.interests, "changed_at"), (log.presence, "changed_at")]
    times += [(log.sessions, "changed_at"), (log.receipts, "handed_at")]
    times += [] if log.reports is None else [(log.reports, "reported_at")]
    times += [] if log.wills is None else [(log.wills, "changed_at")]
    each = [table.groupBy("node").agg(F.max(F.unix_micros(name)).alias("last")) for table, name in times]
    everything = each[0]
    for other in each[1:]:
        everything = everything.unionByName(other)
    return everything.groupBy("node").agg(F.max("last").alias("last")).collect()


# -- events ------------------------------------------------------------------------------------------------------------


def _events(log: LogTables, components: Mapping[str, Components], groups: int) -> DataFrame:
    """Return everything the fold needs, with the group it belongs to."""

    def numbers(node: str, sessions: Any) -> Any:  # a pyarrow column in, a list out
        known = components.get(node) or Components([], groups=groups)
        return [known.group(session) for session in sessions.to_pylist()]

    schema = from_arrow_schema(EVENT)
    everything = published_events(log.publications, ship(log.numbered, log.interests, log.sessions, groups=numbers))
    grouping = partial(_with_group, components=dict(components), groups=groups)
    for other in _other_events(log):
        everything = everything.unionByName(other.mapInArrow(grouping, schema))
    return everything


def published_events(publications: DataFrame, shipped: Shipped, *, counting: Counting | None = None) -> DataFrame:
    """Return publications that somebody wants, as events, once for each group that the matchers know.

    *counting* sees every batch of publications on its way, wanted or not, and may add events of its own.
    """
    # Where MQTT has no say they make no difference, and stay at home.
    of_mqtt = ("qos", F.col("publisher").alias("device")) if shipped.has_mqtt else ()
    body_hash = F.unhex(F.sha2("body", 256)).alias("body_hash")
    # What it was is told of everything that was delivered, whether or not it decides who wants it.
    told = [name for name in ("expires_at", "deadline_at", "subject") if name not in shipped.columns]
    wanted = publications.select(*shipped.columns, *told, body_hash, *of_mqtt)
    matching = Matching(shipped, _grouped)
    work = matching if counting is None else partial(_counted, matching, counting)
    return wanted.mapInArrow(work, from_arrow_schema(EVENT))


def _counted(matching: Matching, counting: Counting, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield from counting(batch)
        yield from matching([batch])


class _Told(NamedTuple):
    """How the rows of a table are told as events."""

    kind: int
    at: str
    columns: str
    """Those that an event has too,"""
    renamed: Mapping[str, str] = {}
    """and those that it has under another name."""


_TOLD = {
    "interests": _Told(INTEREST, "changed_at", "session change subject_filter name ttl_us max_held qos no_local"),
    "presence": _Told(
        PRESENCE, "changed_at", "session device change confirms", {"receipt": "name", "sent_seq": "notification_seq"}
    ),
    "sessions": _Told(SESSION, "changed_at", "session change"),
    "receipts": _Told(
        RECEIPT,
        "handed_at",
        "session device notification_seq via published_at subject body_hash",
        {"outcome": "change", "subscriptions": "subscriptions"},
    ),
}
EVENT_TABLES = tuple(_TOLD)
"""The tables whose rows are events, beside publications."""


def event_columns(name: str) -> list[Column]:
    """Return what makes events, of no group, of the rows of a table."""
    told = _TOLD[name]
    taken = {each: F.col(each) for each in told.columns.split()}
    taken |= {new: F.col(old) for old, new in told.renamed.items()}
    taken |= {"node": F.col("node"), "seq": F.col("seq"), "at": F.col(told.at)}
    taken |= {"kind": F.lit(told.kind).cast("tinyint")}
    return [_taken(taken, field).alias(field.name) for field in from_arrow_schema(EVENT)]


def _other_events(log: LogTables) -> Iterator[DataFrame]:
    """Yield everything else that happened, as events of no group."""
    tables = {"interests": log.interests, "sessions": log.sessions, "receipts": log.receipts}
    tables["presence"] = log.presence.where(F.col("change").isin(*MOVES))
    for name in EVENT_TABLES:
        yield tables[name].select(*event_columns(name))


def _taken(taken: Mapping[str, Column], field: Any) -> Column:  # a StructField
    if field.name == "group":
        return F.lit(0)
    return taken[field.name] if field.name in taken else F.lit(None).cast(field.dataType)


def _with_group(batches: Iterable[Any], *, components: Mapping[str, Components], groups: int) -> Iterator[Any]:
    """Give each row its group; a device that is in no session is nobody's affair."""
    nobody = Components([], groups=groups)
    for batch in batches:
        rows = zip(*(batch.column(name).to_pylist() for name in ("node", "session", "device")), strict=True)
        numbers = [_group(components.get(node, nobody), session, device) for node, session, device in rows]
        columns = [pa.array(numbers, pa.int32()), *batch.columns[1:]]
        made = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        yield made.filter(made.column("group").is_valid())


def _group(components: Components, session: str | None, device: str | None) -> int | None:
    if session is not None:
        return components.group(session)
    return None if device is None else components.group_of_device(device)


def _grouped(batch: Any, found: PackedVersions, rows: Any, handles: Any) -> Iterator[Any]:
    """Return one row per publication and group, with the seqs of the interests that want it."""
    groups = found.groups[handles]
    key = rows.astype(np.int64) << 32 | groups
    order = np.argsort(key, kind="stable")
    distinct, starts = np.unique(key[order], return_index=True)
    offsets = np.append(starts, rows.size).astype(np.int32)
    interests = pa.ListArray.from_arrays(pa.array(offsets), pa.array(found.begun[handles[order]]))
    some = pa.array(distinct >> 32)
    count = distinct.size
    given = {
        "group": pa.array((distinct & 0xFFFFFFFF).astype(np.int32)),
        "kind": pa.array(np.full(count, PUBLISHED, np.int8)),
        "at": batch.column("published_at").take(some),
        "interests": interests,
        **{name: batch.column(name).take(some) for name in _CARRIED if name in batch.schema.names},
    }
    columns = [given[f.name].cast(f.type) if f.name in given else pa.nulls(count, f.type) for f in EVENT]
    yield pa.RecordBatch.from_arrays(columns, schema=EVENT)


_CARRIED = ("node", "seq", "expires_at", "deadline_at", "subject", "body_hash", "qos", "device")
"""Columns of a publication that the fold is given."""
