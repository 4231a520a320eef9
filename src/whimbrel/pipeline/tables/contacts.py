"""``contacts`` and ``meetings``: when devices were within range of each other, and how often they meet (Campus++, 3.2).

A position is valid until the device's next report, or until it is stale. Time is cut into slices. For each slice of
each node a worker finds the pairs within range, by a grid and the exact distance (``match.proximity.encounters``).
Contacts that touch where two slices meet are joined afterwards.

Rule: contacts are computed per node, from the reports to that node.
Rule: a contact has ended once time has passed its end; ``meetings`` counts only contacts that have ended.
Rule: the cuts between slices do not change the result.
Rule: a log that was cut starts at a checkpoint, with the places that were valid there. A contact that was under way
begins at that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 # the name that every Spark reader knows
from pyspark.sql.pandas.types import from_arrow_schema

from whimbrel.model.tables import TABLES
from whimbrel.pipeline.fold.contact_fold import CONTACT, MAX_APART_US, ContactPlan, slice_contacts
from whimbrel.pipeline.fold.start_state import StartState

__all__ = ["contacts", "meetings", "no_contacts", "node_contacts"]

_ROWS_A_SLICE = 100_000
_PIECE = pa.schema([("node", pa.string()), *((f.name, f.type) for f in CONTACT)])
_PAIR = ("device_low", "device_high")


def node_contacts(
    reports: DataFrame,
    *,
    ends: Mapping[str, int],
    plan: ContactPlan,
    slice_us: int | None = None,
    begun: Mapping[str, StartState] | None = None,
) -> DataFrame:
    """Return the contacts of each node, with its name.

    in:  the table ``reports``; *ends* has the time of each node's last fact, in microseconds, and *begun* the start
         state of each node whose log was cut
    out: node string, and the columns of ``contacts``
    """
    placed = reports.where(F.col("place").isNotNull() & F.col("node").isin(list(ends)))
    seen = placed.select("node", "seq", "device", "place", F.unix_micros("reported_at").alias("at"))
    begun = {node: each for node, each in (begun or {}).items() if node in ends}
    if begun:
        seen = seen.unionByName(_seen_before(reports.sparkSession, begun))
    slice_us = _slice_us(seen) if slice_us is None else slice_us
    after = F.lead("at").over(Window.partitionBy("node", "device").orderBy("seq"))
    until = F.least(F.coalesce(after, F.lit(2**62)), F.col("at") + plan.stale_us, _end(ends))
    held = seen.withColumn("until", until)
    if begun:  # tables do not cover older times
        held = held.withColumn("at", F.greatest("at", _end({node: each.at for node, each in begun.items()})))
    held = held.where("at < until")
    cuts = F.sequence(F.expr(f"at div {slice_us}"), F.expr(f"(until - 1) div {slice_us}"))
    sliced = held.select("node", "device", "place", "at", "until", F.explode(cuts).alias("slice"))
    together = sliced.repartition("node", "slice").sortWithinPartitions("node", "slice")
    pieces = together.mapInArrow(partial(_find_contacts, slice_us, plan.range_m), from_arrow_schema(_PIECE))
    return _join_contacts(pieces, ends)


def _seen_before(spark: SparkSession, begun: Mapping[str, StartState]) -> DataFrame:
    """Return the positions of devices at the checkpoints, with the columns of position reports."""
    rows = [
        (node, seq, device, (place.latitude, place.longitude), reported_at)
        for node, each in begun.items()
        for device, (seq, reported_at, place) in each.places().items()
    ]
    place = "place struct<latitude: double, longitude: double>"
    return spark.createDataFrame(rows, f"node string, seq bigint, device string, {place}, at bigint")


def no_contacts(spark: SparkSession) -> DataFrame:
    """Return an empty result of ``node_contacts``, for a log without places."""
    return spark.createDataFrame([], from_arrow_schema(_PIECE))


def contacts(found: DataFrame) -> DataFrame:
    """Return the table ``contacts`` from *found*, the result of ``node_contacts``."""
    return found.select(*TABLES["contacts"].schema.names)


def meetings(found: DataFrame) -> DataFrame:
    """Compute how often each pair of devices meets, and all pairs together.

    in:  the result of ``node_contacts``
    out: the table ``meetings``
    """
    over = found.where(F.col("ended_at").isNotNull())
    began, ended = F.unix_micros("began_at"), F.unix_micros("ended_at")
    each = over.select("node", *_PAIR, began.alias("began"), (ended - began).alias("together"), ended.alias("ended"))
    order = Window.partitionBy("node", *_PAIR).orderBy("began")
    apart = F.col("began") - F.lag("ended").over(order)
    gap = F.when(apart <= MAX_APART_US, apart)
    each = each.select(*_PAIR, "together", gap.alias("gap"), (gap + F.lag("together").over(order)).alias("cycle"))
    sums = (
        F.count("*").alias("contacts"),
        F.avg("together").alias("mean_contact_us"),
        F.avg("gap").alias("mean_apart_us"),
        (F.sum(F.col("gap").cast("double") * F.col("gap")) / 2 / F.nullif(F.sum("cycle"), F.lit(0))).alias(
            "meeting_time_us"
        ),
    )
    total = each.agg(*sums).where("contacts > 0")
    total = total.select(*(F.lit(None).cast("string").alias(name) for name in _PAIR), "*")
    return total.unionByName(each.groupBy(*_PAIR).agg(*sums)).select(*TABLES["meetings"].schema.names)


def _slice_us(seen: DataFrame) -> int:
    """Return a length of slices, in microseconds, with about ``_ROWS_A_SLICE`` reports per slice."""
    first, last, count = seen.agg(F.min("at"), F.max("at"), F.count("*")).collect()[0]
    return 1 if not count else int((last - first) // max(1, count // _ROWS_A_SLICE) + 1)


def _end(ends: Mapping[str, int]) -> Column:
    """Return a column: the time in *ends* of the row's node, in microseconds."""
    pairs = chain.from_iterable((F.lit(node), F.lit(at)) for node, at in ends.items())
    return F.create_map(*pairs)[F.col("node")] if ends else F.lit(0)


def _find_contacts(slice_us: int, range_m: float, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the contacts within each slice of a node's time; rows are ordered by node and slice."""
    held: list[Any] = []
    for batch in batches:
        for part in _slices(batch):
            if held and _key(held[0]) != _key(part):
                yield from _contacts_within(pa.Table.from_batches(held), slice_us, range_m)
                held = []
            held.append(part)
    if held:
        yield from _contacts_within(pa.Table.from_batches(held), slice_us, range_m)


def _key(part: Any) -> tuple[str, int]:
    return part.column("node")[0].as_py(), part.column("slice")[0].as_py()


def _slices(batch: Any) -> Iterator[Any]:
    """Split a batch where the node or the slice changes."""
    slices = batch.column("slice").to_numpy()
    nodes = batch.column("node").dictionary_encode().indices.to_numpy()
    cuts = np.flatnonzero((slices[1:] != slices[:-1]) | (nodes[1:] != nodes[:-1])) + 1
    for begin, end in pairwise([0, *cuts.tolist(), batch.num_rows]):
        if end > begin:
            yield batch.slice(begin, end - begin)


def _contacts_within(table: Any, slice_us: int, range_m: float) -> Iterator[Any]:
    table = table.combine_chunks()
    node, number = _key(table)
    coded = table.column("device").combine_chunks().dictionary_encode()
    began, until = (table.column(name).to_numpy() for name in ("at", "until"))
    places = table.column("place").combine_chunks()
    degrees = [places.field(name).to_numpy(zero_copy_only=False) for name in ("latitude", "longitude")]
    found = slice_contacts(
        coded.dictionary.to_pylist(),
        coded.indices.to_numpy().astype(np.int64),
        np.maximum(began, number * slice_us),
        np.minimum(until, (number + 1) * slice_us),
        np.stack(degrees, axis=1),
        range_m=range_m,
    )
    yield from found.add_column(0, "node", pa.repeat(node, found.num_rows)).cast(_PIECE).combine_chunks().to_batches()


def _join_contacts(pieces: DataFrame, ends: Mapping[str, int]) -> DataFrame:
    """Join contacts that touch where slices meet; a contact that touches the end of the log has no end."""
    order = Window.partitionBy("node", *_PAIR).orderBy("began_at", "ended_at")
    before = F.max("ended_at").over(order.rowsBetween(Window.unboundedPreceding, -1))
    is_new = F.coalesce(F.col("began_at") > before, F.lit(True))
    numbered = pieces.withColumn("is_new", is_new.cast("int"))
    numbered = numbered.withColumn("contact", F.sum("is_new").over(order))
    found = numbered.groupBy("node", *_PAIR, "contact").agg(
        F.min("began_at").alias("began_at"), F.max("ended_at").alias("ended_at"), F.min("closest_m").alias("closest_m")
    )
    is_over = F.unix_micros("ended_at") < _end(ends)
    return found.select("node", *_PAIR, "began_at", F.when(is_over, F.col("ended_at")).alias("ended_at"), "closest_m")
