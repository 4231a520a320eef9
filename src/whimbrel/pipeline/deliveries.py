"""``deliveries``: what became of each publication, for each session and device: matches and presence, folded.

Sessions that share a device, or divide work among them, go to one group (see ``components``); groups are spread over
partitions, each sorted by node and seq, and folded through the hold core one after the other. A worker sees its
partition as a stream of Arrow batches and keeps in memory only what is held in the group it is at.

Publications are matched on the way: a match travels as one row per publication and group, with the seqs of the
interests, not as a row of text for each. Interests travel too, so the fold knows whose they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.pandas.types import from_arrow_schema

from whimbrel.hold.commands import Identity, Settle
from whimbrel.hold.folding import Folding, Settled
from whimbrel.hold.private import SHARE, is_shared
from whimbrel.hold.quality import CONFIRMED
from whimbrel.hold.retention import DEFAULT_RETENTION, Retention
from whimbrel.model.facts import (
    Fact,
    InterestChanged,
    Mode,
    Outcome,
    PresenceChange,
    PresenceChanged,
    SessionChange,
    SessionChanged,
)
from whimbrel.model.subscription import InterestChange, Subscription
from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.pipeline.components import Components
from whimbrel.pipeline.matches import Matching, ship
from whimbrel.pipeline.schemas import SCHEMAS
from whimbrel.pipeline.versions import PackedVersions

__all__ = ["LogTables", "deliveries"]

_GROUPS_PER_CORE = 4
"""Groups that are folded on their own: a few for each core, so that none waits long for the last, and no more, because
a publication travels once to every group that wants it."""

_MOVES = [PresenceChange.JOINED.value, PresenceChange.LEFT.value, PresenceChange.DISCONNECTED.value]
"""What devices do that changes who is owed what."""

_PUBLISHED, _INTEREST, _PRESENCE, _SESSION, _RECEIPT = range(5)

_EVENT = pa.schema(
    [
        pa.field("group", pa.int32(), nullable=False),
        pa.field("node", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("at", TIME_TYPE, nullable=False),
        pa.field("expires_at", TIME_TYPE),
        pa.field("interests", pa.list_(pa.int64())),
        pa.field("body_hash", pa.binary()),
        pa.field("session", pa.string()),
        pa.field("device", pa.string()),
        pa.field("change", pa.string()),
        pa.field("subject_filter", pa.string()),
        pa.field("name", pa.string()),
        pa.field("ttl_us", pa.int64()),
        pa.field("max_held", pa.int32()),
        pa.field("notification_seq", pa.int64()),
        pa.field("qos", pa.int8()),
        pa.field("no_local", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class LogTables:
    """The tables of a log that decide who gets what."""

    publications: DataFrame
    interests: DataFrame
    presence: DataFrame
    sessions: DataFrame
    receipts: DataFrame
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
        groups = _GROUPS_PER_CORE * log.publications.sparkSession.sparkContext.defaultParallelism
    components = _components(log, groups)
    events = _events(log, components, groups)
    ends = {row["node"]: row["last"] for row in _last_times(log)}
    fold = partial(_fold, ends=ends, retention=retention, assume_receipts=assume_receipts)
    ordered = events.repartitionById(groups, F.col("group")).sortWithinPartitions("group", "node", "seq")
    return ordered.mapInArrow(fold, SCHEMAS["deliveries"])


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


def _last_times(log: LogTables) -> list[Any]:
    """Return for each node the time of its last fact, in microseconds."""
    times = [(log.numbered, "published_at"), (log.interests, "changed_at"), (log.presence, "changed_at")]
    times += [(log.sessions, "changed_at"), (log.receipts, "handed_at")]
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

    schema = from_arrow_schema(_EVENT)
    shipped = ship(log.numbered, log.interests, log.sessions, groups=numbers)
    # Where MQTT has no say they make no difference, and stay at home.
    of_mqtt = ("qos", F.col("publisher").alias("device")) if shipped.has_mqtt else ()
    body_hash = F.unhex(F.sha2("body", 256)).alias("body_hash")
    wanted = log.publications.select(*shipped.columns, "expires_at", body_hash, *of_mqtt)
    published = wanted.mapInArrow(Matching(shipped, _grouped), schema)
    grouping = partial(_with_group, components=dict(components), groups=groups)
    interest = "session change subject_filter name ttl_us max_held qos no_local"
    presence = log.presence.where(F.col("change").isin(*_MOVES))
    others = [
        _event(log.interests, _INTEREST, "changed_at", interest),
        _event(presence, _PRESENCE, "changed_at", "session device change", receipt="name", sent_seq="notification_seq"),
        _event(log.sessions, _SESSION, "changed_at", "session change"),
        _event(log.receipts, _RECEIPT, "handed_at", "session device notification_seq", outcome="change"),
    ]
    everything = published
    for other in others:
        everything = everything.unionByName(other.mapInArrow(grouping, schema))
    return everything


def _event(table: DataFrame, kind: int, at: str, columns: str, **renamed: str) -> DataFrame:
    """Return the rows of a table as events, but for their group."""
    taken = {name: F.col(name) for name in columns.split()}
    taken |= {new: F.col(old) for old, new in renamed.items()}
    taken |= {"node": F.col("node"), "seq": F.col("seq"), "at": F.col(at), "kind": F.lit(kind).cast("tinyint")}
    schema = from_arrow_schema(_EVENT)
    return table.select(*(_taken(taken, field).alias(field.name) for field in schema))


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
        "kind": pa.array(np.full(count, _PUBLISHED, np.int8)),
        "at": batch.column("published_at").take(some),
        "interests": interests,
        **{name: batch.column(name).take(some) for name in _CARRIED if name in batch.schema.names},
    }
    columns = [given[f.name].cast(f.type) if f.name in given else pa.nulls(count, f.type) for f in _EVENT]
    yield pa.RecordBatch.from_arrays(columns, schema=_EVENT)


_CARRIED = ("node", "seq", "expires_at", "body_hash", "qos", "device")
"""Columns of a publication that the fold is given."""


class _Event(NamedTuple):
    """One event, but for its group and node; times in microseconds."""

    seq: int
    kind: int
    at: int
    expires_at: int | None
    interests: Any
    body_hash: Any
    session: Any
    device: Any
    change: Any
    subject_filter: Any
    name: Any
    ttl_us: Any
    max_held: Any
    notification_seq: Any
    qos: Any
    no_local: Any


def _fact(node: str, event: _Event) -> Fact:
    """Return an event that is no publication and no receipt as the fact it was."""
    number: dict[str, Any] = {"node": node, "seq": event.seq, "changed_at": event.at}
    if event.kind == _PRESENCE:
        mode = None if event.name is None else Mode(event.name)
        change = PresenceChange(event.change)
        return PresenceChanged(
            **number,
            device=event.device,
            session=event.session,
            change=change,
            receipt=mode,
            sent_seq=event.notification_seq,
        )
    if event.kind == _INTEREST:
        subscription = Subscription(
            session=event.session,
            subject_filter=event.subject_filter,
            name=event.name,
            ttl_us=event.ttl_us,
            max_held=event.max_held,
            qos=event.qos,
            no_local=bool(event.no_local),
        )
        return InterestChanged(**number, change=InterestChange(event.change), subscription=subscription)
    return SessionChanged(**number, session=event.session, change=SessionChange(event.change))


# -- the fold ----------------------------------------------------------------------------------------------------------


class _Group:
    """One group of sessions of one node, folded."""

    def __init__(self, node: str, *, retention: Retention, assume_receipts: bool) -> None:
        self.node = node
        self._folding = Folding(node, retention=retention, assume_receipts=assume_receipts)
        self._whose: dict[int, tuple[str, Identity]] = {}
        """By seq of the interest: its session and identity."""
        self._hashes: dict[int, bytes] = {}

    def take(self, event: _Event, out: _Rows) -> None:
        """Take the next event in."""
        folding = self._folding
        if event.kind == _PUBLISHED:
            self._hashes[event.seq] = event.body_hash
            matches: dict[str, list[Identity]] = {}
            for interest in event.interests:
                session, identity = self._whose[interest]
                matches.setdefault(session, []).append(identity)
            wanted = [(session, tuple(identities)) for session, identities in matches.items()]
            qos = CONFIRMED if event.qos is None else event.qos
            settled = folding.published(event.seq, event.at, event.expires_at, wanted, qos=qos, publisher=event.device)
        elif event.kind == _RECEIPT:
            outcome = Outcome(event.change)
            settled = folding.confirmed(event.at, event.session, event.device, event.notification_seq, outcome)
        else:
            if event.kind == _INTEREST:
                self._whose[event.seq] = (event.session, (event.subject_filter, event.name))
            settled = folding.apply(_fact(self.node, event))
        self._write(settled, out)
        if event.kind == _PUBLISHED and not folding.hold.is_stored(event.seq):
            self._hashes.pop(event.seq, None)

    def close(self, end: int, out: _Rows) -> None:
        """Let time pass to the end of the log: what has lapsed by then has its outcome."""
        self._write(self._folding.tick(end), out)

    def _write(self, settled: Settled, out: _Rows) -> None:
        outcomes, forgotten = settled
        for each in outcomes:
            out.add(self.node, each, self._hashes[each.seq] if each.outcome is Outcome.DELIVERED else None)
        for seq in forgotten:
            self._hashes.pop(seq, None)


_MOST = 50_000


class _Rows:
    """Rows of ``deliveries`` on their way to Arrow."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._identities: list[int] = []
        self._offsets: list[int] = [0]
        self._known: dict[Identity, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, node: str, settled: Settle, body_hash: bytes | None) -> None:
        """Add what was settled."""
        session, device, seq, subscriptions, outcome, decided_at, lapses_at = settled
        for identity in subscriptions:
            self._identities.append(self._known.setdefault(identity, len(self._known)))
        self._offsets.append(len(self._identities))
        self._rows.append((node, seq, session, device, outcome.value, body_hash, decided_at, lapses_at))

    def batch(self) -> Any:
        """Return what there is as an Arrow batch, and begin anew."""
        schema = TABLES["deliveries"].schema
        known = list(self._known)
        structs = pa.StructArray.from_arrays(
            [pa.array([s for s, _ in known], pa.string()), pa.array([n for _, n in known], pa.string())],
            fields=list(schema.field("subscriptions").type.value_type),
        )
        taken = structs.take(pa.array(self._identities, pa.int32()))
        given: dict[str, Any] = dict(zip(_SETTLED, zip(*self._rows, strict=True), strict=True))
        given["subscriptions"] = pa.ListArray.from_arrays(pa.array(self._offsets, pa.int32()), taken)
        columns = [
            given[f.name].cast(f.type) if f.name == "subscriptions" else pa.array(given[f.name], f.type) for f in schema
        ]
        self._rows, self._identities, self._offsets, self._known = [], [], [0], {}
        return pa.RecordBatch.from_arrays(columns, schema=schema)


_SETTLED = "notification_node notification_seq session device outcome body_hash decided_at lapses_at".split()


def _fold(
    batches: Iterable[Any], *, ends: Mapping[str, int], retention: Retention, assume_receipts: bool
) -> Iterator[Any]:
    """Fold one partition, sorted by group, node and seq."""
    out = _Rows()
    group: _Group | None = None
    at: tuple[int, str] | None = None
    for batch in batches:
        columns = [_plain(batch.column(f.name)) for f in _EVENT]
        for number, node, *row in zip(*columns, strict=True):
            if at != (number, node):
                if group is not None:
                    group.close(ends[group.node], out)
                at = (number, node)
                group = _Group(node, retention=retention, assume_receipts=assume_receipts)
            assert group is not None
            group.take(_Event(*row), out)
            if len(out) >= _MOST:
                yield out.batch()
    if group is not None:
        group.close(ends[group.node], out)
    if len(out):
        yield out.batch()


def _plain(column: Any) -> list[Any]:
    """Return a column as Python values; Arrow's own way takes its time over nulls and lists."""
    count = len(column)
    if column.null_count == count:
        return [None] * count
    if pa.types.is_timestamp(column.type):
        column = column.cast(TIME_TYPE).cast(pa.int64())
    if pa.types.is_list(column.type):
        values, offsets = column.values.to_numpy().tolist(), column.offsets.to_numpy().tolist()
        return [values[begin:end] for begin, end in pairwise(offsets)]
    if column.null_count == 0 and pa.types.is_integer(column.type):
        numbers: list[Any] = column.to_numpy().tolist()
        return numbers
    found: list[Any] = column.to_pylist()
    return found
