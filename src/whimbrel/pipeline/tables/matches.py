"""``matches``: the subscriptions that match each publication, found by the packed matcher in Arrow workers.

The driver packs one matcher per node and batch, and sends it to the workers as a file. The workers of a machine
memory-map the file, so they share one copy. A worker matches a whole Arrow batch at a time; no row is handled in
Python.
"""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkFiles
from pyspark.sql.pandas.types import from_arrow_schema

from whimbrel.model.facts import PresenceChange
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.fold.start_state import StartState
from whimbrel.pipeline.spark.log_frames import LogRows, extents, may_have
from whimbrel.pipeline.spark.spark_session import send_file
from whimbrel.pipeline.subscriptions.moves import MEMBERS, SEEN, Moves
from whimbrel.pipeline.subscriptions.versions import (
    CHANGED,
    DELETED,
    LayerBase,
    PackedVersions,
    pack_versions,
    versions,
)

__all__ = [
    "Matching",
    "MovingRows",
    "Shipped",
    "match_rows",
    "matching",
    "pack",
    "scratch",
    "ship",
]

_ALWAYS = ("seq", "published_at", "attributes", "deliver_insecure")
_SOMETIMES = ("node", "subject", "keys", "place", "radius_m")
"""Columns that are sent to the workers only if matching needs them, because sending is most of the cost."""


class MovingRows(NamedTuple):
    """Tables of a log that determine where sessions are: places of devices, and memberships in sessions."""

    reports: LogRows
    presence: LogRows
    begun: Mapping[str, StartState] = MappingProxyType({})
    """Start state, per node whose log was cut."""


def matching(
    publications: LogRows,
    interests: LogRows,
    sessions: LogRows,
    *,
    numbers: LogRows | None = None,
    moving: MovingRows | None = None,
) -> tuple[LogRows, Matching]:
    """Return input rows, and the function that maps them to ``matches``: one row per publication and subscription.

    *numbers* has at least node and seq of every publication, if these can be read at less cost. *moving* has the rows
    that determine where sessions are; without it no session has a place.
    """
    shipped = ship(publications, interests, sessions, numbers=numbers, moving=moving)
    return publications.select(*shipped.columns), Matching(shipped, match_rows)


@dataclass(frozen=True, slots=True)
class Shipped:
    """Matchers that were sent to the workers, as files."""

    files: dict[str, str]
    """File of the matcher, per node."""
    columns: tuple[str, ...]
    """Columns of a publication that the matchers need."""
    has_mqtt: bool = False
    """Whether any subscription has a maximum QoS or ``no_local``."""

    @classmethod
    def together(cls, parts: Sequence[Shipped]) -> Shipped:
        """Combine the matchers of several nodes."""
        files = {node: file for part in parts for node, file in part.files.items()}
        needed = {name for part in parts for name in part.columns} | ({"node"} if len(files) > 1 else set())
        columns = (*_ALWAYS, *(name for name in _SOMETIMES if name in needed))
        return cls(files, columns, any(part.has_mqtt for part in parts))


def ship(
    publications: LogRows,
    interests: LogRows,
    sessions: LogRows,
    *,
    numbers: LogRows | None = None,
    moving: MovingRows | None = None,
) -> Shipped:
    """Pack a matcher for each node of *publications*, and send it to the workers.

    Only node, seq and time of the publications are read here, from *numbers* if given. The matchers include the tracks
    (places over time) of devices if a subscription is around its devices, or a publication may be for an area.
    """
    spark = publications.sparkSession
    found = extents([(publications if numbers is None else numbers, "published_at")])
    ranges = [(node, extent.first, extent.last) for node, extent in sorted(found.items())]
    changed = interests.select(*CHANGED).toArrow()
    deleted = sessions.select(*DELETED).toArrow()
    moved = None
    if moving is not None and (_has_around(changed) or may_have(publications, "radius_m")):
        moved = _collect_places(moving)
    return pack(ranges, changed, deleted, scratch(), partial(send_file, spark), moved=moved)


def _has_around(changed: Any) -> bool:
    return bool(changed.column("around_m").null_count < changed.num_rows)


_SEEN, _MEMBERS = (
    pa.schema([TABLES[table].schema.field(name) for name in columns])
    for table, columns in (("reports", SEEN), ("presence", MEMBERS))
)


def _collect_places(moving: MovingRows) -> tuple[Any, Any]:
    """Collect the places of devices and the memberships as Arrow tables; all other reports stay in the workers."""
    seen = moving.reports.select(*SEEN).mapInArrow(partial(_valid, "place"), from_arrow_schema(_SEEN))
    members = moving.presence.select(*MEMBERS).mapInArrow(partial(_valid, "session"), from_arrow_schema(_MEMBERS))
    return _with_begun(moving.begun, seen.toArrow(), members.toArrow())


def _with_begun(begun: Mapping[str, StartState], seen: Any, members: Any) -> tuple[Any, Any]:
    """Add the devices' places and memberships at the checkpoints *begun* to the rows of *seen* and *members*."""
    places = [
        {
            "node": node,
            "seq": seen.seq,
            "reported_at": seen.reported_at,
            "device": device,
            "place": {"latitude": seen.place.latitude, "longitude": seen.place.longitude},
        }
        for node, each in begun.items()
        for device, seen in each.places().items()
    ]
    joined = PresenceChange.JOINED.value
    pairs = [
        {"node": node, "seq": 0, "device": device, "session": session, "change": joined}
        for node, each in begun.items()
        for device, session in each.members()
    ]
    found = (
        pa.concat_tables([pa.Table.from_pylist(rows, schema=schema).cast(table.schema), table])
        for rows, schema, table in ((places, _SEEN, seen), (pairs, _MEMBERS, members))
    )
    return next(found), next(found)


def _valid(column: str, batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch.filter(batch.column(column).is_valid())


def pack(
    ranges: Iterable[tuple[str, int, int]],
    changed: Any,
    deleted: Any,
    folder: Path,
    send: Callable[[Path], str] = str,
    *,
    over: LayerBase | None = None,
    moved: tuple[Any, Any] | None = None,
) -> Shipped:
    """Pack a matcher into *folder* for each of *ranges* (node, first and last seq), and *send* it to the workers.

    *changed* and *deleted* are Arrow tables of ``interests`` and ``sessions``, the columns ``CHANGED`` and ``DELETED``.
    *moved* are tables of ``reports`` and ``presence``, the columns ``SEEN`` and ``MEMBERS``. A matcher of one node may
    lie *over* a larger matcher, which it updates, and which the workers find at the same path.
    """
    ranges = list(ranges)
    files: dict[str, str] = {}
    needed = {"node"} if len(ranges) > 1 else set()
    for node, first, last in ranges:
        deletions = _of_node(deleted, node)
        table = versions(_of_node(changed, node), deletions, first=first, last=last)
        moves = None
        if moved is not None:
            moves = Moves()
            moves.numbers(table.column("session").to_pylist())  # must come first: tracks have a row per session
            moves.take(_of_node(moved[0], node), _of_node(moved[1], node), deletions)
        path = folder / f"{uuid4().hex}.matcher"
        needed |= pack_versions(path, table, over=over, moves=moves)
        files[node] = send(path)
    columns = (*_ALWAYS, *(name for name in _SOMETIMES if name in needed))
    qos, no_local = changed.column("qos"), changed.column("no_local")
    return Shipped(files, columns, qos.null_count < len(qos) or bool(pc.any(no_local).as_py()))


def _of_node(table: Any, node: str) -> Any:
    return table.filter(pc.equal(table.column("node"), node))


@cache
def scratch() -> Path:
    """Return the folder of matchers, which stays until this process ends: Spark may fetch a file repeatedly."""
    directory = tempfile.TemporaryDirectory(prefix="whimbrel-matchers-")
    atexit.register(directory.cleanup)
    return Path(directory.name)


class Matching:
    """Function for workers: matches batches of publications, and makes rows of the matches with *shape*."""

    def __init__(self, shipped: Shipped, shape: Callable[[Any, PackedVersions, Any, Any], Any]) -> None:
        self._files, self._shape = shipped.files, shape

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Match each batch of publications, and yield the rows that ``shape`` makes of the matches."""
        for batch in batches:
            for node, part in self._by_node(batch):
                sent = self._files[node]
                found = PackedVersions.map(sent if sent.startswith("/") else SparkFiles.get(sent), node)
                rows, handles = found.match(part)
                if rows.size:
                    yield from self._shape(part, found, rows, handles)

    def _by_node(self, batch: Any) -> Iterator[tuple[str, Any]]:
        """Split a batch by node; most batches have only one."""
        if "node" not in batch.schema.names:
            (node,) = self._files
            yield node, batch.append_column("node", pa.repeat(node, batch.num_rows))
            return
        nodes = batch.column("node")
        for node in pc.unique(nodes).to_pylist():
            is_node = pc.equal(nodes, node)
            yield node, batch if is_node.true_count == batch.num_rows else batch.filter(is_node)


_MOST = 200_000
"""Most rows of an Arrow batch that is returned to Spark: one batch of publications may have very many matches."""


def match_rows(batch: Any, found: PackedVersions, rows: Any, handles: Any) -> Iterator[Any]:
    """Yield the matches in a batch of publications as rows of ``matches``."""
    schema = TABLES["matches"].schema
    for begin in range(0, rows.size, _MOST):
        some_rows, some_handles = pa.array(rows[begin : begin + _MOST]), pa.array(handles[begin : begin + _MOST])
        subscriptions = found.table.take(some_handles).combine_chunks()
        columns = [batch.column(name).take(some_rows) for name in ("node", "seq", "published_at")]
        columns += [_whole(subscriptions.column(name)) for name in ("session", "subject_filter", "name")]
        columns.append(_whole(subscriptions.column("interest_seq")))
        yield pa.RecordBatch.from_arrays([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _whole(column: Any) -> Any:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
