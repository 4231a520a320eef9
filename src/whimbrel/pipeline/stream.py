"""The stream: the tables of the pipeline, kept up to date from a log that goes on.

Spark's query is a stream of spans (``source``): which numbers of each node are new. Each batch reads of each table what
it needs, and makes what the batch job would have made of it, with the same transforms; what must be remembered from one
batch to the next is ``standing``.

| what | where | when |
|---|---|---|
| which numbers a batch has | Spark's checkpoint | before the batch |
| the rows of the batch | ``outputs``, whole or not at all | then |
| that all rows of the batch are there | ``done`` | then |
| what is remembered | a store for each node | then |
| that the batch is over | Spark's checkpoint | at last |

Rule: a batch that is done again after a crash, wherever that was, finds what it made already, and leaves it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from whimbrel.errors import InvalidInputError, InvalidValueError
from whimbrel.hold.retention import DEFAULT_RETENTION, Retention
from whimbrel.hold.store.sqlite import SqliteStore
from whimbrel.log.layout import check_format
from whimbrel.model.tables import TABLES
from whimbrel.pipeline.dead_letters import split
from whimbrel.pipeline.deliveries import LogTables, last_times, other_events, published_events
from whimbrel.pipeline.folds import EVENT
from whimbrel.pipeline.matches import CHANGED, DELETED, Matching, Shipped, exploded, pack
from whimbrel.pipeline.outputs import Output
from whimbrel.pipeline.schemas import SCHEMAS, TIMES
from whimbrel.pipeline.source import SPANS, read_span, register
from whimbrel.pipeline.standing import Standing, changed_schema

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["STREAMED", "LostStateError", "Stream", "StreamPlan"]

STREAMED = ("matches", "deliveries", "dead_letters")
"""The tables that a stream makes, in this order."""

Spans = Mapping[str, tuple[int, int]]
"""By node, the first and the last number."""


class LostStateError(InvalidInputError):
    """What a stream remembered does not fit its checkpoint. Reaction: start it anew, in another folder."""

    def __init__(self, node: str, found: int, wanted: int) -> None:
        super().__init__(node, found, wanted)
        self.node, self.found, self.wanted = node, found, wanted

    def __str__(self) -> str:
        return f"state of {self.node}: found up to number {self.found}, needed is {self.wanted}; start the stream anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """What the tables need to know beside the log; it is the same for all batches of a stream."""

    tables: tuple[str, ...] = STREAMED
    retention: Retention = field(default=DEFAULT_RETENTION)
    assume_receipts: bool = False
    """Whether what is handed over counts as received: for logs that were made or imported, not for a broker's."""
    facts_per_batch: int = 200_000
    """How many numbers of each node a batch has at most."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.tables if name not in STREAMED]
        if unknown or not self.tables:
            raise InvalidValueError("table", ", ".join(unknown) or "none", ", ".join(STREAMED))


class Stream:
    """The tables of *log* below *out*; what it needs to go on after a restart is in ``_stream`` there."""

    def __init__(self, spark: SparkSession, *, log: Path, out: Path, plan: StreamPlan | None = None) -> None:
        self._spark, self._log, self.out = spark, log.absolute(), out.absolute()
        check_format(self._log)
        if self._log == self.out or self._log in self.out.parents:
            raise InvalidValueError("directory for the tables", str(out), f"one outside the log {log}")
        self.folder = self.out / "_stream"
        shutil.rmtree(self.folder / "matchers", ignore_errors=True)  # of a stream that was killed
        for name in ("state", "matchers", "done"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.plan = self._settled_plan(plan or StreamPlan())
        self._standings: dict[str, Standing] = {}
        self._outputs = {table: Output(self.out / table) for table in self.plan.tables}
        for output in self._outputs.values():
            output.sweep()

    def _settled_plan(self, plan: StreamPlan) -> StreamPlan:
        """Return the plan that the stream began with, which decides what its tables mean."""
        path = self.folder / "plan.json"
        if not path.exists():
            kept = {"tables": plan.tables, "assume_receipts": plan.assume_receipts}
            kept |= {"ttl_us": plan.retention.ttl_us, "max_held": plan.retention.max_held}
            beside = path.with_suffix(".new")
            beside.write_text(json.dumps(kept))
            beside.rename(path)
            return plan
        found = json.loads(path.read_text())
        retention = Retention(ttl_us=found["ttl_us"], max_held=found["max_held"])
        begun = replace(
            plan, tables=tuple(found["tables"]), retention=retention, assume_receipts=found["assume_receipts"]
        )
        if begun != plan:
            allowed = f"what it began with: {', '.join(begun.tables)}; or another folder for the tables"
            raise InvalidValueError(f"stream in {self.out}", "another plan", allowed)
        return plan

    # -- the query ---------------------------------------------------------------------------------------------------

    def start(self, *, every: str | None = None) -> StreamingQuery:
        """Begin, or go on: a batch *every* ``2 seconds``, or, if not said, until everything there is was read."""
        register(self._spark)
        spans = (
            self._spark.readStream.format("whimbrel")
            .option("table", SPANS)
            .option("facts_per_batch", str(self.plan.facts_per_batch))
            .load(str(self._log))
        )
        writer = spans.writeStream.queryName("whimbrel").option("checkpointLocation", str(self.folder / "spark"))
        writer = writer.foreachBatch(self._on_batch)
        writer = writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
        return writer.start()

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        self.take({row["node"]: (row["first"], row["last"]) for row in frame.collect()}, batch)

    # -- a batch -----------------------------------------------------------------------------------------------------

    def take(self, spans: Spans, batch: int) -> None:
        """Make everything of one batch."""
        try:
            self._take(spans, batch)
        except BaseException:
            self.close()  # what is in memory may be half a batch ahead of what is kept
            raise

    def _take(self, spans: Spans, batch: int) -> None:
        marker = self.folder / "done" / str(batch)
        missing = {node: span for node, span in spans.items() if self._is_missing(node, *span)}
        if not missing:
            return
        if not marker.exists():
            missing = dict(spans)  # no state is committed before all rows are there
        log = _Slice(self._spark, self._log, missing)
        shipped = self._shipped(log)
        try:
            self._make(log, shipped, batch, is_written=marker.exists())
            marker.touch()
            for node, (_, last) in missing.items():
                standing = self._standing(node)
                standing.change(log.changed(node), log.deleted(node))
                standing.commit(last)
        finally:
            for file in shipped.files.values():
                Path(file).unlink(missing_ok=True)
        self._forget_markers(batch)

    def _is_missing(self, node: str, first: int, last: int) -> bool:
        """Tell whether a span is not yet in the state."""
        applied = self._standing(node).applied
        if applied >= last:
            return False
        if applied != first - 1:
            raise LostStateError(node, applied, first - 1)
        return True

    def _standing(self, node: str) -> Standing:
        if node not in self._standings:
            self._standings[node] = Standing(
                node,
                SqliteStore(self.folder / "state" / f"{node}.sqlite"),
                retention=self.plan.retention,
                assume_receipts=self.plan.assume_receipts,
            )
        return self._standings[node]

    def _shipped(self, log: _Slice) -> Shipped:
        """Pack what is in force at the beginning, and what changes on the way."""
        changed = pa.concat_tables([*(self._standing(node).in_force() for node in log.spans), log.all_changed])
        ranges = [(node, first, last) for node, (first, last) in log.spans.items()]
        return pack(ranges, changed, log.all_deleted, self.folder / "matchers")

    def _make(self, log: _Slice, shipped: Shipped, batch: int, *, is_written: bool) -> None:
        for table, output in self._outputs.items():
            if table == "deliveries":
                rows = self._deliveries(log, shipped)
                if not is_written:
                    output.put_rows(batch, rows, TABLES["deliveries"].schema)
            elif not is_written and not output.has(batch):
                frame = _matches(log, shipped) if table == "matches" else log.dead()
                schema = TABLES[table].schema
                output.put_rows(batch, frame.toArrow().cast(schema).to_batches(), schema)

    def _deliveries(self, log: _Slice, shipped: Shipped) -> list[Any]:
        events = published_events(log.table("publications"), shipped)
        for other in other_events(log.tables):
            events = events.unionByName(other)
        ordered = events.sort("node", "seq").toArrow().cast(EVENT)
        ends = {row["node"]: row["last"] for row in last_times(log.tables)}
        rows: list[Any] = []
        for node in log.spans:
            own = ordered.filter(pc.equal(ordered.column("node"), node))
            rows += self._standing(node).fold(own.to_batches(), ends.get(node))
        return rows

    def _forget_markers(self, batch: int) -> None:
        for path in (self.folder / "done").iterdir():
            if path.name.isdigit() and int(path.name) < batch:
                path.unlink(missing_ok=True)

    @property
    def state_size(self) -> int:
        """How many things are remembered, of all nodes."""
        return sum(standing.size for standing in self._standings.values())

    def close(self) -> None:
        """Let go of the state; what was committed is kept."""
        for standing in self._standings.values():
            standing.close()
        self._standings.clear()


def _matches(log: _Slice, shipped: Shipped) -> DataFrame:
    publications = log.table("publications").select(*shipped.columns)
    return publications.mapInArrow(Matching(shipped, exploded), SCHEMAS["matches"])


class _Slice:
    """What is new of a log: the tables without what cannot be read, and what cannot."""

    def __init__(self, spark: SparkSession, log: Path, spans: Spans) -> None:
        self.spans = spans
        self._rows = read_span(spark, log, spans)
        self._split: dict[str, tuple[DataFrame, DataFrame]] = {}
        self.all_changed = self.table("interests").select(*CHANGED).toArrow().cast(changed_schema())
        self.all_deleted = self.table("sessions").select(*DELETED).toArrow()

    def changed(self, node: str) -> Any:  # a pyarrow.Table
        """Return the changes of subscriptions of one node."""
        return self.all_changed.filter(pc.equal(self.all_changed.column("node"), node))

    def deleted(self, node: str) -> Any:  # a pyarrow.Table
        """Return what became of the sessions of one node."""
        return self.all_deleted.filter(pc.equal(self.all_deleted.column("node"), node))

    def table(self, name: str) -> DataFrame:
        """Return the good rows of a table."""
        return self._both(name)[0]

    def dead(self) -> DataFrame:
        """Return why the others are not, of all tables."""
        found: Sequence[DataFrame] = [self._both(name)[1] for name in TIMES]
        everything = found[0]
        for other in found[1:]:
            everything = everything.unionByName(other)
        return everything

    def _both(self, name: str) -> tuple[DataFrame, DataFrame]:
        if name not in self._split:
            self._split[name] = split(name, self._rows[name])
        return self._split[name]

    @property
    def tables(self) -> LogTables:
        """The tables that decide who gets what."""
        names = ("publications", "interests", "presence", "sessions", "receipts")
        return LogTables(*(self.table(name) for name in names))
