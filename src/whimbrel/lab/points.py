"""Points of a Campus++ sweep: one simulation and one Spark task each, kept in a table and never measured twice.

Rule: a point's key is a hash of everything that decides its result: its settings, its seed, the contents of its trace,
and the source of the simulator. A key that is in the table is not measured again.
Rule: a worker makes the contacts of a seed once and replays them for every configuration.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.lab.spark_sweep import Row, sweep_table
from whimbrel.sim.campus.scenario import Campus
from whimbrel.sim.contacts.synthetic import exponential_contacts
from whimbrel.sim.contacts.table import Contacts
from whimbrel.sim.mobility.waypoint import RandomWaypoint
from whimbrel.sim.worlds import WalkedWorld, make_contacts

if TYPE_CHECKING:  # the caller has the Spark session
    from pyspark.sql import SparkSession

__all__ = ["Place", "Point", "Row", "measure", "sweep"]

_SOURCES = ("whimbrel.carry", "whimbrel.sim")
_FORMULA = "replicas.py"

_SETTINGS = (
    "topics int, memory int, workload double, zipf_exponent double, allocation string, exponent double, "
    "subscribers double, interval_s double, hello_s double, transfer_s double, shows_retrieved boolean, warmup_s double"
)
_FIGURES = (
    "created bigint, delivered bigint, delivery_prob double, delay_mean_s double, delay_p50_s double, "
    "delay_p95_s double, never_retrieved bigint, spray_time_s double, spray_finished double, memory_used double, "
    "replicas_planned double, replicas_seen double, messages_sent bigint, hellos_sent bigint, copies_lost bigint, "
    "copies_replaced bigint"
)
SCHEMA = f"key string, place string, seed int, {_SETTINGS}, {_FIGURES}, core_s double"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The source of contacts: the paper's world, a trace (name and digest of its contents), or random meetings."""

    seconds: float = 500_000.0
    range_m: float = 50.0
    waypoint: RandomWaypoint = field(default_factory=RandomWaypoint)
    trace: str | None = None
    digest: str | None = None
    meeting_s: float | None = None
    """Mean of the exponential time until two nodes meet for an instant, without positions; None: not this source."""

    def contacts(self, seed: int) -> Contacts:
        """Make the contacts of *seed*; a trace has the same contacts for every seed."""
        if self.meeting_s is not None:
            nodes = self.waypoint.nodes
            return exponential_contacts(nodes=nodes, meeting_s=self.meeting_s, seconds=self.seconds, seed=seed)
        if self.trace is None:
            world = WalkedWorld(waypoint=self.waypoint, range_m=self.range_m, seconds=self.seconds, seed=seed)
            return make_contacts(world)[0]
        path = Path(self.trace)
        if not path.is_absolute():  # sent to the workers of a cluster
            from pyspark import SparkFiles

            path = Path(SparkFiles.get(self.trace))
        return make_contacts(path)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One simulation."""

    campus: Campus
    seed: int
    place: Place = field(default_factory=Place)

    @property
    def text(self) -> str:
        """Everything that decides its result, except the source."""
        told = asdict(self)
        if self.place.digest is not None:
            del told["place"]["trace"]  # the path does not matter, only the contents
        return json.dumps(told, sort_keys=True)

    @property
    def key(self) -> str:
        """Name of its result."""
        return sha256((_source_digest() + self.text).encode()).hexdigest()[:32]


def measure(point: Point) -> Row:
    """Simulate one point; return its row."""
    from whimbrel.sim.campus.fast import simulate
    from whimbrel.sim.campus.report import campus_report

    begun = time.process_time()
    contacts = _contacts(point.place, 0 if point.place.trace is not None else point.seed)
    world = point.campus.world(nodes=contacts.nodes, seconds=contacts.seconds, seed=point.seed)
    report = campus_report(simulate(contacts, point.campus, world), point.campus, world)
    settings = asdict(point.campus) | {"warmup_s": point.campus.measured_from_s}
    place = json.dumps(asdict(point.place), sort_keys=True)
    core_s = time.process_time() - begun
    return {"key": point.key, "place": place, "seed": point.seed, **settings, **report, "core_s": core_s}


def sweep(
    spark: SparkSession, points: Sequence[Point], folder: Path, *, on_progress: Callable[[int, int], None] | None = None
) -> list[Row]:
    """Measure the missing *points* in the table below *folder*; return the rows of all, in their order."""
    ordered = sorted(points, key=lambda point: point.seed)  # so that each worker needs the contacts of few seeds
    rows = sweep_table(spark, ordered, folder / "points", schema=SCHEMA, measure=measure, on_progress=on_progress)
    known = {row["key"]: row for row in rows}
    return [known[point.key] for point in points]


@lru_cache(maxsize=2)
def _contacts(place: Place, seed: int) -> Contacts:
    return place.contacts(seed)


@cache
def _source_digest() -> str:
    digest = sha256((files("whimbrel.model") / _FORMULA).read_bytes())
    for package in _SOURCES:
        for name, module in sorted(_modules(files(package), package)):
            digest.update(name.encode() + b"\0" + sha256(module.read_bytes()).digest())
    return digest.hexdigest()


def _modules(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _modules(each, f"{name}.{each.name}")
        elif each.name.endswith(".py"):
            yield f"{name}.{each.name}", each
