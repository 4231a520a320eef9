"""``replicas``: number of copies of each subject's samples that the way-servers should spread (Campus++, section 3.3).

The formula and its bounds are in ``model.replicas``. The numbers of subscribers come from ``popularity``, and from the
last census of a campus in the log (``model.census``: its nodes, memory and subscribers) if there is one.

Rule: a subject in the census has the census's number of subscribers, even if nothing was published on it for long.
Rule: the plan leaves out subjects of the backbone of a campus, and subjects that the topic filter does not match.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows

from whimbrel.match.topics import matches
from whimbrel.model.bounds import INT64_MAX
from whimbrel.model.census import BACKBONE, CensusTotals
from whimbrel.model.replicas import TARGET, plan
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.files.schemas import SCHEMAS

__all__ = [
    "HORIZON_US",
    "SAMPLE_BYTES",
    "chosen",
    "plan_replicas",
    "replicas",
    "silent",
    "subscribers_of",
    "window_end",
]

SAMPLE_BYTES = 100
"""Size of a sample in the paper, in bytes: about ten samples fit a chip with 8 kB of RAM."""
HORIZON_US = 7 * 24 * 3_600 * 1_000_000
"""Time without publications after which a subject is left out: a week, in microseconds; else plans would only grow."""


def replicas(
    popularity: DataFrame,
    *,
    nodes: int,
    slots_per_node: int,
    target: float = TARGET,
    sample_bytes: int = SAMPLE_BYTES,
    horizon_us: int = HORIZON_US,
    newest_at: int = INT64_MAX,
    subject_filter: str = "#",
    census: CensusTotals | None = None,
) -> DataFrame:
    """Return the replica plan: the number of copies of each subject, computed from its number of subscribers.

    A subject in the *census* has the census's number of subscribers. Any other has that of its last window in
    *popularity*; it is left out if the newest window (or *newest_at*, if earlier) ends *horizon_us* or more after that.
    The plan also leaves out subjects that *subject_filter* does not match, and those of a campus's backbone.

    in:  the table ``popularity``
    out: the table ``replicas``
    """
    last = popularity.groupBy("subject").agg(
        F.unix_micros(F.max("window_end")), F.max_by("subscribers", "window_end").alias("subscribers")
    )
    # One task gets all subjects, because the share of each depends on all others.
    made = partial(
        _plan_batches,
        horizon_us=horizon_us,
        newest_at=newest_at,
        nodes=nodes,
        slots_per_node=slots_per_node,
        target=target,
        sample_bytes=sample_bytes,
        subject_filter=subject_filter,
        census=census,
    )
    return last.coalesce(1).mapInArrow(made, SCHEMAS["replicas"])


def window_end(at: int, window_us: int) -> int:
    """Return the end of the window that contains the time *at*, in microseconds."""
    return min(at - at % window_us + window_us, INT64_MAX)


def silent(
    latest: Mapping[str, tuple[int, int]], *, newest_at: int = INT64_MAX, horizon_us: int = HORIZON_US
) -> list[str]:
    """Return the subjects whose last window ended at least *horizon_us* before the newest window.

    *latest* has the end of each subject's last window, and its subscribers. No window counts as newer than *newest_at*:
    a node whose clock is ahead must not make other subjects old.
    """
    newest = min(max((end for end, _ in latest.values()), default=0), newest_at)
    return [subject for subject, (end, _) in latest.items() if end <= newest - horizon_us]


def chosen(
    subscribers: Mapping[str, int], *, subject_filter: str = "#", census: CensusTotals | None = None
) -> dict[str, int]:
    """Return the number of subscribers of each subject in the plan; a *census* replaces numbers and adds subjects."""
    counts = {**subscribers, **(census.subscribers if census is not None else {})}
    return {
        subject: count
        for subject, count in counts.items()
        if not subject.startswith(f"{BACKBONE}/") and matches(subject_filter, subject)
    }


def subscribers_of(
    latest: Mapping[str, tuple[int, int]],
    *,
    horizon_us: int,
    newest_at: int,
    subject_filter: str,
    census: CensusTotals | None,
) -> dict[str, int]:
    """Return the number of subscribers of each subject in the plan, from those in each subject's last window."""
    gone = {*silent(latest, newest_at=newest_at, horizon_us=horizon_us)}
    known = {subject: count for subject, (_, count) in latest.items() if subject not in gone}
    return chosen(known, subject_filter=subject_filter, census=census)


def plan_replicas(
    subscribers: Mapping[str, int],
    *,
    nodes: int,
    slots_per_node: int,
    target: float = TARGET,
    sample_bytes: int = SAMPLE_BYTES,
) -> Any:
    """Return the replica plan for the number of *subscribers* per subject, as an Arrow batch of ``replicas``."""
    copies = plan(subscribers, nodes=nodes, slots_per_node=slots_per_node, target=target)
    columns = {
        "subject": list(copies),
        "subscribers": [subscribers[name] for name in copies],
        "share": [count / (nodes * slots_per_node) for count in copies.values()],
        "replicas": list(copies.values()),
        "memory_bytes": [count * sample_bytes for count in copies.values()],
    }
    return pa.RecordBatch.from_pydict(columns, schema=TABLES["replicas"].schema)


def _plan_batches(
    batches: Iterable[Any],
    *,
    horizon_us: int,
    newest_at: int,
    subject_filter: str,
    census: CensusTotals | None,
    **options: Any,
) -> Iterator[Any]:
    latest: dict[str, tuple[int, int]] = {}
    for batch in batches:
        subjects, ends, subscribers = (column.to_pylist() for column in batch.columns)
        latest.update(zip(subjects, zip(ends, subscribers, strict=True), strict=True))
    subscribers = subscribers_of(
        latest, horizon_us=horizon_us, newest_at=newest_at, subject_filter=subject_filter, census=census
    )
    yield plan_replicas(subscribers, **options)
