"""Plans: the options of the tables, for a batch run and for a stream.

Rule: a stream's plan determines the content of its tables. So it is written to a file when the stream is started first,
and a restart with another plan is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.hold.retention import DEFAULT_RETENTION, Retention
from whimbrel.log.files import put
from whimbrel.match.topics import check_topic_filter
from whimbrel.model.bounds import INT32_MAX, INT64_MAX, whole
from whimbrel.model.census import CensusTotals
from whimbrel.model.near import DEFAULT_STALE_US
from whimbrel.pipeline import TABLES_MADE
from whimbrel.pipeline.fold.contact_fold import RANGE_M, ContactPlan
from whimbrel.pipeline.tables.replicas import HORIZON_US, SAMPLE_BYTES

__all__ = ["FORMAT", "READABLE", "Plan", "StreamPlan", "settled_plan"]

FORMAT = 5
"""Format of a stream's plan and state: 3 and 4 put the state into Spark's checkpoint, 5 puts it into state objects."""
READABLE = frozenset({3, 4, FORMAT})
"""Formats of a stream's plan and state that this version can continue."""
_HOUR_US = 3_600 * 1_000_000


_UNITS_US = (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Options of the tables, for a batch run and for a stream."""

    retention: Retention = DEFAULT_RETENTION
    window_us: int = _HOUR_US
    """Length of the windows of ``popularity`` and ``latency``, in microseconds."""
    nodes: int = 100
    """For ``replicas``: number of devices that carry samples."""
    slots_per_node: int = 10
    """For ``replicas``: number of samples that each device can hold."""
    takes_census: bool = True
    """Whether the last census in the log, if there is one, replaces ``nodes`` and ``slots_per_node``."""
    sample_bytes: int = SAMPLE_BYTES
    """For ``replicas``: size of a sample, in bytes."""
    replicas_for: str = "#"
    """Topic filter of the subjects for which ``replicas`` plans."""
    horizon_us: int = HORIZON_US
    """Time without publications after which ``replicas`` drops a subject, in microseconds."""
    range_m: float = RANGE_M
    """For ``contacts``: distance in metres up to which two devices are in contact."""
    stale_us: int = DEFAULT_STALE_US
    """For ``contacts``: longest time for which a reported place is valid, in microseconds."""
    assume_receipts: bool | None = None
    """Whether each hand-over counts as received; None: as the log's format file says (for a broker's log: no)."""

    def __post_init__(self) -> None:
        whole("window_us", self.window_us, 1, INT64_MAX)
        whole("horizon_us", self.horizon_us, 1, INT64_MAX)
        for name in ("nodes", "slots_per_node", "sample_bytes"):
            whole(name, getattr(self, name), 1, INT32_MAX)
        check_topic_filter(self.replicas_for)
        ContactPlan(range_m=self.range_m, stale_us=self.stale_us)

    def for_census(self, census: CensusTotals | None) -> Self:
        """Return the plan with the *census*'s number of nodes and slots per node, unless options set these numbers."""
        if census is None or not self.takes_census or not census.slots_per_node:
            return self
        return replace(self, nodes=census.nodes, slots_per_node=census.slots_per_node)

    @property
    def contact(self) -> ContactPlan:
        """The options of ``contacts``: range, and age at which a position is stale."""
        return ContactPlan(range_m=self.range_m, stale_us=self.stale_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan(Plan):
    """Options of a stream; only ``facts_per_batch`` and ``keep_us`` may change when the stream is restarted."""

    tables: tuple[str, ...] = ()
    """Names of the tables; empty: those that the stream was started with, or all tables for a new stream."""
    lateness_us: int = 24 * _HOUR_US
    """Longest time for which windows wait for an idle node, in microseconds."""
    facts_per_batch: int = 200_000
    """Most facts of all nodes together in a batch."""
    keep_us: int | None = None
    """Age after which rows are removed, in microseconds; None: rows are never removed."""

    def __post_init__(self) -> None:
        Plan.__post_init__(self)
        unknown = [name for name in self.tables if name not in TABLES_MADE]
        if unknown:
            raise InvalidValueError("table", ", ".join(unknown), ", ".join(TABLES_MADE))
        whole("lateness_us", self.lateness_us, 0, INT64_MAX)
        whole("facts_per_batch", self.facts_per_batch, 1, INT64_MAX)
        if self.keep_us is not None:
            whole("keep_us", self.keep_us, 1, INT64_MAX)


def settled_plan(path: Path, plan: StreamPlan, *, assumed: bool = False) -> StreamPlan:
    """Return *plan*, completed by the plan file *path*, or write that file for a new stream; refuse a different plan.

    Options that *plan* leaves open are those with which the stream was started. For a new stream, *assumed* says
    whether deliveries count as confirmed without a receipt, because its log has none.
    """
    if not path.exists():
        receipts = assumed if plan.assume_receipts is None else plan.assume_receipts
        plan = replace(plan, tables=plan.tables or TABLES_MADE, assume_receipts=receipts)
        _write(path, plan)
        return plan
    found, version = _read(path)
    begun = _complete(found, _to_fields(StreamPlan(tables=TABLES_MADE, assume_receipts=False)))
    receipts = begun["assume_receipts"] if plan.assume_receipts is None else plan.assume_receipts
    plan = replace(plan, tables=plan.tables or tuple(begun["tables"]), assume_receipts=receipts)
    asked = _to_fields(plan)
    differing = [name for name in asked if begun[name] != asked[name]]
    if differing:
        told = ", ".join(f"{name} {asked[name]}" for name in differing)
        allowed = ", ".join(f"{name} {begun[name]}" for name in differing)
        was = " and ".join(_as_option(name, begun[name]) for name in differing)
        wanted = " and ".join(_as_option(name, asked[name]).removeprefix(f"{_option(name)} ") for name in differing)
        keep = "keep it" if len(differing) == 1 else "keep them"
        sentence = f"This stream began with {was}; {keep}, or choose another --out for {wanted}"
        raise InvalidValueError(f"plan of the stream in {path.parent.parent}", told, allowed, sentence)
    if version != FORMAT:  # so that an older Whimbrel refuses the stream by name
        _write(path, plan)
    return plan


def _write(path: Path, plan: StreamPlan) -> None:
    put(path, json.dumps({"format": FORMAT, **_to_fields(plan)}, indent=2).encode())


def _option(name: str) -> str:
    return f"--{name.removesuffix('_us').removesuffix('_m').replace('_', '-')}"


def _as_option(name: str, value: object) -> str:
    """Return a field of a plan as an option of the command line."""
    option = _option(name)
    if isinstance(value, dict):
        inner = (_as_option(each, part).removeprefix("--") for each, part in value.items())
        return f"{option} ({', '.join(inner)})"
    if isinstance(value, bool):
        return option if value else f"no {option}"
    if name.endswith("_us") and isinstance(value, int):
        return f"{option} {_time(value)}"
    if isinstance(value, list):
        return f"{option} {','.join(map(str, value))}"
    return f"{option} {value}"


def _time(microseconds: int) -> str:
    """Return a duration in the form of an option, such as ``15m``."""
    if not microseconds:
        return "0s"
    for unit, size in _UNITS_US:
        if microseconds % size == 0:
            return f"{microseconds // size}{unit}"
    return f"{microseconds / 1_000:g}ms"


def _to_fields(plan: StreamPlan) -> dict[str, Any]:
    """Return the fields of a plan that go to the plan file."""
    kept = asdict(plan)
    del kept["facts_per_batch"], kept["keep_us"]
    return {**kept, "tables": list(plan.tables)}


def _complete(found: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """Return the fields *found* in a plan file; take fields that an older Whimbrel did not write from *default*."""
    return {
        name: {**value, **found[name]}
        if isinstance(value, dict) and isinstance(found.get(name), dict)
        else found.get(name, value)
        for name, value in default.items()
    }


def _read(path: Path) -> tuple[dict[str, Any], int]:
    """Return the fields and the format of the plan file *path*; raise an error if it is unreadable or too new."""
    try:
        found = json.loads(path.read_text())
        version = found.pop("format")
        known = type(version) is int and version in READABLE
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise InvalidValueError(
            f"plan {path}", Phrase("another content"), "the plan that a stream wrote; start the stream anew"
        ) from None
    if not known:
        allowed = f"{FORMAT}; begin a new stream in another folder: the log has everything that it needs"
        raise InvalidValueError(f"format of the stream in {path.parent.parent}", version, allowed)
    plan: dict[str, Any] = found
    return plan, version
