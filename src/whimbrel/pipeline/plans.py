"""Plans: what tables need to know beside the log, for a batch run and for a stream.

Rule: a stream's plan decides what its tables mean, so it is written down when the stream begins, and one that goes on
with another is refused.
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
from whimbrel.pipeline.fold.start_state import STATE_FORMAT
from whimbrel.pipeline.tables.replicas import HORIZON_US, SAMPLE_BYTES

__all__ = ["FORMAT", "READABLE", "Plan", "StreamPlan", "settled_plan"]

FORMAT = STATE_FORMAT
"""Format of a stream's plan and state: 3 has the state in Spark's checkpoint, 4 the rows of a node."""
READABLE = frozenset({3, FORMAT})
"""The formats that this version can go on with."""
_HOUR_US = 3_600 * 1_000_000


_UNITS_US = (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the tables need to know beside the log."""

    retention: Retention = DEFAULT_RETENTION
    window_us: int = _HOUR_US
    """The windows of ``popularity`` and ``latency``."""
    nodes: int = 100
    """Devices that carry samples, for ``replicas``;"""
    slots_per_node: int = 10
    """samples that each can hold,"""
    takes_census: bool = True
    """as the last census in the log has both, where there is one;"""
    sample_bytes: int = SAMPLE_BYTES
    """and the size of one."""
    replicas_for: str = "#"
    """Which subjects ``replicas`` plans for: a topic filter."""
    horizon_us: int = HORIZON_US
    """How long a subject may be silent before it is planned for no more."""
    range_m: float = RANGE_M
    """How near each other devices are in ``contacts``;"""
    stale_us: int = DEFAULT_STALE_US
    """and how long a reported place holds there at most."""
    assume_receipts: bool | None = None
    """Whether what is handed over counts as received; None: as the log says, which a broker's does not."""

    def __post_init__(self) -> None:
        whole("window_us", self.window_us, 1, INT64_MAX)
        whole("horizon_us", self.horizon_us, 1, INT64_MAX)
        for name in ("nodes", "slots_per_node", "sample_bytes"):
            whole(name, getattr(self, name), 1, INT32_MAX)
        check_topic_filter(self.replicas_for)
        ContactPlan(range_m=self.range_m, stale_us=self.stale_us)

    def for_census(self, census: CensusTotals | None) -> Self:
        """Return the plan with the memory that *census* counts, unless it was given."""
        if census is None or not self.takes_census or not census.slots_per_node:
            return self
        return replace(self, nodes=census.nodes, slots_per_node=census.slots_per_node)

    @property
    def contact(self) -> ContactPlan:
        """What a contact is."""
        return ContactPlan(range_m=self.range_m, stale_us=self.stale_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan(Plan):
    """What a stream needs to know; but for the last two, it is the same for all its batches."""

    tables: tuple[str, ...] = ()
    """Which tables; none: those that the stream began with, and all for one that begins."""
    lateness_us: int = 24 * _HOUR_US
    """How long windows wait for a node that is silent."""
    facts_per_batch: int = 200_000
    """How many facts of all nodes together a batch has at most."""
    keep_us: int | None = None
    """How old rows become before they are removed; None: they are kept."""

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
    """Return *plan* if the stream at *path* began with it, or begins now; else say what differs.

    What it does not say is as the stream began; *assumed* has what the log says of receipts, for one that begins.
    """
    if not path.exists():
        receipts = assumed if plan.assume_receipts is None else plan.assume_receipts
        plan = replace(plan, tables=plan.tables or TABLES_MADE, assume_receipts=receipts)
        _write(path, plan)
        return plan
    found, version = _read(path)
    begun = _completed(found, _written(StreamPlan(tables=TABLES_MADE, assume_receipts=False)))
    receipts = begun["assume_receipts"] if plan.assume_receipts is None else plan.assume_receipts
    plan = replace(plan, tables=plan.tables or tuple(begun["tables"]), assume_receipts=receipts)
    asked = _written(plan)
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
    put(path, json.dumps({"format": FORMAT, **_written(plan)}, indent=2).encode())


def _option(name: str) -> str:
    return f"--{name.removesuffix('_us').removesuffix('_m').replace('_', '-')}"


def _as_option(name: str, value: object) -> str:
    """Return a field of a plan as it is said on the command line."""
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
    """Return a duration as an option has it."""
    if not microseconds:
        return "0s"
    for unit, size in _UNITS_US:
        if microseconds % size == 0:
            return f"{microseconds // size}{unit}"
    return f"{microseconds / 1_000:g}ms"


def _written(plan: StreamPlan) -> dict[str, Any]:
    """Return what is written down of a plan."""
    kept = asdict(plan)
    del kept["facts_per_batch"], kept["keep_us"]
    return {**kept, "tables": list(plan.tables)}


def _completed(found: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """Return what is written down with what an older Whimbrel did not know, also within a field."""
    return {
        name: {**value, **found[name]}
        if isinstance(value, dict) and isinstance(found.get(name), dict)
        else found.get(name, value)
        for name, value in default.items()
    }


def _read(path: Path) -> tuple[dict[str, Any], int]:
    """Return what a plan says, and its format."""
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
