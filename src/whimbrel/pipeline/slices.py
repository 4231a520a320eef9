"""Slices: what is new of a log, read, judged and matched by Spark, in as few jobs as can be.

A batch of a live log has few rows, and Spark takes longer to begin a job than to do it. So it is asked twice: for what
changes who wants what, which the matchers are made of, with the reports; and for everything that the fold needs, events
of all tables, matched on the way, and how many publications there were of what. Only if rows are missing from what came
back is it asked which could not be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.pipeline.dead_letters import Judge
from whimbrel.pipeline.deliveries import EVENT_TABLES, MOVES, event_columns, published_events
from whimbrel.pipeline.folds import EVENT, INTEREST, PRESENCE, PUBLISHED, RECEIPT, SESSION
from whimbrel.pipeline.matches import CHANGED, DELETED, Shipped
from whimbrel.pipeline.reading import SMALL_BYTES, Spans, Tails, read_spans
from whimbrel.pipeline.schemas import SCHEMAS
from whimbrel.pipeline.standing import Standing

__all__ = ["Readers", "Slice", "matched"]

_KINDS = {"interests": INTEREST, "presence": PRESENCE, "sessions": SESSION, "receipts": RECEIPT}
_COUNTED = 5
"""The kind of an event that says how many publications there were, wanted or not."""


class Readers:
    """What reads batch after batch: where it was in the log, and expressions that take longer to make than to use.

    Those of a table are made once, when it has its first row.
    """

    def __init__(self, log: Path) -> None:
        self.tails = Tails(log)
        self.judge, self.events = cache(Judge), cache(event_columns)


class Slice:
    """What is new of a log: the tables without what cannot be read, and what cannot."""

    def __init__(self, spark: SparkSession, log: Path, spans: Spans, readers: Readers, *, is_begun: bool) -> None:
        """Read what there is of *spans*; of a batch that is not begun yet, no more than the driver has room for."""
        self._readers = readers
        most_bytes = None if is_begun else SMALL_BYTES
        self.spans, self._rows = read_spans(spark, log, spans, readers.tails, most_bytes=most_bytes)
        self._good: dict[str, int] = {}
        """By table, how many rows were found to be good."""
        asked = {"interests": CHANGED, "sessions": DELETED, "reports": tuple(SCHEMAS["reports"].names)}
        asked["wills"] = ("node", "changed_at")  # of these only their times count, as of reports
        collected = self._collected(asked)
        self._changed, self._deleted, self._reports, wills = (collected[name] for name in asked)
        self.ends: dict[str, int] = {}
        """By node, the time of its last fact, in microseconds."""
        self._end(self._reports, "reported_at")
        self._end(wills, "changed_at")

    def _table(self, name: str) -> DataFrame:
        """Return the good rows of a table."""
        return self._readers.judge(name).good(self._rows[name].frame)

    def _collected(self, asked: Mapping[str, Sequence[str]]) -> dict[str, Any]:  # pyarrow.Tables
        """Return columns of the good rows of some tables, asked for together."""
        frames = [
            self._table(name).select(F.lit(name).alias("table"), *columns)
            for name, columns in asked.items()
            if name in self._rows
        ]
        rows = reduce(_side_by_side, frames).toArrow() if frames else None
        found: dict[str, Any] = {}
        for name, columns in asked.items():
            schema = TABLES[name].schema
            schema = pa.schema([schema.field(each) for each in columns])
            if rows is None or name not in self._rows:
                found[name] = schema.empty_table()
                continue
            own = rows.filter(pc.equal(rows.column("table"), name)).select(list(columns))
            self._good[name] = own.num_rows
            found[name] = own.cast(schema)
        return found

    def changed(self, node: str) -> Any:  # a pyarrow.Table
        """Return the changes of subscriptions of one node."""
        return self._changed.filter(pc.equal(self._changed.column("node"), node))

    def deleted(self, node: str) -> Any:  # a pyarrow.Table
        """Return what became of the sessions of one node."""
        return self._deleted.filter(pc.equal(self._deleted.column("node"), node))

    def reports(self, node: str) -> Any:  # a pyarrow.Table
        """Return the reports of one node's devices, in order."""
        return self._reports.filter(pc.equal(self._reports.column("node"), node)).sort_by("seq")

    def versions(self, standings: Iterable[Standing]) -> Any:  # a pyarrow.Table
        """Return every version of a subscription that was in force at any time of the batch."""
        return pa.concat_tables([self._changed, *(each.in_force() for each in standings)])

    def events(self, shipped: Shipped, window_us: int) -> tuple[Any, list[tuple[int, str, int]]]:
        """Return all events in order, a pyarrow.Table, and how many publications windows and subjects had."""
        frames: list[DataFrame] = []
        if "publications" in self._rows:
            only = next(iter(shipped.files)) if len(shipped.files) == 1 else None
            counting = partial(_count, window_us, only)
            frames.append(published_events(self._table("publications"), shipped, counting=counting))
        small = [name for name in EVENT_TABLES if name in self._rows]
        frames += [self._table(name).select(*self._readers.events(name)) for name in small]
        if not frames:
            return EVENT.empty_table(), []
        found = reduce(DataFrame.unionByName, frames).toArrow().cast(EVENT)
        counts = self._split_counts(found)
        self._note(found, small)
        kinds = found.column("kind")
        is_move = pc.or_(pc.not_equal(kinds, PRESENCE), pc.is_in(found.column("change"), pa.array(MOVES)))
        events = found.filter(pc.and_(pc.less(kinds, _COUNTED), is_move))
        return events.sort_by([("node", "ascending"), ("seq", "ascending")]).combine_chunks(), counts

    def _split_counts(self, found: Any) -> list[tuple[int, str, int]]:
        rows = found.filter(pc.equal(found.column("kind"), _COUNTED))
        numbers = rows.column("notification_seq").to_pylist()
        self._good["publications"] = sum(numbers)
        self._end(rows, "expires_at")
        columns = (rows.column("at").cast(pa.int64()).to_pylist(), rows.column("subject").to_pylist(), numbers)
        return [row for row in zip(*columns, strict=True) if row[1] is not None]

    def _note(self, found: Any, small: Iterable[str]) -> None:
        """Note how many rows there were, and until when."""
        for name in small:
            rows = found.filter(pc.equal(found.column("kind"), _KINDS[name]))
            self._good[name] = rows.num_rows
            self._end(rows, "at")

    def _end(self, rows: Any, column: str) -> None:
        ends = rows.group_by("node").aggregate([(column, "max")])
        times = ends.column(f"{column}_max").cast(TIME_TYPE).cast(pa.int64()).to_pylist()
        for node, at in zip(ends.column("node").to_pylist(), times, strict=True):
            self.ends[node] = max(at, self.ends.get(node, at))

    def dead(self) -> Iterator[Any]:
        """Yield what cannot be read; Spark is not asked where every row was good."""
        for name, (frame, number) in self._rows.items():
            if number is None or number != self._good.get(name):
                yield self._readers.judge(name).dead(frame).toArrow().cast(TABLES["dead_letters"].schema)


def _side_by_side(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.unionByName(right, allowMissingColumns=True)


def _count(window_us: int, only: str | None, batch: Any) -> Iterator[Any]:  # a pyarrow.RecordBatch
    """Yield how many publications there are by node, subject and window, and the time of the last, as events."""
    published = batch.column("published_at").cast(TIME_TYPE)
    numbers = published.cast(pa.int64()).to_numpy()
    columns = {
        "node": pa.repeat(only, batch.num_rows) if only is not None else batch.column("node"),
        "subject": batch.column("subject"),
        "at": pa.array(numbers - numbers % window_us),
        "expires_at": published,
        "seq": batch.column("seq"),
    }
    wanted = [("seq", "count"), ("seq", "max"), ("expires_at", "max")]
    found = pa.table(columns).group_by(["node", "subject", "at"]).aggregate(wanted)
    given = {
        "group": pa.repeat(0, found.num_rows),
        "kind": pa.repeat(_COUNTED, found.num_rows),
        "node": found.column("node"),
        "seq": found.column("seq_max"),
        "at": found.column("at"),
        "expires_at": found.column("expires_at_max"),
        "subject": found.column("subject"),
        "notification_seq": found.column("seq_count"),
    }
    made = [given[f.name].cast(f.type) if f.name in given else pa.nulls(found.num_rows, f.type) for f in EVENT]
    yield from pa.Table.from_arrays(made, schema=EVENT).combine_chunks().to_batches()


def matched(events: Any, versions: Any) -> Any:  # pyarrow.Tables
    """Return rows of ``matches``: each publication with the subscriptions that its event lists by number."""
    schema = TABLES["matches"].schema
    published = events.filter(pc.equal(events.column("kind"), PUBLISHED)).combine_chunks()
    if not published.num_rows:
        return schema.empty_table()
    lists = published.column("interests").combine_chunks()
    parents, interests = pc.list_parent_indices(lists), lists.flatten()
    keys = _numbered(published.column("node").take(parents), interests)
    places = pc.index_in(keys, _numbered(versions.column("node"), versions.column("seq")))
    found = versions.take(places)
    columns = [published.column(name).take(parents) for name in ("node", "seq", "at")]
    columns += [found.column(name) for name in ("session", "subject_filter", "name")]
    columns.append(interests)
    return pa.Table.from_arrays([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _numbered(nodes_: Any, seqs: Any) -> Any:
    """Return texts that say node and number."""
    return pc.binary_join_element_wise(nodes_, pc.cast(seqs, pa.string()), ":").combine_chunks()
