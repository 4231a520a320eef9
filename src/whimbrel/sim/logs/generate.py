"""Generate a log of any size from a seed, on Spark.

Rule: the same seed and numbers give the same log on every cluster. A row depends on its number (``draws``), a file on
its chunk, whose size is fixed; partitions only decide which worker writes which chunk.
Rule: each seq from 1 to N occurs exactly once per node, and times never decrease.

The driver makes the facts that are few and depend on each other (``histories``), and tells the workers which seqs they
use. A worker makes the publications and reports of a chunk, in whole columns, and writes the Parquet parts itself,
under the names of the log's layout. Spark gets back one row per part. All workers must therefore see the same
directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from whimbrel.errors import InvalidValueError
from whimbrel.log.files import make_folder
from whimbrel.log.layout import create, date_of, nodes, part_path, segments_folder, set_exported_seq
from whimbrel.model.bounds import INT64_MAX, whole
from whimbrel.model.notification import NotificationId
from whimbrel.model.tables import DISPLAY_TYPE, KEYS_TYPE, PLACE_TYPE
from whimbrel.sim.logs.draws import Draws, Flags, Integers, Reals
from whimbrel.sim.logs.histories import Calendar, Crowd, History, crowd, history, table_of
from whimbrel.sim.logs.made_attributes import attributes_column, bodies_column
from whimbrel.sim.logs.worlds import WORLDS, Rows, World

__all__ = ["CHUNK_ROWS", "MONDAY", "Recipe", "generate"]

ArrowTable: TypeAlias = Any
"""A ``pyarrow.Table``; pyarrow ships no types."""

MONDAY = 1_767_571_200_000_000
"""2026-01-05 00:00 UTC: a generated log needs no real date, and must not depend on today's."""
CHUNK_ROWS = 100_000
_WRITTEN = pa.schema([("table", pa.string()), ("rows", pa.int64())])
_DISPLAYS = np.array([(1_170, 2_532), (2_560, 1_440), (1_620, 2_160), (396, 484)])
"""Width and height of the screen of each of ``KINDS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The parameters of a log; equal recipes give equal logs."""

    world: str
    events: int
    seed: int = 1
    devices: int | None = None
    """Number of devices on all nodes together; None: the world's usual number."""
    nodes: Sequence[str] = ("node-1",)
    start: int = MONDAY
    hours: int = 24

    def __post_init__(self) -> None:
        if self.world not in WORLDS:
            raise InvalidValueError("world", self.world, ", ".join(WORLDS))
        if not self.nodes or len(set(self.nodes)) < len(self.nodes):
            raise InvalidValueError("nodes", list(self.nodes), "one name or more, each once")
        for node in self.nodes:
            NotificationId(node, 0)
        whole("events", self.events, 100 * len(self.nodes), INT64_MAX)
        whole("hours", self.hours, 1, 24 * 3_660)
        if self.devices is not None:
            whole("devices", self.devices, len(self.nodes), 10_000_000)

    def shares(self, whole: int) -> list[int]:
        """Divide *whole* evenly among the nodes."""
        count = len(self.nodes)
        return [whole // count + (place < whole % count) for place in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeDay:
    """Everything that a worker needs to know about a node; every worker gets a copy."""

    node: str
    world: World
    people: Crowd
    calendar: Calendar
    history: History


@dataclass(frozen=True, slots=True)
class _Chunk:
    place: int
    """Index of the node."""
    first: int
    last: int


def generate(spark: SparkSession, recipe: Recipe, out: Path, *, partitions: int | None = None) -> dict[str, int]:
    """Write the log of *recipe* to *out*, which must not hold a log yet; return the rows per table."""
    if nodes(out):
        raise InvalidValueError("directory for a new log", str(out), "one that holds no log yet")
    out = out.absolute()  # workers have another working directory
    days = _days(recipe)
    create(out, has_receipts=False)
    counts: dict[str, int] = {}
    for day in days:
        for name, table in day.history.tables.items():
            counts[name] = counts.get(name, 0) + _write(out, name, day.node, table)
    chunks = [
        _Chunk(place, first, min(first + CHUNK_ROWS, day.calendar.events + 1) - 1)
        for place, day in enumerate(days)
        for first in range(1, day.calendar.events + 1, CHUNK_ROWS)
    ]

    def make(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                made = _make_tables(days[chunks[number].place], chunks[number])
                rows = {name: _write(out, name, days[chunks[number].place].node, table) for name, table in made.items()}
                yield pa.RecordBatch.from_pydict({"table": list(rows), "rows": list(rows.values())}, schema=_WRITTEN)

    numbers = spark.range(0, len(chunks), numPartitions=partitions or len(chunks))
    for row in numbers.mapInArrow(make, "table string, rows bigint").groupBy("table").sum("rows").collect():
        counts[row[0]] = row[1]
    for day in days:
        # As if a node had written and exported all of it: a broker with this node name goes on with the next seq.
        make_folder(segments_folder(out, day.node))
        set_exported_seq(out, day.node, day.calendar.events)
    return dict(sorted(counts.items()))


def _days(recipe: Recipe) -> list[_NodeDay]:
    days = []
    world = WORLDS[recipe.world]
    devices = recipe.shares(recipe.devices or _usual(world, recipe))
    for place, (node, events) in enumerate(zip(recipe.nodes, recipe.shares(recipe.events), strict=True)):
        draws = Draws((recipe.world, recipe.seed, node))
        people = crowd(world, draws, devices[place], place=place, nodes=len(recipe.nodes))
        calendar = Calendar(start=recipe.start, hours=recipe.hours, events=events, rhythm=world.rhythm, draws=draws)
        made = history(world, people, calendar, node=node)
        days.append(_NodeDay(node=node, world=world, people=people, calendar=calendar, history=made))
    return days


def _usual(world: World, recipe: Recipe) -> int:
    """Return the default number of devices: the world's own, or fewer in a small log."""
    return max(1, min(world.devices, recipe.events // len(recipe.nodes) // 40)) * len(recipe.nodes)


# -- a chunk ---------------------------------------------------------------------------------------------------------


def _make_tables(day: _NodeDay, chunk: _Chunk) -> dict[str, ArrowTable]:
    """Return the publications and reports of *chunk*: all of its seqs that no history uses."""
    low, high = np.searchsorted(day.history.seq, [chunk.first, chunk.last + 1])
    seq = np.setdiff1d(np.arange(chunk.first, chunk.last + 1), day.history.seq[low:high], assume_unique=True)
    rows = Rows(seq=seq, at=day.calendar.at(seq), draws=day.calendar.draws)
    device = rows.below(len(day.people.devices), "reporter")
    # Only a connected device can report; the seq of another device becomes one more publication.
    reports = rows.chance(day.world.reports, "report") & day.history.is_connected(device, seq)
    return {
        "publications": _publications(day, _some(rows, ~reports)),
        "reports": _reports(day, _some(rows, reports), device[reports]),
    }


def _some(rows: Rows, chosen: Flags) -> Rows:
    return Rows(seq=rows.seq[chosen], at=rows.at[chosen], draws=rows.draws)


def _publications(day: _NodeDay, rows: Rows) -> ArrowTable:
    found = day.world.happen(rows, len(day.people.devices))
    count = len(rows.seq)
    columns = {
        "node": pa.repeat(day.node, count),
        "seq": rows.seq,
        "published_at": rows.at,
        "publisher": found.publisher,
        "subject": found.subject,
        "attributes": attributes_column(found.attributes),
        "body": bodies_column(found.attributes),
        "qos": pa.array(found.qos),
        "retain": pa.array(found.retain),
        "place": None if found.places is None else _places(*found.places),
        "radius_m": None if found.radius_m is None else pa.array(found.radius_m, mask=np.isnan(found.radius_m)),
        "expires_at": _times(rows.at, found.lives_us),
        "deadline_at": _times(rows.at, found.deadline_us),
        "keys": pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], KEYS_TYPE.value_type)),
        "deliver_insecure": pa.repeat(True, count),
    }
    return table_of("publications", columns)


def _reports(day: _NodeDay, rows: Rows, device: Integers) -> ArrowTable:
    kind, count = day.people.kind[device], len(device)
    sent = rows.below(60, "sent")
    lost = (sent * rows.uniform("lost") ** 4).astype(np.int64)
    battery = 0.05 + 0.95 * rows.drift(device, 5 * 3_600_000_000, "device battery")
    width, height = (pa.array(_DISPLAYS[kind, side], pa.int32()) for side in range(2))
    places = day.world.places(rows.draws, device, rows.at, len(day.people.devices))
    columns = {
        "node": pa.repeat(day.node, count),
        "seq": rows.seq,
        "reported_at": rows.at,
        "device": pa.array(day.people.devices).take(pa.array(device)),
        "battery": pa.array(np.round(battery, 2)),
        "display": pa.StructArray.from_arrays([width, height], fields=list(DISPLAY_TYPE)),
        "received": sent - lost,
        "sent": sent,
        "place": None if places is None else _places(*places),
    }
    return table_of("reports", columns)


def _times(at: Integers, later_us: Integers) -> Any:  # a pyarrow.Array
    return pa.array(at + later_us, mask=later_us < 0)


def _places(latitude: Reals, longitude: Reals) -> Any:  # a pyarrow.Array
    degrees = [pa.array(np.round(each, 6)) for each in (latitude, longitude)]  # rounded to a decimetre
    return pa.StructArray.from_arrays(degrees, fields=list(PLACE_TYPE))


# -- files -----------------------------------------------------------------------------------------------------------


def _write(out: Path, name: str, node: str, table: ArrowTable) -> int:
    """Write *table*, which is ordered by seq and so by time, as one part per day; return its number of rows."""
    days = pc.floor_temporal(table.column(2), unit="day").cast(pa.int64()).to_numpy()
    cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), table.num_rows]
    for begin, end in pairwise(cuts):
        if end > begin:
            seq = table.column("seq")
            day = date_of(int(days[begin]))
            first, last = seq[begin].as_py(), seq[end - 1].as_py()
            path = part_path(out, name, day=day, node=node, first=first, last=last)
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f"_{path.name}.{os.getpid()}")  # two attempts of a task must not write one file
            pq.write_table(table.slice(begin, end - begin), beside, compression="zstd")
            beside.replace(path)
    return int(table.num_rows)
