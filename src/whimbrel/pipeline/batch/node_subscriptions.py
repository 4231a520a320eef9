"""The first stage of a batch run, one task per node: what tasks need to know of the node's whole log before they match.

That is a packed matcher of the subscriptions, the shards of the sessions, whether there are policies, and for how long
each subscription was in force. The task reads the small tables of the log only; it reads the places of devices if a
subscription is around its devices, or a publication may be for an area.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbor2
import pyarrow as pa

from whimbrel.log.layout import parts, segments
from whimbrel.model.facts import PresenceChange
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.batch.event_files import NODE, EventFile, EventWriter
from whimbrel.pipeline.batch.job import BatchJob, NodeSpan
from whimbrel.pipeline.columnar.plain_sessions import SUBSCRIBED, PlainSessions, find_plain_sessions
from whimbrel.pipeline.files.part_rows import has_value
from whimbrel.pipeline.fold.events import Seen
from whimbrel.pipeline.fold.shards import LogPolicies, Shards, find_links
from whimbrel.pipeline.fold.start_state import StartState
from whimbrel.pipeline.subscriptions.matcher_files import Uses, matcher_files
from whimbrel.pipeline.subscriptions.moves import MEMBERS, SEEN, Moves
from whimbrel.pipeline.subscriptions.versions import CHANGED, DELETED, validity_intervals
from whimbrel.pipeline.tables.matches import pack
from whimbrel.pipeline.tables.popularity import INTERVAL
from whimbrel.pipeline.unit.made import WorkerOutput

__all__ = ["NodeSubscriptions", "pack_node", "read_moves", "read_plain_sessions", "read_shards"]

_COLUMNS: dict[str, tuple[str, ...] | None] = {
    "interests": (*CHANGED, "policy"),
    "sessions": None,
    "policies": ("text",),
    "presence": ("device", "session"),
    "receipts": ("seq",),
    "decisions": ("seq",),
}
"""Columns to read of each small table; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSubscriptions:
    """Result of the first stage for a node; the files are in the run's scratch folder."""

    path: str
    """Event file with the shards of sessions and devices, and the times in force of subscriptions."""
    matcher: str | None = None
    """File of the matcher; None if nothing is matched."""
    of: int = 1
    """Number of shards."""
    plain: int = 0
    """Number of the shards, the last ones, that have plain sessions."""
    seen: Seen = Seen.NOTHING
    """Content of publications that policies may read."""
    uses: Uses = Uses()  # noqa: RUF009  # immutable
    """Whether the matcher was found among this machine's files, or packed."""

    @property
    def has_policies(self) -> bool:
        """Whether the log has any policy."""
        return self.seen is not Seen.NOTHING

    def output(self, node: str) -> WorkerOutput:
        """Return this as a row for the driver."""
        values = (self.path, self.matcher, self.of, self.plain, self.seen.value, self.uses)
        return WorkerOutput("subscriptions", node, None, 0, cbor2.dumps(values))

    @classmethod
    def from_told(cls, told: bytes) -> NodeSubscriptions:
        """Decode the content of an ``output``."""
        path, matcher, of, plain, seen, uses = cbor2.loads(told)
        return cls(path=path, matcher=matcher, of=of, plain=plain, seen=Seen(seen), uses=Uses(*uses))


def pack_node(job: BatchJob, span: NodeSpan, *, of: int, matches: tuple[int, int] | None) -> Iterator[WorkerOutput]:
    """Read the subscriptions, sessions and policies of a node; yield one row (``NodeSubscriptions``) for the driver.

    *of* is the number of shards. *matches* are the first and last seq that will be matched, or None if none will be.
    """
    begun = job.start_state(span)
    may_be_plain = job.folds and job.is_columnar and job.plan.assume_receipts and begun is None
    wanted = ["interests", "sessions", *(["policies"] if job.folds else [])]
    wanted += ["presence"] if of > 1 or may_be_plain else []
    wanted += ["receipts", "decisions"] if may_be_plain else []  # a log whose receipts are assumed has none
    found = _read(job, span, _COLUMNS, wanted)
    changed, deleted = found["interests"].select(list(CHANGED)), found["sessions"].select(list(DELETED))
    if begun is not None:
        changed = pa.concat_tables([begun.interest_rows().select(list(CHANGED)).cast(changed.schema), changed])
    matcher, files = None, matcher_files()
    before = files.uses
    if matches is not None:
        moved = None
        if _needs_places(job, span, changed):
            moved = _read_places(job, span, begun)
        matcher = pack([(span.node, *matches)], changed, deleted, Path(job.scratch), files, moved=moved)[span.node]
    seen = Seen.NOTHING
    if job.folds:
        puts = [found["policies"], *([] if begun is None else [begun.policy_rows().select(["text"])])]
        seen = LogPolicies(pa.concat_tables([rows.cast(puts[0].schema) for rows in puts])).seen
        if seen is not Seen.NOTHING and job.plan.assume_receipts:
            seen = Seen.BODIES
    tables: dict[str, Any] = {}
    shards = Shards(1)
    if of > 1 or may_be_plain:
        devices, shares = find_links([found["presence"]], [found["sessions"]], [changed])
        if begun is not None:
            devices.update(begun.links())
        plain = PlainSessions()
        if may_be_plain and seen is Seen.NOTHING and not found["receipts"].num_rows + found["decisions"].num_rows:
            plain = find_plain_sessions(found["interests"].select(list(SUBSCRIBED)), devices)
        shards = Shards.compute(devices, shares, of=of, plain=plain.identities.keys())
        tables = {"sessions": _as_table(shards.sessions), "devices": _as_table(shards.devices)}
        tables["plain"] = plain.as_table()
    if job.counts:
        tables["intervals"] = validity_intervals(changed, deleted).select(INTERVAL.names)
    with EventWriter(Path(job.scratch)) as events:
        events.add(NODE, tables)
    known = NodeSubscriptions(
        path=str(events.path),
        matcher=matcher,
        of=shards.of,
        plain=shards.plain,
        seen=seen,
        uses=files.uses.since(before),
    )
    yield known.output(span.node)


def read_shards(known: NodeSubscriptions) -> Shards:
    """Return the shards of a node's sessions, as the first stage computed them."""
    if known.of == 1:
        return Shards(1)
    file = EventFile(Path(known.path))
    sessions, devices = (
        {key: shard for rows in file.tables(NODE, name) for key, shard in _pairs(rows)}
        for name in ("sessions", "devices")
    )
    return Shards(known.of, sessions, devices, known.plain)


def read_moves(known: NodeSubscriptions) -> Moves | None:
    """Return the places of devices before and within the span, if the first stage left them beside the matcher."""
    file = EventFile(Path(known.path))
    tables = {name: list(file.tables(NODE, name)) for name in ("places", "members", "deleted")}
    if not tables["places"]:
        return None
    empty = (("members", "presence", MEMBERS), ("deleted", "sessions", DELETED))
    rest = [pa.concat_tables([_empty(table, columns), *tables[name]]) for name, table, columns in empty]
    moves = Moves()
    moves.take(pa.concat_tables(tables["places"]), *rest)
    return moves


def read_plain_sessions(known: NodeSubscriptions, shard: int) -> PlainSessions:
    """Return the plain sessions of a shard, as the first stage found them."""
    shards, file = read_shards(known), EventFile(Path(known.path))
    own = {session for session, number in shards.sessions.items() if number == shard}
    devices = [device for device, number in shards.devices.items() if number == shard]
    return PlainSessions.of_tables(file.tables(NODE, "plain"), own, devices)


def _pairs(rows: Any) -> Iterator[tuple[str, int]]:
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)


def _as_table(shards: Any) -> Any:  # a Mapping, a pyarrow.Table
    return pa.table({"name": pa.array(list(shards), pa.string()), "shard": pa.array(list(shards.values()), pa.int64())})


def _read(
    job: BatchJob, span: NodeSpan, columns: dict[str, tuple[str, ...] | None], tables: list[str]
) -> dict[str, Any]:
    """Read some *columns* (None: all) of small *tables* of a node's log; other tables in *columns* are empty."""
    found: dict[str, list[Any]] = {name: [_empty(name, columns[name])] for name in columns}
    for piece in job.reader(span.node, tables).pieces(span.first, span.last, now=0, missing=span.missing):
        for name in piece.tables:
            rows = piece.table(name, columns[name])
            if "place" in rows.column_names and name == "reports":
                rows = rows.filter(rows.column("place").is_valid())
            found[name].append(rows)
    return {name: pa.concat_tables(rows) for name, rows in found.items()}


def _empty(table: str, columns: tuple[str, ...] | None) -> Any:
    rows = TABLES[table].schema.empty_table()
    return rows if columns is None else rows.select(list(columns))


# -- places ------------------------------------------------------------------------------------------------------------


def _needs_places(job: BatchJob, span: NodeSpan, changed: Any) -> bool:
    """Return whether the places of devices may decide about a match."""
    if changed.column("around_m").null_count < changed.num_rows:
        return True
    log = Path(job.log)
    if any(first <= span.last for first, _ in segments(log, span.node)):
        return True
    return any(has_value(part.path, "radius_m") for part in parts(log, "publications", span.node))


def _read_places(job: BatchJob, span: NodeSpan, begun: StartState | None) -> tuple[Any, Any]:
    """Return the places of devices and the memberships in sessions; first those of the checkpoint of a cut log."""
    found = _read(job, span, {"reports": SEEN, "presence": MEMBERS}, ["reports", "presence"])
    seen, members = found["reports"], found["presence"]
    if begun is None:
        return seen, members
    node = span.node
    places = [
        {
            "node": node,
            "seq": seen.seq,
            "reported_at": seen.reported_at,
            "device": device,
            "place": {"latitude": seen.place.latitude, "longitude": seen.place.longitude},
        }
        for device, seen in begun.places().items()
    ]
    joined = PresenceChange.JOINED.value
    pairs = [
        {"node": node, "seq": 0, "device": device, "session": session, "change": joined}
        for device, session in begun.members()
    ]
    earlier = (pa.Table.from_pylist(rows, schema=table.schema) for rows, table in ((places, seen), (pairs, members)))
    return pa.concat_tables([next(earlier), seen]), pa.concat_tables([next(earlier), members])
