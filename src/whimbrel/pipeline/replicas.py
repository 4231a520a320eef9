"""``replicas``: how many copies of each subject's samples the way-servers should spread (Campus++, section 3.3).

The mean delivery delay of a sample falls as 1 / L with its copies L. Shared among subjects with S_i subscribers, a
memory C_tot gives the least mean delay at L_i = C_tot · √S_i / Σ √S_j (the paper's equation 1), and C_tot should be
80 % of what there is: beyond that, spraying finds no free place and takes longer than it saves.

Rule: copies are whole, at least one (the source's own, which counts), at most one a node; what a bound takes or leaves
is shared again by the same formula, and what is left of rounding goes to the largest remainders.
Rule: the sum never exceeds C_tot; more subjects than places is an error with the numbers, never a silent subset.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

from whimbrel.errors import InvalidInputError
from whimbrel.model.bounds import INT32_MAX, real, whole
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.schemas import SCHEMAS

__all__ = ["HORIZON_US", "SAMPLE_BYTES", "TARGET", "TooManySubjectsError", "plan", "planned", "replicas", "silent"]

TARGET = 0.8
"""The part of the memory to fill: what the paper measured to be best."""
SAMPLE_BYTES = 100
"""The size of a sample in the paper: ten of them fit a chip of 8 KiB."""
HORIZON_US = 7 * 24 * 3_600 * 1_000_000
"""A subject that was silent for a week is planned for no more; else a plan would need a place for everything ever."""


class TooManySubjectsError(InvalidInputError):
    """There are more subjects than places for samples. Reaction: more nodes, more memory, or fewer subjects."""

    def __init__(self, subjects: int, nodes: int, slots_per_node: int, target: float) -> None:
        super().__init__(subjects, nodes, slots_per_node, target)
        self.subjects, self.nodes, self.slots_per_node, self.target = subjects, nodes, slots_per_node, target

    def __str__(self) -> str:
        places = _capacity(self.nodes, self.slots_per_node, self.target)
        return (
            f"subjects: found {self.subjects}, allowed is at most {places}: "
            f"{self.nodes} nodes of {self.slots_per_node} samples, filled to {self.target:.0%}"
        )


def plan(subscribers: Mapping[str, int], *, nodes: int, slots_per_node: int, target: float = TARGET) -> dict[str, int]:
    """Return L_i for each subject of *subscribers*, which counts S_i; a subject that nobody wants gets one copy."""
    whole("nodes", nodes, 1, INT32_MAX)
    whole("slots_per_node", slots_per_node, 1, INT32_MAX)
    real("target", target, 0, 1)
    subjects = sorted(subscribers)
    counts = np.array([whole(f"subscribers of {name}", subscribers[name], 0, 2**53) for name in subjects], np.int64)
    capacity = _capacity(nodes, slots_per_node, target)
    if len(subjects) > capacity:
        raise TooManySubjectsError(len(subjects), nodes, slots_per_node, target)
    ideal = _shared(np.sqrt(counts), capacity, nodes)
    return dict(zip(subjects, _rounded(ideal, counts, capacity, nodes).tolist(), strict=True))


def replicas(
    popularity: DataFrame,
    *,
    nodes: int,
    slots_per_node: int,
    target: float = TARGET,
    sample_bytes: int = SAMPLE_BYTES,
    horizon_us: int = HORIZON_US,
) -> DataFrame:
    """Return the plan for the subjects of *popularity*, with the subscribers of each one's last window.

    A subject counts if that window ends within *horizon_us* of the newest.

    in:  the table ``popularity``
    out: the table ``replicas``
    """
    last = popularity.groupBy("subject").agg(
        F.unix_micros(F.max("window_end")), F.max_by("subscribers", "window_end").alias("subscribers")
    )
    # One task sees all subjects: each one's share depends on all the others'.
    made = partial(
        _planned,
        horizon_us=horizon_us,
        nodes=nodes,
        slots_per_node=slots_per_node,
        target=target,
        sample_bytes=sample_bytes,
    )
    return last.coalesce(1).mapInArrow(made, SCHEMAS["replicas"])


def silent(latest: Mapping[str, tuple[int, int]], *, horizon_us: int = HORIZON_US) -> list[str]:
    """Return the subjects whose last window, whose end stands first, ended before the horizon of the newest."""
    newest = max((end for end, _ in latest.values()), default=0)
    return [subject for subject, (end, _) in latest.items() if end <= newest - horizon_us]


def planned(
    subscribers: Mapping[str, int],
    *,
    nodes: int,
    slots_per_node: int,
    target: float = TARGET,
    sample_bytes: int = SAMPLE_BYTES,
) -> Any:
    """Return the plan for *subscribers*, which counts S_i of each subject, as an Arrow batch of ``replicas``."""
    copies = plan(subscribers, nodes=nodes, slots_per_node=slots_per_node, target=target)
    columns = {
        "subject": list(copies),
        "subscribers": [subscribers[name] for name in copies],
        "share": [count / (nodes * slots_per_node) for count in copies.values()],
        "replicas": list(copies.values()),
        "memory_bytes": [count * sample_bytes for count in copies.values()],
    }
    return pa.RecordBatch.from_pydict(columns, schema=TABLES["replicas"].schema)


def _planned(batches: Iterable[Any], *, horizon_us: int, **options: Any) -> Iterator[Any]:
    latest: dict[str, tuple[int, int]] = {}
    for batch in batches:
        subjects, ends, subscribers = (column.to_pylist() for column in batch.columns)
        latest.update(zip(subjects, zip(ends, subscribers, strict=True), strict=True))
    for subject in silent(latest, horizon_us=horizon_us):
        del latest[subject]
    yield planned({subject: count for subject, (_, count) in latest.items()}, **options)


def _capacity(nodes: int, slots_per_node: int, target: float) -> int:
    return math.floor(nodes * slots_per_node * target + 1e-9)  # 0.8 · 35 is 28, whatever binary fractions think


def _shared(weights: NDArray[np.float64], capacity: int, most: int) -> NDArray[np.float64]:
    """Return shares of *capacity* in proportion to *weights*, each from 1 to *most*.

    Shares outside the bounds are fixed at them, those on the side that is further out first, and the rest is shared
    again: every round fixes at least one, and the result is the one that the bounded optimisation has.
    """
    shares = np.ones(len(weights))
    is_free = weights > 0  # what nobody wants keeps its one
    while is_free.any():
        room = capacity - shares[~is_free].sum()
        wanted = weights[is_free] / weights[is_free].sum() * room
        bounded = wanted.clip(1, most)
        shares[is_free] = bounded
        excess = (bounded - wanted).sum()
        tolerance = 1e-9 * capacity
        is_fixed = bounded > wanted if excess > tolerance else bounded < wanted if excess < -tolerance else None
        if is_fixed is None:
            break
        is_free[np.flatnonzero(is_free)[is_fixed]] = False
    return shares


def _rounded(ideal: NDArray[np.float64], counts: NDArray[np.int64], capacity: int, most: int) -> NDArray[np.int64]:
    """Return whole numbers for *ideal*, the largest remainders rounded up while there is room."""
    floors = np.floor(ideal + 1e-9).astype(np.int64)
    remainders = ideal - floors
    left = min(capacity, round(float(ideal.sum()))) - int(floors.sum())
    may_grow = (floors < most) & (remainders > 1e-9)
    # Ties go to what more people want, then to the name that sorts first: the plan depends on nothing else.
    order = [place for place in np.lexsort((-counts, -remainders.round(9))) if may_grow[place]]
    floors[order[: max(left, 0)]] += 1
    return floors
